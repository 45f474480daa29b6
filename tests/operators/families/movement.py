"""Cases of operators that move elements, look them up, or return their indices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx

from ..case import FLOATS, TYPES, Case, edges, numbers, ties, versions

_SOME = ("float32", "float16", "float64", "int8", "int32", "int64", "uint8", "bool")


def movement() -> Iterator[Case]:
    """All cases of this module."""
    yield from _shapes()
    yield from _joins()
    yield from _pads()
    yield from _slices()
    yield from _lookups()
    yield from _writes()
    yield from _orders()
    yield from _made()
    yield from _blocks()


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _shapes() -> Iterator[Case]:
    for dtype in _SOME:
        x = numbers(dtype, 2, 3, 4)
        for opset in versions("Reshape"):
            yield Case("Reshape", [x, _ints(4, -1)], fixed=(1,), opset=opset)
            yield Case("Reshape", [x, _ints(0, 2, -1)], fixed=(1,), opset=opset)
        yield Case("Reshape", [x, _ints(2, 12)], {"allowzero": 1}, fixed=(1,))
        for axis in range(-3, 4):
            for opset in versions("Flatten") if axis == 1 else [24]:
                yield Case("Flatten", [x], {"axis": axis}, opset=opset)
        for perm in [None, [0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2, 1]]:
            for opset in versions("Transpose"):
                yield Case("Transpose", [x], {"perm": perm} if perm else {}, opset=opset)
    one = numbers("float32", 1, 3, 1, 2)
    for axes in ([0], [2], [0, 2], [-2], [-4, 2]):
        yield Case("Squeeze", [one, _ints(*axes)], fixed=(1,))
        if min(axes) >= 0:
            yield Case("Squeeze", [one], {"axes": axes}, opset=7)
        yield Case("Squeeze", [one], {"axes": axes}, opset=11)
    yield Case("Squeeze", [one])
    for axes in ([0], [1, 4], [-1], [-1, 0], [4, 2, 1]):
        x = numbers("float32", 2, 3)
        yield Case("Unsqueeze", [numbers("float32", 2, 3, 2), _ints(*axes)], fixed=(1,))
        if min(axes) >= 0 and max(axes) < 3:
            yield Case("Unsqueeze", [x], {"axes": axes}, opset=7)
        if max(axes) < 3 and min(axes) > -3:
            yield Case("Unsqueeze", [x], {"axes": axes}, opset=11)
    yield Case("Unsqueeze", [numbers("float32"), _ints(0)], fixed=(1,))
    for start, end in itertools.product([None, 0, 1, -1, -9, 9], repeat=2):
        given = {k: v for k, v in (("start", start), ("end", end)) if v is not None}
        yield Case("Shape", [numbers("float32", 2, 3, 4)], given)
    for opset in versions("Size"):
        yield Case("Size", [numbers("int8", 2, 3)], opset=opset)
        yield Case("Size", [numbers("float32")], opset=opset)
    for dtype, shape in itertools.product(_SOME, [(2, 3, 4), (3, 1), (1,), (4, 1, 3, 4)]):
        yield Case("Expand", [numbers(dtype, 3, 1), _ints(*shape)], fixed=(1,))
    for dtype, repeats in itertools.product(_SOME, [(1, 2), (3, 1), (2, 2)]):
        yield Case("Tile", [numbers(dtype, 2, 3), _ints(*repeats)], fixed=(1,))


def _joins() -> Iterator[Case]:
    for dtype, axis in itertools.product(TYPES, (0, 1, -1, -2)):
        parts = [numbers(dtype, 2, 3, seed=seed) for seed in range(3)]
        for opset in versions("Concat", 11):
            yield Case("Concat", parts, {"axis": axis}, opset=opset)
    x = numbers("float32", 6, 5)
    for axis in (0, 1, -1):
        sizes = [1, 2, int(x.shape[axis]) - 3]
        yield Case("Split", [x, _ints(*sizes)], {"axis": axis}, fixed=(1,), outputs=3)
        yield Case("Split", [x], {"axis": axis, "split": sizes}, outputs=3, opset=11)
        yield Case("Split", [x], {"axis": axis, "num_outputs": 3}, outputs=3)
    yield Case("Split", [x], outputs=2, opset=11)
    yield Case("Split", [x], {"num_outputs": 4}, outputs=4)


def _pads() -> Iterator[Case]:
    for dtype, mode in itertools.product(_SOME, ("constant", "reflect", "edge", "wrap")):
        x = numbers(dtype, 3, 4)
        for pads in ([1, 2, 2, 1], [0, -1, 1, 2], [-1, 0, 0, -2]):
            fixed = (1,)
            yield Case("Pad", [x, _ints(*pads)], {"mode": mode}, fixed=fixed)
        yield Case("Pad", [x, _ints(1, 2), None, _ints(-1)], {"mode": mode}, fixed=(1, 3))
        yield Case("Pad", [x, _ints(2, 1), None, _ints(0)], {"mode": mode}, fixed=(1, 3))
    for dtype in _SOME:
        given: list[Any] = [numbers(dtype, 3, 4), _ints(1, 2, 0, 1), np.array(3).astype(dtype)]
        for opset in versions("Pad", 11):
            yield Case("Pad", given, fixed=(1, 2), opset=opset)
    x = numbers("float32", 2, 2, 4, 5)
    for mode in ("constant", "reflect", "edge"):
        pads = [0, 0, 1, 2, 0, 0, 3, 1]
        yield Case("Pad", [x], {"mode": mode, "pads": pads}, opset=7)
        yield Case("Pad", [x, _ints(*pads)], {"mode": mode}, fixed=(1,), opset=13)
    yield Case("Pad", [x], {"pads": pads, "value": np.inf}, opset=7)


def _slices() -> Iterator[Case]:
    x = numbers("float32", 6, 5)
    big = 2**31 - 1
    for start, end, step in [
        *[(0, 6, 1), (1, -1, 2), (-1, -99, -1), (4, 0, -2), (0, big, 3), (-3, big, 1), (5, 1, -3)]
    ]:
        for axis in (0, -1):
            for dtype in ("int32", "int64"):
                parts = [np.array([value], dtype) for value in (start, end, axis, step)]
                yield Case("Slice", [x, *parts], fixed=(1, 2, 3, 4))
        if step == 1:
            given = {"starts": [start], "ends": [end], "axes": [0]}
            yield Case("Slice", [x], given, opset=7)
    yield Case("Slice", [x, _ints(1, 0), _ints(4, 3)], fixed=(1, 2))
    for dtype in TYPES:
        y = numbers(dtype, 4, 4)
        yield Case("Slice", [y, _ints(1), _ints(3), _ints(1)], fixed=(1, 2, 3))
    for batch in (0, 1):
        yield Case("ReverseSequence", [numbers("float32", 4, 4, 2), _ints(1, 2, 3, 4)],
                   {"batch_axis": batch, "time_axis": 1 - batch})  # fmt: skip
    for shape, axes in [((3, 9), [0, 1]), ((8, 4), [0, 1]), ((5,), [-1]), ((3,), [0])]:
        yield Case("CenterCropPad", [x, _ints(*shape)], {"axes": axes}, fixed=(1,))


def _lookups() -> Iterator[Case]:
    for dtype in _SOME:
        x = numbers(dtype, 4, 5)
        for axis, kind in itertools.product((0, 1, -1), ("int32", "int64")):
            for indices in ([0, 3, 3, 1], [-1, -4, 2], [[0, 1], [2, -2]]):
                for opset in versions("Gather", 11):
                    where = np.array(indices, kind)
                    yield Case("Gather", [x, where], {"axis": axis}, opset=opset)
            yield Case("Gather", [x, np.array(-2, kind)], {"axis": axis})
            rows = np.array([[0, 1, 3], [-1, -2, 2]], kind)
            yield Case("GatherElements", [x, rows], {"axis": axis})
        yield Case("GatherND", [x, _ints(0, 1)])
        yield Case("GatherND", [x, np.array([[0, 1], [3, -5], [-1, 4]])])
        yield Case("GatherND", [x, np.array([[[2]], [[-1]]])])
        cube = numbers(dtype, 2, 3, 4)
        yield Case("GatherND", [cube, np.array([[1], [0]])], {"batch_dims": 1})
        yield Case("GatherND", [cube, np.array([[[1], [0]], [[2], [2]]])], {"batch_dims": 1})
    depth, values = np.array(4), np.array([0, 1], "float32")
    for axis in (0, 1, -1, -2):
        given = [numbers("int64", 2, 3) % 5, depth, values]
        yield Case("OneHot", given, {"axis": axis}, fixed=(1,))


def _writes() -> Iterator[Case]:
    for dtype, reduction in itertools.product(_SOME, ("none", "add", "mul", "max", "min")):
        if dtype == "bool" and reduction != "none":
            continue
        x = numbers(dtype, 4, 5)
        # Without a reduction, the result of two writes to one element would depend on their order.
        # So no element is written twice.
        rows = np.array([[0, 1, 3], [-1, -3, 2]])
        if reduction != "none":
            rows = np.array([[0, 0, 3], [-1, -4, 0]])
        updates = numbers(dtype, 2, 3, seed=1)
        for axis in (0, 1, -1):
            one_each = rows.T if axis == 0 else rows
            given = [x, one_each.copy(), np.ascontiguousarray(updates.T if axis == 0 else updates)]
            for opset in versions("ScatterElements", 11) if reduction == "none" else (16, 18):
                named = {"axis": axis} | ({"reduction": reduction} if opset > 13 else {})
                if opset == 16 and reduction in ("max", "min"):
                    continue
                yield Case("ScatterElements", given, named, opset=opset, sums=True)
        for where in ([[1], [3]], [[1, 2], [3, -1]], [[[0, 0]], [[-4, 4]]]):
            indices = np.array(where)
            sizes = (*indices.shape[:-1], *x.shape[indices.shape[-1] :])
            given = [x, indices, numbers(dtype, *sizes, seed=1)]
            yield Case("ScatterND", given, {"reduction": reduction}, opset=18, sums=True)
    cache, update = numbers("float32", 2, 3, 6, 4), numbers("float32", 2, 3, 2, 4, seed=1)
    for mode in ("linear", "circular"):
        yield Case("TensorScatter", [cache, update, _ints(1, 4)], {"mode": mode})


def _orders() -> Iterator[Case]:
    for dtype, largest in itertools.product((*FLOATS, "int32", "int64", "uint8", "int8"), (0, 1)):
        for axis, draw in itertools.product((0, -1), (numbers, ties)):
            named = {"axis": axis, "largest": largest}
            yield Case("TopK", [draw(dtype, 4, 6), _ints(3)], named, fixed=(1,), outputs=2)
        yield Case("TopK", [ties(dtype, 7), _ints(7)], {"largest": largest}, fixed=(1,), outputs=2)
    x = np.array([[1, np.nan, -np.inf, np.inf, 3], [np.nan, np.nan, 1, 0, -0.0]], "float32")
    for largest, k in itertools.product((0, 1), (1, 2, 5)):
        yield Case("TopK", [x, _ints(k)], {"largest": largest}, fixed=(1,), outputs=2)
    yield Case("TopK", [numbers("float32", 4, 6), _ints(2)], fixed=(1,), outputs=2, opset=10)
    for op, dtype, axis in itertools.product(("ArgMax", "ArgMin"), _SOME[:-1], (0, 1, -1)):
        for keep, last in itertools.product((0, 1), (0, 1)):
            for opset in versions(op, 12):
                named = {"axis": axis, "keepdims": keep, "select_last_index": last}
                yield Case(op, [ties(dtype, 3, 5)], named, opset=opset)
        yield Case(op, [ties(dtype, 3, 5)], {"axis": abs(axis)}, opset=7)
    for dtype, (exclusive, reverse) in itertools.product(
        ("float32", "float64", "int32", "int64"), itertools.product((0, 1), repeat=2)
    ):
        for axis, op in itertools.product((0, 1, -2), ("CumSum", "CumProd")):
            named = {"exclusive": exclusive, "reverse": reverse}
            given = [numbers(dtype, 3, 4), np.array(axis)]
            opset = 26 if op == "CumProd" else 24
            yield Case(op, given, named, fixed=(1,), sums=True, opset=opset)
    for source, target in (("float32", 6), ("int64", 11), ("uint16", 10), ("int8", 2)):
        yield Case("BitCast", [edges(source)], {"to": target}, opset=26)


def _made() -> Iterator[Case]:
    for dtype in TYPES:
        value = onnx.numpy_helper.from_array(np.array([3]).astype(dtype))
        yield Case("ConstantOfShape", [_ints(2, 3)], {"value": value}, fixed=(0,))
    yield Case("ConstantOfShape", [_ints(2)], fixed=(0,))
    for dtype, k in itertools.product(("float32", "int32", "bool"), (-1, 0, 2)):
        number = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        yield Case("EyeLike", [numbers("float32", 3, 4)], {"k": k, "dtype": number})
    for dtype, upper in itertools.product(_SOME, (0, 1)):
        yield Case("Trilu", [numbers(dtype, 3, 4)], {"upper": upper})
        for k in (-5, -1, 1, 3, 9):
            given = [numbers(dtype, 2, 3, 4), np.array(k)]
            yield Case("Trilu", given, {"upper": upper}, fixed=(1,))
    for dtype in ("float32", "float64", "int32", "int64", "int16"):
        for start, limit, step in [(0, 5, 1), (5, 0, -2), (1, 10, 3)]:
            given = [np.array(value, dtype) for value in (start, limit, step)]
            yield Case("Range", given, fixed=(0, 1, 2))
    for op in ("HannWindow", "HammingWindow", "BlackmanWindow"):
        for periodic, size in itertools.product((0, 1), (1, 2, 7, 10)):
            yield Case(op, [np.array(size)], {"periodic": periodic}, fixed=(0,), sums=True)


def _blocks() -> Iterator[Case]:
    for dtype, mode in itertools.product(_SOME[:-1], ("DCR", "CRD")):
        x = numbers(dtype, 2, 8, 3, 2)
        for opset in versions("DepthToSpace", 11):
            yield Case("DepthToSpace", [x], {"blocksize": 2, "mode": mode}, opset=opset)
    for dtype in _SOME[:-1]:
        yield Case("SpaceToDepth", [numbers(dtype, 2, 3, 4, 6)], {"blocksize": 2})
    named = {"dilations": [1, 2], "pads": [0, 1, 1, 0], "strides": [1, 2]}
    given = [numbers("float32", 1, 10, 10), _ints(4, 5), _ints(1, 5)]
    yield Case("Col2Im", given, {}, fixed=(1, 2), sums=True)
    given = [numbers("float32", 1, 4, 10), _ints(5, 5), _ints(2, 2)]
    yield Case("Col2Im", given, named, fixed=(1, 2), sums=True)
