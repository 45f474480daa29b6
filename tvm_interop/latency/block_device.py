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
    efficiency: the fraction of `flops_a_us` that kernels reach on a busy multiprocessor.
    busy_threads: the number of threads that keep the arithmetic units of a multiprocessor busy. A
        block with fewer threads computes proportionally slower, and other blocks can use the rest
        of the units.
    thread_bytes_a_us: the most bytes that one thread can move in a microsecond. A thread waits for
        its loads, so a block needs many threads to reach the full rate of the memory.
    block_us: microseconds that each block takes in addition to its arithmetic and memory traffic.

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
        """Describe a kernel whose blocks each have an equal part of `flops` and `nbytes`.

        A block that runs alone on the GPU does its arithmetic and its memory traffic at the same
        time. So it takes `block_us` plus the longer of these two times.

        Parameters
        ----------
        efficiency: the speed at which a block of this kernel computes, divided by the speed of
            blocks of other kernels. With an efficiency below 1, a block waits often, and other
            blocks can use the arithmetic units while it waits.

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
