"""Creates the policy of a server from the options of the server."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InputError
from ..policies.auto import Candidate
from ..policy import Policy, make_policy

POLICIES = ("auto", "sequential", "streams", "batching", "search", "top", "top+")
"""The policies of this package that a server supports."""
_BY_BLOCKS = ("search", "top", "top+")
"""The policies that run blocks of models.

In the simulator, a stage of a combined block may hold operators of several models. In a server, the
blocks of a combined block run side by side, each by its own plan.
"""
_BUDGET = 20
"""How many block combinations a search simulates, at the start and whenever models change.
"""
_ORDER = {"order": "deadline"}
"""The order in which servers serve their queues: earliest deadline first.

Requests without a deadline are served in order of arrival. The order `longest` would starve models
that have few requests or a high latency.
"""


@dataclass(frozen=True)
class Choice:
    """The choice of a policy, with the options that servers offer.

    Attributes
    ----------
    policy: name of a registered policy, or a function that creates a `Policy`.
    instances: maximum number of instances that run at the same time.
    max_batch: maximum number of rows in one batch.
    max_delay_us: maximum time in microseconds that a request waits for other requests to join it.
    blocks: maximum number of blocks per model, for policies that run blocks.
    agents: file of trained agents, which the policy `top` needs.
    """

    policy: str | Callable[[], Policy] = "auto"
    instances: int = 2
    max_batch: int = 64
    max_delay_us: float = 0.0
    blocks: int = 4
    agents: str | os.PathLike[str] | None = None

    @property
    def num_running(self) -> int:
        """The maximum number of instances, or of blocks, that run at the same time."""
        return 1 if self.policy == "sequential" else self.instances

    @property
    def num_instances(self) -> int:
        """The number of instances that each model needs.

        If a policy runs models block by block, a request occupies one instance from the start of
        its first block to the end of its last block.
        """
        return max(self.blocks, self.instances) if self.runs_blocks else self.num_running

    @property
    def num_blocks(self) -> int:
        """The maximum number of blocks per model; 1 if models are not divided into blocks."""
        return self.blocks if self.runs_blocks else 1

    @property
    def runs_blocks(self) -> bool:
        """Whether the policy runs blocks of models."""
        return self.policy in _BY_BLOCKS

    def make(self) -> Policy:
        """Create a new policy object.

        Raises
        ------
        InputError
            The policy does not exist, runs models as one joint graph, or needs agents that were not
            given.
        """
        if not isinstance(self.policy, str):
            return self.policy()
        if self.policy == "pos":
            raise InputError(
                "policy `pos` runs several models as one graph, and compiled models run by their "
                f"own plans; choose one of {', '.join(POLICIES)}"
            )
        if self.policy == "top":
            return make_policy("top", agents=self.agents, inside=self.num_instances)
        if self.policy in _BY_BLOCKS:
            return make_policy(self.policy, budget=_BUDGET, inside=self.num_instances)
        if self.policy == "sequential":
            return make_policy("sequential", **_ORDER)
        if self.policy == "streams":
            return make_policy("streams", streams=self.instances, **_ORDER)
        if self.policy == "batching":
            return make_policy("batching", **self._batching(self.instances, self.max_batch))
        if self.policy == "auto":
            return make_policy("auto", candidates=self._candidates(), background=True)
        return make_policy(self.policy)

    def _batching(self, streams: int, batch: int) -> dict[str, float]:
        return {"batch": batch, "delay_us": self.max_delay_us, "streams": streams}

    def _candidates(self) -> list[Candidate]:
        found = [Candidate("sequential", tuple(_ORDER.items()))]
        for streams in range(2, self.instances + 1):
            found.append(Candidate("streams", (("streams", streams), *_ORDER.items())))
        for batch in (2, 4, 8, 16, 32, 64):
            if batch <= self.max_batch:
                for streams in sorted({1, self.instances}):
                    found.append(
                        Candidate("batching", tuple(self._batching(streams, batch).items()))
                    )
        return found
