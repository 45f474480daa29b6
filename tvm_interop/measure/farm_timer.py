"""Times stages on other machines, which run the RPC servers of `execution.rpc_server`."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

from ..errors import DeviceError, InputError
from ..execution.rpc_deadline import NoAnswerError, answer_within
from ..execution.rpc_server import (
    ServedOperator,
    ServedProgram,
    ServedTensor,
    ServerAddress,
    free_sessions,
)
from ..latency.measurement import Setting
from ..program.program import Program
from .repeats import Measure
from .stage_timer import Job, Result, Streams

_LOG = logging.getLogger("tvm_interop")
_ANSWER_S = 300.0
_LOOK_S = 1.0
"""The seconds between two checks whether a server is late with its answer."""
_CLOSE_S = 5.0

_Jobs = queue.SimpleQueue["Job[Any] | None"]
"""A queue of jobs that no server has started. The entry None tells a server to stop."""


def farm_timer(
    address: ServerAddress,
    program: Program,
    kernels_so: bytes,
    *,
    streams: int,
    threads: int = 1,
    answer_s: float = _ANSWER_S,
) -> FarmStageTimer:
    """Make a timer that uses all free servers of one RPC key.

    Parameters
    ----------
    kernels_so: the shared library of TVM's kernels, for the servers' target.
    streams, threads: the number of streams, and the number of threads that the kernels of one
        stream may use.
    answer_s: seconds after which a server that has not answered is no longer used. Before it
        answers, a server runs at most 9 stages, each stage 10 times with timing and 10 times
        without.

    Raises
    ------
    DeviceError
        The tracker cannot be reached, or no free server with the address's key answers.
    InputError
        An operator uses a kernel library. Servers have only TVM's kernels.
    """
    for op in program.operators:
        if op.library is not None:
            raise InputError(
                f"operator `{op.name}` has a kernel of `{op.library}`, which servers do not have; "
                "give --providers tvm"
            )
    served: list[ServedProgram] = []
    for session in free_sessions(address):

        def start(session: Any = session) -> ServedProgram:
            one = ServedProgram(
                session, kernels_so, streams=streams, threads=threads, **_described(program)
            )
            one.fill_at_random()
            return one

        try:
            served.append(answer_within(answer_s, "a server", start))
        except NoAnswerError as error:
            _LOG.warning("%s; it is left out", error)
    if not served:
        raise DeviceError(f"no server of key `{address.key}` answers; start the servers again")
    setting = Setting(
        device=f"rpc:{address.key}",
        driver="",
        cores=served[0].cores,
        tvm_version=tvm.__version__,
        streams=streams,
        threads=threads,
    )
    return FarmStageTimer(served, setting, answer_s)


class FarmStageTimer:
    """Runs stages on several servers at once, assuming that the servers are equally fast.

    Each server does one job (the measurement of some stages) at a time. If a server fails or does
    not answer, it is no longer used, and another server does its job from the start.

    Attributes
    ----------
    setting: the servers' key, and the numbers of streams and threads that stages run on.
    """

    stages_per_job = 8
    waits_of_stage = 2

    def __init__(
        self, served: Sequence[ServedProgram], setting: Setting, answer_s: float = _ANSWER_S
    ) -> None:
        """Use the servers of `served`. Each server has a copy of the program whose stages it runs.

        Parameters
        ----------
        answer_s: seconds after which a server that has not answered is no longer used.
        """
        self.setting = setting
        self._answer_s = answer_s
        self._servers = [_Server(program) for program in served]

    @property
    def num_servers(self) -> int:
        """Number of servers that have not failed."""
        return len(self._servers)

    def close(self) -> None:
        """Release the servers, so that the tracker can lend them to others."""
        leaving, self._servers = self._servers, []
        for server in leaving:
            server.close()

    def why_not(self, op: int) -> str:
        """Return "" for "no reason", because servers run only TVM's kernels."""
        return ""

    def implementation(self, op: int) -> str:
        """Return "", which means that the kernel is TVM's. Servers run only kernels of TVM."""
        return ""

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do the jobs on all servers at once; a server does one job at a time.

        Raises
        ------
        DeviceError
            The last server failed, or did not answer; or no server is left.
        """
        if not self._servers:
            raise DeviceError("no server is left; start other servers, and measure with them")
        waiting: _Jobs = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        for server in self._servers:
            threading.Thread(target=server.work, args=(waiting, answers), daemon=True).start()
        try:
            for _ in jobs:
                yield self._next(waiting, answers)
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            for _ in self._servers:
                waiting.put(None)

    def _next(self, waiting: _Jobs, answers: queue.SimpleQueue[_Answer]) -> Any:
        """The result of the next job that a server finishes. A failed server is no longer used."""
        while True:
            with contextlib.suppress(queue.Empty):
                answer = answers.get(timeout=_LOOK_S)
                if answer.server not in self._servers:
                    continue  # This server answered too late and is no longer used.
                if answer.error is None:
                    return answer.found
                self._give_up(answer.server, answer.job, f"failed: {answer.error}", waiting)
            for server in [s for s in self._servers if s.busy_s() > self._answer_s]:
                why = f"has not answered for {self._answer_s:g} s"
                self._give_up(server, server.job, why, waiting)

    def _give_up(self, server: _Server, job: Job[Any] | None, why: str, waiting: _Jobs) -> None:
        """Stop using a server, and queue its job again. Raise DeviceError if no server is left."""
        _LOG.warning("a server %s; it is no longer used", why)
        self._servers.remove(server)
        if not self._servers:
            raise DeviceError(
                f"the last server {why}; start other servers and run again; measurements are kept"
            )
        waiting.put(job)


@dataclass(frozen=True)
class _Answer:
    server: _Server
    job: Job[Any]
    found: Any = None
    error: Exception | None = None


class _Server:
    """A session on one server, which has a copy of the program whose stages are timed.

    A call of TVM's RPC that gets no answer cannot be stopped. So if a server does not answer, its
    session is not closed, and the thread that waits for the answer is left waiting.

    Attributes
    ----------
    job: the job that the server does now, or the last job that it did.
    """

    def __init__(self, program: ServedProgram) -> None:
        self.job: Job[Any] | None = None
        self._program: ServedProgram | None = program
        self._since_s: float | None = None

    def busy_s(self) -> float:
        """How many seconds the current job has waited for the server; 0 if no job waits."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def work(self, waiting: _Jobs, answers: queue.SimpleQueue[_Answer]) -> None:
        """Do jobs from the queue one after the other, until a job is None or fails."""
        while (job := waiting.get()) is not None:
            self.job = job
            try:
                found = job(self._rounds)
            except Exception as error:
                answers.put(_Answer(self, job, error=error))
                return
            finally:
                self._since_s = None
            answers.put(_Answer(self, job, found))

    def close(self) -> None:
        """End the session in a separate thread, because the server may never answer."""
        ending = threading.Thread(target=self._drop, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def _drop(self) -> None:
        self._program = None

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        def measure(indices: Sequence[int], repeats: int) -> np.ndarray:
            assert self._program is not None, "it is not closed while it works"
            self._since_s = time.monotonic()
            seconds = self._program.measure([stages[i] for i in indices], 0, repeats)
            if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
                raise DeviceError("a server reports latencies that are negative or not finite")
            return seconds

        return measure


def _described(program: Program) -> dict[str, Any]:
    """The arguments from which `ServedProgram` makes the program, without shared tensor memory."""
    return {
        "buffers": [value.nbytes for value in program.values],
        "values": [
            ServedTensor(value.dtype, value.shape, i) for i, value in enumerate(program.values)
        ],
        "operators": [
            ServedOperator(op.kernel, (*op.inputs, *op.outputs), op.share or ())
            for op in program.operators
        ],
    }
