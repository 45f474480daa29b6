"""How IOS learns what its stages cost: all of them, or only those that can matter."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tvm_ffi

from ..graph import OpGraph
from ..latency.base import LatencyModel, op_latencies
from ..latency.batch import StageBatch

_STAGES = tvm_ffi.get_global_func("tvm_interop.ios_stages")
_MAKE = tvm_ffi.get_global_func("tvm_interop.ios_pricing_make")
_SINGLES = tvm_ffi.get_global_func("tvm_interop.ios_pricing_singles")
_BOUNDS = tvm_ffi.get_global_func("tvm_interop.ios_pricing_bounds")
_GIVE = tvm_ffi.get_global_func("tvm_interop.ios_pricing_give")
_NEXT = tvm_ffi.get_global_func("tvm_interop.ios_pricing_next")
_PRICES = tvm_ffi.get_global_func("tvm_interop.ios_pricing_prices")
_VALUES = tvm_ffi.get_global_func("tvm_interop.ios_pricing_values")
_PACK_STAGES = tvm_ffi.get_global_func("tvm_interop.pack_stages")

_LOG = logging.getLogger("tvm_interop")

_BATCH = 32
"""The fewest stages asked for at once, where as many may matter: a measuring model interleaves
the stages of one call."""
_GROWTH = 8
"""A call asks for at least one stage per this many priced before: many stages, still few calls."""


@dataclass(frozen=True)
class Bounds:
    """What a stage takes at least, by what its operators take alone; as the options of `ios`.

    Attributes
    ----------
    work_us: by operator, microseconds of all the cores it uses, together; None where each has one.
    """

    cores: int | None
    tolerance: float
    slack_us: float
    work_us: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Priced:
    """What the stages of a search cost.

    Attributes
    ----------
    value_us: bytes of the price of each stage, or of a bound below it where none is needed.
    merged: the operators of those stages that take less time merged than side by side.
    op_us: latencies of the operators, where stages are packed onto streams by them.
    counts: what `Schedule.stats` says about it.
    """

    value_us: bytes
    op_us: npt.NDArray[np.float64] | None
    merged: frozenset[frozenset[int]]
    counts: dict[str, Any]


Merges: TypeAlias = dict[int, float]
"""By stage that can be merged: microseconds of its operators as one."""


def find_merges(search: Any, graph: OpGraph, model: LatencyModel) -> Merges:
    """What the model says about merging the stages of a search."""
    set_of = np.full(graph.num_ops, -1)
    for i, ops in enumerate(model.mergeable()):
        set_of[list(ops)] = i
    batch = StageBatch.from_bytes(_STAGES(search))
    if not len(batch) or np.all(set_of < 0):
        return {}
    op_ends = batch.group_ends[batch.stage_ends - 1]
    num_ops = batch.num_ops
    num_groups = np.diff(batch.stage_ends, prepend=0)
    sets = set_of[batch.ops]
    lowest, highest = (f.reduceat(sets, op_ends - num_ops) for f in (np.minimum, np.maximum))
    # Operators that depend on each other share a group: they cannot be one.
    found = np.flatnonzero(
        (num_ops > 1) & (num_ops == num_groups) & (lowest == highest) & (lowest >= 0)
    )
    prices_us = model.merges([[op for group in batch[int(i)] for op in group] for i in found])
    return {int(i): float(us) for i, us in zip(found, prices_us, strict=True) if not math.isinf(us)}


def price_all(
    search: Any, graph: OpGraph, model: LatencyModel, streams: int | None, merges: Merges
) -> Priced:
    """Price every stage, packed onto `streams`, in one call."""
    op_us = op_latencies(model, graph.names) if streams is not None else None
    value_us = _ask(model, _STAGES(search), op_us, streams)
    count = len(value_us) // 8
    if merges:
        indices = list(merges)
        cheaper, merged = _cheaper(search, indices, _floats(value_us)[indices], merges)
        values = _floats(value_us).copy()
        values[indices] = cheaper
        value_us = values.tobytes()
    else:
        merged = frozenset()
    counts = {"stages_priced": count, "stages_spared": 0, "below_bound": 0, "bound_scale": 0.0}
    return Priced(value_us, op_us, merged, counts)


def price_bounded(
    search: Any,
    graph: OpGraph,
    model: LatencyModel,
    streams: int | None,
    bounds: Bounds,
    merges: Merges,
) -> Priced:
    """Price only the stages that an optimal schedule may need.

    Single operators first, which the bounds are made of, and the stages that can be merged, of
    which they say nothing; then, round by round, the stages that the best schedule known so far
    relies on, until all of those are priced.
    """
    pricing = _MAKE(search)
    singles = _SINGLES(pricing)
    single_us = _ask(model, singles, None, None)
    op_us = op_latencies(model, graph.names) if streams is not None else None
    weights = b"" if op_us is None else op_us.tobytes()
    _BOUNDS(
        pricing,
        single_us,
        weights,
        streams or 0,
        bounds.cores or 0,
        b"" if bounds.work_us is None else bounds.work_us.tobytes(),
        bounds.tolerance,
        bounds.slack_us,
    )
    priced = len(single_us) // 8
    merged: frozenset[frozenset[int]] = frozenset()
    if merges:
        indices = list(merges)
        batch = StageBatch.from_bytes(_STAGES(search))
        side_by_side = StageBatch.from_stages([batch[i] for i in indices])
        price_us = _floats(_ask(model, side_by_side.to_bytes(), op_us, streams))
        cheaper, merged = _cheaper(search, indices, price_us, merges)
        _GIVE(pricing, np.array(indices, dtype=np.int64).tobytes(), cheaper.tobytes())
        priced += len(indices)
    below = 0
    scale = 1.0 - bounds.tolerance
    while True:
        flat = _NEXT(pricing, max(_BATCH, priced // _GROWTH))
        if not flat[2]:
            break
        asked_us = _ask(model, flat, op_us, streams)
        priced += len(asked_us) // 8
        newly_below, scale = _PRICES(pricing, asked_us)
        below += newly_below
    if below:
        _LOG.warning(
            "ios: %d of %d stages took less than their operators suggest, so the bounds that spare "
            "stages were lowered to %.0f%%; the schedule is optimal if no stage that was not "
            "priced falls shorter. Pass `bounds=False` to price every stage",
            below,
            priced,
            scale * 100,
        )
    value_us = _VALUES(pricing)
    spared = len(value_us) // 8 - priced
    counts = {
        "stages_priced": priced,
        "stages_spared": spared,
        "below_bound": below,
        "bound_scale": scale,
    }
    return Priced(value_us, op_us, merged, counts)


def _cheaper(
    search: Any, indices: list[int], price_us: npt.NDArray[np.float64], merges: Merges
) -> tuple[npt.NDArray[np.float64], frozenset[frozenset[int]]]:
    """Of stages, the cheaper of both prices, and the operators of those to merge."""
    merge_us = np.array([merges[i] for i in indices])
    batch = StageBatch.from_bytes(_STAGES(search))
    merged = frozenset(
        frozenset(op for group in batch[i] for op in group)
        for i, is_less in zip(indices, merge_us < price_us, strict=True)
        if is_less
    )
    return np.minimum(merge_us, price_us), merged


def _floats(packed: bytes) -> npt.NDArray[np.float64]:
    return np.frombuffer(packed, dtype=np.float64)


def _ask(
    model: LatencyModel,
    flat: Any,
    op_us: npt.NDArray[np.float64] | None,
    streams: int | None,
) -> bytes:
    """The model's prices of stages as they will run, in one call."""
    if op_us is not None:
        flat = _PACK_STAGES(flat, op_us.tobytes(), streams)
    return np.asarray(model.stages(StageBatch.from_bytes(flat)), dtype=np.float64).tobytes()
