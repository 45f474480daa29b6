"""Stage latencies measured on other machines, on servers as `execution.rpc_server` has them."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from ..errors import DeviceError, InputError
from ..execution.rpc_deadline import NoAnswerError, answer_within
from ..execution.rpc_server import (
    ServedOperator,
    ServedProgram,
    ServedTensor,
    ServerAddress,
    free_sessions,
)
from ..latency.estimate import Estimate
from ..program.program import Program
from .measured import MeasuredLatency, Programs, Progress
from .repeats import run_repeatedly
from .store import LatencyStore

_LOG = logging.getLogger("tvm_interop")
_JOB = 8
"""Stages measured against each other on one server."""
_ANSWER_S = 300.0
_LOOK_S = 1.0
"""So often it is looked whether a server has not answered for too long."""
_CLOSE_S = 5.0


class FarmLatency(MeasuredLatency):
    """Latencies measured on all the servers of one key at once, in microseconds.

    Servers of a key are taken for equal machines. Stages are handed out job by job; a server that
    fails, or does not answer, is given up, what it was at is measured elsewhere, and nothing of it
    is kept.

    Raises
    ------
    DeviceError: the tracker cannot be reached, has no free server of that key, or all failed.
    InputError: an operator is not TVM's; a server has no other kernels.
    """

    def __init__(
        self,
        address: ServerAddress,
        program: Program,
        kernels: Any,
        kernels_so: bytes,
        kernel_hashes: dict[str, str],
        *,
        streams: int,
        threads: int = 1,
        parallel_kernels: bool = False,
        store: LatencyStore | None = None,
        progress: Progress | None = None,
        answer_s: float = _ANSWER_S,
    ) -> None:
        """Take all free servers.

        Parameters
        ----------
        kernels_so: the library of `kernels`, for the servers' target.
        answer_s: a server that has not answered for so many seconds is given up. It is asked to run
            9 stages 10 times or less often at once.
        """
        super().__init__(
            program,
            kernels,
            kernel_hashes,
            streams=streams,
            threads=threads,
            parallel_kernels=parallel_kernels,
            store=store,
            progress=progress,
        )
        for op in program.operators:
            if op.library is not None:
                raise InputError(
                    f"operator `{op.name}` has a kernel of `{op.library}`, which servers have not; "
                    "give --providers tvm"
                )
        self._answer_s = answer_s
        self._servers: list[_Server] = []
        for session in free_sessions(address):

            def start(session: Any = session) -> _Server:
                served = ServedProgram(
                    session,
                    kernels_so,
                    streams=streams,
                    threads=threads,
                    **_described(program),
                )
                return _Server(served)

            try:
                self._servers.append(answer_within(answer_s, "a server", start))
            except NoAnswerError as error:
                _LOG.warning("%s; it is left out", error)
        if not self._servers:
            raise DeviceError(f"no server of key `{address.key}` answers; start them anew")
        # Not this machine: its latencies have keys of their own.
        self.setting = msgspec.structs.replace(
            self.setting, device=f"rpc:{address.key}", cores=self._servers[0].cores
        )

    @property
    def num_servers(self) -> int:
        """How many servers there are that have not failed."""
        return len(self._servers)

    def close(self) -> None:
        """Give the servers back."""
        leaving, self._servers = self._servers, []
        for server in leaving:
            server.close()

    def _timed(self, programs: Programs) -> Iterator[dict[str, Estimate]]:
        jobs: queue.SimpleQueue[Programs] = queue.SimpleQueue()
        items = list(programs.items())
        for begin in range(0, len(items), _JOB):
            jobs.put(dict(items[begin : begin + _JOB]))
        results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        for server in self._servers:
            threading.Thread(target=server.work, args=(jobs, results), daemon=True).start()
        try:
            done = 0
            while done < len(programs):
                result = self._next(jobs, results)
                done += len(result)
                yield result
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    jobs.get_nowait()
            for _ in self._servers:
                jobs.put({})

    def _next(
        self, jobs: queue.SimpleQueue[Programs], results: queue.SimpleQueue[_Result]
    ) -> dict[str, Estimate]:
        """The next job that a server has done; those that fail or do not answer are given up."""
        while True:
            with contextlib.suppress(queue.Empty):
                result = results.get(timeout=_LOOK_S)
                if result.server not in self._servers:
                    continue  # Its job was given to another meanwhile.
                if result.error is None:
                    return result.found
                self._give_up(result.server, result.job, f"failed: {result.error}", jobs)
            for server in [s for s in self._servers if s.busy_s() > self._answer_s]:
                why = f"has not answered for {self._answer_s:g} s"
                self._give_up(server, server.job, why, jobs)

    def _give_up(
        self, server: _Server, job: Programs, why: str, jobs: queue.SimpleQueue[Programs]
    ) -> None:
        """Go on without the server; its job is somebody else's."""
        _LOG.warning("a server %s; it is given up", why)
        self._servers.remove(server)
        if not self._servers:
            raise DeviceError(
                f"the last server {why}; start others and go on, what was measured is kept"
            )
        jobs.put(job)


@dataclass(frozen=True)
class _Result:
    server: _Server
    job: Programs
    found: dict[str, Estimate] = field(default_factory=dict)
    error: Exception | None = None


class _Server:
    """One session on one server, which holds the program.

    Nothing can stop a call of TVM's RPC that gets no answer. To give it up is to leave the thread
    behind that waits for it, and with it the session.

    Attributes
    ----------
    job: what it is measuring, or was last.
    """

    def __init__(self, program: ServedProgram) -> None:
        program.fill_at_random()
        self.job: Programs = {}
        self._program: ServedProgram | None = program
        self.cores = program.cores
        self._since_s: float | None = None

    def busy_s(self) -> float:
        """For how many seconds it has owed an answer."""
        since_s = self._since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def work(self, jobs: queue.SimpleQueue[Programs], results: queue.SimpleQueue[_Result]) -> None:
        """Measure job after job until an empty one comes, or something fails."""
        while job := jobs.get():
            self.job = job
            try:
                found = dict(zip(job, self._time(list(job.values())), strict=True))
            except Exception as error:
                results.put(_Result(self, job, error=error))
                return
            finally:
                self._since_s = None
            results.put(_Result(self, job, found))

    def close(self) -> None:
        """End the session, in a thread of its own: that asks the server, who may not answer."""
        ending = threading.Thread(target=self._drop, daemon=True)
        ending.start()
        ending.join(_CLOSE_S)

    def _drop(self) -> None:
        self._program = None

    def _time(self, programs: Sequence[list[list[int]]]) -> list[Estimate]:
        stages: list[list[list[int]]] = [[[] for _ in programs[0]], *programs]

        def measure(indices: Sequence[int], repeats: int) -> np.ndarray:
            assert self._program is not None, "it is not closed while it works"
            self._since_s = time.monotonic()
            seconds = self._program.measure([stages[i] for i in indices], 0, repeats)
            if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
                raise DeviceError("a server says that stages took no time there is")
            return seconds

        empty, *of_stages = run_repeatedly(measure, len(stages))
        start_us = Estimate.of_runs(empty).latency_us
        return [Estimate.of_runs(runs, start_us) for runs in of_stages]


def _described(program: Program) -> dict[str, Any]:
    """What `ServedProgram` is told of a program; every tensor has memory of its own."""
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
