"""Deployment of the server on Ray Serve, which provides replicas, autoscaling and routing.

Each replica is a complete server with its own artifacts, instances, queues and policy. This module
needs the extra `ray`. The artifacts must be at the same path on every machine, because Ray does not
copy files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from ..errors import DeviceError, InputError
from .server.config import ServerConfig, with_options
from .server.repository import check_name

_OF_THE_NETWORK = ("host", "http_port", "grpc_port", "model_folder")
"""The server's options that `application` refuses. Ray chooses host and ports. A change of the
model folder would take effect in one replica only.
"""


def application(
    models: Mapping[str, str | os.PathLike[str]],
    *,
    deployment: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Create an application for `ray.serve.run` that serves models over HTTP.

    If a replica dies, Ray answers its running requests with an error and does not retry them.
    Clients may retry. Ray routes other requests to the remaining replicas and starts a new replica.

    Parameters
    ----------
    models: paths of artifact files, keyed by model name.
    deployment: options of `ray.serve.deployment`, such as `num_replicas`, `autoscaling_config` or
        `ray_actor_options`. The default of `max_ongoing_requests` is the capacity of a replica's
        queues and instances, so that the queues decide which requests are refused.
    options: attributes of `ServerConfig`, except addresses and the model folder.

    Raises
    ------
    InputError
        An option or a model name is invalid, or there are no models.
    DeviceError
        Ray is not installed.

    Examples
    --------
    >>> from ray import serve  # doctest: +SKIP
    >>> serve.run(application({"net": "/models/net.tar"}, deployment={"num_replicas": 2}))
    ... # doctest: +SKIP
    """
    try:
        from ray import serve
    except ImportError:
        raise DeviceError("Ray Serve is not installed: pip install 'tvm-interop[ray]'") from None
    if not models:
        raise InputError("there is nothing to serve; give a model")
    for name in models:
        check_name(name)
    for option in _OF_THE_NETWORK:
        if option in options:
            raise InputError(
                f"`{option}` cannot be set for replicas, because Ray listens for "
                "requests and the models are fixed"
            )
    config = with_options(ServerConfig(), options, "`application`")
    paths = {name: str(Path(path).resolve()) for name, path in models.items()}
    chosen = {
        "name": "tvm_interop",
        "max_ongoing_requests": len(paths) * config.max_queue + config.instances,
        "health_check_period_s": 5,
        **(deployment or {}),
    }
    return serve.deployment(**chosen)(Replica).bind(paths, dict(options))


class Replica:
    """One server in a worker process of Ray."""

    def __init__(self, models: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """Load and warm up the models. Ray sends requests after this method has returned."""
        from .server.http_app import http_app
        from .server.service import Service

        # Ray listens on the network, under any host name. With the host 0.0.0.0, the server checks
        # the `Host` header of requests only if the options name allowed hosts.
        self._service = Service(ServerConfig(host="0.0.0.0", **options))
        self._service.load(dict(models))
        self._app = http_app(self._service)

    async def __call__(self, request: Any) -> Any:
        """Answer a request from Ray's proxy."""
        return await answered(self._app, request)

    def check_health(self) -> None:
        """Raise an error if the server is broken; Ray then replaces this replica."""
        if not self._service.is_live:
            raise RuntimeError(self._service.executor.broken)


async def answered(app: Any, request: Any) -> Any:
    """Return the response of an ASGI application to a Starlette request."""
    from starlette.responses import Response

    body = await request.body()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, chunks = 500, [], []

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        # The whole body was read above, so `receive` waits until the client disconnects.
        received: MutableMapping[str, Any] = await request.receive()
        return received

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], message["headers"]
        else:
            chunks.append(message.get("body", b""))

    await app(dict(request.scope), receive, send)
    response = Response(b"".join(chunks), status)
    response.raw_headers = list(headers)
    return response
