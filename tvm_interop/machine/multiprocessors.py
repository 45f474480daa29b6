"""Computes how many blocks of a kernel a GPU's multiprocessor holds at once.

The rules come from NVIDIA's occupancy calculator (`cuda_occupancy.h` of the CUDA toolkit), which
the tests compile and compare with this module:

- A multiprocessor holds threads as whole warps of 32 threads.
- Registers are allocated to each warp, in units of 256. A multiprocessor has four parts, each with
  a quarter of the registers, and a warp takes all its registers from one part.
- Shared memory is allocated to each block. The unit is 256 bytes before compute capability 8.0, and
  128 bytes from 8.0 on. From 8.0 on, CUDA takes 1 KiB in each block for itself.
- A multiprocessor holds at most a certain number of blocks and of warps.

A multiprocessor divides one memory into shared memory and cache. A kernel can choose the division.
This module assumes the division with the most shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import DeviceError, did_you_mean
from ..program.kernel_demand import KernelDemand

WARP = 32
_REGISTER_UNIT = 256
_PARTS = 4
_MOST_BLOCK_THREADS = 1024
_KIB = 1024


@dataclass(frozen=True)
class Multiprocessor:
    """The limits of one multiprocessor of a GPU architecture.

    Attributes
    ----------
    blocks, warps: the most blocks and warps that a multiprocessor holds at once.
    shared_bytes: the most shared memory that all its blocks get together.
    block_shared_bytes: the most shared memory that one block may ask for.
    shared_unit: unit in which shared memory is allocated, in bytes.
    reserved_bytes: shared memory that CUDA itself takes in each block.
    registers: number of 32-bit registers.
    block_registers: the most registers that one block may take.
    """

    blocks: int
    warps: int
    shared_bytes: int
    block_shared_bytes: int
    shared_unit: int = 128
    reserved_bytes: int = _KIB
    registers: int = 65536
    block_registers: int = 65536


def _before_80(blocks: int, warps: int, shared_kib: int) -> Multiprocessor:
    """A multiprocessor of compute capability 7.x, where one block may take all shared memory."""
    return Multiprocessor(blocks, warps, shared_kib * _KIB, shared_kib * _KIB, 256, 0)


def _since_80(blocks: int, warps: int, shared_kib: int) -> Multiprocessor:
    """Describe a multiprocessor since compute capability 8.0.

    A block may use all shared memory of the multiprocessor except 1 KiB.
    """
    return Multiprocessor(blocks, warps, shared_kib * _KIB, (shared_kib - 1) * _KIB)


def _before_70(
    blocks: int, shared_kib: int, registers: int, block_registers: int
) -> Multiprocessor:
    """Describe a multiprocessor before compute capability 7.0.

    A block may use at most 48 KiB of the multiprocessor's shared memory.
    """
    return Multiprocessor(
        blocks, 64, shared_kib * _KIB, 48 * _KIB, 256, 0, registers, block_registers
    )


MULTIPROCESSORS: Mapping[str, Multiprocessor] = {
    "sm_37": _before_70(16, 112, 131072, 65536),
    "sm_53": _before_70(32, 64, 65536, 32768),
    "sm_62": _before_70(32, 64, 65536, 32768),
    "sm_70": _before_80(32, 64, 96),
    "sm_72": _before_80(32, 64, 96),
    "sm_75": _before_80(16, 32, 64),
    "sm_80": _since_80(32, 64, 164),
    "sm_86": _since_80(16, 48, 100),
    "sm_87": _since_80(16, 48, 164),
    "sm_89": _since_80(24, 48, 100),
    "sm_90": _since_80(32, 64, 228),
    "sm_100": _since_80(32, 64, 228),
    "sm_120": _since_80(24, 48, 100),
}
"""The limits by architecture.

The numbers come from the table "Technical Specifications per Compute Capability" in NVIDIA's CUDA
C++ Programming Guide: resident blocks, resident warps, and the shared memory and registers of a
multiprocessor and of a block. For architectures before 7.5 they come from editions of the guide
before CUDA 13. The units in which registers and shared memory are allocated come from
`cuda_occupancy.h`.
"""


@dataclass(frozen=True)
class Gpu:
    """A type of GPU, such as the V100.

    Attributes
    ----------
    arch: the architecture, such as `sm_80`.
    multiprocessors: the number of multiprocessors.
    """

    arch: str
    multiprocessors: int


GPUS: Mapping[str, Gpu] = {
    "k80": Gpu("sm_37", 13),
    "jetson_nano": Gpu("sm_53", 1),
    "jetson_tx2": Gpu("sm_62", 2),
    "v100": Gpu("sm_70", 80),
    "xavier_nx": Gpu("sm_72", 6),
    "rtx2080ti": Gpu("sm_75", 68),
    "rtx2080super": Gpu("sm_75", 48),
    "a100": Gpu("sm_80", 108),
    "rtx3080": Gpu("sm_86", 68),
    "a40": Gpu("sm_86", 84),
    "h100": Gpu("sm_90", 132),
}
"""The GPUs of the papers on IOS (K80, V100, RTX 2080 Ti), Opara (RTX 2080 SUPER, A100), LIOS (RTX
3080), HIOS (A40) and TOP (Jetson Nano, Jetson TX2, Xavier NX), and the H100 SXM5. `k80` is one of
the two GPUs of a K80 card.

