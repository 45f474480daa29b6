"""The instances of one artifact. The runs of a session share them."""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifact.artifact import Artifact
from ..errors import ExecutionError
from ..execution.graph_module import GraphModule
from ..execution.strings import DTYPE
from .after_fork import renew_in_children
from .tensor_info import TensorInfo, infos_of_ports

if TYPE_CHECKING:
    from ..execution.operator_profile import OpProfile
    from ..plan.plan import Plan
    from .profile_file import ProfileFile


_LOOK_EVERY_S = 1.0
"""Seconds after which a waiting run looks for a free instance again.

A run that was interrupted may have freed its instance without `give_back`, which would wake the
waiting run.
"""


class Run:
    """Stands for a run, which uses one of the instances."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


def _on_the_stack(runs: Sequence[Run]) -> set[Run]:
    """Return those of `runs` that are still going on further out on this thread's stack."""
    found: set[Any] = set()
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in (Pool.run.__code__, Pool.profile.__code__):
            found.add(frame.f_locals.get("run"))
        frame = frame.f_back
    return set(runs) & found


class Pool:
    """The instances of one artifact. Each run uses an instance that no other run uses.

    The member `first` is one of the instances, and it counts the runs of all of them.
    """

    def __init__(self, artifact: Artifact, instances: int) -> None:
        self.artifact = artifact
        self._instances = instances
        self.first = GraphModule(artifact)
        # None stands for an instance that is made when it is taken.
        self._all: list[GraphModule | None] = [self.first]
        self._all += [self._made() for _ in range(instances - 1)]
        # The number of the instance that each run has. An entry vanishes together with its run,
        # even if the exception of a signal, such as that of Ctrl-C, prevents `give_back`.
        self._taken: weakref.WeakKeyDictionary[Run, int] = weakref.WeakKeyDictionary()
        self._renew()
        if self._shares_memory:  # All sizes share memory, so it costs little to open all.
            for module in self._modules():
                module.open_all_sizes()
        renew_in_children(self, Pool._renew)

    def run(
        self, feed: Mapping[str, Any], wanted: Sequence[int], profile: ProfileFile | None
    ) -> list[np.ndarray]:
        """Run the model on an instance; see `GraphModule.run_on`.

        Parameters
        ----------
        profile: takes the times of the run; None if nobody asks for them.

        Returns
        -------
        The outputs at the positions `wanted`, as new arrays.
        """
        run = Run()
        try:
            module = self.take(run)
            given = _known_to(module, feed)
            if profile is None:
                made = module.run_on(given, wanted)
            else:
                made = profile.run(module, given, wanted)
            results = [module.as_strings(i, made[i]) for i in wanted]
        finally:
            self.give_back(run)
        # An output that is named twice is returned in two arrays.
        return results if len(set(wanted)) == len(wanted) else [one.copy() for one in results]

    def profile(self, feed: Mapping[str, Any]) -> list[OpProfile]:
        """Run once and return the times at which each operator ran."""
        run = Run()
        try:
            module = self.take(run)
            module.set_input(**_known_to(module, feed))
            return module.profile()
        finally:
            self.give_back(run)

    def take(self, run: Run) -> GraphModule:
        """Return an instance that no other run has. Wait until there is one.

        The caller must call `give_back(run)`, even if this method raises an exception.

        Raises
        ------
        ExecutionError
            No instance is free, and a run that is further out on this thread's stack has one.
        """
        with self._lock:
            # The earlier runs of this thread have ended, perhaps by an exception, unless they are
            # on its stack: a signal handler may begin a run in the middle of another.
            earlier = [other for other in self._taken if other.thread == run.thread]
            around = _on_the_stack(earlier) if earlier else set()
            for ended in set(earlier) - around:
                del self._taken[ended]
            while (number := self._free()) is None:
                if around:
                    raise ExecutionError(
                        "this run began within another run of the session, for example in a signal "
                        "handler, and all instances are in use: make the session with more "
                        f"instances (instances={self._instances + 1})"
                    )
                self._changed.wait(_LOOK_EVERY_S)
            self._taken[run] = number
        module = self._all[number]
        if module is None:
            module = self._all[number] = self._made()
        return module

    def give_back(self, run: Run) -> None:
        """Make the instance of a run free again."""
        with self._lock:
            self._taken.pop(run, None)
            self._changed.notify()

    def _free(self) -> int | None:
        """The number of an instance that no run has; None if there is none."""
        taken = set(self._taken.values())
        return next((number for number in range(self._instances) if number not in taken), None)

    def _renew(self) -> None:
        """Make new locks; replace, in a forked child, instances that threads of the parent run."""
        # `with` takes a plain lock without a moment in which a signal could leave it locked.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        for number in self._taken.values():
            self._all[number] = None
        self._taken = weakref.WeakKeyDictionary()

    def _made(self) -> GraphModule:
        module = GraphModule(self.artifact)
        module.count_with(self.first)
        return module

    def _modules(self) -> list[GraphModule]:
        """The instances that were made."""
        return [module for module in self._all if module is not None]

    @property
    def has_open_shapes(self) -> bool:
        """Whether these instances run on a CPU, and take inputs of several shapes."""
        return len(self.artifact.input_shapes) > 1 and not self.artifact.is_for_gpus

    @property
    def own_nbytes(self) -> int:
        """The bytes of the tensors that only these instances use.

        `turns_nbytes` has the shared bytes.
        """
        if self._shares_memory:
            return self._ports_nbytes * self._instances
        plan = self.first.plan
        own = sum(v.nbytes for v in plan.values if v.storage not in ("arena", "alias"))
        return (plan.arena_bytes + own) * self._instances

    @property
    def turns_nbytes(self) -> int:
        """An estimate of the bytes that these instances share with instances for other sizes.

        All sizes share the weights and the memory for the tensors between operators. A kernel of a
        library may copy its inputs and outputs into another layout. All kernels share one block of
        memory for such copies, so only the largest copies of a single kernel count.
        """
        if not self._shares_memory:
            return _most_copied(self.first.plan) * self._instances
        native, ports = self.artifact.native, self._ports_nbytes
        assert native is not None
        # The plan says which tensors may be copied, but reading the plan takes a second. So assume
        # that all inputs, outputs and tensors between operators may be copied.
        between = native.instance_nbytes(0) - ports
        return (between + between + ports) * self._instances + native.weights_nbytes

    @property
    def _ports_nbytes(self) -> int:
        """The number of bytes of the inputs and outputs of one instance."""
        ports = [port for both in self.first.ports() for port in both]
        return sum(math.prod(p.shape) * np.dtype(p.dtype).itemsize for p in ports)

    @property
    def _shares_memory(self) -> bool:
        """Whether the instances share memory: only if the native library runs them on a CPU."""
        return self.artifact.native is not None and not self.artifact.is_for_gpus

    def infos(self) -> tuple[list[TensorInfo], list[TensorInfo]]:
        """Return descriptions of the model's inputs and of its outputs."""
        inputs, outputs = map(infos_of_ports, self.first.ports(), self.first.open_shapes())
        texts = self.first.input_strings, self.first.output_strings
        inputs, outputs = (
            [each._replace(dtype=DTYPE) if each.name in strings else each for each in infos]
            for infos, strings in zip((inputs, outputs), texts, strict=True)
        )
        return inputs, outputs

    def count_with(self, other: Pool) -> None:
        """Count all runs of this pool as runs of `other`; call this before the first run."""
        for module in self._modules():
            module.count_with(other.first)


def _most_copied(plan: Plan) -> int:
    """The largest number of bytes that a kernel of a library could copy into another layout."""
    return max(
        (
            sum(
                plan.values[v].nbytes
                for v in {*op.inputs, *op.outputs}
                if plan.values[v].layout == "plain" and not plan.is_constant(v)
            )
            for op in plan.operators
            if op.library is not None
        ),
        default=0,
    )


def _known_to(module: GraphModule, feed: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the inputs in `feed` that the module has.

    It lacks the inputs that were empty when it was compiled (see `empty_inputs`).
    """
    if len(feed) == module.get_num_inputs():
        return feed
    return {name: value for name, value in feed.items() if module.get_input_index(name) >= 0}
