"""The gRPC service `GRPCInferenceService` of the Open Inference Protocol.

The messages and stubs come from the package `tritonclient`, which clients use too. So this
repository needs no generated code.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Mapping
from typing import Any

import grpc
import numpy as np
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ...errors import (
    CancelledError,
    InputError,
    ModelNotFoundError,
    TVMInteropError,
    UnavailableError,
    cut,
)
from .any_model import VERSION
from .grpc_handlers import handlers
from .protocol import (
    MOST_DIMENSIONS,
    NO_SHARED_MEMORY,
    Answer,
    InferCall,
    array_from_bytes,
    array_from_values,
    check_counts,
    check_names,
    datatype_of,
    dtype_of,
    read_schedule,
    refuse_shared_memory,
)
from .service import LONGEST_ERROR, RequestLog, Service
from .strings import BYTES, bytes_of, check_total

_FIELDS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
"""Map each datatype to the message field for values that are not sent as raw bytes."""


_MANY = 2**12
"""If a field has more numbers than this, its message is decoded outside the event loop."""


class _Calls(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The calls that `Service` supports. The stubs answer other calls with `UNIMPLEMENTED`."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=self._service.is_live)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self._service.is_ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        # As in Triton, a model that is not there is not ready, so that clients can wait for it.
        try:
            ready = self._service.is_model_ready(request.name, request.version)
        except (ModelNotFoundError, UnavailableError):
            ready = False
        return service_pb2.ModelReadyResponse(ready=ready)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerMetadataResponse(**self._service.server_metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        told = self._service.model_metadata(request.name, request.version)
        return json_format.ParseDict(told, service_pb2.ModelMetadataResponse())

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        told = self._service.model_config(request.name, request.version)
        return json_format.ParseDict({"config": told}, service_pb2.ModelConfigResponse())

    async def ModelStatistics(self, request: Any, context: Any) -> Any:
        told = self._service.statistics(request.name, request.version)
        return json_format.ParseDict(told, service_pb2.ModelStatisticsResponse())

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:
        rows = self._service.repository_index(request.ready)
        return json_format.ParseDict({"models": rows}, service_pb2.RepositoryIndexResponse())

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:
        await self._service.load_model(request.model_name, list(request.parameters))
        return service_pb2.RepositoryModelLoadResponse()

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:
        await self._service.unload_model(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()

    async def _refuse_shared_memory(self, request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, NO_SHARED_MEMORY)

    SystemSharedMemoryStatus = CudaSharedMemoryStatus = _refuse_shared_memory
    SystemSharedMemoryRegister = CudaSharedMemoryRegister = _refuse_shared_memory
    SystemSharedMemoryUnregister = CudaSharedMemoryUnregister = _refuse_shared_memory

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        return await self._infer(request, context)

    async def ModelStreamInfer(
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Serve the requests of a gRPC stream, one after the other."""
        async for request in requests:
            try:
                response = await self._infer(request, context)
            except TVMInteropError as error:
                yield service_pb2.ModelStreamInferResponse(
                    error_message=cut(error, LONGEST_ERROR),
                    infer_response=service_pb2.ModelInferResponse(id=request.id),
                )
            else:
                yield service_pb2.ModelStreamInferResponse(infer_response=response)

    async def _infer(self, request: Any, context: Any) -> Any:
        log = RequestLog("grpc", request.id)
        try:
            read = functools.partial(_call, request, context.time_remaining())
            call = await asyncio.to_thread(read) if _has_many_numbers(request) else read()
            answer = await self._service.infer(call)
        except TVMInteropError as error:
            log.failed(request.model_name, error)
            raise
        except asyncio.CancelledError:
            log.failed(request.model_name, CancelledError("the client has gone"))
            raise
        log.served(request.model_name, answer)
        return _response(request, answer)


