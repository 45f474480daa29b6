"""Stage latencies measured on other machines, through TVM's RPC tracker and servers.

A server is TVM's own, with our runtime loaded into it:

    python -m tvm.exec.rpc_tracker --port 9190
    python -m tvm.exec.rpc_server --tracker HOST:9190 --key KEY --load-library libtvm_interop.so
"""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from ..errors import DeviceError, InputError
from ..program import Program
from .measured import MeasuredLatency, Progress, repeats_for
from .store import LatencyStore

_LOG = logging.getLogger("tvm_interop")
_JOB = 8
"""Stages measured against each other on one server."""
_CONNECT_S = 5.0
_REQUEST_S = 20.0
_SESSION_S = 3600.0
"""After so many seconds a server ends a session by itself."""

Programs = dict[str, list[list[int]]]
"""By key, the operators of each stream of a stage."""


@dataclass(frozen=True)
class FarmAddress:
    """Where servers are asked for: the tracker, and the key they announce themselves by."""

    host: str
    port: int
    key: str

    @classmethod
    def parse(cls, tracker: str, key: str) -> FarmAddress:
        """Read `host:port`.

        Raises
        ------
        InputError: it is not of that form, or the key is empty.
        """
        host, _, port = tracker.rpartition(":")
        if not host or not port.isdigit():
            raise InputError(f"the tracker is `{tracker}`; give HOST:PORT, as in 127.0.0.1:9190")
        if not key:
            raise InputError("give the key that the servers were started with")
        return cls(host, int(port), key)


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
        address: FarmAddress,
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
        described = _describe(program, streams, threads, parallel_kernels)
        self._servers = [_Server(session, kernels_so, described) for session in _sessions(address)]
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

    def __init__(self, session: Any, kernels_so: bytes, described: str) -> None:
        session.upload(bytearray(kernels_so), "kernels.so")
        path = session.get_function("tvm.rpc.server.workpath")("kernels.so")
        try:
            self._program = session.get_function("tvm_interop.farm.open")(described, path)
            self._measure = session.get_function("tvm_interop.farm.measure")
            self.cores = int(session.get_function("tvm_interop.runtime.allowed_cores")())
        except AttributeError as error:
            raise DeviceError(
                "a server lacks our runtime; start it with --load-library and the path of "
                f"libtvm_interop.so: {error}"
            ) from error
        self._session = session  # A program that outlives its session could not be freed.

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
        stages = json.dumps([[[] for _ in programs[0]], *programs])
        first = self._run(stages, len(programs) + 1, 1, 1)
        more = repeats_for(first) - 1
        timed = np.concatenate([first, self._run(stages, len(programs) + 1, 0, more)], axis=1)
        if not (np.isfinite(timed).all() and (timed >= 0).all()):
            raise DeviceError("a server says that stages took no time there is")
        empty_us, *stages_us = (np.median(timed, axis=1) * 1e6).tolist()
        return [max(us - empty_us, 0.0) for us in stages_us], 1 + more

    def _run(self, stages: str, count: int, warmup: int, repeats: int) -> Any:
        seconds = json.loads(self._measure(self._program, stages, warmup, repeats, 0))
        return np.array(seconds, dtype=np.float64).reshape(count, repeats)


def _sessions(address: FarmAddress) -> list[Any]:
    """A session on each server of the key that is free."""
    try:
        from tvm import rpc

        # TVM itself goes on asking for a minute.
        socket.create_connection((address.host, address.port), _CONNECT_S).close()
        tracker = rpc.connect_tracker(address.host, address.port)
    except ImportError as error:
        raise DeviceError(
            f"measuring elsewhere needs TVM's RPC ({error}); install `tvm-interop[farm]`"
        ) from error
    except (RuntimeError, OSError) as error:
        raise DeviceError(
            f"no tracker answers at {address.host}:{address.port} ({error}); start one with "
            "`python -m tvm.exec.rpc_tracker`"
        ) from error
    sessions: list[Any] = []
    # Asked anew each time: who else asks may have taken one, and a request then waits for it.
    while tracker.summary()["queue_info"].get(address.key, {}).get("free", 0):
        try:
            sessions.append(_request(address))
        except RuntimeError as error:
            _LOG.warning("a server that the tracker calls free cannot be had: %s", error)
            break
    if not sessions:
        raise DeviceError(
            f"the tracker has no free server of key `{address.key}`; start some with `python -m "
            "tvm.exec.rpc_server --tracker HOST:PORT --key KEY --load-library LIBRARY`"
        )
    return sessions


def _request(address: FarmAddress) -> Any:
    """A session on a free server.

    Raises
    ------
    RuntimeError: none was given in time, or it does not answer.
    """
    from tvm import rpc

    # A connection of its own: a request that is given up ends with it.
    tracker = rpc.connect_tracker(address.host, address.port)
    # TVM itself waits without end, as for a server that died as it was given.
    tracker._sock.settimeout(_REQUEST_S)
    try:
        return tracker.request(address.key, session_timeout=_SESSION_S, max_retry=1)
    finally:
        tracker.close()


def _describe(program: Program, streams: int, threads: int, parallel_kernels: bool) -> str:
    """What `tvm_interop.farm.open` reads."""
    described = {
        "streams": streams,
        "threads": threads,
        "parallel_kernels": parallel_kernels,
        "values": [(value.dtype, value.shape) for value in program.values],
        "operators": [
            (op.kernel, (*op.inputs, *op.outputs), op.share or ()) for op in program.operators
        ],
    }
    return msgspec.json.encode(described).decode()
