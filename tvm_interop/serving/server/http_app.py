"""The HTTP endpoints of the Open Inference Protocol, as an ASGI application."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...errors import (
    CancelledError,
    InputError,
    OverloadedError,
    TokenError,
    TVMInteropError,
    UnavailableError,
    cut,
)
from .access import is_of_a_form
from .held_bytes import RequestBytes
from .http_body import JSON_LENGTH, InferBody
from .protocol import NO_SHARED_MEMORY
from .service import LONGEST_ERROR, RequestLog, Service, status_of

_LOG = logging.getLogger("tvm_interop.serving")
_LARGE = 2**16
"""The size in bytes above which a body is decoded or encoded outside the event loop."""
_MOST_OF_SMALL = 2**16
"""The maximum size in bytes of the body of a request for the repository index."""
_ID = "X-Request-Id"

Handler = Callable[[Service, Request], Awaitable[Response]]


def http_app(service: Service) -> Starlette:
    """Create the ASGI application of a service."""
    routes: list[Route] = []

    def route(path: str, handler: Handler, method: str = "GET") -> None:
        endpoint = functools.partial(_answered, handler, service)
        routes.append(Route(path, endpoint, methods=[method]))

    # Inference comes first: Starlette tries routes in order, and most requests are for inference.
    models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
    for model in models:
        route(f"{model}/infer", _infer, "POST")
    route("/v2", _server_metadata)
    route("/v2/health/live", _live)
    route("/v2/health/ready", _ready)
    route("/v2/models/stats", _statistics)
    for model in models:
        route(model, _model_metadata)
        route(f"{model}/ready", _model_ready)
        route(f"{model}/config", _model_config)
        route(f"{model}/stats", _statistics)
    route("/v2/repository/index", _index, "POST")
    route("/v2/repository/models/{name}/load", _load, "POST")
    route("/v2/repository/models/{name}/unload", _unload, "POST")
    for kind in ("system", "cuda"):
        for method in ("GET", "POST"):
            route(f"/v2/{kind}sharedmemory/{{rest:path}}", _shared_memory, method)
    route("/metrics", _metrics)
    app = Starlette(routes=routes, exception_handlers={HTTPException: _wrong_path})
    if service.access.origins:
        # Without these headers, a browser lets no page of another origin send JSON or read answers.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=sorted(service.access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[JSON_LENGTH, _ID, "Retry-After"],
        )
    return app


async def _answered(handler: Handler, service: Service, request: Request) -> Response:
    """Return the response of a handler, or an error response in the format of the protocol."""
    held = request.scope["held"] = RequestBytes(service.held)
    headers = request.scope["by_name"] = _by_name(request)
    try:
        service.access.check_http(request.scope["path"], headers)
        return await handler(service, request)
    except TVMInteropError as error:
        return _failed(error)
    except ClientDisconnect:
        return Response(status_code=499)  # The client has disconnected, so nobody reads this.
    except HTTPException:
        raise
    except Exception as error:
        _LOG.exception("a request for %s failed", request.url.path)
        return JSONResponse({"error": f"a defect of the server: {cut(error, 300)}"}, 500)
    finally:
        held.release()


def _by_name(request: Request) -> dict[str, str]:
    """Return the headers keyed by name in lower case.

    If a name occurs several times, the first header counts. A look-up in this dictionary is faster
    than in Starlette's own headers, where each look-up searches all headers.
    """
    given = reversed(request.scope["headers"])
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in given}


def _failed(error: Exception) -> Response:
    status, _ = status_of(error)
    headers = {}
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif isinstance(error, UnavailableError):
        headers["Retry-After"] = "1"
    elif isinstance(error, TokenError):
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": cut(error, LONGEST_ERROR)}, status, headers)


async def _wrong_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = f"{error.detail}: {request.method} {request.url.path[:200]}"
    return JSONResponse({"error": said}, error.status_code, error.headers)


async def _live(service: Service, _: Request) -> Response:
    return Response(status_code=200 if service.is_live else 503)


async def _ready(service: Service, _: Request) -> Response:
    return Response(status_code=200 if service.is_ready else 503)


async def _server_metadata(service: Service, _: Request) -> Response:
    return JSONResponse(service.server_metadata())


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["name"], request.path_params.get("version", "")


async def _model_ready(service: Service, request: Request) -> Response:
    return Response(status_code=200 if service.is_model_ready(*_named(request)) else 503)


async def _model_metadata(service: Service, request: Request) -> Response:
    return JSONResponse(service.model_metadata(*_named(request)))


async def _model_config(service: Service, request: Request) -> Response:
    return JSONResponse(service.model_config(*_named(request)))


async def _statistics(service: Service, request: Request) -> Response:
    named = _named(request) if "name" in request.path_params else ()
    return JSONResponse(service.statistics(*named))


async def _metrics(service: Service, _: Request) -> Response:
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


async def _index(service: Service, request: Request) -> Response:
    body = await _body(service, request, _MOST_OF_SMALL)
    return JSONResponse(service.repository_index(_decoded_small(body).get("ready") is True))


def _decoded_small(body: bytearray) -> dict[str, Any]:
    """Decode the body of a request for the repository, which may be empty."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any]) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(
            f'the body must be a JSON object, such as {{}} or {{"ready": true}}: {error}'
        ) from None


