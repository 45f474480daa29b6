"""Computes from a GPU's data sheet how long the blocks of a kernel take, without the GPU."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ScheduleError
from ..machine.multiprocessors import residency_limits
from ..plain_data import is_finite
from ..program.kernel_demand import KernelDemand
from .gpu_blocks import BlockGpu, BlockKernel


@dataclass(frozen=True)
class BlockDevice:
    """The properties of a GPU from which the times of blocks are computed.

    Attributes
    ----------
    arch: the architecture, such as `sm_80`.
    multiprocessors: number of multiprocessors.
    flops_a_us, bytes_a_us: operations and bytes of memory traffic per microsecond, of the whole
        GPU.
    launch_us, gap_us, wait_us: as in `BlockGpu`.
    efficiency: the share of `flops_a_us` that kernels reach on a busy multiprocessor.
    busy_threads: threads that keep the arithmetic of a multiprocessor busy. A block with fewer
        threads computes proportionally slower, and leaves the rest of the arithmetic to other
        blocks.
    thread_bytes_a_us: bytes per microsecond that one thread moves at most. A thread waits for its
        loads, so a block reaches the full rate only if it has enough threads.
    block_us: microseconds that a block takes in addition to its work.

    Raises
    ------
    ScheduleError: a number by which this class divides is not above 0.
    """

    arch: str
    multiprocessors: int
    flops_a_us: float
    bytes_a_us: float
    launch_us: float
    gap_us: float
    wait_us: float
    efficiency: float
    busy_threads: int = 256
    thread_bytes_a_us: float = 32.0
    block_us: float = 0.5

    def __post_init__(self) -> None:
        for name in ("flops_a_us", "efficiency", "busy_threads", "thread_bytes_a_us", "block_us"):
            value = getattr(self, name)
            if not is_finite(value) or value <= 0:
                raise ScheduleError(f"`{name}` is {value!r}; it must be a number above 0")

    @property
    def gpu(self) -> BlockGpu:
        """The properties of the GPU that the simulation of blocks needs."""
        return BlockGpu(
            self.multiprocessors, self.bytes_a_us, self.launch_us, self.gap_us, self.wait_us
        )

    def kernel(
        self, demand: KernelDemand, flops: float, nbytes: float, efficiency: float = 1.0
    ) -> BlockKernel:
        """A kernel whose blocks share `flops` and `nbytes` equally.

        Alone on the GPU, a block takes `block_us` plus the longer of its arithmetic and its memory
        traffic, since a GPU does both at the same time.

        Parameters
        ----------
        efficiency: the speed of a block of this kernel, as a share of the speed of blocks of other
            kernels. For the rest of its time a block waits, and leaves the arithmetic to other
            blocks.

        Raises
        ------
        DeviceError: the limits of `arch` are not known.
        ScheduleError: `flops` or `nbytes` is not a number of at least 0, or `efficiency` is not
            above 0.
        """
        if not is_finite(efficiency) or efficiency <= 0:
            raise ScheduleError(
                f"the efficiency of the kernel `{demand.function}` is {efficiency!r}; it must be "
                "above 0"
            )
        for name, value in (("flops", flops), ("nbytes", nbytes)):
            if not is_finite(value) or value < 0:
                raise ScheduleError(
                    f"`{name}` of the kernel `{demand.function}` is {value!r}; it must be 0 or more"
                )
        share = min(1.0, demand.threads / self.busy_threads)
        peak_a_us = self.flops_a_us / self.multiprocessors * self.efficiency
        arithmetic_us = flops / demand.blocks / (peak_a_us * share)
        traffic_us = nbytes / demand.blocks / (demand.threads * self.thread_bytes_a_us)
        block_us = self.block_us + max(arithmetic_us / efficiency, traffic_us)
        blocks, threads, registers, shared = residency_limits(demand, self.arch).values()
        return BlockKernel(
            demand.blocks,
            (blocks, threads, registers, shared),
            block_us,
            share * arithmetic_us / block_us,
            nbytes / demand.blocks,
        )
