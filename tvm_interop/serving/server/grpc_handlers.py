"""Handlers for the methods of a gRPC service, with clear errors for malformed messages.

By default, grpcio answers malformed messages and any exception with the status `UNKNOWN` and the
name of the exception. These handlers answer with the status and the message of the error.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

from ...errors import InputError, OverloadedError, TVMInteropError, cut
from .access import OPEN_METHODS, Access
from .grpc_wire import check_message
from .held_bytes import HeldBytes
from .service import LONGEST_ERROR, status_of

_LOG = logging.getLogger("tvm_interop.serving")


@dataclass(frozen=True)
class _Read:
    """A received message and its size in bytes, or the error if it could not be read."""

    content: Any = None
    nbytes: int = 0
    refusal: TVMInteropError | None = None

    @property
    def message(self) -> Any:
        """The message. Raises the error if the message could not be read."""
        if self.refusal is not None:
            raise self.refusal
        return self.content


def handlers(
    service: Any, calls: Any, access: Access, held: HeldBytes, max_number_bytes: int
) -> grpc.GenericRpcHandler:
    """Create the handler that a server of `grpc.aio` registers.

    Parameters
    ----------
    service: descriptor of the service. A streaming method must stream in both directions.
    calls: object with one function per method, of the same name. The function of a supported
        method is a coroutine function, or an asynchronous generator for a streaming method. If it
        raises a `TVMInteropError`, the call ends with the status of the error. A function that is
        not a coroutine function is a stub that answers `UNIMPLEMENTED`. It is registered as it is.
    access: access rules.
    held: budget of bytes. Each message counts towards it while it is served.
    max_number_bytes: see `grpc_wire.check_message`.
    """
    made = {}
    for method in service.methods:
        read = _reader(message_factory.GetMessageClass(method.input_type), max_number_bytes)
        write = message_factory.GetMessageClass(method.output_type).SerializeToString
        call = getattr(calls, method.name)
        is_open = method.name in OPEN_METHODS or not access.wants_token
        asked = None if is_open else access
        if method.client_streaming:
            made[method.name] = grpc.stream_stream_rpc_method_handler(
                _streamed(call, asked, held), read, write
            )
        else:
            if inspect.iscoroutinefunction(call):
                call = _single(call, asked, held)
            made[method.name] = grpc.unary_unary_rpc_method_handler(call, read, write)
    return grpc.method_handlers_generic_handler(service.full_name, made)


def _reader(kind: Any, max_number_bytes: int) -> Callable[[bytes], _Read]:
    name = kind.DESCRIPTOR.name

    def read(data: bytes) -> _Read:
        try:
            check_message(kind.DESCRIPTOR, data, max_number_bytes)
            return _Read(kind.FromString(data), len(data))
        except TVMInteropError as error:
            return _Read(refusal=error)
        except DecodeError:
            told = f"the bytes are not a `{name}`: see the Open Inference Protocol v2"
            return _Read(refusal=InputError(told))

    return read


def _single(call: Any, asked: Access | None, held: HeldBytes) -> Any:
    async def answer(read: _Read, context: Any) -> Any:
        try:
            _admit(context, asked)
            with held.request(read.nbytes):
                return await call(read.message, context)
        except Exception as error:
            await _end(context, error)

    return answer


def _streamed(call: Any, asked: Access | None, held: HeldBytes) -> Any:
    async def answers(requests: AsyncIterator[_Read], context: Any) -> AsyncIterator[Any]:
        async def messages() -> AsyncIterator[Any]:
            async for read in requests:
                with held.request(read.nbytes):
                    yield read.message

        try:
            _admit(context, asked)
            async for answer in call(messages(), context):
                yield answer
        except Exception as error:
            await _end(context, error)

    return answers


def _admit(context: Any, asked: Access | None) -> None:
    """Check the token of a call. If the argument `asked` is None, the call needs no token."""
    if asked is not None:
        metadata = dict(context.invocation_metadata() or ())
        asked.check_token(metadata.get("authorization"))


async def _end(context: Any, error: Exception) -> None:
    """End a call with an error.

    If the server is overloaded, the metadata of the call tell the client's gRPC library how long to
    wait before it retries.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, TVMInteropError):
        _LOG.error("a request failed", exc_info=error)
        told = f"a defect of the server: {cut(error, 300)}"
        await context.abort(grpc.StatusCode.INTERNAL, told)
    metadata: tuple[tuple[str, str], ...] = ()
    if isinstance(error, OverloadedError):
        retry_ms = max(1, round(error.retry_after_s * 1e3))
        metadata = (("grpc-retry-pushback-ms", str(retry_ms)),)
    status = getattr(grpc.StatusCode, status_of(error)[1])
    await context.abort(status, cut(error, LONGEST_ERROR), metadata)
