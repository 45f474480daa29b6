"""Measures how often the speed check and `auto` accept a schedule, on simulated noisy machines.

    python -m benchmarks.speed_check_rates [--trials 1000] [--out RESULTS.json]

A schedule that is not faster than sequential execution should hardly ever be accepted. A schedule
that is 5% faster should nearly always be accepted. The machines are simulated, because only in a
simulation is it known which of two schedules is faster.

Runs follow each other in time, in the order of the rounds. Most kinds of noise belong to the
machine and do not depend on the schedule. In the last kind, the speed of each contestant drifts
independently. Against such noise, a test that compares runs in pairs cannot keep its error rate.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tvm_interop import LatencyTable, OpGraph, Schedule, schedule
from tvm_interop.compiler.new_processes import ProcessTimes, confirm_by
from tvm_interop.compiler.speed_check import check_rounds
from tvm_interop.scheduling.budget import Budget

Floats = npt.NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]
"""Function that draws the factors by which n successive runs take longer, of shape (n,)."""

_CHUNK = 50
_RUN_US = 1000.0
"""Microseconds of a run of sequential execution."""
_ROUNDS_OF_PROCESS = 60
"""The most rounds that the speed check runs in one new process."""
_SLOW_RUN_US = 50_000.0
"""Microseconds of a run of sequential execution of a large network."""
SPEEDS = (1.03, 1.0, 0.98, 0.97, 0.95)
"""The true times of the simulated schedules, relative to sequential execution."""
_GRAPH = OpGraph.from_edges(
    8, [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 7), (5, 7), (6, 7)]
)
_SHARES = np.array([3, 5, 8, 2, 4, 9, 7, 1]) / 39
"""Share of each operator in the time of sequential execution."""


def gaussian(sigma: float) -> Noise:
    """Noise that is independent for each run: log-normal with deviation `sigma`."""
    return lambda draw, n: np.exp(sigma * draw.standard_normal(n))


def heavy_tails(draw: np.random.Generator, n: int) -> Floats:
    """Noise from Student's t with two degrees of freedom, whose variance is infinite."""
    return np.maximum(1 + 0.03 * draw.standard_t(2, n), 0.1)


def bursts(draw: np.random.Generator, n: int) -> Floats:
    """Noise with bursts and drift.

    In a burst of about thirty runs on average, every run takes 1.5 times as long. The speed also
    drifts.
    """
    busy = np.cumsum(draw.random(n) < 1 / 30) % 2
    drift = np.cumsum(0.003 * draw.standard_normal(n))
    return np.exp(0.4 * busy + drift + 0.03 * draw.standard_normal(n))


def preemptions(draw: np.random.Generator, n: int) -> Floats:
    """Noise in which one run in five loses its core, for up to four times the length of the run."""
    lost = np.where(draw.random(n) < 0.2, 4 * draw.random(n), 0)
    return (1 + lost) * np.exp(0.02 * draw.standard_normal(n))


def correlated(draw: np.random.Generator, n: int) -> Floats:
    """Noise that is correlated between runs: an autoregression with a coefficient of 0.9."""
    return np.exp(_autoregression(draw, n, 0.9, 0.05))


def _autoregression(draw: np.random.Generator, n: int, carried: float, sigma: float) -> Floats:
    values = sigma * draw.standard_normal(n)
    scale = np.sqrt(1 - carried**2)
    for before, now in pairwise(range(n)):
        values[now] = carried * values[before] + scale * values[now]
    return values


def machine(noise: Noise, speeds: Sequence[float], seed: int) -> Iterator[Floats]:
    """Yield the microseconds of each contestant, round by round.

    The contestants run in a new random order in each round.

    Parameters
    ----------
    noise: noise of the machine, which all contestants share.
    speeds: true times of the contestants, relative to sequential execution.
    """
    draw = np.random.default_rng(seed)
    contestants = len(speeds)
    while True:
        factors = noise(draw, _CHUNK * contestants).reshape(_CHUNK, contestants)
        for in_time in factors:
            order = draw.permutation(contestants)
            times_us = np.empty(contestants)
            times_us[order] = in_time
            yield times_us * np.asarray(speeds) * _RUN_US


def own_noise(speeds: Sequence[float], seed: int) -> Iterator[Floats]:
    """Yield the times of all contestants in microseconds, round by round.

    The speed of each contestant drifts independently of the others. With such noise, no test keeps
    its significance level.
    """
    draw = np.random.default_rng(seed)
    while True:
        drifts = [_autoregression(draw, _CHUNK, 0.5, 0.03) for _ in speeds]
        yield from np.exp(np.transpose(drifts)) * np.asarray(speeds) * _RUN_US


NOISES: dict[str, Callable[[Sequence[float], int], Iterator[Floats]]] = {
    "quiet, 1%": partial(machine, gaussian(0.01)),
    "gaussian, 3%": partial(machine, gaussian(0.03)),
    "gaussian, 10%": partial(machine, gaussian(0.10)),
    "heavy tails": partial(machine, heavy_tails),
    "bursts and drift": partial(machine, bursts),
    "preemptions": partial(machine, preemptions),
    "correlated runs": partial(machine, correlated),
    "each drifts by itself": own_noise,
}


def rounds_of(noise: str, speeds: Sequence[float], seed: int) -> Iterator[Floats]:
    """Yield rounds on the machine with the noise `noise`, a key of `NOISES`."""
    return NOISES[noise](speeds, seed)


def check_ships(noise: str, speed: float, seed: int) -> tuple[bool, int]:
    """Whether the speed check accepts a schedule, and the number of rounds.

    Parameters
    ----------
    speed: true time of the schedule relative to sequential execution.
    """
    checked = check_rounds(rounds_of(noise, [1.0, 1.0, speed], seed))
    return checked.shipped == "scheduled", checked.rounds


