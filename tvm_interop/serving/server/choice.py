"""Which policy a server serves by."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from ...errors import InputError
from ..policies.auto import Candidate
from ..policy import Policy, make_policy

POLICIES = ("auto", "sequential", "streams", "batching", "search", "top", "top+")
"""The policies of this package that a server has."""
_BY_BLOCKS = ("search", "top", "top+")
"""The policies that run blocks of models. On paper the operators of blocks that run together are
in stages across models; here each block runs by its own plan, beside the others."""
_BUDGET = 20
"""Combinations that a search simulates before the first request, and whenever models change."""
_ORDER = {"order": "deadline"}
"""First come first served among requests without a deadline: the longest queue first would starve
models that few ask for, or that take long."""


@dataclass(frozen=True)
class Choice:
    """A policy and the options that servers have.

    Attributes
    ----------
    policy: a name that `register_policy` knows, or something that makes a `Policy`.
    instances: how many instances may run at once.
    max_batch: the most rows that are joined into one batch.
    max_delay_us: how long a request may wait for others to join it.
    blocks: into how many blocks policies that run blocks divide each model at most.
    agents: the file of trained agents that `top` needs.
    """

    policy: str | Callable[[], Policy] = "auto"
    instances: int = 2
    max_batch: int = 64
    max_delay_us: float = 0.0
    blocks: int = 4
    agents: str | os.PathLike[str] | None = None

    @property
    def num_running(self) -> int:
        """Instances, or blocks of a combined block, that run at once."""
        return 1 if self.policy == "sequential" else self.instances

    @property
    def num_instances(self) -> int:
        """Instances that each model needs: by blocks, as many requests of it are on their way."""
        return max(self.blocks, self.instances) if self.runs_blocks else self.num_running

    @property
    def num_blocks(self) -> int:
        """Into how many blocks models are to be divided at most; 1 where they run whole."""
        return self.blocks if self.runs_blocks else 1

    @property
    def runs_blocks(self) -> bool:
        """Whether the policy runs blocks of models."""
        return self.policy in _BY_BLOCKS

    def make(self) -> Policy:
        """A new policy.

        Raises
        ------
        InputError
            There is none of that name, it runs models jointly, or it lacks its agents.
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
