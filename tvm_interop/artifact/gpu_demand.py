"""The resources of a GPU's multiprocessors that the operators of an artifact need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ..machine.gpu_traits import demands_arch, gpu_traits
from ..machine.multiprocessors import residency, share_of_multiprocessor
from ..plan.as_program import program_of
from ..plan.plan import Plan
from ..program.kernel_demand import KernelDemand
from ..program.traits import OperatorTraits
from .artifact import Artifact


@dataclass(frozen=True)
class GpuDemand:
    """The resources of a GPU that one operator needs.

    Attributes
    ----------
    arch: the architecture that the numbers are for, such as `sm_90`.
    flops: floating-point operations.
    nbytes: bytes that the operator reads and writes.
    demand: the share of a multiprocessor that one block takes. It is the largest of the block's
        shares of the threads, the registers and the shared memory. If the operator has several
        launches, `demand` is the largest share of all launches.
    resident: the number of blocks that a multiprocessor holds at once, for the launch with the
        largest `demand`.
    limited_by: the resource that limits the number of resident blocks (see `Residency`).
    kernels: one entry for each launch. The numbers for a library's kernel are assumptions, and the
        entry says so.
    """

    arch: str
    flops: float
    nbytes: float
    demand: float
    resident: int
    limited_by: str
    kernels: tuple[KernelDemand, ...]

    def as_dict(self) -> dict[str, Any]:
        """The demand as plain data for JSON."""
        return {**asdict(self), "kernels": msgspec.to_builtins(list(self.kernels))}

    def __str__(self) -> str:
        largest = _largest(self.kernels, self.arch)
        assumed = "assumed of a library: " if largest.assumed else ""
        return (
            f"{assumed}{largest.blocks} blocks of {largest.threads} threads, {largest.registers} "
            f"registers each, {largest.shared_bytes} bytes of shared memory; {self.arch} holds "
            f"{self.resident} blocks on a multiprocessor, limited by {self.limited_by}; demand "
            f"{self.demand:.3f}"
        )


def gpu_demand_of(traits: OperatorTraits, arch: str) -> GpuDemand | None:
    """The resources that an operator with the traits `traits` needs; None if the operator launches
    no kernel.
    """
    if not traits.kernels:
        return None
    held = residency(_largest(traits.kernels, arch), arch)
    return GpuDemand(
        arch,
        traits.flops,
        traits.nbytes,
        traits.demand or 0.0,
        held.blocks,
        held.limited_by,
        traits.kernels,
    )


def gpu_demands(artifact: Artifact, plan: Plan) -> dict[str, GpuDemand]:
    """The resources of a GPU that each operator of a plan needs, by the operator's name.

    An artifact may hold kernels for several architectures. The numbers are for the newest
    architecture whose limits this package knows. The result is empty for artifacts of older
    versions, for CPUs, and if this package knows the limits of none of the architectures.

    Parameters
    ----------
    plan: the artifact's plan, or its fallback.
    """
    kernels = artifact.manifest.gpu_kernels
    arch = demands_arch({arch for kernel in kernels.values() for arch in kernel.launches})
    if arch is None:
        return {}
    program = program_of(plan, artifact.weights)
    found = zip(program.operators, gpu_traits(program, kernels, arch), strict=True)
    each = ((op.name, gpu_demand_of(traits, arch)) for op, traits in found)
    return {name: demand for name, demand in each if demand is not None}


def _largest(kernels: Sequence[KernelDemand], arch: str) -> KernelDemand:
    """The launch whose blocks take the largest share of a multiprocessor; the first of equal
    launches.
    """
    return max(kernels, key=lambda kernel: share_of_multiprocessor(kernel, arch))
