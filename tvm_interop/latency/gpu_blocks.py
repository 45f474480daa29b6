"""Runs the thread blocks of kernels on a simulated GPU, from event to event.

The model of the GPU has four rules:

- Multiprocessors are alike. A kernel that is ready joins the end of the GPU's only queue. So
  kernels of different streams run in the order in which they arrive at the heads of their streams
  (Chen et al., "Opara", 2023, section 2.1). Only the kernel at the front of the queue sends blocks,
  and a block that runs is never interrupted. So a large kernel at the front delays all kernels
  behind it ("GPU blocking", section 2.3). Kernels that become ready at the same time join in launch
  order.
- A block goes to the least full multiprocessor among those on which it still fits. A multiprocessor
  has block slots, threads, registers and shared memory. For each resource, a fraction is taken. The
  fullness of the multiprocessor is the largest of these fractions. A fixed order of the
  multiprocessors breaks ties. A block stays where it is until it ends.
- The blocks of a multiprocessor share its arithmetic units. If the blocks need more arithmetic than
  the multiprocessor can do, all of them slow down by the same factor.
- All running blocks share the memory bandwidth. If together they need more than there is, each
  block gets an equal part. A block that needs less than an equal part gets only the part that it
  needs, and the other blocks share the rest (max-min fairness).

If several multiprocessors run the same blocks, and these blocks have done the same part of their
work, the multiprocessors go on in the same way. So they are simulated as one multiprocessor, which
changes no result.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ScheduleError
from ..plain_data import LARGEST, is_finite, is_whole

RESOURCES = ("blocks", "threads", "registers", "shared memory")
"""The resources of a multiprocessor that blocks occupy, in the order of `BlockKernel.most`."""

_TIE = 1e-9
"""Events count as simultaneous if their times differ by less than this fraction of the time so
far.
"""
_ROOM = 1 + 1e-9
"""The largest fraction of a resource that blocks may take together.

