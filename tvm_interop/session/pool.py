"""The instances of one artifact. The runs of a session share them."""

from __future__ import annotations

import math
import queue
from typing import TYPE_CHECKING

import numpy as np

from ..artifact.artifact import Artifact
from ..execution.graph_module import GraphModule
from ..execution.strings import DTYPE
from .after_fork import renew_in_children
from .tensor_info import TensorInfo, infos_of_ports

if TYPE_CHECKING:
    from ..plan.plan import Plan


class Pool:
    """The instances of one artifact. A run takes an instance by `take` and returns it by `put`.

    The member `first` is one of the instances, and it counts the runs of all of them.
    """

    def __init__(self, artifact: Artifact, instances: int) -> None:
        self.artifact = artifact
        self._instances = instances
        # None stands for an instance that is made when it is taken.
        self._free: queue.LifoQueue[GraphModule | None] = queue.LifoQueue(instances)
        self.first = GraphModule(artifact)
        self.put(self.first)
        for _ in range(instances - 1):
            self.put(self._made())
        if self._shares_memory:  # All sizes share memory, so it costs little to open all.
            for module in self._modules():
                module.open_all_sizes()
        renew_in_children(self, Pool._renew)

    def take(self) -> GraphModule:
        """Return an instance that nobody uses. Wait until there is one."""
        taken = self._free.get()
        try:
            return taken if taken is not None else self._made()
        except Exception:
            self._free.put(None)
            raise

    def put(self, module: GraphModule) -> None:
        """Return an instance that was taken."""
        self._free.put(module)

    def _renew(self) -> None:
        """Replace, in a forked child, the instances that threads of the parent were running."""
        free = self._modules()
        self._free = queue.LifoQueue(self._instances)
        for module in [*[None] * (self._instances - len(free)), *free]:
            self._free.put(module)

    def _made(self) -> GraphModule:
        module = GraphModule(self.artifact)
        module.count_with(self.first)
        return module

    def _modules(self) -> list[GraphModule]:
        """The instances that are free."""
        return [module for module in self._free.queue if module is not None]

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
