"""The inference server: one process that serves several models over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...errors import DeviceError, InputError
from .access import is_loopback
from .config import ServerConfig, read_config, with_options
from .repository import Source, check_name

if TYPE_CHECKING:
    from .service import Service

_LOG = logging.getLogger("tvm_interop.serving")

_SWITCH_S = 0.0005
"""Python's thread switch interval while a server runs, in seconds.

A thread that waits for Python's global lock gets it after about this time. Python's default is
0.005.
"""


class Server:
    """A server of compiled models for the Open Inference Protocol v2.

    Attributes
    ----------
    config: options of the server.
    service: object with the calls of the protocol, independent of HTTP and gRPC; None before the
        start.

    Examples
    --------
    >>> with Server({"net": "net.tar"}, http_port=0) as server:  # doctest: +SKIP
    ...     print(server.http_url)
    """

    def __init__(
        self,
        models: Mapping[str, Source] | None = None,
        config: str | os.PathLike[str] | ServerConfig | None = None,
        **options: Any,
    ) -> None:
        """Create a server. It starts with `run` or `start`.

        Parameters
        ----------
        models: artifacts, paths of artifact files, or `AnyModel` objects, keyed by name.
        config: options, or the path of a TOML file with options and models.
        options: attributes of `ServerConfig`, which take precedence over `config`.

        Raises
        ------
        InputError
            An option or a model name is invalid, or there are neither models nor a model folder.
        DeviceError
            The libraries of the extra `serve` are not installed.
        """
        listed: dict[str, Source] = {}
        if config is not None and not isinstance(config, ServerConfig):
            config, from_file = read_config(config)
            listed.update(from_file)
        self.config = with_options(config or ServerConfig(), options, "`Server`")
        self._models: dict[str, Source] = {**listed, **(models or {})}
        for name in self._models:
            check_name(name)
        if not self._models and self.config.model_folder is None:
            raise InputError("there is nothing to serve; give a model, or a model folder")
        _require_libraries()
        self.service: Service | None = None
        self._http_port: int | None = None
        self._grpc_port: int | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._loaded = threading.Event()
        self._error: BaseException | None = None
        self._all_served = True

    # The method `run` serves in the calling thread.

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or SIGHUP, then finish the accepted requests.

        Returns
        -------
        0, or 1 if some accepted requests could not be served within `drain_limit_s`.

        Raises
        ------
        TVMInteropError
            A model cannot be loaded.
        OSError
            A port is in use.
        """
        asyncio.run(self._main(signals=True))
        return 0 if self._all_served else 1

    # The methods `start` and `stop` run the server in a background thread.

    def start(self, timeout_s: float = 300.0) -> Server:
        """Serve in a background thread. Return once the models are ready.

        Parameters
        ----------
        timeout_s: maximum time in seconds until the models are ready.

        Raises
        ------
        TVMInteropError, OSError
            The errors that `run` raises. A `DeviceError` is also raised if the models are not ready
            in time.
        """
        self._thread = threading.Thread(target=self._run_in_thread, name="tvm-interop-server")
        self._thread.start()
        if not self._loaded.wait(timeout_s):
            self.stop()
            raise DeviceError(
                f"the models were not ready after {timeout_s} s; give a greater `timeout_s`"
            )
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def stop(self) -> bool:
        """Finish the accepted requests and stop the server.

        Returns
        -------
        Whether all accepted requests were served within `drain_limit_s`.
        """
        loop, end = self._loop, self._end
        if loop is not None and end is not None:
            # `RuntimeError` means that the event loop is closed already.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end.set)
        if self._thread is not None:
            self._thread.join()
        return self._all_served

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Addresses.

    @property
    def http_port(self) -> int | None:
        """The port of HTTP; None before the server listens."""
        return self._http_port

    @property
    def grpc_port(self) -> int | None:
        """The port of gRPC; None before the server listens."""
        return self._grpc_port

    @property
    def http_url(self) -> str:
        """The host and port of HTTP, in the format that tritonclient expects."""
        return f"{_in_url(self.config.host)}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """The host and port of gRPC, in the format that tritonclient expects."""
        return f"{_in_url(self.config.host)}:{self.grpc_port}"

    def _run_in_thread(self) -> None:
        try:
            asyncio.run(self._main(signals=False))
        except BaseException as error:
            self._error = error
        finally:
            self._loaded.set()

    async def _main(self, signals: bool) -> None:
        from .service import Service

        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        if signals:
            ending = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # `nohup` ignores it.
                ending.append(signal.SIGHUP)
            for number in ending:
                self._loop.add_signal_handler(number, self._end.set)
        service = self.service = Service(self.config)
        self._warn()
        # While one thread computes in Python, as the policy `auto` does at times, another thread
        # that wakes up must wait for Python's switch interval. A request passes through three
        # threads and may wait three times, so make the interval short.
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH_S)
        try:
            await self._serve(service)
        finally:
            sys.setswitchinterval(before_s)

    def _warn(self) -> None:
        """Log a warning if other machines can use the server without a token."""
        config = self.config
        if is_loopback(config.host) or config.token is not None or config.token_file is not None:
            return
        _LOG.warning(
            "everybody who can reach %s can use the models%s, because it is not the loopback "
            "address and clients need no token; set a token with --token-file to require it",
            config.host,
            ""
            if config.model_folder is None
            else ", and load and unload the models of the model folder",
        )

    async def _serve(self, service: Service) -> None:
        assert self._end is not None
        async with contextlib.AsyncExitStack() as stack:
            await self._listen(service, stack)
            loading = asyncio.ensure_future(asyncio.to_thread(service.load, self._models))
            ended = asyncio.ensure_future(self._end.wait())
            await asyncio.wait({loading, ended}, return_when=asyncio.FIRST_COMPLETED)
            await loading
            self._loaded.set()
            _LOG.info("ready: %s", ", ".join(service.executor.models) or "no model loaded")
            await ended
            await self._drain(service)

    async def _listen(self, service: Service, stack: contextlib.AsyncExitStack) -> None:
        from .http_server import HttpServer, listen

        config = self.config
        if config.http_port is not None:
            listener = listen(config.host, config.http_port)
            stack.callback(listener.close)
            self._http_port = int(listener.getsockname()[1])
            http = HttpServer(service, listener)
            await http.start()
            stack.push_async_callback(http.stop)
            _LOG.info("HTTP on %s", self.http_url)
        if config.grpc_port is not None:
            from .grpc_server import GrpcServer

            grpc = GrpcServer(service)
            self._grpc_port = grpc.port
            await grpc.start()
            stack.push_async_callback(grpc.stop)
            _LOG.info("gRPC on %s", self.grpc_url)

    async def _drain(self, service: Service) -> None:
        """Finish the accepted requests within `drain_limit_s`, then stop the threads."""
        executor, limit_s = service.executor, self.config.drain_limit_s
        _LOG.info("shutting down: %d requests have no answer yet", executor.in_flight)
        self._all_served = await asyncio.to_thread(executor.drain, limit_s)
        if not self._all_served:
            _LOG.error("%d requests could not be served in time", executor.in_flight)
        await asyncio.to_thread(executor.close, 1.0)
        service.close()


def _in_url(host: str) -> str:
    """Return a host as URLs write it: an address of IPv6 is enclosed in brackets."""
    return f"[{host}]" if ":" in host else host


def _require_libraries() -> None:
    try:
        import grpc
        import prometheus_client
        import starlette
        import tritonclient
        import uvicorn
    except ImportError as error:
        raise DeviceError(
            f"the server needs `{error.name}`: pip install 'tvm-interop[serve]'"
        ) from None
    del grpc, prometheus_client, starlette, tritonclient, uvicorn


def log_to_stderr(level: int = logging.INFO) -> None:
    """Write the log of the server to standard error, one line per message, with the time."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger = logging.getLogger("tvm_interop")
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
