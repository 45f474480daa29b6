"""The calls of the Open Inference Protocol as plain Python functions, which HTTP and gRPC share."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..._version import __version__
from ...errors import (
    AccessError,
    CancelledError,
    DeadlineError,
    InputError,
    ModelNotFoundError,
    OverloadedError,
    TokenError,
    TooLargeError,
    TVMInteropError,
    UnavailableError,
    cut,
)
from .any_model import VERSION
from .config import ServerConfig
from .executor import Executor
from .held_bytes import HeldBytes
from .metrics import Metrics
from .protocol import Answer, InferCall, chosen_outputs, model_config, model_metadata
from .repository import Repository, Source
from .ticket import Ticket

_REQUESTS = logging.getLogger("tvm_interop.serving.requests")

LONGEST_ERROR = 4000
"""The maximum number of characters of an error message for clients and logs."""

STATUS: tuple[tuple[type[Exception], int, str], ...] = (
    (ModelNotFoundError, 404, "NOT_FOUND"),
    (OverloadedError, 429, "RESOURCE_EXHAUSTED"),
    (TokenError, 401, "UNAUTHENTICATED"),
    (AccessError, 403, "PERMISSION_DENIED"),
    (TooLargeError, 413, "RESOURCE_EXHAUSTED"),
    (UnavailableError, 503, "UNAVAILABLE"),
    (DeadlineError, 504, "DEADLINE_EXCEEDED"),
    (CancelledError, 499, "CANCELLED"),
    (InputError, 400, "INVALID_ARGUMENT"),
)
"""The HTTP status and the gRPC status of each error class.

