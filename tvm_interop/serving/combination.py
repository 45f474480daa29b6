"""TOP's way of execution: the blocks of all models partitioned into combined blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from .._native import passes as native
from ..errors import InputError
from .arrivals import Arrivals
from .models import ServedModel
from .programs import Part, Programs
from .run import ServingRun

Combination = tuple[tuple[Part, ...], ...]
"""Combined blocks, each of (model, block) in order; every block is in one."""

BUFFER = 2
"""The most requests that wait for a block. TOP's paper says nothing of it. Under more load than can
be served the fullest combined block is one of first blocks for as long as these may run ahead, so
a large buffer fills before anything is served."""


def combination_of(models: Sequence[ServedModel], cells: Iterable[Iterable[Part]]) -> Combination:
    """A combination in its one order: blocks within combined blocks, and these by their first.

    Raises
    ------
    InputError: where the cells do not hold each block of each model once.
    """
    made = tuple(sorted(tuple(sorted(cell)) for cell in map(tuple, cells) if cell))
    every = sorted((m, b) for m, model in enumerate(models) for b in range(len(model.blocks)))
    if sorted(part for cell in made for part in cell) != every:
        raise InputError("a combination must hold each block of each model once")
    return made


def each_alone(models: Sequence[ServedModel]) -> Combination:
    """Every block a combined block of its own."""
    return combination_of(
        models, [[(m, b)] for m, model in enumerate(models) for b in range(len(model.blocks))]
    )


def equal_depth(models: Sequence[ServedModel], most: int) -> Combination:
    """Blocks at the same share of their models' depth together, up to `most` in one."""
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
    """Serve by TOP's rule (TPDS 2025, section IV), natively: what `search` does as a policy.

    One combined block runs at a time. That of whose blocks the largest share has input is next;
    ties: whose oldest input has waited longest, then the lowest index. Absent blocks are left out.

    Parameters
    ----------
    interval_us: of each model, the least distance between two requests that leave its queue; None
        for 0.
    schedule, barriers: of the combined blocks.
    buffer: how many requests may wait for each block.

    Raises
    ------
    InputError: for priorities and batches, which this cannot do; use the policy.
    """
    if arrivals.priorities is not None or arrivals.batches is not None:
        raise InputError("combined blocks have neither priorities nor batches")
    models = programs.models
    made = [programs.of_parts(cell, schedule, barriers) for cell in combination]
    place = {part: (c, p) for c, cell in enumerate(combination) for p, part in enumerate(cell)}
    places = [
        [[place[m, b][i] for b in range(len(model.blocks))] for i in (0, 1)]
        for m, model in enumerate(models)
    ]
    intervals = np.zeros(len(models)) if interval_us is None else np.array(interval_us, float)
    followers = np.array(arrivals.followers, dtype=np.float64)
    listed = [
        arrivals.at_us.astype(np.float64).tobytes(),
        arrivals.models.astype(np.int64).tobytes(),
        followers.tobytes(),
    ]
    rows, times, figures = native.simulate_combined(
        programs.device.packed, made, places, intervals.tobytes(), buffer, listed, seconds * 1e6
    )
    columns = np.frombuffer(times, dtype=np.float64).reshape(-1, 3)
    busy_us, rounds = np.frombuffer(figures, dtype=np.float64)
    return ServingRun(
        seconds * 1e6,
        len(models),
        np.frombuffer(rows, dtype=np.int64),
        np.ascontiguousarray(columns[:, 0]),
        np.ascontiguousarray(columns[:, 1]),
        np.ascontiguousarray(columns[:, 2]),
        min(1.0, float(busy_us) / (seconds * 1e6)),
        np.zeros(len(models), dtype=np.int64),
        int(rounds),
    )
