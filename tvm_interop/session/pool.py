"""The instances of one artifact. The runs of a session share them."""

from __future__ import annotations

import queue

from ..artifact.artifact import Artifact
from ..execution.graph_module import GraphModule
from .tensor_info import TensorInfo, infos_of_ports


class Pool:
    """The instances of one artifact. A run takes an instance from `modules` and puts it back.

    Runs of all instances are counted together with those of `first`.
    """

    def __init__(self, artifact: Artifact, instances: int) -> None:
        self.artifact = artifact
        self.modules: queue.LifoQueue[GraphModule] = queue.LifoQueue(instances)
        self.first = GraphModule(artifact)
        self.modules.put(self.first)
        for _ in range(instances - 1):
            module = GraphModule(artifact)
            module.count_with(self.first)
            self.modules.put(module)
        if self._shares_memory:  # Further sizes take little memory.
            for module in self.modules.queue:
                module.open_all_sizes()

    @property
    def own_nbytes(self) -> int:
        """The number of bytes of the tensors of all instances, without `turns_nbytes`."""
        kinds = ("input", "output") if self._shares_memory else ("input", "output", "weight")
        own = sum(v.nbytes for v in self.first.plan.values if v.storage in kinds)
        arena = 0 if self._shares_memory else self.first.plan.arena_bytes
        return (own + arena) * self.modules.maxsize

    @property
    def turns_nbytes(self) -> int:
        """The number of bytes that these instances share with instances for other sizes, estimated.

        They take turns with the memory for the tensors between operators, and have the weights
        together. A kernel of a library may copy its inputs and outputs into another layout. Kernels
        take turns with the memory of the copies, so the largest that one kernel could copy counts.
        """
        plan = self.first.plan
        copied = max(
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
        if not self._shares_memory:
            return copied * self.modules.maxsize
        weights = sum(v.nbytes for v in plan.values if v.storage == "weight")
        return (plan.arena_bytes + copied) * self.modules.maxsize + weights

    @property
    def _shares_memory(self) -> bool:
        """Whether the native library runs the instances on a CPU."""
        return self.artifact.native is not None and not self.artifact.is_for_gpus

    def infos(self) -> tuple[list[TensorInfo], list[TensorInfo]]:
        """Return the inputs and the outputs."""
        inputs, outputs = map(infos_of_ports, self.first.ports(), self.first.open_shapes())
        return inputs, outputs

    def count_with(self, other: Pool) -> None:
        """Count runs together with those of `other`; no run of this pool has begun yet."""
        for module in self.modules.queue:
            module.count_with(other.first)