async def _load(service: Service, request: Request) -> Response:
    body = await _body(service, request, service.config.max_request_bytes)
    if len(body) > _MOST_OF_SMALL:
        raise InputError(
            "the body is too large for a request to load a model: the server loads artifacts of "
            "its model folder, so send no files of a model"
        )
    parameters = _decoded_small(body).get("parameters")
    names = list(parameters) if isinstance(parameters, dict) else []
    await service.load_model(request.path_params["name"], names)
    return JSONResponse({})


async def _unload(service: Service, request: Request) -> Response:
    await _body(service, request, service.config.max_request_bytes)
    await service.unload_model(request.path_params["name"])
    return JSONResponse({})


async def _shared_memory(service: Service, request: Request) -> Response:
    raise HTTPException(501, NO_SHARED_MEMORY)


async def _infer(service: Service, request: Request) -> Response:
    name, version = _named(request)
    headers = request.scope["by_name"]
    log = RequestLog("http", _printable(headers.get(_ID.lower(), "")))
    try:
        config, json_length = service.config, headers.get(JSON_LENGTH.lower())
        if json_length is None:
            most, of = config.max_json_bytes, " of JSON, and more as binary data"
            data = await _body(service, request, min(most, config.max_request_bytes), of)
        else:
            data = await _body(service, request, config.max_request_bytes)
        read = functools.partial(InferBody, name, version, data, json_length, config.max_json_bytes)
        body = await asyncio.to_thread(read) if len(data) > _LARGE else read()
        log.id = _printable(body.id) or log.id
        answer = await _while_connected(request, service.infer(body.call))
        is_large = sum(array.nbytes for _, array in answer.outputs) > _LARGE
        write = functools.partial(body.answer, answer)
        content, json_length = await asyncio.to_thread(write) if is_large else write()
        log.served(name, answer)
    except TVMInteropError as error:
        log.failed(name, error)
        response = _failed(error)
        response.headers[_ID] = log.id
        return response
    except (asyncio.CancelledError, ClientDisconnect):
        log.failed(name, CancelledError("the client has gone"))
        raise
    told = {_ID: log.id}
    media_type = "application/json"
    if json_length is not None:
        told[JSON_LENGTH] = str(json_length)
        media_type = "application/octet-stream"
    return Response(content, headers=told, media_type=media_type)


async def _while_connected(request: Request, work: Any) -> Any:
    """Return the result of the coroutine `work`.

    If the client disconnects first, the work is cancelled and `ClientDisconnect` is raised.
    """
    answer = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ClientDisconnect
    finally:
        gone.cancel()
        answer.cancel()


async def _body(service: Service, request: Request, most: int, told: str = "") -> bytearray:
    """Read the body of a request.

    Parameters
    ----------
    most: maximum size of the body in bytes.
    told: description of the body for the error message.

    Raises
    ------
    OverloadedError
        The bodies of all requests together take too many bytes.
    HTTPException
        The body is too large (status 413), compressed (415), or of a content type that the form of
        a web page can send (415).
    """
    headers = request.scope["by_name"]
    encoding = headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise HTTPException(415, f"bodies must not be compressed, got `{encoding[:40]}`")
    content_type = headers.get("content-type", "")
    if is_of_a_form(content_type):
        raise HTTPException(
            415,
            f"the body is `{content_type[:40]}`; send `Content-Type: application/json`, or "
            "application/octet-stream with binary tensors",
        )
    length = headers.get("content-length", "0")
    size = int(length) if length.isdigit() else 0
    # A client reads the error only after it has sent its whole body. So if a body is a little too
    # large, read it and throw it away. If its declared size is far too large, do not read it.
    most_read = 2 * max(most, service.config.max_request_bytes)
    if size <= most_read:
        body, held = bytearray(), request.scope["held"]
        is_kept, size = size <= most, 0
        async for chunk in request.stream():
            size += len(chunk)
            is_kept = is_kept and size <= most
            if is_kept:
                held.add(len(chunk))
                body += chunk
            else:
                body.clear()
                held.release()
            if size > most_read:
                break
        if is_kept:
            return body
    raise HTTPException(
        413,
        f"a request may have at most {most} bytes{told}; send less at once",
        {"Connection": "close"},
    )


def _printable(text: str) -> str:
    """Return the id of a request if an HTTP header may contain it, otherwise ""."""
    return text if text.isascii() and text.isprintable() and len(text) <= 128 else ""
