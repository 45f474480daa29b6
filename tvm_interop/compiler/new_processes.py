"""Confirms that a schedule is faster than sequential execution, in several new processes.

The process that compiles differs from the processes that run the artifact later: its memory holds
other data, and its kernels are loaded in another way. Also, two instances of one artifact may
differ by several percent, only because their tensors lie at other addresses. So a schedule that was
faster when it was chosen must also be faster in the mean over several new processes. Each of these
processes loads the files that would ship.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
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
from ..scheduling.paired_rounds import LEAST_US, Confirmation, PairedRatio, paired_ratio
from ..scratch import scratch_folder
from .speed_check import speed_check

if TYPE_CHECKING:
    from .compilation import Compilation

_LOG = logging.getLogger("tvm_interop")

Floats = npt.NDArray[np.float64]

_ROUNDS_S = 0.25
"""About how long the rounds of a process take, in seconds."""
_LONG_US = 15_000.0
"""If a run takes at least this time, a process has one instance of the schedule instead of two."""
_LIMIT_S = 30.0
"""Seconds after which no further process begins."""
_GRACE_S = 3.0
"""The same limit if the time budget of the compilation is spent."""
_ANSWER_S = 600.0
"""The longest wait for a process, in seconds."""
_LARGEST_BYTES = 2**30
"""Models with more bytes of weights are not run in new processes. To write them to two files, and
to read these in each process, would take too long."""
_TESTS = {6: 0.02, 12: 0.015, 20: 0.015}
"""The number of processes before each test, and the significance level of the test. The sum of the
levels is the level of all tests together, 5%."""
_FEWEST = 4
_GIVE_UP_LEVEL = 0.1
_SOUGHT_GAIN = 0.02
"""From `_FEWEST` processes on, a schedule is given up if this gain is ruled out at the level
`_GIVE_UP_LEVEL`."""


@dataclass(frozen=True)
class ProcessTimes:
    """The measurements of one process.

    Attributes
    ----------
    ratio: time of the schedule over the time of sequential execution: the median over the rounds.
    noise_ratio: the same for two instances of sequential execution.
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
        rounds_us: (rounds, 3 or more) microseconds: two instances of sequential execution, and one
            or more of the schedule.
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


def confirm_in_new_processes(
    compilation: Compilation, schedule: Schedule, checked: SpeedCheck
) -> SpeedCheck:
    """Run a schedule that passed the speed check, and sequential execution, in new processes.

    Parameters
    ----------
    checked: the speed check in the process that compiles. Three kinds of schedules are not run
        again: a schedule that did not pass it, a schedule for a GPU, and a schedule of a model with
        more than 1 GiB of weights.

    Returns
    -------
    The speed check with the figures of the new processes. If no process can run, or if the time of
    the compilation is over, the check says that sequential execution ships.
    """
    nbytes = sum(weight.nbytes for weight in compilation.program.weights.values())
    on_cpu = compilation.backend.device == "cpu"
    if checked.shipped == "sequential" or not on_cpu or nbytes > _LARGEST_BYTES:
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
            found = confirm_by(_processes(paths), Budget(limit_s))
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
    """Decide by the times of processes whether a schedule ships.

    Each process gives one ratio, and a signed-rank test of these ratios decides. There is a test
    after 6, 12 and 20 processes, and the first that the schedule passes ends the search for more. A
    schedule that can hardly be 2% faster is given up after 4 processes.

    Parameters
    ----------
    processes: an iterator over the times of processes, which starts a process for each element.
    budget: the time after which no further process begins.

    Returns
    -------
    The speed check; None if the time was over before anything could be decided.
    """
    times: list[ProcessTimes] = []
    level = _TESTS[min(_TESTS)]
    given_up = False
    while len(times) < max(_TESTS) and budget.left_s() > 0 and not given_up:
        times.append(next(processes))
        given_up = len(times) >= _FEWEST and not _may_gain(times)
        level = _TESTS.get(len(times), level)
        if len(times) in _TESTS and _compared(times, level).is_faster:
            break
    if len(times) < min(_TESTS) and not given_up:
        return None
    noise = float(np.exp(np.median(np.log([each.noise_ratio for each in times]))))
    found = Confirmation(
        sequential_us=float(np.median([each.sequential_us for each in times])),
        scheduled_us=float(np.median([each.scheduled_us for each in times])),
        compared=_compared(times, level),
        noise_ratio=max(noise, 1 / noise),
    )
    rounds = sum(each.rounds for each in times)
    return msgspec.structs.replace(speed_check(found), rounds=rounds)


def _compared(times: list[ProcessTimes], level: float) -> PairedRatio:
    ratios = np.array([each.ratio for each in times])
    return paired_ratio(ratios, np.ones(len(ratios)), level)


def _may_gain(times: list[ProcessTimes]) -> bool:
    return _compared(times, _GIVE_UP_LEVEL).interval[0] <= 1 - _SOUGHT_GAIN


def _processes(paths: list[str]) -> Iterator[ProcessTimes]:
    """Start one process after the other, and yield the measurements of each."""
    command = python_command(timed_files.__name__)
    environment = {**os.environ, "TVM_INTEROP_NUM_THREADS": str(num_threads())}
    seed = 0
    while True:
        given = json.dumps({"paths": paths, "seconds": _ROUNDS_S, "seed": seed})
        done = subprocess.run(
            command, env=environment, input=given,
            capture_output=True, text=True, check=True, timeout=_ANSWER_S,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        if not lines:
            raise ValueError(f"`{command[0]}` printed no times")
        yield ProcessTimes.of(json.loads(lines[-1]))
        seed += 1


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        last = (error.stderr or "").strip().splitlines()[-1:]
        return f"it ended with code {error.returncode}{''.join(f': {line}' for line in last)}"
    return first_line(error)