The numbers of multiprocessors come from NVIDIA's white papers on the architectures: GK110 and
GK210 (2014), Volta (2017), Turing (2018), A100 (2020), GA102 (2020), H100 (2022). For the Jetsons
they are computed from the numbers of cores in the data sheets: a multiprocessor has 128 cores in
Maxwell and Pascal, and 64 cores in Volta. The RTX 2080 SUPER has 3,072 cores, 64 in each
multiprocessor."""


@dataclass(frozen=True)
class Residency:
    """How many blocks of a launch one multiprocessor holds at once.

    Attributes
    ----------
    blocks: the number of blocks that a multiprocessor holds; 0 if the kernel cannot be launched.
    limited_by: the resource that limits the number: `blocks`, `threads`, `registers` or `shared
        memory`. If several resources limit it equally, the first of them in this order.
    """

    blocks: int
    limited_by: str


def multiprocessor(arch: str) -> Multiprocessor:
    """The limits of a multiprocessor of `arch`, such as `sm_90`.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`. The message lists the known architectures.
    """
    found = MULTIPROCESSORS.get(arch)
    if found is None:
        raise DeviceError(
            f"the limits of a multiprocessor of `{arch}` are not known here"
            f"{did_you_mean(arch, list(MULTIPROCESSORS))}; there are {', '.join(MULTIPROCESSORS)}"
        )
    return found


def residency(demand: KernelDemand, arch: str) -> Residency:
    """How many blocks of a launch a multiprocessor of `arch` holds, and the limiting resource.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`.
    """
    limits = residency_limits(demand, arch)
    blocks = min(limits.values())
    return Residency(blocks, next(name for name, most in limits.items() if most == blocks))


def residency_limits(demand: KernelDemand, arch: str) -> dict[str, int]:
    """For each resource, the most blocks of a launch that fit on a multiprocessor of `arch`.

    The keys are `blocks`, `threads`, `registers` and `shared memory`, in this order. Each number is
    the limit that one resource sets by itself. It is 0 if a single block needs more of this
    resource than a multiprocessor has.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`.
    """
    sm = multiprocessor(arch)
    return {
        "blocks": sm.blocks,
        "threads": _by_threads(demand, sm),
        "registers": _by_registers(demand, sm),
        "shared memory": _by_shared_memory(demand, sm),
    }


def share_of_multiprocessor(demand: KernelDemand, arch: str) -> float:
    """The fraction of a multiprocessor's threads, registers or shared memory that one block takes.

    The result is the largest of three fractions: of threads, of registers and of shared memory.
    They are computed from the resources that are allocated to the block, which may be more than the
    block asks for. If one of these resources is not enough to launch the kernel, the result is
    above 1.

    Raises
    ------
    DeviceError
        The package does not know the limits of `arch`.
    """
    sm = multiprocessor(arch)
    warps = _warps(demand)
    return max(
        warps / sm.warps,
        warps * _registers_of_warp(demand) / sm.registers,
        _shared_of_block(demand, sm) / sm.shared_bytes,
    )


def waves(demand: KernelDemand, gpu: Gpu) -> float:
    """The number of blocks of a launch, divided by how many of them a GPU holds at once.

    If the result is above 1, some blocks must wait until other blocks of the launch end. The result
    is infinite if the kernel cannot be launched.
    """
    at_once = residency(demand, gpu.arch).blocks * gpu.multiprocessors
    return demand.blocks / at_once if at_once else float("inf")


def _warps(demand: KernelDemand) -> int:
    return -(-demand.threads // WARP)


def _registers_of_warp(demand: KernelDemand) -> int:
    return _rounded_up(demand.registers * WARP, _REGISTER_UNIT)


def _shared_of_block(demand: KernelDemand, sm: Multiprocessor) -> int:
    return _rounded_up(demand.shared_bytes + sm.reserved_bytes, sm.shared_unit)


def _by_threads(demand: KernelDemand, sm: Multiprocessor) -> int:
    return 0 if demand.threads > _MOST_BLOCK_THREADS else sm.warps // _warps(demand)


def _by_registers(demand: KernelDemand, sm: Multiprocessor) -> int:
    of_warp = _registers_of_warp(demand)
    if of_warp == 0:
        return sm.blocks
    # Assume that the warps of a block are spread evenly over the multiprocessor's four parts. The
    # block fits if each part has enough registers for its warps.
    if of_warp * _rounded_up(_warps(demand), _PARTS) > sm.block_registers:
        return 0
    return sm.registers // _PARTS // of_warp * _PARTS // _warps(demand)


def _by_shared_memory(demand: KernelDemand, sm: Multiprocessor) -> int:
    if demand.shared_bytes > sm.block_shared_bytes:
        return 0
    of_block = _shared_of_block(demand, sm)
    return sm.shared_bytes // of_block if of_block else sm.blocks


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
