"""Finds free servers of TVM's RPC that have our runtime loaded, and runs programs on them.

The tracker and the servers are TVM's own. These commands start them:

    python -m tvm.exec.rpc_tracker --port 9190
    python -m tvm.exec.rpc_server --tracker HOST:9190 --key KEY --load-library libtvm_interop.so
"""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArtifactError, DeviceError, ExecutionError, InputError, TVMInteropError
from ..machine.cpu_features import missing_features, parse_cpuinfo
from .rpc_deadline import NoAnswerError, answer_within

_LOG = logging.getLogger("tvm_interop")
_CONNECT_S = 5.0
_REQUEST_S = 20.0
_SESSION_S = 3600.0
"""The time, in seconds, after which a server itself ends a session that is still open."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of a tracker, and the key under which servers register with it."""

    host: str
    port: int
    key: str

    @classmethod
    def parse(cls, tracker: str, key: str) -> ServerAddress:
        """Make an address from the text `host:port` and a key.

        Raises
        ------
        InputError: `tracker` has another form, or the key is empty.
        """
        host, _, port = tracker.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")  # These enclose addresses of IPv6.
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise InputError(f"the tracker is `{tracker}`; give HOST:PORT, as in 127.0.0.1:9190")
        if not key:
            raise InputError("give the key that the servers were started with")
        return cls(host, int(port), key)


def free_sessions(address: ServerAddress, limit: int | None = None) -> list[Any]:
    """Open a session on each free server that has the key, but on at most `limit` servers.

    Raises
    ------
    DeviceError: the tracker cannot be reached, or has no free server with the key.
    """
    sessions: list[Any] = []
    # Before each request, ask the tracker how many servers are free. If another client has taken
    # the last free server, a request would wait.
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
    """Return the number of free servers that have the key.

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
        # Try to connect first: TVM itself would retry for a minute if it cannot reach the tracker.
        socket.create_connection((address.host, address.port), _CONNECT_S).close()
        return answer_within(_REQUEST_S, f"the tracker at {address.host}:{address.port}", ask)
    except ImportError as error:
        raise DeviceError(
            f"running a model on a server needs TVM's RPC ({error}); install `tvm-interop[farm]`"
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
    """Return a session on a free server.

    Raises
    ------
    RuntimeError: the tracker gave no server in time.
    NoAnswerError: the server, or the tracker, does not answer.
    """

    def ask() -> Any:
        # The request has its own connection, so that closing the connection ends the request.
        tracker = _connect(address)
        # Without a timeout TVM would wait forever, for example for a server that has died.
        tracker._sock.settimeout(_REQUEST_S)
        try:
            return tracker.request(address.key, session_timeout=_SESSION_S, max_retry=1)
        finally:
            tracker.close()

    return answer_within(_REQUEST_S + _CONNECT_S, "it", ask)


class ServedTensor(NamedTuple):
    """A tensor of a program on a server.

    Attributes
    ----------
    buffer: the index of the buffer that holds the tensor.
    offset: where the tensor begins in the buffer, in bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    buffer: int
    offset: int = 0


def _kernel_type(dtype: str) -> str:
    """The type of a tensor for TVM's kernels, which take bfloat16 as integers of 16 bits."""
    return "uint16" if dtype == "bfloat16" else dtype


class ServedOperator(NamedTuple):
    """A kernel call of a program on a server.

    Attributes
    ----------
    kernel: the kernel's name.
    args: indices of the tensors that the kernel is called with, inputs first.
    share: empty if the whole kernel runs. If only a part of the kernel's iterations runs (a share),
        the index of this share and the number of shares.
    """

    kernel: str
    args: tuple[int, ...]
    share: tuple[int, ...]


@contextmanager
def answers() -> Iterator[None]:
    """Turn each error of TVM, such as a lost connection, into an `ExecutionError`."""
    try:
        yield
    except TVMInteropError:
        raise
    except Exception as error:
        raise ExecutionError(f"the server: {error}") from error


class ServedProgram:
    """The operators of a model on a server, bound to memory there that holds zeros at first.

    Attributes
    ----------
    cores: the number of threads that run models on the server. By default it is the number of cores
        that the server may use.
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
        session: a session that `free_sessions` returned.
        kernels_so: the content of the kernels' library, compiled for the server's CPU.
        streams: the number of streams.
        threads: the number of threads for the parallel loops of one stream's kernels.
        buffers: the size of each buffer, in bytes.
        values: the tensors.
        operators: the kernel calls, in their order.
        cpu_features: LLVM's names of the vector instructions that the kernels need.

        Raises
        ------
        DeviceError: the server lacks our runtime.
        ArtifactError: the server's CPU lacks instructions that the kernels need.
        """
        # Keep the session open, because the program can be freed only in an open session.
        self._session = session
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
            "values": [value._replace(dtype=_kernel_type(value.dtype)) for value in values],
            "operators": operators,
        }
        self._program = self._function("remote.open")(json.dumps(described), path)
        self.cores = int(self._function("runtime.num_threads")())

    def tensor(self, value: int) -> Any:
        """Return the tensor with the number `value`, which lies in the server's memory."""
        return self.call("remote.tensor", self._program, value)

    def fill_at_random(self) -> None:
        """Fill all float tensors with random values that are about as large as in real models."""
        self.call("remote.fill_at_random", self._program)

    def measure(
        self, stages: Sequence[Sequence[Sequence[int]]], warmup: int, repeats: int
    ) -> np.ndarray:
        """Time stages against each other; return seconds, shape (len(stages), repeats).

        Parameters
        ----------
        stages: for each stage and each of its streams, the indices of the operators.
        warmup: untimed rounds before the timed ones.
        repeats: timed rounds.
        """
        seconds = self._function("remote.measure")(
            self._program, json.dumps(stages), warmup, repeats, 0
        )
        return np.array(json.loads(seconds), dtype=np.float64).reshape(len(stages), repeats)

    def make_executor(self, stream_of: Sequence[int], waits: Sequence[Sequence[int]]) -> Any:
        """Make an executor on the server for all operators, in their order.

        Parameters
        ----------
        stream_of: the stream of each operator.
        waits: for each operator, the earlier operators that it waits for.
        """
        return self._function("remote.make_executor")(
            self._program, json.dumps(stream_of), json.dumps(waits)
        )

    def call(self, name: str, *arguments: Any) -> Any:
        """Call the function `tvm_interop.{name}` on the server and return its result.

        Raises
        ------
        ExecutionError: an operator or the server failed.
        """
        with answers():
            return self._function(name)(*arguments)

    def _function(self, name: str) -> Any:
        try:
            return self._session.get_function(f"tvm_interop.{name}")
        except AttributeError as error:
            raise DeviceError(
                "a server lacks our runtime, or has an older one; start it with --load-library and "
                f"the path of libtvm_interop.so: {error}"
            ) from error
