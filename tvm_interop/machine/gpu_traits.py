"""The traits of operators on a GPU: the resources of a multiprocessor that their kernels need.

The machine code of TVM's kernels says how much of each resource they need. For an operator that a
library computes, the library chooses the kernel only when it runs on a GPU. So for such an
operator, this module assumes the default configuration of a matrix product in CUTLASS 3.5
(`cutlass/gemm/device/default_gemm_configuration.h`, which NVIDIA publishes), and marks the demand
as assumed:

- float32: tiles of 128x128, steps of 8 along the sum, 256 threads, two stages.
- float16, and float32 with TF32 allowed: tiles of 128x256 on tensor cores, 256 threads. From sm_80
  on, steps of 64 numbers of 2 bytes and three stages. Before sm_80, and on GPUs where a block
  cannot have so much shared memory, steps of 32 such numbers and two stages. With numbers of 4
  bytes, a step has half as many numbers.

The numbers of registers per thread are our own assumption. For float32 we assume 128 registers, so
that two blocks fit into a multiprocessor. On tensor cores each thread keeps 128 sums, so we assume
255 registers, the most that a thread can have.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..errors import DeviceError
from ..program.kernel_demand import GpuKernel, KernelDemand
from ..program.library_op import LibraryOp
from ..program.program import Operator, Program
from ..program.traits import OperatorTraits, operator_traits
from .multiprocessors import MULTIPROCESSORS, multiprocessor, share_of_multiprocessor

_LOG = logging.getLogger("tvm_interop")

_THREADS = 256
_ROWS = 128
_COLUMNS, _COLUMNS_ON_TENSOR_CORES = 128, 256
_REGISTERS, _REGISTERS_ON_TENSOR_CORES = 128, 255
_FLOAT32_STAGE_BYTES = 8 * 4
_HALF_STAGE_BYTES = {3: 64 * 2, 2: 32 * 2}
"""For matrix products on tensor cores, by the number of stages of the kernel's pipeline: the bytes
of one row of a tile that one stage holds."""


def demands_arch(archs: Iterable[str]) -> str | None:
    """The newest architecture in `archs` that is in `MULTIPROCESSORS`; None if there is none."""
    known = [arch for arch in archs if arch in MULTIPROCESSORS]
    return max(known, key=lambda arch: int(arch[3:]), default=None)


def gpu_traits(
    program: Program, kernels: Mapping[str, GpuKernel], arch: str | None
) -> list[OperatorTraits]:
    """The traits of each operator of `program` on a GPU, by id.

    A block of a launch takes a fraction of each resource of a multiprocessor: threads, registers
    and shared memory. The demand of an operator is the largest of these fractions over all of its
    launches (section 3.2 of the paper on Opara). An operator that launches nothing, such as a view,
    has the demand 0.

    Parameters
    ----------
    kernels: the resources of a GPU that TVM's kernels need, by the kernel's name.
    arch: the architecture, such as `sm_90`. If it is None, the demands are unknown, and a warning
        says so.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`. Or the kernels were not compiled for `arch`.
        Or a library computes an operator of a kind for which this module assumes no kernel.
    """
    traits = operator_traits(program)
    traits = [
        replace(found, flops=op.flops or _flops(kernels, op.kernel))
        for found, op in zip(traits, program.operators, strict=True)
    ]
    if arch is None:
        _LOG.warning(
            "the resources that the operators need are not known, because none of the "
            "architectures is among %s; operators are compared by flops and bytes",
            ", ".join(MULTIPROCESSORS),
        )
        return traits
    multiprocessor(arch)
    launches = [launches_of(op, kernels, arch) for op in program.operators]
    return [
        replace(found, demand=largest_share(each, arch), kernels=each)
        for found, each in zip(traits, launches, strict=True)
    ]


def largest_share(launches: Sequence[KernelDemand], arch: str) -> float:
    """Return the largest fraction of a multiprocessor's resources that a block of a launch takes.

    `share_of_multiprocessor` computes the fraction for one launch. Without launches the result is
    0.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`.
    """
    return max((share_of_multiprocessor(launch, arch) for launch in launches), default=0.0)


def launches_of(
    op: Operator, kernels: Mapping[str, GpuKernel], arch: str
) -> tuple[KernelDemand, ...]:
    """The resources that the launches of an operator need on a GPU of `arch`.

    Raises
    ------
    DeviceError
        The operator's kernel was not compiled for `arch`. Or a library computes the operator, and
        this module assumes no kernel for operators of this kind.
    """
    if op.library is not None and op.description is not None:
        return (assumed_demand(op.description, arch),)
    found = kernels.get(op.kernel)
    if found is None:
        return ()
    if arch not in found.launches:
        raise DeviceError(
            f"the kernel of `{op.name}` was compiled for {', '.join(found.launches)}, not for "
            f"{arch}; compile the model for {arch} too"
        )
    return found.launches[arch]


def assumed_demand(op: LibraryOp, arch: str) -> KernelDemand:
    """The assumed resources that a library's kernel for `op` needs on a GPU of `arch`.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`, or this module assumes no kernel for
        operators of this kind.
    """
    sizes = op.product_sizes
    if sizes is None:
        raise DeviceError(
            f"it is not known which resources a library's kernel for `{op.op}` needs on a GPU; "
            "let TVM's kernel run the operator"
        )
    limits = multiprocessor(arch)
    if op.dtype == "float32" and not op.fields().get("allow_tf32"):
        columns, registers = _COLUMNS, _REGISTERS
        shared = 2 * (_ROWS + columns) * _FLOAT32_STAGE_BYTES
    else:
        columns, registers = _COLUMNS_ON_TENSOR_CORES, _REGISTERS_ON_TENSOR_CORES
        of_stages = {
            stages: stages * (_ROWS + columns) * row for stages, row in _HALF_STAGE_BYTES.items()
        }
        stages = 3 if int(arch[3:]) >= 80 and of_stages[3] <= limits.block_shared_bytes else 2
        shared = of_stages[stages]
    count, of_rows, of_columns = sizes
    blocks = count * -(-of_rows // _ROWS) * -(-of_columns // columns)
    return KernelDemand(op.op, max(blocks, 1), _THREADS, registers, shared, assumed=True)


def _flops(kernels: Mapping[str, GpuKernel], kernel: str) -> int:
    found = kernels.get(kernel)
    return 0 if found is None else found.flops
