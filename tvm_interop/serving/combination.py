"""The execution model of TOP (Lin et al., TPDS 36(2), 2025).

The blocks of all models are partitioned into combined blocks. The operators of a combined block run
together, as one instance.
"""

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
"""A partition of the blocks of all models into combined blocks.

A combined block is a sorted tuple of (model, block) pairs. Each block is in exactly one
combined block.
"""

BUFFER = 2
"""The default limit on the number of requests that wait for a block.

TOP's paper does not specify this limit. Under overload, TOP's rule runs the first blocks of models
until the buffers of the next blocks are full. Large buffers therefore fill up before the first
request is served.
"""


def combination_of(models: Sequence[ServedModel], cells: Iterable[Iterable[Part]]) -> Combination:
    """Create a combination from groups of blocks, in canonical order.

    Blocks are sorted within each combined block, and combined blocks are sorted by their first
    block. Empty groups are left out.

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
    """Return the combination in which every block is a combined block by itself."""
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

    The policy `search` follows the same rule. One combined block runs at a time. The next one is
    the combined block with the largest share of blocks that have input. Ties are broken by the
    input that has waited longest, then by the lowest index. Blocks without input are left out of
    the run.

    Parameters
    ----------
    seconds: simulated time.
    interval_us: (num_models,) minimum time in microseconds between two requests of each model that
        leave the queue; None for 0.
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