class GrpcServer:
    """A gRPC server for a `Service`."""

    def __init__(self, service: Service) -> None:
        config = service.config
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", config.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
                # Send pings, to detect clients that have disappeared without closing the
                # connection.
                ("grpc.keepalive_time_ms", round(config.keep_alive_s * 1e3)),
                ("grpc.keepalive_timeout_ms", round(config.receive_timeout_s * 1e3)),
                ("grpc.http2.max_pings_without_data", 0),
            ],
            maximum_concurrent_rpcs=config.max_connections,
        )
        described = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
        methods = handlers(
            described, _Calls(service), service.access, service.held, config.max_json_bytes
        )
        self._server.add_generic_rpc_handlers((methods,))
        host = f"[{config.host}]" if ":" in config.host else config.host
        try:
            self.port: int = self._server.add_insecure_port(f"{host}:{config.grpc_port}")
        except RuntimeError as error:
            raise OSError(
                f"gRPC cannot listen on {host}:{config.grpc_port}: {error}; choose another "
                "`grpc_port` (--grpc-port), or 0 for any free one"
            ) from None

    async def start(self) -> None:
        """Accept connections."""
        await self._server.start()

    async def stop(self) -> None:
        """Close all connections. Running calls have 5 seconds to finish."""
        await self._server.stop(5.0)


def _has_many_numbers(request: Any) -> bool:
    """Return whether a request has so many numbers that decoding it would block the event loop.

    Numbers in raw tensors do not count, because they need no decoding.
    """
    if request.raw_input_contents:
        return False
    return any(
        len(numbers) > _MANY
        for given in request.inputs
        for _, numbers in given.contents.ListFields()
    )


def _call(request: Any, remaining_s: float | None) -> InferCall:
    """Convert a gRPC message into an `InferCall`.

    The timeout of the request is the shorter of its parameter `timeout` and the gRPC deadline.

    Raises
    ------
    InputError
        The message is not a valid request.
    """
    check_counts(len(request.inputs), len(request.outputs))
    tensors = [given.name for given in (*request.inputs, *request.outputs)]
    check_names([request.model_name, request.model_version, request.id, *tensors])
    priority, timeout_us = read_schedule(_parameters(request.parameters))
    if remaining_s is not None:
        timeout_us = min(timeout_us or float("inf"), max(1.0, remaining_s * 1e6))
    for output in request.outputs:
        refuse_shared_memory(f"output `{output.name}`", output.parameters)
        if _parameters(output.parameters).get("classification"):
            raise InputError(
                f"output `{cut(output.name)}`: classification is not supported; leave "
                "`classification` out"
            )
    return InferCall(
        request.model_name,
        request.model_version,
        _inputs(request),
        [output.name for output in request.outputs] or None,
        priority,
        timeout_us,
    )


def _inputs(request: Any) -> dict[str, np.ndarray]:
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InputError(
            f"there are {len(raw)} `raw_input_contents` for {len(request.inputs)} inputs; "
            "give one for each"
        )
    arrays: dict[str, np.ndarray] = {}
    for i, given in enumerate(request.inputs):
        name, datatype = given.name, given.datatype
        shape = list(given.shape[: MOST_DIMENSIONS + 1])
        if name in arrays:
            raise InputError(f"input `{name}` is given twice; give it once")
        refuse_shared_memory(f"input `{name}`", given.parameters)
        if raw:
            if given.contents.ListFields():
                raise InputError(
                    f"input `{name}` has both `contents` and `raw_input_contents`; give one of them"
                )
            arrays[name] = array_from_bytes(name, datatype, shape, raw[i])
            check_total(arrays.values())
            continue
        dtype_of(name, datatype)
        if datatype not in _FIELDS:
            raise InputError(f"input `{name}`: {datatype} can only be sent as raw bytes")
        values = getattr(given.contents, _FIELDS[datatype])
        arrays[name] = array_from_values(name, datatype, shape, values)
        check_total(arrays.values())
    return arrays


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, parameter in parameters.items():
        kind = parameter.WhichOneof("parameter_choice")
        if kind is not None:
            found[name] = getattr(parameter, kind)
    return found


def _response(request: Any, answer: Answer) -> Any:
    response = service_pb2.ModelInferResponse(
        model_name=request.model_name, model_version=VERSION, id=request.id
    )
    response.parameters["batch_size"].int64_param = answer.batch_size
    for spec, array in answer.outputs:
        response.outputs.add(
            name=spec.name, datatype=datatype_of(spec, request.model_name), shape=array.shape
        )
        response.raw_output_contents.append(bytes_of(array))
    return response
