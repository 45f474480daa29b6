"""Estimates how much rounding may change the outputs of a graph, by changing its inputs."""

from __future__ import annotations

import numpy as np
import onnx

from .oracles import Arrays, by_nodes, by_onnxruntime, constants_of

_DRAWS = 6
_ROUNDING = {"float16": 4e-3, "float32": 2e-6, "float64": 4e-15}
"""The relative change of each input and constant. A few dozen operators have about this rounding
error."""
_ALLOWED = 8.0
"""An output may differ by this factor times the largest observed change, because a few draws miss
the worst case."""


def within_rounding(
    model: onnx.ModelProto, feed: Arrays, ours: Arrays, wanted: Arrays
) -> dict[str, bool]:
    """For each of our outputs, whether rounding explains its distance from `wanted`.

    An oracle evaluates the graph several times. Each time all floating-point inputs and constants
    are changed by about a rounding error. An element of our output may differ from the wanted
    element by a factor times the largest change in this output over these evaluations. If rounding
    flips a choice (`Floor`, `ArgMax`, a comparison), then some of the evaluations flip it too.
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
