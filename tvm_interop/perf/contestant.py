"""An engine in a process of its own, which runs when it is told to.

One process for all would measure something else: the threads of one engine go on spinning for a
while after a run, and take a core from whoever runs next.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import ExecutionError, first_line
from .engines import Engine, Feed
from .load import Arrivals, Turn, closed_loop, open_loop

_STARTED_WITHIN_S = 600.0
"""For compilers among the engines."""
_LEAD_IN = 2
"""Runs before those that count in each turn: they wake threads that slept meanwhile."""


@dataclass
class Load:
    """How a model is asked.

    Attributes
    ----------
    concurrency: runs at once at most.
    rate: requests a second; None asks again as soon as an answer is there.
    """

    concurrency: int = 1
    rate: float | None = None
    arrivals: Arrivals = "poisson"


@dataclass
class Contestant:
    """An engine with a model, and what was found of it.

    Attributes
    ----------
    turns: one after the other.
    setting: what the engine found to be its best.
    peak_mib: the largest resident memory of its process.
    """

    engine: Engine
    model: Any
    turns: list[Turn] = field(default_factory=list)
    setting: str = ""
    peak_mib: float = 0.0

    @property
    def name(self) -> str:
        """Whose figures these are."""
        return self.engine.name

    def start(self, feed: Feed, load: Load) -> None:
        """Start the process and wait until it is ready to run.

        Raises
        ------
        ExecutionError
            The engine cannot run the model; says why.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, self.engine, self.model, dict(feed), load)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self.setting = str(self._answer())

    def warm_up(self, seconds: float) -> None:
        """Run without being timed."""
        self._ask("warm up", seconds, 0)

    def take_turn(self, seconds: float, seed: int) -> None:
        """Run for so long, and keep what was found."""
        turn, self.peak_mib = self._ask("turn", seconds, seed)
        self.turns.append(turn)

    def outputs(self) -> list[np.ndarray]:
        """What the model answers, in the model's order."""
        found: list[np.ndarray] = self._ask("outputs", 0.0, 0)
        return found

    def stop(self) -> None:
        """End the process."""
        if hasattr(self, "_process"):
            self._connection.close()
            self._process.join(10)
            if self._process.is_alive():
                self._process.kill()

    def _ask(self, what: str, seconds: float, seed: int) -> Any:
        with contextlib.suppress(OSError):  # It has ended, which the answer tells.
            self._connection.send((what, seconds, seed))
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._connection.poll(_STARTED_WITHIN_S):
                raise ExecutionError(f"{self.name} did not answer within {_STARTED_WITHIN_S:.0f} s")
            answer: tuple[Literal["ok", "failed"], Any] = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(10)
            raise ExecutionError(
                f"{self.name}: its process ended, with code {self._process.exitcode}"
            ) from None
        kind, value = answer
        if kind == "failed":
            raise ExecutionError(f"{self.name} cannot run the model: {value}")
        return value


def _serve(connection: Connection, engine: Engine, model: Any, feed: Feed, load: Load) -> None:
    """What the process does: prepare, then do as it is told until the other end is closed."""
    try:
        runners = engine.lanes(model, feed, load.concurrency)
        connection.send(("ok", engine.setting))
        while True:
            what, seconds, seed = connection.recv()
            if what == "outputs":
                connection.send(("ok", [np.array(output) for output in runners[0]()]))
                continue
            for run in runners * (_LEAD_IN if what == "turn" else 0):
                run()
            if load.rate is None or what == "warm up":
                turn = closed_loop(runners, seconds)
            else:
                turn = open_loop(runners, seconds, load.rate, load.arrivals, seed)
            connection.send(("ok", (turn, peak_mib())))
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return
    except Exception as error:
        connection.send(("failed", first_line(error)))


def peak_mib() -> float:
    """The largest resident memory of this process; `getrusage` would count its parent's too."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024
