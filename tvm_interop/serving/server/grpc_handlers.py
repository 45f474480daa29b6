"""The methods of a gRPC service, which answer what is no message in the protocol's words.

What grpcio makes of such bytes, and of any exception, is `UNKNOWN`, with the exception's name.
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
from .service import LONGEST_ERROR, status_of

Check = Callable[[Any], None]
"""Raises for an `authorization` that does not do."""

_LOG = logging.getLogger("tvm_interop.serving")


@dataclass(frozen=True)
class _Refused:
    """In place of a message: why it was not read."""

    error: TVMInteropError


def handlers(
    service: Any, calls: Any, access: Access, max_number_bytes: int
) -> grpc.GenericRpcHandler:
    """What a server of `grpc.aio` registers.

    Parameters
    ----------
    service: its descriptor. Where a method streams, it streams both ways.
    calls: a coroutine function for each method, of the method's name; an asynchronous generator
        for one that streams; any other function for one that is not there.
    access: who may call.
    max_number_bytes: see `grpc_wire.check_message`.
    """
    made = {}
    for method in service.methods:
        read = _reader(message_factory.GetMessageClass(method.input_type), max_number_bytes)
        write = message_factory.GetMessageClass(method.output_type).SerializeToString
        call = getattr(calls, method.name)
        check = _open if method.name in OPEN_METHODS else access.check_token
        if method.client_streaming:
            made[method.name] = grpc.stream_stream_rpc_method_handler(
                _streamed(call, check), read, write
            )
        else:
            if inspect.iscoroutinefunction(call):
                call = _single(call, check)
            made[method.name] = grpc.unary_unary_rpc_method_handler(call, read, write)
    return grpc.method_handlers_generic_handler(service.full_name, made)


async def abort(context: Any, error: TVMInteropError) -> None:
    """End the RPC with an error; gRPC's own retries obey the hint."""
    metadata: tuple[tuple[str, str], ...] = ()
    if isinstance(error, OverloadedError):
        retry_ms = max(1, round(error.retry_after_s * 1e3))
        metadata = (("grpc-retry-pushback-ms", str(retry_ms)),)
    status = getattr(grpc.StatusCode, status_of(error)[1])
    await context.abort(status, cut(error, LONGEST_ERROR), metadata)


def _reader(kind: Any, max_number_bytes: int) -> Callable[[bytes], Any]:
    name = kind.DESCRIPTOR.name

    def read(data: bytes) -> Any:
        try:
            check_message(kind.DESCRIPTOR, data, max_number_bytes)
            return kind.FromString(data)
        except TVMInteropError as error:
            return _Refused(error)
        except DecodeError:
            told = f"the bytes are no `{name}`: see the Open Inference Protocol v2"
            return _Refused(InputError(told))

    return read


def _single(call: Any, check: Check) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        await _admit(context, check)
        if isinstance(request, _Refused):
            await abort(context, request.error)
        try:
            return await call(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _defect(context, error)

    return answer


def _streamed(call: Any, check: Check) -> Any:
    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def readable() -> AsyncIterator[Any]:
            async for request in requests:
                if isinstance(request, _Refused):
                    await abort(context, request.error)
                yield request

        await _admit(context, check)
        try:
            async for answer in call(readable(), context):
                yield answer
        except grpc.aio.AbortError:
            raise
        except Exception as error:
            await _defect(context, error)

    return answers


def _open(_: Any) -> None:
    """Let everybody call."""


async def _admit(context: Any, check: Check) -> None:
    """End the RPC of a client who may not call."""
    metadata = dict(context.invocation_metadata() or ())
    try:
        check(metadata.get("authorization"))
    except TVMInteropError as error:
        await abort(context, error)


async def _defect(context: Any, error: Exception) -> None:
    _LOG.exception("a request failed")
    told = f"a defect of the server: {cut(error, 300)}"
    await context.abort(grpc.StatusCode.INTERNAL, told)