The first class in this list of which an error is an instance determines its status. Errors of other
classes have the status 500 and `INTERNAL`.
"""


def status_of(error: Exception) -> tuple[int, str]:
    """Return the HTTP status and the gRPC status of an error."""
    for kind, http, grpc in STATUS:
        if isinstance(error, kind):
            return http, grpc
    return 500, "INTERNAL"


class Service:
    """The calls of the protocol. The service is ready after `load`."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.access = config.access
        self.held = HeldBytes(config.max_held_bytes)
        self.metrics = Metrics()
        self._executor: Executor | None = None
        # Models are loaded one after another, in a thread of their own. In the threads of
        # `asyncio.to_thread`, many loads would keep large requests waiting.
        self._changes = ThreadPoolExecutor(1, "tvm-interop-load")
        self._repository = Repository(
            config.model_folder, config.choice.num_instances, config.trusted_keys
        )

    def load(self, models: Mapping[str, Source]) -> None:
        """Load and warm up the models. Raises the errors of `Repository.open`."""
        loaded = [self._repository.open(name, source) for name, source in models.items()]
        choice = self.config.choice
        self._executor = Executor(
            loaded,
            choice.make,
            max_queue=self.config.max_queue,
            instances=choice.num_running,
            blocks=choice.num_blocks,
        )
        self.metrics.watch(self._executor)

    @property
    def executor(self) -> Executor:
        """The executor that runs the loaded models.

        Raises
        ------
        UnavailableError
            Models are still being loaded.
        """
        if self._executor is None:
            raise UnavailableError("the models are being loaded; try again soon")
        return self._executor

    @property
    def is_live(self) -> bool:
        """Whether the server works. If not, the process must be restarted."""
        return self._executor is None or self._executor.broken is None

    @property
    def is_ready(self) -> bool:
        """Whether the server accepts requests."""
        return self._executor is not None and self._executor.is_ready

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Return whether the server accepts requests for a model.

        Raises
        ------
        ModelNotFoundError
            There is no such model.
        """
        self.executor.model(name, version)
        return self.is_ready

    def server_metadata(self) -> dict[str, Any]:
        """Return the name, the version and the protocol extensions of the server."""
        extensions = ["binary_tensor_data", "statistics", "model_configuration", "schedule_policy"]
        if self.config.model_folder is not None:
            extensions.append("model_repository")
        return {"name": "tvm_interop", "version": __version__, "extensions": extensions}

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """See `protocol.model_metadata`."""
        return model_metadata(self.executor.model(name, version))

    def model_config(self, name: str, version: str = "") -> dict[str, Any]:
        """See `protocol.model_config`."""
        model = self.executor.model(name, version)
        return model_config(model, self.config.max_queue, self.config.max_delay_us)

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return the statistics of one model, or of all models if `name` is ""."""
        executor = self.executor
        models = [executor.model(name, version)] if name else list(executor.models.values())
        return {
            "model_stats": [
                {"name": model.name, "version": VERSION, **model.statistics.told()}
                for model in models
            ]
        }

    def repository_index(self, only_ready: bool) -> list[dict[str, Any]]:
        """See `Repository.index`."""
        return self._repository.index(self.executor.models, only_ready)

    async def load_model(self, name: str, parameters: Iterable[str] = ()) -> None:
        """See `Repository.load`.

        Parameters
        ----------
        parameters: names of the parameters of the request.

        Raises
        ------
        InputError
            The request brings a configuration or files for the model.
        """
        for parameter in parameters:
            if parameter == "config" or parameter.startswith("file:"):
                raise InputError(
                    f"`{cut(parameter)}`: the server loads artifacts of its model folder, and "
                    "takes no configuration and no files of a model; leave the parameter out"
                )
        await self._changed(self._repository.load, name)

    async def unload_model(self, name: str) -> None:
        """See `Repository.unload`."""
        await self._changed(self._repository.unload, name)

    async def _changed(self, change: Callable[[Executor, str], None], name: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._changes, change, self.executor, name)

    def close(self) -> None:
        """Cancel the loads and unloads that have not begun. The executor is closed separately."""
        self._changes.shutdown(wait=False, cancel_futures=True)

    async def infer(self, call: InferCall) -> Answer:
        """Serve a request. If the calling task is cancelled, the request is cancelled too.

        Raises
        ------
        TVMInteropError
            An error of `Executor.submit` or of the run. `STATUS` lists the error classes.
        """
        model = self.executor.model(call.model, call.version)
        chosen = chosen_outputs(model, call.outputs)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not answered.done():
                answered.set_result(None)

        def done(_: Ticket) -> None:
            loop.call_soon_threadsafe(wake)

        ticket = self.executor.submit(
            call.model, call.inputs, done, priority=call.priority, timeout_us=call.timeout_us
        )
        try:
            await answered
        except asyncio.CancelledError:
            self.executor.cancel(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        assert ticket.outputs is not None
        if ticket.checked_by is not model:
            # The model was loaded again while the request waited, and the new model has run it.
            model = ticket.checked_by
            chosen = chosen_outputs(model, call.outputs)
        answer = Answer(
            [(model.outputs[i], ticket.outputs[i]) for i in chosen],
            ticket.ran_batch,
            ticket.started_us - ticket.arrived_us,
            ticket.input_us + ticket.infer_us + ticket.output_us,
        )
        self.metrics.served(model.name, answer)
        return answer


class RequestLog:
    """Logs one line of JSON per inference request, at level INFO, or WARNING if it failed."""

    def __init__(self, protocol: str, request_id: str) -> None:
        self.id = cut(request_id, 128) or os.urandom(8).hex()
        self._protocol = protocol
        self._began = time.perf_counter()

    def served(self, model: str, answer: Answer) -> None:
        """Log one line for a request that was served."""
        if _REQUESTS.isEnabledFor(logging.INFO):
            self._write(
                logging.INFO,
                model=model,
                status="OK",
                queue_us=round(answer.queue_us),
                run_us=round(answer.run_us),
                batch_size=answer.batch_size,
            )

    def failed(self, model: str, error: TVMInteropError) -> None:
        """Log one line for a request that failed."""
        text = cut(error, LONGEST_ERROR)
        self._write(logging.WARNING, model=cut(model), status=status_of(error)[1], error=text)

    def _write(self, level: int, **told: Any) -> None:
        took_us = round((time.perf_counter() - self._began) * 1e6)
        line = {"request_id": self.id, "protocol": self._protocol, **told, "took_us": took_us}
        _REQUESTS.log(level, "%s", json.dumps(line))