def auto_ships(noise: str, speed: float, seed: int, run_us: float = _RUN_US) -> tuple[bool, int]:
    """Whether `auto` prefers a schedule to sequential execution, and the number of rounds.

    `_chosen_by_auto` explains the parameters.
    """
    made = _chosen_by_auto(noise, speed, seed, run_us)
    return made.stats["winner"] != "sequential", made.stats["confirmation"].compared.rounds


def whole_ships(noise: str, speed: float, seed: int, run_us: float = _RUN_US) -> tuple[bool, int]:
    """Whether `compile` accepts a schedule, and after how many rounds.

    `auto` chooses a schedule, and new processes confirm that it is faster. `_chosen_by_auto`
    explains the parameters.
    """
    made = _chosen_by_auto(noise, speed, seed, run_us, confirm_choice=False)
    winner = made.stats["winner"]
    if winner == "sequential":
        return False, made.stats["confirmation"].compared.rounds
    return processes_ship(noise, speed if winner == "lios" else 1.0, seed)


def _chosen_by_auto(
    noise: str, speed: float, seed: int, run_us: float, confirm_choice: bool = True
) -> Schedule:
    """The schedule that `auto` chooses.

    Parameters
    ----------
    speed: true time of the schedule of `lios`, relative to sequential execution. The schedules of
        all other schedulers are as fast as sequential execution.
    run_us: microseconds of a run of sequential execution.
    """
    seeds = itertools.count(1000 * seed)  # Each call of `evaluate` simulates a new machine.

    def evaluate(schedules: Sequence[Schedule]) -> Iterator[Floats]:
        speeds = [speed if each.scheduler == "lios" else 1.0 for each in schedules]
        rounds = rounds_of(noise, speeds, next(seeds))
        return (times_us * (run_us / _RUN_US) for times_us in rounds)

    latency = LatencyTable((run_us * _SHARES).tolist())
    made = schedule(
        _GRAPH, "auto", latency, streams=2, evaluate=evaluate, confirm_choice=confirm_choice
    )
    assert "lios" in made.stats["chosen_by_us"], "`lios` must be a finalist"
    return made


def processes_ship(noise: str, speed: float, seed: int) -> tuple[bool, int]:
    """Whether new processes confirm a schedule, and the number of rounds in all.

    Instances of one artifact differ by 2%, because their tensors lie at other addresses.

    Parameters
    ----------
    speed: true time of the schedule relative to sequential execution, in the mean over instances.
    """
    draw = np.random.default_rng(seed)

    def processes() -> Iterator[ProcessTimes]:
        for process in itertools.count(1000 * seed):
            speeds = np.array([1.0, 1.0, speed, speed]) * np.exp(0.02 * draw.standard_normal(4))
            rounds = rounds_of(noise, speeds.tolist(), process)
            yield ProcessTimes.of(list(itertools.islice(rounds, _ROUNDS_OF_PROCESS)))

    found = confirm_by(processes(), Budget(math.inf))
    assert found is not None
    return found.shipped == "scheduled", found.rounds


_TRIALS: dict[str, Callable[[str, float, int], tuple[bool, int]]] = {
    "check": check_ships,
    "auto": auto_ships,
    "slow auto": partial(auto_ships, run_us=_SLOW_RUN_US),
    "processes": processes_ship,
    "compile": whole_ships,
    "slow compile": partial(whole_ships, run_us=_SLOW_RUN_US),
}
"""For each way to decide whether to accept a schedule, a function that runs one trial."""


@dataclass(frozen=True)
class Rate:
    """How often a schedule was accepted.

    Attributes
    ----------
    who: a key of `_TRIALS`.
    noise: a key of `NOISES`.
    speed: true time of the schedule relative to sequential execution.
    ships: share of the trials in which a schedule was accepted.
    rounds: median number of rounds on which the verdict rests.
    """

    who: str
    noise: str
    speed: float
    trials: int
    ships: float
    rounds: float


def rate(who: str, noise: str, speed: float, trials: int) -> Rate:
    """Run `trials` trials, with the seeds 0, 1, and so on."""
    shipped, rounds = zip(
        *(_TRIALS[who](noise, speed, seed) for seed in range(trials)), strict=True
    )
    return Rate(who, noise, speed, trials, float(np.mean(shipped)), float(np.median(rounds)))


def table(rates: Sequence[Rate]) -> str:
    """A Markdown table with a row for each kind of noise."""
    columns = list(dict.fromkeys((r.who, r.speed) for r in rates))
    found = {(r.noise, r.who, r.speed): r for r in rates}
    lines = [
        "| noise | " + " | ".join(f"{who}, {speed:.2f}" for who, speed in columns) + " | rounds |",
        "|---|" + "--:|" * (len(columns) + 1),
    ]
    for noise in dict.fromkeys(r.noise for r in rates):
        cells = [found[noise, who, speed] for who, speed in columns]
        shown = " | ".join(f"{cell.ships:.1%}" for cell in cells)
        lines.append(f"| {noise} | {shown} | {max(cell.rounds for cell in cells):.0f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    rates = [
        rate(who, noise, speed, arguments.trials)
        for who, speeds in (
            ("check", SPEEDS),
            ("auto", (1.0, 0.95)),
            ("slow auto", (1.0, 0.95)),
            ("processes", (1.0, 0.97, 0.95)),
            ("compile", (1.0, 0.97, 0.95)),
            ("slow compile", (1.0, 0.95)),
        )
        for noise in NOISES
        for speed in speeds
    ]
    print(table(rates))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([asdict(r) for r in rates], indent=1) + "\n")


if __name__ == "__main__":
    main()