It is above 1 to allow for rounding.
"""
_LEAST, _MOST = 1e-6, 1e15
"""The smallest and the largest allowed number of microseconds, and of bytes per microsecond. Within
this range, no computed time or rate overflows.
"""


@dataclass(frozen=True)
class BlockKernel:
    """The properties of a kernel that the simulation needs. All blocks of the kernel are alike.

    Attributes
    ----------
    blocks: number of blocks.
    most: for each resource of `RESOURCES`, the most blocks of this kernel that fit on a
        multiprocessor if no other resource is limited. So one block takes the fraction 1/most of
        the resource.
    block_us: microseconds of one block that runs alone on the GPU.
    busy: the fraction of a multiprocessor's arithmetic units that one block alone keeps busy, 0 to
        1.
    nbytes: bytes that one block moves from or to memory.
    """

    blocks: int
    most: tuple[int, int, int, int]
    block_us: float
    busy: float = 0.0
    nbytes: float = 0.0


@dataclass(frozen=True)
class BlockGpu:
    """A GPU, and the host thread that launches its kernels.

    Attributes
    ----------
    multiprocessors: number of multiprocessors.
    bytes_a_us: bytes per microsecond that all multiprocessors together move; inf for no limit.
    launch_us: microseconds from one launch to the next.
    gap_us: microseconds from the end of a kernel until the next kernel on its stream can start.
    wait_us: microseconds from the end of a kernel until a kernel on another stream that waits for
        it can start.
    """

    multiprocessors: int
    bytes_a_us: float = math.inf
    launch_us: float = 0.0
    gap_us: float = 0.0
    wait_us: float = 0.0

    def __post_init__(self) -> None:
        if not (is_whole(self.multiprocessors) and 1 <= self.multiprocessors <= LARGEST):
            raise ScheduleError(
                f"a GPU has {self.multiprocessors!r} multiprocessors; give 1 or more"
            )
        if not (self.bytes_a_us == math.inf or _is_within(self.bytes_a_us, _LEAST)):
            raise ScheduleError(
                f"`bytes_a_us` is {self.bytes_a_us!r}; it must be {_LEAST:g} to {_MOST:g}, or inf "
                "for no limit"
            )
        for name in ("launch_us", "gap_us", "wait_us"):
            value = getattr(self, name)
            if not _is_within(value, 0):
                raise ScheduleError(
                    f"`{name}` is {value!r}; it must be 0 to {_MOST:g} microseconds"
                )


@dataclass(frozen=True)
class Launch:
    """One launch, with the conditions under which it can start.

    Attributes
    ----------
    kernel: the kernel; None for an operator that launches nothing, such as a view, and takes no
        time.
    arrives_us: the earliest time at which the kernel can run.
    after: indices of earlier launches on the same stream that must have ended. After each of them
        the GPU's `gap_us` passes.
    waits: indices of earlier launches on other streams that must have ended. After each of them the
        GPU's `wait_us` passes.
    """

    kernel: BlockKernel | None
    arrives_us: float
    after: tuple[int, ...] = ()
    waits: tuple[int, ...] = ()


def check_kernel(kernel: BlockKernel, what: str) -> None:
    """Check that the GPU can run a kernel.

    Parameters
    ----------
    what: the kernel in words, for error messages.

    Raises
    ------
    ScheduleError: a number of the kernel is impossible, or no block fits on a multiprocessor.
    """
    if not (is_whole(kernel.blocks) and 1 <= kernel.blocks <= LARGEST):
        raise ScheduleError(f"{what} has {kernel.blocks!r} blocks; it must have 1 or more")
    if len(kernel.most) != len(RESOURCES):
        raise ScheduleError(
            f"{what} has the limits {kernel.most!r}; give one for each of {', '.join(RESOURCES)}"
        )
    for resource, most in zip(RESOURCES, kernel.most, strict=True):
        if not (is_whole(most) and most >= 1):
            raise ScheduleError(
                f"{what} cannot run, because a multiprocessor holds {most!r} of its blocks by "
                f"{resource}; use a kernel that fits"
            )
    if not _is_within(kernel.block_us, _LEAST):
        raise ScheduleError(
            f"a block of {what} takes {kernel.block_us!r} us; it must be {_LEAST:g} to {_MOST:g}"
        )
    if not _is_within(kernel.busy, 0) or kernel.busy > 1:
        raise ScheduleError(
            f"a block of {what} keeps {kernel.busy!r} of a multiprocessor busy; it must be 0 to 1"
        )
    if not _is_within(kernel.nbytes, 0):
        raise ScheduleError(
            f"a block of {what} moves {kernel.nbytes!r} bytes; it must be 0 to {_MOST:g}"
        )


def _is_within(value: object, least: float) -> bool:
    return is_finite(value) and least <= value <= _MOST


def run_launches(launches: Sequence[Launch], on: BlockGpu) -> tuple[list[float], list[float]]:
    """The microseconds at which each launch starts and ends.

    A kernel starts when its first block starts.

    Complexity: events * (different multiprocessors + running kernels). An event is the end of
    blocks. Each wave of a kernel, which is a set of blocks that run at once, causes at least one
    event.
    """
    gpu = _Gpu(on.multiprocessors, on.bytes_a_us)
    start_us = [0.0] * len(launches)
    end_us = [0.0] * len(launches)
    left = [len(launch.after) + len(launch.waits) for launch in launches]
    readers: list[list[int]] = [[] for _ in launches]
    for number, launch in enumerate(launches):
        for before in (*launch.after, *launch.waits):
            readers[before].append(number)
    ready_us = [launch.arrives_us for launch in launches]
    ready = [(ready_us[i], i) for i, count in enumerate(left) if count == 0]
    heapq.heapify(ready)
    queue: deque[_Running] = deque()
    now_us = 0.0

    def finish(number: int) -> None:
        end_us[number] = now_us
        # An operator that launches nothing causes no gap of `gap_us` after it.
        gap_us = 0.0 if launches[number].kernel is None else on.gap_us
        for reader in readers[number]:
            passes_us = on.wait_us if number in launches[reader].waits else gap_us
            ready_us[reader] = max(ready_us[reader], now_us + passes_us)
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, (ready_us[reader], reader))

    while True:
        while ready and ready[0][0] <= now_us * (1 + _TIE):
            _, number = heapq.heappop(ready)
            kernel = launches[number].kernel
            if kernel is None:
                start_us[number] = now_us
                finish(number)
            else:
                queue.append(_Running(number, kernel))
        while queue:
            front = queue[0]
            unplaced = front.waiting
            gpu.place(front)
            if unplaced == front.kernel.blocks and front.waiting < unplaced:
                start_us[front.number] = now_us
            if front.waiting:
                break
            queue.popleft()
        next_end_us = gpu.until_next_end_us()
        next_ready_us = ready[0][0] - now_us if ready else math.inf
        step_us = min(next_end_us, next_ready_us)
        if math.isinf(step_us):
            return start_us, end_us
        now_us = ready[0][0] if next_ready_us <= next_end_us else now_us + step_us
        for running in gpu.advance(step_us):
            finish(running.number)


class _Running:
    """A kernel with blocks that wait or run.

    Attributes
    ----------
    waiting, unfinished: the number of blocks that have not started, and the number that have not
        ended.
    share: the fraction of each resource that one block takes.
    """

    __slots__ = ("kernel", "number", "share", "unfinished", "waiting")

    def __init__(self, number: int, kernel: BlockKernel) -> None:
        self.number = number
        self.kernel = kernel
        self.waiting = self.unfinished = kernel.blocks
        self.share = tuple(1.0 / most for most in kernel.most)


class _Cohort:
    """Blocks of one kernel that started together on one multiprocessor.

    Attributes
    ----------
    count: number of blocks.
    left: the fraction of each block's work that is left.
    rate: the fraction of a block's work that is done in a microsecond.
    """

    __slots__ = ("count", "left", "rate", "running")

    def __init__(self, running: _Running, count: int, left: float) -> None:
        self.running = running
        self.count = count
        self.left = left
        self.rate = 0.0


class _Alike:
    """A group of multiprocessors in the same state: they run the same blocks, at the same progress.

    Attributes
    ----------
    size: the number of multiprocessors in this group.
    taken: for each resource, the fraction that the blocks take.
    """

    __slots__ = ("cohorts", "size", "taken")

    def __init__(self, size: int, cohorts: list[_Cohort]) -> None:
        self.size = size
        self.cohorts = cohorts
        self.taken = [0.0] * 4
        self.count_taken()

    def count_taken(self) -> None:
        for resource in range(4):
            self.taken[resource] = sum(c.count * c.running.share[resource] for c in self.cohorts)

    def has_room(self, running: _Running) -> bool:
        """Whether one more block of the kernel fits on each multiprocessor of this group."""
        blocks, threads, registers, shared = self.taken
        of_block = running.share
        return (
            blocks + of_block[0] <= _ROOM
            and threads + of_block[1] <= _ROOM
            and registers + of_block[2] <= _ROOM
            and shared + of_block[3] <= _ROOM
        )

    def split(self, size: int) -> _Alike:
        """Split off the last `size` multiprocessors of this group."""
        self.size -= size
        return _Alike(size, [_Cohort(c.running, c.count, c.left) for c in self.cohorts])

    def add(self, running: _Running) -> None:
        """Start one block on each multiprocessor of this group."""
        last = self.cohorts[-1] if self.cohorts else None
        if last is not None and last.running is running and last.left == 1.0:
            last.count += 1
        else:
            self.cohorts.append(_Cohort(running, 1, 1.0))
        for resource, share in enumerate(running.share):
            self.taken[resource] += share


class _Gpu:
    """The multiprocessors, and the blocks that run on them."""

    def __init__(self, multiprocessors: int, bytes_a_us: float) -> None:
        self._bytes_a_us = bytes_a_us
        self._all = [_Alike(multiprocessors, [])]
        self._rates_hold = True

    def place(self, running: _Running) -> None:
        """Start as many waiting blocks as fit on the multiprocessors."""
        fits = [
            (max(alike.taken), place, alike)
            for place, alike in enumerate(self._all)
            if alike.has_room(running)
        ]
        heapq.heapify(fits)
        while running.waiting and fits:
            _, place, alike = heapq.heappop(fits)
            if alike.size > running.waiting:
                # Fewer blocks wait than `alike` has multiprocessors. Split off the multiprocessors
                # that get no block.
                self._all.insert(place + 1, alike.split(alike.size - running.waiting))
            alike.add(running)
            running.waiting -= alike.size
            self._rates_hold = False
            if alike.has_room(running):
                heapq.heappush(fits, (max(alike.taken), place, alike))

    def until_next_end_us(self) -> float:
        """Microseconds until the next running block ends; inf if no block runs."""
        if not self._rates_hold:
            self._find_rates()
        return min(
            (cohort.left / cohort.rate for alike in self._all for cohort in alike.cohorts),
            default=math.inf,
        )

    def advance(self, step_us: float) -> list[_Running]:
        """Run the blocks for `step_us`. Return the kernels that end, in launch order."""
        ended: list[_Running] = []
        changed = False
        for alike in self._all:
            rest = []
            for cohort in alike.cohorts:
                cohort.left -= cohort.rate * step_us
                if cohort.left > _TIE:
                    rest.append(cohort)
                    continue
                running = cohort.running
                running.unfinished -= cohort.count * alike.size
                if running.unfinished == 0:
                    ended.append(running)
            if len(rest) < len(alike.cohorts):
                alike.cohorts = rest
                alike.count_taken()
                changed = True
        if changed:
            self._join_equal()
            self._rates_hold = False
        return sorted(ended, key=lambda running: running.number)

    def _join_equal(self) -> None:
        found: dict[tuple[tuple[int, int, float], ...], _Alike] = {}
        for alike in self._all:
            key = tuple((c.running.number, c.count, c.left) for c in alike.cohorts)
            if key in found:
                found[key].size += alike.size
            else:
                found[key] = alike
        self._all = list(found.values())

    def _find_rates(self) -> None:
        asks: list[tuple[float, int, _Cohort]] = []
        for alike in self._all:
            load = sum(c.count * c.running.kernel.busy for c in alike.cohorts)
            slowdown = max(1.0, load)
            for cohort in alike.cohorts:
                kernel = cohort.running.kernel
                cohort.rate = 1.0 / (kernel.block_us * slowdown)
                asks.append((kernel.nbytes * cohort.rate, cohort.count * alike.size, cohort))
        if sum(ask * blocks for ask, blocks, _ in asks) > self._bytes_a_us:
            _share_bandwidth(asks, self._bytes_a_us)
        self._rates_hold = True


def _share_bandwidth(asks: list[tuple[float, int, _Cohort]], bytes_a_us: float) -> None:
    """Slow down the blocks that ask for more than an equal part of the bandwidth.

    Parameters
    ----------
    asks: a triple for each cohort (blocks of one kernel that started together): the bytes per
        microsecond that each of its blocks asks for, the number of blocks, and the cohort.
    """
    asks.sort(key=lambda each: each[0])
    blocks_left = sum(blocks for _, blocks, _ in asks)
    for ask, blocks, cohort in asks:
        equal_part = bytes_a_us / blocks_left
        granted = min(ask, equal_part)
        if ask > granted:
            cohort.rate *= granted / ask
        bytes_a_us -= granted * blocks
        blocks_left -= blocks
