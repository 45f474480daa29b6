"""Servers of TVM's RPC that have our runtime loaded, and programs on them.

A server is TVM's own:

    python -m tvm.exec.rpc_tracker --port 9190
    python -m tvm.exec.rpc_server --tracker HOST:9190 --key KEY --load-library libtvm_interop.so
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArtifactError, DeviceError, ExecutionError, InputError
from ..machine.cpu_features import missing_features, parse_cpuinfo
from .rpc_deadline import NoAnswerError, answer_within

_LOG = logging.getLogger("tvm_interop")
_CONNECT_S = 5.0
_REQUEST_S = 20.0
_SESSION_S = 3600.0
"""After so many seconds a server ends a session by itself."""


@dataclass(frozen=True)
class ServerAddress:
    """Where servers are asked for: the tracker, and the key they announce themselves by."""

    host: str
    port: int
    key: str

    @classmethod
    def parse(cls, tracker: str, key: str) -> ServerAddress:
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


def free_sessions(address: ServerAddress, limit: int | None = None) -> list[Any]:
    """A session on each server of the key that is free, on at most `limit` of them.

    Raises
    ------
    DeviceError: the tracker cannot be reached, or has no free server of that key.
    """
    sessions: list[Any] = []
    # Asked anew each time: who else asks may have taken one, and a request then waits for it.
    while len(sessions) != limit and _num_free(address):
        try:
            sessions.append(_request(address))
        except NoAnswerError as error:
            _LOG.warning("a server that the tracker calls free is left out: %s", error)
        except RuntimeError as error:
            _LOG.warning("a server that the tracker calls free cannot be reached: %s", error)
            break
    if not sessions:
        raise DeviceError(
            f"the tracker has no free server of key `{address.key}`; start some with `python -m "
            "tvm.exec.rpc_server --tracker HOST:PORT --key KEY --load-library LIBRARY`"
        )
    return sessions


def _num_free(address: ServerAddress) -> int:
    """How many servers of the key are free.

    Raises
    ------
    DeviceError: the tracker cannot be reached or does not answer.
    """

    def ask() -> int:
        tracker = _connect(address)
        try:
            return int(tracker.summary()["queue_info"].get(address.key, {}).get("free", 0))
        finally:
            tracker.close()

    try:
        # TVM itself goes on asking for a minute.
        socket.create_connection((address.host, address.port), _CONNECT_S).close()
        return answer_within(_REQUEST_S, f"the tracker at {address.host}:{address.port}", ask)
    except ImportError as error:
        raise DeviceError(
            f"running elsewhere needs TVM's RPC ({error}); install `tvm-interop[farm]`"
        ) from error
    except (RuntimeError, OSError) as error:
        raise DeviceError(
            f"no tracker answers at {address.host}:{address.port} ({error}); start one with "
            "`python -m tvm.exec.rpc_tracker`"
        ) from error


def _connect(address: ServerAddress) -> Any:
    from tvm import rpc

    return rpc.connect_tracker(address.host, address.port)


def _request(address: ServerAddress) -> Any:
    """A session on a free server.

    Raises
    ------
    RuntimeError: none was given in time.
    NoAnswerError: the server, or the tracker, does not answer.
    """

    def ask() -> Any:
        # A connection of its own: a request that is given up ends with it.
        tracker = _connect(address)
        # TVM itself waits without end, as for a server that died as it was given.
        tracker._sock.settimeout(_REQUEST_S)
        try:
            return tracker.request(address.key, session_timeout=_SESSION_S, max_retry=1)
        finally:
            tracker.close()

    return answer_within(_REQUEST_S + _CONNECT_S, "it", ask)


class ServedTensor(NamedTuple):
    """A tensor of a program on a server: which of its buffers it is in, and at which byte."""

    dtype: str
    shape: tuple[int, ...]
    buffer: int
    offset: int = 0


class ServedOperator(NamedTuple):
    """A kernel call of a program on a server; `share` is empty where the call runs all of it."""

    kernel: str
    args: tuple[int, ...]
    share: tuple[int, ...]


class ServedProgram:
    """The operators of a model on a server, bound to memory there, which is zeros at first.

    Attributes
    ----------
    cores: physical cores the server may use.
    """

    def __init__(
        self,
        session: Any,
        kernels_so: bytes,
        *,
        streams: int,
        threads: int,
        buffers: Sequence[int],
        values: Sequence[ServedTensor],
        operators: Sequence[ServedOperator],
        cpu_features: Sequence[str] = (),
    ) -> None:
        """Upload the kernels and bind them.

        Parameters
        ----------
        session: one of `free_sessions`.
        kernels_so: the library of the kernels, for the server's target.
        streams, threads: how many streams, and the threads that loops of each are meant for.
        buffers: bytes of each.
        cpu_features: the instructions the kernels need, as a manifest has them.

        Raises
        ------
        DeviceError: the server lacks our runtime.
        ArtifactError: the server's CPU lacks instructions.
        """
        self._session = session  # A program that outlives its session could not be freed.
        missing = missing_features(
            cpu_features, parse_cpuinfo([self._function("remote.cpu_flags")()])
        )
        if missing:
            raise ArtifactError(
                "the kernels need CPU instructions that the server lacks: "
                f"{', '.join(missing)}; compile the model for it with the target's `mattr`"
            )
        session.upload(bytearray(kernels_so), "kernels.so")
        path = session.get_function("tvm.rpc.server.workpath")("kernels.so")
        described = {
            "streams": streams,
            "threads": threads,
            "buffers": buffers,
            "values": values,
            "operators": operators,
        }
        self._program = self._function("remote.open")(json.dumps(described), path)
        self.cores = int(self._function("runtime.num_threads")())

    def tensor(self, value: int) -> Any:
        """Value number `value` in the server's own memory."""
        return self._function("remote.tensor")(self._program, value)

    def fill_at_random(self) -> None:
        """Give all tensors of floats values of a model's usual size."""
        self._function("remote.fill_at_random")(self._program)

    def measure(
        self, stages: Sequence[Sequence[Sequence[int]]], warmup: int, repeats: int
    ) -> np.ndarray:
        """Seconds, shape (len(stages), repeats), of stages measured against each other.

        Parameters
        ----------
        stages: of each, the operators of each stream.
        """
        seconds = self._function("remote.measure")(
            self._program, json.dumps(stages), warmup, repeats, 0
        )
        return np.array(json.loads(seconds), dtype=np.float64).reshape(len(stages), repeats)

    def make_executor(self, stream_of: Sequence[int], waits: Sequence[Sequence[int]]) -> Any:
        """All operators in their order, on these streams: an executor on the server."""
        return self._function("remote.make_executor")(
            self._program, json.dumps(stream_of), json.dumps(waits)
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """What the server's `tvm_interop.{name}` gives.

        Raises
        ------
        ExecutionError: an operator failed, or the server did.
        """
        try:
            return self._function(name)(*arguments)
        except Exception as error:
            raise ExecutionError(f"the server: {error}") from error

    def _function(self, name: str) -> Any:
        try:
            return self._session.get_function(f"tvm_interop.{name}")
        except AttributeError as error:
            raise DeviceError(
                "a server lacks our runtime, or has an older one; start it with --load-library and "
                f"the path of libtvm_interop.so: {error}"
            ) from error
