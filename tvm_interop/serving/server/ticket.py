"""Requests inside the server: the data of `Request` that policies see, plus inputs and outputs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..tasks import Request

_LOG = logging.getLogger("tvm_interop.serving")


@dataclass(slots=True, eq=False)
class Ticket(Request):
    """A request with the data that the server needs to answer it.

    Attributes
    ----------
    served: name of the model.
    inputs: checked input arrays, keyed by name.
    rows: number of batch rows in the request; 1 for models without batches. The inherited attribute
        `batch` is the batch size of a run that serves this request only.
    shape: index of the model's shape that fits the inputs. For a model with batches, the smallest
        shape that fits.
    checked_by: model that has checked the inputs, and that runs the request. `rows`, `shape` and
        `batch` are for this model, and `outputs` are in its order.
    done: function that a thread of the server calls once, when `outputs` or `error` is set.
    outputs: output arrays in the order of the model; None before the request is served.
    error: error if the request failed; otherwise None.
    ran_batch: batch size of the run that served the request.
    is_cancelled: whether the client no longer waits for the request.
    started_us: time at which the run started, in microseconds; nan before.
    input_us, infer_us, output_us: microseconds that the run took to copy inputs, to execute, and to
        copy outputs.
    slot: index of the instance that keeps the tensors of the request from one block to the next; -1
        for none.
    """

    served: str = field(kw_only=True)
    inputs: Mapping[str, np.ndarray] = field(kw_only=True)
    rows: int = field(kw_only=True)
    shape: int = field(kw_only=True)
    checked_by: Any = field(kw_only=True)
    done: Callable[[Ticket], None] = field(kw_only=True)
    outputs: list[np.ndarray] | None = None
    error: Exception | None = None
    ran_batch: int = 0
    is_cancelled: bool = False
    started_us: float = float("nan")
    input_us: float = 0.0
    infer_us: float = 0.0
    output_us: float = 0.0
    slot: int = -1


def tell(ticket: Ticket) -> None:
    """Call the function `done` of a ticket. If `done` raises an error, the error is only logged."""
    try:
        ticket.done(ticket)
    except Exception:
        _LOG.exception("an answer could not be passed on to its client")


class Waiter:
    """A thread can wait on this object for one ticket.

    The object is the `done` function of the ticket.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._ticket: Ticket | None = None

    def __call__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._event.set()

    def outputs(self) -> list[np.ndarray]:
        """Wait for the request and return its outputs, or raise the error if it failed."""
        self._event.wait()
        assert self._ticket is not None
        if self._ticket.error is not None:
            raise self._ticket.error
        assert self._ticket.outputs is not None
        return self._ticket.outputs
