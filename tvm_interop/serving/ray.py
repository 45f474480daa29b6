"""The server as a deployment of Ray Serve: replicas, autoscaling and routing are Ray's.

Each replica is a whole server of its own: artifacts, instances, queues and a policy. It needs the
extra `ray`, and the artifacts at the same path on every machine: Ray brings no files.
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
"""Options that Ray has in its own hands, or that one replica would obey alone."""


def application(
    models: Mapping[str, str | os.PathLike[str]],
    *,
    deployment: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """An application for `ray.serve.run`: the HTTP half of the protocol over these models.

    A request that a replica has taken when it dies gets an error from Ray, and is not tried again;
    clients may. Others go to the replicas that are left, and Ray starts a new one.

    Parameters
    ----------
    models: files of artifacts by name.
    deployment: options of `ray.serve.deployment`, such as `num_replicas`, `autoscaling_config` or
        `ray_actor_options`. `max_ongoing_requests` is by default what the queues of a replica hold,
        so that these decide what is refused.
    options: attributes of `ServerConfig`, but for addresses and the model folder.

    Raises
    ------
    InputError
        An option or a name is of no use; there are no models.
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
        raise DeviceError("Ray Serve is not here: pip install 'tvm-interop[ray]'") from None
    if not models:
        raise InputError("there is nothing to serve; give a model")
    for name in models:
        check_name(name)
    for option in _OF_THE_NETWORK:
        if option in options:
            raise InputError(f"`{option}` is not for replicas: Ray listens, and models are fixed")
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
    """One server in a process of Ray's."""

    def __init__(self, models: Mapping[str, str], options: Mapping[str, Any]) -> None:
        """Load and warm up; Ray sends requests once this returns."""
        from .server.http_app import http_app
        from .server.service import Service

        # Ray listens, by whatever name: so hosts are checked where some are allowed by name.
        self._service = Service(ServerConfig(host="0.0.0.0", **options))
        self._service.load(dict(models))
        self._app = http_app(self._service)

    async def __call__(self, request: Any) -> Any:
        """Answer what Ray's proxy hands over."""
        return await answered(self._app, request)

    def check_health(self) -> None:
        """Ray starts another replica in place of one that raises here."""
        if not self._service.is_live:
            raise RuntimeError(self._service.executor.broken)


async def answered(app: Any, request: Any) -> Any:
    """What an ASGI application answers to a request that was read already, as Starlette has it."""
    from starlette.responses import Response

    body = await request.body()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    status, headers, chunks = 500, [], []

    async def receive() -> MutableMapping[str, Any]:
        if messages:
            return messages.pop()
        # Until the client has gone.
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
