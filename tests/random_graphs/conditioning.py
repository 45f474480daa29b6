"""How far rounding may carry a graph's outputs: how far inputs that differ by it carry them."""

from __future__ import annotations

import numpy as np
import onnx

from .oracles import Arrays, by_nodes, by_onnxruntime, constants_of

_DRAWS = 6
_ROUNDING = {"float16": 4e-3, "float32": 2e-6, "float64": 4e-15}
"""By how much of itself each number is moved: about what a few dozen operators round off."""
_ALLOWED = 8.0
"""Times the largest distance seen: a few draws do not meet the worst case."""


def within_rounding(
    model: onnx.ModelProto, feed: Arrays, ours: Arrays, wanted: Arrays
) -> dict[str, bool]:
    """Of each output that we have, whether rounding explains how far it is from `wanted`.

    The graph is evaluated by an oracle, with all floating-point inputs and constants moved by as
    much as rounding does, several times. An element of ours may be as far from the wanted one as
    the elements of that output went, times a factor. A choice (`Floor`, `ArgMax`, a comparison)
    tips over for some of the draws if it tips over for rounding.
    """
    generator = np.random.default_rng(0)
    draws = [
        found
        for _ in range(_DRAWS)
        if (found := _evaluated(*_moved(model, feed, generator))) is not None
    ]
    return {
        name: bool(draws) and _explained(ours[name], wanted[name], [d[name] for d in draws])
        for name in wanted
    }


def _evaluated(model: onnx.ModelProto, feed: Arrays) -> dict[str, np.ndarray] | None:
    return by_onnxruntime(model, feed) or by_nodes(model, feed)


def _moved(
    model: onnx.ModelProto, feed: Arrays, generator: np.random.Generator
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    moved = onnx.ModelProto()
    moved.CopyFrom(model)
    del moved.graph.initializer[:]
    for name, array in constants_of(model).items():
        moved.graph.initializer.append(
            onnx.numpy_helper.from_array(_nudged(array, generator), name)
        )
    return moved, {name: _nudged(array, generator) for name, array in feed.items()}


def _nudged(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    if array.dtype.kind != "f":
        return array
    by = _ROUNDING[str(array.dtype)] * generator.uniform(-1, 1, array.shape)
    return np.asarray(array.astype(np.float64) * (1 + by)).astype(array.dtype)


def _explained(ours: np.ndarray, wanted: np.ndarray, draws: list[np.ndarray]) -> bool:
    if any(each.shape != wanted.shape for each in draws) or ours.shape != wanted.shape:
        return False
    if ours.dtype != wanted.dtype:
        return False
    if ours.dtype.kind in "biu":
        moved = max(int((each != wanted).sum()) for each in draws)
        return int((ours != wanted).sum()) <= _ALLOWED * moved
    got, want = ours.astype(np.float64), wanted.astype(np.float64)
    is_finite = np.isfinite(want)
    if not np.array_equal(got[~is_finite], want[~is_finite], equal_nan=True):
        return any(not np.array_equal(np.isfinite(each), is_finite) for each in draws)
    far = [np.abs(each.astype(np.float64) - want)[is_finite].max(initial=0.0) for each in draws]
    return bool(np.abs(got - want)[is_finite].max(initial=0.0) <= _ALLOWED * max(far))
