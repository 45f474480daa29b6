"""The methods of a gRPC service, which answer bytes that are no message in the protocol's words.

What grpcio makes of such bytes is `UNKNOWN`, with an exception's name.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.message import DecodeError

_UNREADABLE = object()
"""In place of a message: bytes that are none."""


def handlers(service: Any, calls: Any) -> grpc.GenericRpcHandler:
    """What a server of `grpc.aio` registers.

    Parameters
    ----------
    service: its descriptor. Where a method streams, it streams both ways.
    calls: a coroutine function for each method, of the method's name; an asynchronous generator
        for one that streams; any other function for one that is not there.
    """
    made = {}
    for method in service.methods:
        read = _reader(message_factory.GetMessageClass(method.input_type))
        write = message_factory.GetMessageClass(method.output_type).SerializeToString
        told = f"the bytes are no `{method.input_type.name}`: see the Open Inference Protocol v2"
        call = getattr(calls, method.name)
        if method.client_streaming:
            made[method.name] = grpc.stream_stream_rpc_method_handler(
                _streamed(call, told), read, write
            )
        else:
            if inspect.iscoroutinefunction(call):
                call = _single(call, told)
            made[method.name] = grpc.unary_unary_rpc_method_handler(call, read, write)
    return grpc.method_handlers_generic_handler(service.full_name, made)


def _reader(kind: Any) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return _UNREADABLE

    return read


def _single(call: Any, told: str) -> Any:
    async def answer(request: Any, context: Any) -> Any:
        if request is _UNREADABLE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, told)
        return await call(request, context)

    return answer


def _streamed(call: Any, told: str) -> Any:
    async def answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async def readable() -> AsyncIterator[Any]:
            async for request in requests:
                if request is _UNREADABLE:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, told)
                yield request

        async for answer in call(readable(), context):
            yield answer

    return answers
