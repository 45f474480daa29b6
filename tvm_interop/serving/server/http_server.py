"""The HTTP server: uvicorn, with limits on how long a client may keep a connection busy."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from .config import ServerConfig
from .http_app import http_app
from .service import Service

_MOST_HEADERS = 32 * 1024
"""The maximum size of the headers of a request, in bytes."""
_PIECE = 2**13
"""The number of bytes that are read from a connection before other connections get their turn.

These bytes may hold many chunks of a body, because a chunk may be only six bytes long. The parser
h11 blocks the event loop for 20 us per chunk or request. So the number must be small.
"""
_LARGE_PIECE = 2**18
"""The number of bytes that are read at once from a body without chunks, whose length is known."""


def _connections(config: ServerConfig) -> type[H11Protocol]:
    """Create a class of connections that are closed if a client is too slow.

    A client must send a request within `receive_timeout_s` seconds. It may stop reading an answer
    for at most `send_timeout_s` seconds.
    """

    class Connection(H11Protocol):  # type: ignore[misc]
        _receiving: asyncio.TimerHandle | None = None
        _sending: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._read_at_once(_PIECE)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._read_at_once(_LARGE_PIECE if self._is_one_piece() else _PIECE)
            self._watch()

        def _read_at_once(self, size: int) -> None:
            """Set how many bytes are read before it is the turn of other connections."""
            # Only asyncio's own event loop lets a program set `max_size`. In the event loop uvloop,
            # it is fixed.
            with contextlib.suppress(AttributeError):
                self.transport.max_size = size

        def _is_one_piece(self) -> bool:
            """Return whether the next bytes are a body of known length.

            Such a body has no chunks.
            """
            return self.conn.their_state is h11.SEND_BODY and any(
                name == b"content-length" for name, _ in self.headers or ()
            )

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._receiving, self._sending):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._sending = self.loop.call_later(config.send_timeout_s, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._sending is not None:
                self._sending.cancel()
                self._sending = None

        def timeout_keep_alive_handler(self) -> None:
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # `close` would first wait for a client that reads slowly.
            else:
                super().timeout_keep_alive_handler()

        def _watch(self) -> None:
            """Start the receive timeout. Stop it when the current request is complete."""
            if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
                if self._receiving is None:
                    self._receiving = self.loop.call_later(
                        config.receive_timeout_s, self.transport.abort
                    )
            elif self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None

        def on_response_complete(self) -> None:
            if self._receiving is not None:
                self._receiving.cancel()
                self._receiving = None
            super().on_response_complete()

    return Connection


class _Uvicorn(uvicorn.Server):  # type: ignore[misc]
    """A uvicorn server that installs no signal handlers; `Server` handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """An HTTP server for a `Service`."""

    def __init__(self, service: Service, listener: socket.socket) -> None:
        config = service.config
        self._listener = listener
        self._server = _Uvicorn(
            uvicorn.Config(
                http_app(service),
                http=_connections(config),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                limit_concurrency=config.max_connections,
                timeout_keep_alive=round(config.keep_alive_s) or 1,
                timeout_graceful_shutdown=5,
                h11_max_incomplete_event_size=_MOST_HEADERS,
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept connections."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError("uvicorn did not start")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Close all connections. Running requests have 5 seconds to finish."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the server's address.

    Raises `OSError` if the address is in use or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol of the socket is TCP explicitly. Without
    # TCP_NODELAY, the second part of an answer waits until the client acknowledges the first part.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise OSError(
            f"HTTP cannot listen on {host}:{port}: {error.strerror or error}; choose another "
            "`http_port` (--http-port), or 0 for any free one"
        ) from None
    return listener
