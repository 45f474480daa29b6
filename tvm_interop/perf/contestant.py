"""Runs an engine in its own process, which takes commands from the main process.

Engines must not share a process: after a run, the threads of an engine spin for a while, and would
take cores from the next engine.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import re
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..errors import ExecutionError, first_line
from .engines import Engine, Feed
from .load import Arrivals, Turn, closed_loop, open_loop

_STARTED_WITHIN_S = 600.0
"""The longest wait for an answer of an engine's process, in seconds.

It is long because some engines compile the model first.
"""
_PLACE = re.compile(r"(Exception from|Check '.*' failed at) \S+:\d+:$")
"""Matches a line in an engine's error message that only names a place in the engine's source
code.
"""
_LEAD_IN = 2
"""The number of untimed runs at the beginning of each turn. These runs wake sleeping threads."""


@dataclass
class Load:
    """How requests for runs arrive.

    Attributes
    ----------
    concurrency: the largest number of concurrent runs.
    rate: requests per second. With None, the next request is sent as soon as a run has ended.
    arrivals: `poisson` for random gaps between requests, `uniform` for equal gaps.
    """

    concurrency: int = 1
    rate: float | None = None
    arrivals: Arrivals = "poisson"


@dataclass
class Contestant:
    """An engine with a model, and its results.

    Attributes
    ----------
    turns: the results of the contestant's turns, in order.
    setting: the setting with which the engine is fastest, as text.
    peak_mib: the largest resident memory of the engine's process, in MiB.
    """

    engine: Engine
    model: Any
    turns: list[Turn] = field(default_factory=list)
    setting: str = ""
    peak_mib: float = 0.0

    @property
    def name(self) -> str:
        """The engine's name."""
        return self.engine.name

    def start(self, feed: Feed, load: Load) -> None:
        """Start the process and wait until it is ready to run.

        Raises
        ------
        ExecutionError
            The engine cannot run the model; the message says why.
        """
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, self.engine, self.model, dict(feed), load)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self.setting = str(self._answer())

    def warm_up(self, seconds: float) -> None:
        """Run for `seconds` seconds and ignore the results."""
        self._ask("warm up", seconds, 0)

    def take_turn(self, seconds: float, seed: int) -> None:
        """Run for `seconds` seconds and append the results to `turns`.

        `seed` is the seed of random arrival times.
        """
        turn, self.peak_mib = self._ask("turn", seconds, seed)
        self.turns.append(turn)

    def outputs(self) -> list[np.ndarray]:
        """Run once and return the model's outputs, in the model's order."""
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
        with contextlib.suppress(OSError):  # If the process has ended, `_answer` raises an error.
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
    """Run in the engine's process: prepare the model, then obey commands until the pipe closes."""
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
        connection.send(("failed", _reason(error)))


def _reason(error: Exception) -> str:
    """Return the message of an engine's error, without the places in the engine's source code.

    OpenVINO's messages begin with lines that name places in its source code. A line that ends with
    a colon continues on the next line. So the result ends with the first line without a colon at
    its end.
    """
    lines = [line.strip() for line in str(error).splitlines() if not _PLACE.match(line.strip())]
    for number, line in enumerate(lines, 1):
        if line and not line.endswith(":"):
            return " ".join(filter(None, lines[:number]))
    return first_line(error)


def peak_mib() -> float:
    """Return the largest resident memory of this process, in MiB.

    `getrusage` is not used because it may return the parent process's memory.
    """
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024
