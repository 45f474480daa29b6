"""Confirms that a schedule is faster than sequential execution, in several new processes.

The process that compiles differs from the processes that run the artifact later: its memory holds
other data, and its kernels are loaded in another way. Also, the times of two instances of one
artifact may differ by several percent, only because their tensors lie at different addresses. So a
schedule that seemed faster when it was chosen must be faster in the mean over several new
processes. Each of these processes loads artifacts from files, as a user's process does. The new
processes decide whether the artifact runs the schedule. The earlier measurements only choose the
schedule to test, and reject schedules that gain nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import select
import subprocess
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from subprocess import PIPE
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from .._native.cpu import num_threads
from ..artifact.manifest import SpeedCheck
from ..errors import DeviceError, first_line
from ..execution import timed_files
from ..measure.measured import tell
from ..python_command import python_command
from ..scheduling import Schedule
from ..scheduling.budget import Budget
from ..scheduling.paired_rounds import LEAST_GAIN, LEAST_US, Confirmation, PairedRatio, paired_ratio
from ..scratch import scratch_folder
from .speed_check import speed_check
from .timed_search import note_speed_check

if TYPE_CHECKING:
    from .compilation import Compilation

_LOG = logging.getLogger("tvm_interop")

Floats = npt.NDArray[np.float64]

_ROUNDS_S = 0.25
"""The approximate time that one process spends on its rounds of runs, in seconds."""
_LONG_US = 15_000.0
"""If a run takes at least this time (in microseconds), each process times one instance of the
schedule instead of two.
"""
_LIMIT_S = 30.0
"""Seconds after which no further process begins to test the schedule."""
_SOON_S = 12.0
"""Seconds after which no further process begins, if there were enough processes for one test."""
_GRACE_S = 3.0
"""Seconds after which no further process begins, if the time budget of the compilation is spent."""
_ANSWER_S = 600.0
"""The longest time to wait for a process to start or to print its result, in seconds."""
_LARGEST_BYTES = 2**30
"""Models with more bytes of weights are not run in new processes. It would take too long to write
the weights to two files and to read both files in each process.
"""
_TESTS = {6: 0.02, 12: 0.015, 20: 0.015}
"""The numbers of processes after which a test decides whether the schedule is faster, each with the
significance level of its test. The levels add up to 5%, the level of all tests together.
"""
_FEWEST = 4
_GIVE_UP_LEVEL = 0.1
_SOUGHT_GAIN = 0.02
"""The gain that decides whether a schedule is given up.

