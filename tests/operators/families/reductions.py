"""Cases of operators over axes: sums, norms, softmax and normalisations."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..case import FLOATS, INTEGERS, Case, edges, numbers, ties, versions

_KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


def reductions() -> Iterator[Case]:
    """All cases of this module."""
    yield from _sums()
    yield from _softmax()
    yield from _norms()


def _sums() -> Iterator[Case]:
    for kind, dtype in itertools.product(_KINDS, (*FLOATS, "int32", "int64", "int8", "uint8")):
        op = f"Reduce{kind}"
        if dtype not in FLOATS and kind in ("LogSum", "LogSumExp", "L2"):
            continue  # onnxruntime computes logarithms and roots of integers in integers.
        x = abs(numbers(dtype, 2, 3, 4)) + np.array(1, dtype)
        first_with_input = 13 if kind == "Sum" else 18
        for opset, keep in itertools.product(versions(op), (0, 1)):
            for axes in (None, [0], [1, 2], [2, 0], [0, 1, 2], [-1], [-3, 1]):
                if opset < 11 and min(axes or [0]) < 0:
                    continue
                named: dict[str, Any] = {"keepdims": keep}
                given = [x]
                if axes and opset >= first_with_input:
                    given.append(np.array(axes))
                elif axes:
                    named["axes"] = axes
                fixed = (1,) if len(given) > 1 else ()
                if opset == versions(op)[-1] or (dtype == "float32" and keep):
                    yield Case(op, given, named, fixed, opset=opset, sums=True)
        yield Case(op, [numbers(dtype)], sums=True)
    for op, dtype in itertools.product(("ReduceMax", "ReduceMin"), ("bool", *INTEGERS)):
        yield Case(op, [ties("uint8", 3, 4).astype(dtype), np.array([1])], fixed=(1,))
    for kind, dtype in itertools.product(_KINDS, FLOATS):
        rows = np.array([[np.nan, 1], [np.inf, 1], [-np.inf, 1], [np.inf, -np.inf], [0, -0.0]])
        yield Case(f"Reduce{kind}", [rows.astype(dtype), np.array([1])], fixed=(1,))


def _softmax() -> Iterator[Case]:
    for op, dtype in itertools.product(("Softmax", "LogSoftmax", "Hardmax"), FLOATS):
        x = numbers(dtype, 2, 3, 4) * np.array(5, dtype)
        for opset in versions(op):
            for axis in (None, 0, 1, 2, -1, -2):
                if opset < 11 and axis is not None and axis < 0:
                    continue
                named = {} if axis is None else {"axis": axis}
                yield Case(op, [x], named, opset=opset, sums=True)
        yield Case(op, [ties(dtype, 3, 4)])
        rows = [[1e4, 1, 2], [-1e4, 0, 1], [-np.inf, 0, 0], [np.inf, 0, 0]]
        if op != "Hardmax":  # Whether NaN counts as the largest number is not defined.
            rows.append([np.nan, 0, 1])
        yield Case(op, [np.array(rows, dtype)])
        yield Case(op, [np.full((2, 3), -np.inf, dtype)])


def _norms() -> Iterator[Case]:
    for dtype in FLOATS:
        x, c = numbers(dtype, 2, 4, 3, 5), 4
        of_channels = [numbers(dtype, c, seed=seed) for seed in (1, 2, 3)]
        variance = abs(numbers(dtype, c, seed=4)) + np.array(0.5, dtype)
        for opset in versions("BatchNormalization"):
            for named in ({}, {"epsilon": 0.1}):
                given = [x, *of_channels, variance]
                yield Case("BatchNormalization", given, named, opset=opset, sums=True)
        for shape in ((2, 4), (2, 4, 7), (1, 4, 2, 3, 2)):
            given = [numbers(dtype, *shape), *of_channels, variance]
            yield Case("BatchNormalization", given, sums=True)
        for shape in ((2, 4, 3, 5), (2, 4, 7), (1, 4, 2, 3, 2)):
            y = numbers(dtype, *shape)
            for opset in versions("InstanceNormalization"):
                given = [y, *of_channels[:2]]
                yield Case("InstanceNormalization", given, opset=opset, sums=True)
            for groups in (1, 2, 4):
                named = {"num_groups": groups}
                yield Case("GroupNormalization", [y, *of_channels[:2]], named, sums=True)
                of_groups = [a[:groups] for a in of_channels[:2]]
                given = [y, *of_groups]
                yield Case("GroupNormalization", given, named, opset=18, sums=True)
        for axis in (0, 1, -1, -2):
            scale = numbers(dtype, *x.shape[axis % 4 :], seed=5)
            bias = numbers(dtype, *x.shape[axis % 4 :], seed=6)
            for outputs, given in itertools.product((1, 3), ([x, scale], [x, scale, bias])):
                named = {"axis": axis, "epsilon": 1e-3}
                yield Case("LayerNormalization", given, named, outputs=outputs, sums=True)
            yield Case("RMSNormalization", [x, scale], {"axis": axis}, sums=True)
        yield Case("MeanVarianceNormalization", [x], sums=True)
        for p, axis in itertools.product((1, 2), (0, 1, -1)):
            yield Case("LpNormalization", [x], {"p": p, "axis": axis}, sums=True)
        zeros = np.zeros((2, 3), dtype)
        yield Case("LpNormalization", [zeros])
        for size in (1, 3, 4, 5):
            named = {"size": size, "alpha": 0.1, "beta": 0.6, "bias": 2.0}
            yield Case("LRN", [x], named, sums=True)
        yield Case("LRN", [numbers(dtype, 2, 6, 3)], {"size": 3}, sums=True)
    yield Case("Softmax", [edges("float32")])
