"""Stage latencies measured on other machines, on servers as `remote` has them."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..errors import DeviceError, InputError
from ..program import Program
from ..remote import ServedOperator, ServedProgram, ServedTensor, ServerAddress, free_sessions
from .measured import MeasuredLatency, Progress, repeats_for
from .store import LatencyStore

_LOG = logging.getLogger("tvm_interop")
_JOB = 8
"""Stages measured against each other on one server."""

Programs = dict[str, list[list[int]]]
"""By key, the operators of each stream of a stage."""


class FarmLatency(MeasuredLatency):
    """Latencies measured on all the servers of one key at once, in microseconds.

    Servers of a key are taken for equal machines. Stages are handed out job by job; a server that
    fails is given up, what it was at is measured elsewhere, and nothing of it is kept.

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
    ) -> None:
        """Take all free servers.

        Parameters
        ----------
        kernels_so: the library of `kernels`, for the servers' target.
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
        self._servers = [
            _Server(
                ServedProgram(
                    session,
                    kernels_so,
                    streams=streams,
                    threads=threads,
                    parallel_kernels=parallel_kernels,
                    **_described(program),
                )
            )
            for session in free_sessions(address)
        ]
        # Not this machine: its latencies have keys of their own.
        self.setting = msgspec.structs.replace(
            self.setting, device=f"rpc:{address.key}", cores=self._servers[0].program.cores
        )

    @property
    def num_servers(self) -> int:
        """How many servers there are that have not failed."""
        return len(self._servers)

    def close(self) -> None:
        """Give the servers back."""
        self._servers = []

    def _measure(self, unknown: Programs) -> None:
        jobs: queue.SimpleQueue[Programs] = queue.SimpleQueue()
        items = list(unknown.items())
        for begin in range(0, len(items), _JOB):
            jobs.put(dict(items[begin : begin + _JOB]))
        results: queue.SimpleQueue[_Result] = queue.SimpleQueue()
        for server in self._servers:
            threading.Thread(target=server.work, args=(jobs, results), daemon=True).start()
        try:
            self._collect(unknown, jobs, results)
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    jobs.get_nowait()
            for _ in self._servers:
                jobs.put({})

    def _collect(
        self,
        unknown: Programs,
        jobs: queue.SimpleQueue[Programs],
        results: queue.SimpleQueue[_Result],
    ) -> None:
        """Keep what the servers find, until all is known."""
        done = 0
        while done < len(unknown):
            if self._progress is not None:
                self._progress(done, len(unknown))
            result = results.get()
            if result.error is not None:
                self._give_up(result, jobs, results)
                continue
            # Records are written here alone: threads only measure.
            found = {
                key: (unknown[key], us)
                for key, us in zip(result.job, result.latency_us, strict=True)
            }
            self._keep(found, result.samples)
            self._known.update((key, us) for key, (_, us) in found.items())
            done += len(found)
            self.measured += len(found)
        if self._progress is not None and unknown:
            self._progress(done, len(unknown))

    def _give_up(
        self,
        failed: _Result,
        jobs: queue.SimpleQueue[Programs],
        results: queue.SimpleQueue[_Result],
    ) -> None:
        """Go on without the server; its job is somebody else's."""
        _LOG.warning("a server failed and is given up: %s", failed.error)
        self._servers.remove(failed.server)
        if not self._servers:
            raise DeviceError(
                f"the last server failed: {failed.error}; start others and go on, what was "
                "measured is kept"
            )
        jobs.put(failed.job)


@dataclass(frozen=True)
class _Result:
    server: _Server
    job: Programs
    latency_us: Sequence[float] = ()
    samples: int = 0
    error: Exception | None = None


class _Server:
    """One session on one server, which holds the program."""

    def __init__(self, program: ServedProgram) -> None:
        program.fill_at_random()
        self.program = program

    def work(self, jobs: queue.SimpleQueue[Programs], results: queue.SimpleQueue[_Result]) -> None:
        """Measure job after job until an empty one comes, or something fails."""
        while job := jobs.get():
            try:
                latency_us, samples = self._time(list(job.values()))
            except Exception as error:
                results.put(_Result(self, job, error=error))
                return
            results.put(_Result(self, job, latency_us, samples))

    def _time(self, programs: list[list[list[int]]]) -> tuple[list[float], int]:
        """Microseconds of each, and how many runs they are the median of."""
        stages: list[list[list[int]]] = [[[] for _ in programs[0]], *programs]
        first = self.program.measure(stages, 0, 1)
        more = repeats_for(first) - 1
        timed = np.concatenate([first, self.program.measure(stages, 0, more)], axis=1)
        if not (np.isfinite(timed).all() and (timed >= 0).all()):
            raise DeviceError("a server says that stages took no time there is")
        empty_us, *stages_us = (np.median(timed, axis=1) * 1e6).tolist()
        return [max(us - empty_us, 0.0) for us in stages_us], 1 + more


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
