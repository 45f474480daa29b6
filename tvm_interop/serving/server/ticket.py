"""A request on its way through the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ..tasks import Request


@dataclass(slots=True, eq=False)
class Ticket(Request):
    """What policies see of a request, and what the server needs to answer it.

    Attributes
    ----------
    served: the name of its model.
    inputs: by name, checked.
    rows: how many rows of a batch it brings; 1 for models without batches. `batch` is the batch
        size that it takes alone.
    shape: which of the model's shapes fits; of a model with batches, the smallest that does.
    done: called once, by a thread of the server, when `outputs` or `error` is there.
    outputs: in the model's order.
    ran_batch: the batch size that it ran in.
    is_cancelled: nobody waits for it any more.
    started_us: when its instance began; nan before.
    input_us, infer_us, output_us: what its instance took to copy inputs, to run, to copy outputs.
    slot: which of its model's instances holds what lies between its blocks; -1 for none.
    """

    served: str = field(kw_only=True)
    inputs: Mapping[str, np.ndarray] = field(kw_only=True)
    rows: int = field(kw_only=True)
    shape: int = field(kw_only=True)
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


class Waiter:
    """Waits for one ticket in the thread that made it; its `done`."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._ticket: Ticket | None = None

    def __call__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._event.set()

    def outputs(self) -> list[np.ndarray]:
        """The outputs, once they are there; raises what went wrong."""
        self._event.wait()
        assert self._ticket is not None
        if self._ticket.error is not None:
            raise self._ticket.error
        assert self._ticket.outputs is not None
        return self._ticket.outputs
