"""How IOS learns what its stages cost: all of them, or only those that can matter."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

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
_NEXT = tvm_ffi.get_global_func("tvm_interop.ios_pricing_next")
_PRICES = tvm_ffi.get_global_func("tvm_interop.ios_pricing_prices")
_VALUES = tvm_ffi.get_global_func("tvm_interop.ios_pricing_values")
_PACK_STAGES = tvm_ffi.get_global_func("tvm_interop.pack_stages")

_BATCH = 32
"""The fewest stages asked for at once, where as many may matter: a measuring model interleaves
the stages of one call."""
_GROWTH = 8
"""A call asks for at least one stage per this many priced before: many stages, still few calls."""


@dataclass(frozen=True)
class Priced:
    """What the stages of a search cost.

    Attributes
    ----------
    value_us: bytes of the price of each stage, or of a bound below it where none is needed.
    op_us: latencies of the operators, where stages are packed onto streams by them.
    counts: what `Schedule.stats` says about it.
    """

    value_us: bytes
    op_us: npt.NDArray[np.float64] | None
    counts: dict[str, Any]


def price_all(search: Any, graph: OpGraph, model: LatencyModel, streams: int | None) -> Priced:
    """Price every stage, packed onto `streams`, in one call."""
    op_us = op_latencies(model, graph.names) if streams is not None else None
    value_us = _ask(model, _STAGES(search), op_us, streams)
    count = len(value_us) // 8
    return Priced(value_us, op_us, {"stages_priced": count, "stages_spared": 0, "below_bound": 0})


def price_bounded(
    search: Any,
    graph: OpGraph,
    model: LatencyModel,
    streams: int | None,
    cores: int | None,
    tolerance: float,
) -> Priced:
    """Price only the stages that an optimal schedule may need.

    Single operators first, which the bounds are made of; then, round by round, the stages that
    the best schedule known so far relies on, until all of those are priced.
    """
    pricing = _MAKE(search)
    singles = _SINGLES(pricing)
    single_us = _ask(model, singles, None, None)
    op_us = op_latencies(model, graph.names) if streams is not None else None
    weights = b"" if op_us is None else op_us.tobytes()
    _BOUNDS(pricing, single_us, weights, streams or 0, cores or 0, tolerance)
    priced = len(single_us) // 8
    below = 0
    scale = 1.0
    while True:
        flat = _NEXT(pricing, max(_BATCH, priced // _GROWTH))
        if not flat[2]:
            break
        price_us = _ask(model, flat, op_us, streams)
        priced += len(price_us) // 8
        newly_below, scale = _PRICES(pricing, price_us)
        below += newly_below
    if below:
        warnings.warn(
            f"{below} of {priced} stages took less than their operators suggest, so the bounds "
            f"that spare stages were lowered to {scale:.0%}; the schedule is optimal if no stage "
            "that was not priced falls shorter. Pass `bounds=False` to price every stage",
            stacklevel=2,
        )
    value_us = _VALUES(pricing)
    spared = len(value_us) // 8 - priced
    counts = {"stages_priced": priced, "stages_spared": spared, "below_bound": below}
    return Priced(value_us, op_us, counts)


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