After `_FEWEST` processes or more, a schedule is given up if a test at the significance level
`_GIVE_UP_LEVEL` shows that it gains less than `_SOUGHT_GAIN`. A schedule is also given up if it
does not seem 1% faster at the first test, or does not seem faster by `_SOUGHT_GAIN` at a later
test.
"""


@dataclass(frozen=True)
class ProcessTimes:
    """The measurements of one process.

    Attributes
    ----------
    ratio: the schedule's time divided by the time of sequential execution; the median of all
        rounds.
    noise_ratio: the same ratio for two instances of sequential execution.
    sequential_us, scheduled_us: median times of a run, in microseconds.
    rounds: number of rounds.
    """

    ratio: float
    noise_ratio: float
    sequential_us: float
    scheduled_us: float
    rounds: int

    @classmethod
    def of(cls, rounds_us: npt.ArrayLike) -> ProcessTimes:
        """Summarize the rounds.

        Parameters
        ----------
        rounds_us: latencies in microseconds, of shape (rounds, 3 or more). The first two columns
            are instances of sequential execution, and the others are instances of the schedule.
        """
        times = np.log(np.maximum(np.asarray(rounds_us, dtype=np.float64), LEAST_US))
        sequential, scheduled = times[:, :2].mean(axis=1), times[:, 2:].mean(axis=1)
        return cls(
            ratio=float(np.exp(np.median(scheduled - sequential))),
            noise_ratio=float(np.exp(np.median(times[:, 1] - times[:, 0]))),
            sequential_us=float(np.exp(np.median(sequential))),
            scheduled_us=float(np.exp(np.median(scheduled))),
            rounds=len(times),
        )


def can_confirm(compilation: Compilation) -> bool:
    """Whether new processes can check the speed of the schedules of this compilation.

    New processes cannot check a model for a GPU, or a model with more than 1 GiB of weights.
    """
    nbytes = sum(weight.nbytes for weight in compilation.program.weights.values())
    return compilation.backend.device == "cpu" and nbytes <= _LARGEST_BYTES


def to_be_confirmed(compilation: Compilation, scheduler: str) -> dict[str, bool]:
    """The option that tells `auto` not to confirm its choice, because new processes will confirm
    it.
    """
    return {"confirm_choice": False} if scheduler == "auto" and can_confirm(compilation) else {}


def check_twice(
    compilation: Compilation, schedule: Schedule, first: SpeedCheck | None = None
) -> SpeedCheck:
    """Check the speed of a schedule in this process and, if it passes, in new processes.

    If new processes can check the speed, the check in this process is short and rough. If they
    cannot, the check in this process decides alone.

    Parameters
    ----------
    first: the speed check in this process, if it was made already.

    Returns
    -------
    The speed check, which says whether the artifact runs the schedule.
    """
    in_new_processes = can_confirm(compilation)
    if first is None:
        tell(compilation.options.progress, "checking the speed")
        first = compilation.check_speed(schedule, rough=in_new_processes)
    note_speed_check(first, compilation.time_for_schedule)
    return confirm_in_new_processes(compilation, schedule, first) if in_new_processes else first


def confirm_in_new_processes(
    compilation: Compilation, schedule: Schedule, checked: SpeedCheck
) -> SpeedCheck:
    """Compare a schedule that passed the rough check with sequential execution, in new processes.

    Parameters
    ----------
    checked: the rough check in the process that compiles. If the schedule did not pass this check,
        it is not run again.

    Returns
    -------
    The speed check with the figures of the new processes. If no process can run, or if the
    compilation's time is over, the artifact runs sequentially.
    """
    if checked.shipped == "sequential":
        return checked
    tell(compilation.options.progress, "checking the speed in new processes")
    each = [compilation.artifact(made) for made in (compilation.sequential(), schedule)]
    budget = compilation.options.budget
    try:
        with scratch_folder() as folder:
            names = [str(folder / f"{name}.tar") for name in ("sequential", "scheduled")]
            for artifact, name in zip(each, names, strict=True):
                artifact.save(name)
            copies = 1 if checked.sequential_us > _LONG_US else 2
            paths = [names[0]] * 2 + [names[1]] * copies
            limit_s = min(_LIMIT_S, max(_GRACE_S, budget.left_s()))
            with contextlib.closing(_processes(paths)) as processes:
                found = confirm_by(processes, Budget(limit_s))
    except (DeviceError, OSError, subprocess.SubprocessError, ValueError) as error:
        _LOG.warning(
            "the model runs sequentially, because its schedule could not be timed in a new "
            "process: %s",
            _reason(error),
        )
        return msgspec.structs.replace(checked, shipped="sequential")
    if found is None:
        budget.leave_out("running the schedule in new processes, so the model runs sequentially")
        return msgspec.structs.replace(checked, shipped="sequential")
    return found


def confirm_by(processes: Iterator[ProcessTimes], budget: Budget) -> SpeedCheck | None:
    """Decide whether the artifact runs a schedule, from times measured in several processes.

    Each process gives one ratio of the schedule's time and the sequential time, and a signed-rank
    test of these ratios decides. There is a test after 6, 12 and 20 processes, and no further
    process runs once the schedule has passed a test. A schedule is given up after 4 processes if it
    is unlikely to be 2% faster. After 6 processes, a schedule is given up if it does not seem 1%
    faster. After 12 processes, it is given up if it does not seem 2% faster.

    Parameters
    ----------
    processes: an iterator over the times of processes. Each step of the iterator runs one process.
    budget: the time after which no further process begins.

    Returns
    -------
    The speed check; None if the time was over before anything could be decided.
    """
    times: list[ProcessTimes] = []
    level = _TESTS[min(_TESTS)]
    given_up = False
    soon = Budget(_SOON_S)
    while len(times) < max(_TESTS) and budget.left_s() > 0 and not given_up:
        times.append(next(processes))
        given_up = len(times) >= _FEWEST and not _may_gain(times)
        if len(times) in _TESTS:
            level = _TESTS[len(times)]
            found = _compared(times, level)
            if found.is_faster:
                break
            least_gain = LEAST_GAIN if len(times) == min(_TESTS) else _SOUGHT_GAIN
            given_up |= found.ratio > 1 - least_gain
        if len(times) >= min(_TESTS) and soon.left_s() <= 0:
            break
    if len(times) < min(_TESTS) and not given_up:
        return None
    noise = float(np.exp(np.median(np.log([each.noise_ratio for each in times]))))
    confirmation = Confirmation(
        sequential_us=float(np.median([each.sequential_us for each in times])),
        scheduled_us=float(np.median([each.scheduled_us for each in times])),
        compared=_compared(times, level),
        noise_ratio=max(noise, 1 / noise),
    )
    rounds = sum(each.rounds for each in times)
    return msgspec.structs.replace(speed_check(confirmation), rounds=rounds)


def _compared(times: list[ProcessTimes], level: float) -> PairedRatio:
    ratios = np.array([each.ratio for each in times])
    return paired_ratio(ratios, np.ones(len(ratios)), level)


def _may_gain(times: list[ProcessTimes]) -> bool:
    return _compared(times, _GIVE_UP_LEVEL).interval[0] <= 1 - _SOUGHT_GAIN


def _processes(paths: list[str]) -> Generator[ProcessTimes, None, None]:
    """Time the artifacts in new processes, one after the other. Yield each process's measurements.

    A process may take longer to start than to run. So several processes start at once: one for each
    core, up to `_FEWEST`. The first process begins to measure only when all have started. While one
    process measures, the others wait and use no core.
    """
    seeds = itertools.count()
    together = min(num_threads(), _FEWEST)
    while True:
        with contextlib.ExitStack() as started:
            group = [started.enter_context(_Process()) for _ in range(together)]
            for process in group:
                process.wait_until_started()
            for process in group:
                yield process.time_files(paths, next(seeds))


class _Process:
    """A new process that times artifacts when asked to. It ends with the `with` block."""

    def __init__(self) -> None:
        self._command = python_command(timed_files.__name__)

    def __enter__(self) -> _Process:
        # The pipe is not buffered. A buffered read may take more than one line, and `communicate`
        # would then miss the lines that were read too early.
        self._running = subprocess.Popen(
            self._command,
            env={**os.environ, "TVM_INTEROP_NUM_THREADS": str(num_threads())},
            bufsize=0, stdin=PIPE, stdout=PIPE, stderr=PIPE,
        )  # fmt: skip
        return self

    def __exit__(self, *_: object) -> None:
        self._running.kill()  # If the process has ended already, `kill` does nothing.
        with self._running:  # `Popen` closes the pipes and waits for the process to end.
            pass

    def wait_until_started(self) -> None:
        """Wait until the process has imported its modules, or has ended.

        Raises
        ------
        TimeoutExpired
            The process neither gets ready nor ends in time.
        """
        said = self._running.stdout
        assert said is not None
        if not select.select([said], [], [], _ANSWER_S)[0]:
            raise subprocess.TimeoutExpired(self._command, _ANSWER_S)
        said.readline()

    def time_files(self, paths: list[str], seed: int) -> ProcessTimes:
        """Make the process time the artifacts, and return its measurements.

        Raises
        ------
        SubprocessError, ValueError, OSError
            The process failed, took too long or printed no times.
        """
        given = json.dumps({"paths": paths, "seconds": _ROUNDS_S, "seed": seed}).encode()
        said, complaints = self._running.communicate(given, _ANSWER_S)
        code = self._running.returncode
        if code:
            raise subprocess.CalledProcessError(code, self._command, said, complaints.decode())
        lines = said.splitlines()
        if not lines:
            raise ValueError(f"`{self._command[0]}` printed no times")
        return ProcessTimes.of(json.loads(lines[-1]))


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last = (error.stderr or "").strip().splitlines()[-1:]
        more = "".join(f": {line}" for line in last)
        return f"the process ended with code {error.returncode}{more}"
    return first_line(error)
