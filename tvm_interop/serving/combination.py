"""The execution model of the serving system TOP (Lin et al., TPDS 36(2), 2025).

Each model is divided into a chain of blocks. The blocks of all models are partitioned into combined
blocks. The operators of a combined block run together, as one instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._native import passes as native
from ..errors import InputError
from .arrivals import Arrivals
from .models import ServedModel
from .programs import Part, Programs
from .run import ServingRun

Combination = tuple[tuple[Part, ...], ...]
"""A partition of the blocks of all models into combined blocks.

A combined block is a sorted tuple of (model, block) pairs. Each block is in exactly one
combined block.
"""

BUFFER = 2
"""The default limit on the number of requests that wait for a block.

TOP's paper does not specify this limit. Under overload, TOP's rule runs the first blocks of the
models until the buffers of the blocks after them are full. If buffers are large, it takes long
until they are full, and no request is completed before.
"""


def combination_of(models: Sequence[ServedModel], cells: Iterable[Iterable[Part]]) -> Combination:
    """Create a combination from groups of blocks, in canonical order.

    Blocks are sorted within each combined block, and combined blocks are sorted by their first
    block. A group without blocks is left out.

    Raises
    ------
    InputError: the groups do not hold each block of each model exactly once.
    """
    made = tuple(sorted(tuple(sorted(cell)) for cell in map(tuple, cells) if cell))
    every = sorted((m, b) for m, model in enumerate(models) for b in range(len(model.blocks)))
    if sorted(part for cell in made for part in cell) != every:
        raise InputError("a combination must hold each block of each model once")
    return made


def each_alone(models: Sequence[ServedModel]) -> Combination:
    """Return the combination in which every combined block holds a single block."""
    return combination_of(
        models, [[(m, b)] for m, model in enumerate(models) for b in range(len(model.blocks))]
    )


def equal_depth(models: Sequence[ServedModel], most: int) -> Combination:
    """Return a combination that joins blocks at about the same relative depth of their models.

    A combined block has at most `most` blocks.
    """
    parts = sorted(
        ((b + 0.5) / len(model.blocks), m, b)
        for m, model in enumerate(models)
        for b in range(len(model.blocks))
    )
    cells = [parts[i : i + most] for i in range(0, len(parts), most)]
    return combination_of(models, [[(m, b) for _, m, b in cell] for cell in cells])


def simulate_combined(
    programs: Programs,
    arrivals: Arrivals,
    combination: Combination,
    seconds: float,
    *,
    interval_us: Sequence[float] | None = None,
    schedule: str = "greedy",
    barriers: bool = True,
    buffer: int = BUFFER,
) -> ServingRun:
    """Simulate serving by TOP's rule (TPDS 2025, section IV) in native code.

    By TOP's rule, one combined block runs at a time. When it has ended, the combined block with the
    largest share of blocks that have input runs next. Ties go to the combined block whose input has
    waited longest, then to the lowest index. Blocks without input do not run. The policy `search`
    follows the same rule.

    Parameters
    ----------
    seconds: simulated time.
    interval_us: (num_models,) minimum time in microseconds between two requests of each model that
        leave the queue; None for no minimum.
    schedule: name of the scheduler for the combined blocks.
    barriers: whether the host waits after each stage, see `Start.barriers`.
    buffer: maximum number of requests that wait for each block.

    Raises
    ------
    InputError: the arrivals have priorities, batches or deadlines, which this rule ignores.
    """
    for name in ("priorities", "batches", "deadlines_us"):
        if getattr(arrivals, name) is not None:
            raise InputError(
                f"the arrivals have `{name}`, which combined blocks ignore: leave them out, or "
                "serve with policy `search`"
            )
    made, places, intervals = _packed(programs, combination, interval_us, schedule, barriers)
    followers = np.array(arrivals.followers, dtype=np.float64)
    listed = [
        arrivals.at_us.astype(np.float64).tobytes(),
        arrivals.models.astype(np.int64).tobytes(),
        followers.tobytes(),
    ]
    rows, times, figures = native.simulate_combined(
        programs.device.packed, made, places, intervals, buffer, listed, seconds * 1e6
    )
    return _run_of(seconds * 1e6, len(programs.models), rows, times, figures)


def _run_of(
    length_us: float,
    num_models: int,
    models: bytes,
    times: bytes,
    figures: bytes,
    begin_us: float = 0.0,
) -> ServingRun:
    """Return the results of a run in native code. All times in the results count from `begin_us`.

    Parameters
    ----------
    models, times, figures: arrays of bytes from the native functions. `models` holds the model of
        each request. `times` holds its arrival, dequeue and completion times. `figures` holds the
        busy time, and the number of combined blocks that ran.
    """
    columns = np.frombuffer(times, dtype=np.float64).reshape(-1, 3) - begin_us
    busy_us, rounds = np.frombuffer(figures, dtype=np.float64)
    return ServingRun(
        length_us,
        num_models,
        np.frombuffer(models, dtype=np.int64),
        np.ascontiguousarray(columns[:, 0]),
        np.ascontiguousarray(columns[:, 1]),
        np.ascontiguousarray(columns[:, 2]),
        min(1.0, float(busy_us) / length_us),
        np.zeros(num_models, dtype=np.int64),
        int(rounds),
    )


def _packed(
    programs: Programs,
    combination: Combination,
    interval_us: Sequence[float] | None,
    schedule: str,
    barriers: bool,
) -> tuple[list[Any], list[list[list[int]]], bytes]:
    """Return the programs, the place of each block and the dequeue intervals for native functions.

    The place of a block is a pair: the index of its combined block, and its own index in this
    combined block.
    """
    models = programs.models
    made = [programs.of_parts(cell, schedule, barriers) for cell in combination]
    place = {part: (c, p) for c, cell in enumerate(combination) for p, part in enumerate(cell)}
    places = [
        [[place[m, b][i] for b in range(len(model.blocks))] for i in (0, 1)]
        for m, model in enumerate(models)
    ]
    intervals = np.zeros(len(models)) if interval_us is None else np.array(interval_us, float)
    return made, places, intervals.tobytes()


@dataclass(frozen=True)
class Window:
    """The results of one window of a `CombinedServing`.

    Attributes
    ----------
    run: the requests that were served in the window or were in a block at its end. Times count from
        the beginning of the window, so the times of earlier events are negative.
    lengths: (times, num_models) length of each queue at each time in `observe_us` (see `run`).
    in_blocks: for each model, an array of shape (times, blocks of the model): the number of
        requests that waited for a block or ran in it.
    """

    run: ServingRun
    lengths: npt.NDArray[np.int64]
    in_blocks: tuple[npt.NDArray[np.int64], ...]


class CombinedServing:
    """Simulated serving with TOP's combined blocks, one window of time after another.

    Queues, buffers and the running combined block are kept from one window to the next. Each window
    may have another combination and other dequeue intervals. A combined block that runs when a
    window ends is not interrupted.
    """

    def __init__(
        self,
        programs: Programs,
        first: Arrivals | None = None,
        schedule: str = "greedy",
        barriers: bool = True,
        buffer: int = BUFFER,
    ) -> None:
        """Prepare to serve the first window, with empty queues.

        Parameters
        ----------
        first: requests that arrive in the first window. Their attribute `followers` holds for all
            windows: the rules by which a served request triggers another request, as `closed_loop`
            makes them.
        schedule, barriers, buffer: as for `simulate_combined`.
        """
        self.programs = programs
        self._schedule = schedule
        self._barriers = barriers
        self._buffer = buffer
        self._first = first
        followers = np.array(() if first is None else first.followers, dtype=np.float64)
        self._native = native.combined_serving_make(programs.device.packed, followers.tobytes())
        self._now_us = 0.0

    def run(
        self,
        combination: Combination,
        interval_us: Sequence[float] | None,
        seconds: float,
        arrivals: Arrivals | None = None,
        observe_us: npt.ArrayLike = (),
    ) -> Window:
        """Serve one window of `seconds`, with this combination and these dequeue intervals.

        Parameters
        ----------
        interval_us: as for `simulate_combined`. An interval counts from the latest request that
            left the queue, even if that was in an earlier window.
        arrivals: requests that arrive in the window; their times count from its beginning.
        observe_us: ascending times in microseconds, from the beginning of the window.
        """
        made = _packed(self.programs, combination, interval_us, self._schedule, self._barriers)
        native.combined_serving_decide(self._native, *made, self._buffer)
        begin_us, length_us = self._now_us, seconds * 1e6
        given = [arrivals for arrivals in (self._first, arrivals) if arrivals is not None]
        self._first = None
        at_us = np.concatenate([np.empty(0), *(each.at_us for each in given)])
        models = np.concatenate([np.empty(0, np.int64), *(each.models for each in given)])
        order = np.argsort(at_us, kind="stable")
        times = np.asarray(observe_us, dtype=np.float64)
        rows, moments, figures, observed = native.combined_serving_run(
            self._native,
            [(at_us[order] + begin_us).tobytes(), models[order].astype(np.int64).tobytes()],
            begin_us + length_us,
            (times + begin_us).tobytes(),
        )
        self._now_us = begin_us + length_us
        num_models = len(self.programs.models)
        run = _run_of(length_us, num_models, rows, moments, figures, begin_us)
        counts = [len(model.blocks) for model in self.programs.models]
        seen = np.frombuffer(observed, dtype=np.int64).reshape(len(times), num_models + sum(counts))
        parts = np.split(seen, np.cumsum([num_models, *counts])[:-1], axis=1)
        return Window(run, parts[0], tuple(parts[1:]))
