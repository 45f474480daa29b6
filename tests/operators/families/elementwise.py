"""Cases of element-wise operators: types, limits of types, and shapes that are broadcast."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..case import FLOATS, INTEGERS, TYPES, Case, edges, numbers, versions

_OF_FLOATS: dict[str, Sequence[Mapping[str, Any]]] = {
    "Acos": [{}],
    "Acosh": [{}],
    "Asin": [{}],
    "Asinh": [{}],
    "Atan": [{}],
    "Atanh": [{}],
    "Ceil": [{}],
    "Celu": [{}, {"alpha": 0.5}, {"alpha": -2.0}],
    "Cos": [{}],
    "Cosh": [{}],
    "Elu": [{}, {"alpha": 0.0}, {"alpha": -1.5}],
    "Erf": [{}],
    "Exp": [{}],
    "Floor": [{}],
    "Gelu": [{}, {"approximate": "tanh"}],
    "HardSigmoid": [{}, {"alpha": 0.0}, {"alpha": -1.0, "beta": 2.0}],
    "HardSwish": [{}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
    "IsNaN": [{}],
    "LeakyRelu": [{}, {"alpha": 0.0}, {"alpha": 1.0}, {"alpha": 2.0}, {"alpha": -1.0}],
    "Log": [{}],
    "Mish": [{}],
    "Reciprocal": [{}],
    "Round": [{}],
    "Selu": [{}, {"alpha": 0.0, "gamma": -1.0}],
    "Shrink": [{}, {"lambd": 1.5, "bias": 1.5}],
    "Sigmoid": [{}],
    "Sin": [{}],
    "Sinh": [{}],
    "Softplus": [{}],
    "Softsign": [{}],
    "Sqrt": [{}],
    "Swish": [{}, {"alpha": 0.5}],
    "Tan": [{}],
    "Tanh": [{}],
    "ThresholdedRelu": [{}, {"alpha": -1.0}],
}
_OF_NUMBERS = ("Abs", "Neg", "Relu", "Sign", "Identity")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "Mod", "Sum", "Mean")
_COMPARISONS = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
_BIT_BY_BIT = ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
_ANGLES = ("Sin", "Cos", "Tan")
_SHAPES = [((), (3,)), ((2, 3), ()), ((4, 1), (1, 3)), ((1,), (2, 1, 3)), ((2, 1, 2, 3, 1), (2, 3))]


def elementwise() -> Iterator[Case]:
    """All cases of this module."""
    yield from _unary()
    yield from _binary()
    yield from _broadcast()
    yield from _bounds()
    yield from _casts()
    yield from _others()


def _unary() -> Iterator[Case]:
    for op, settings in _OF_FLOATS.items():
        for opset, dtype, attributes in itertools.product(versions(op), FLOATS, settings):
            x = edges(dtype)
            if op in _ANGLES:
                # For angles above 1e4, the remainder of a division by a full turn is only
                # rounding error.
                x = x[~(np.abs(x) > 1e4)]
            yield Case(op, [x], attributes, opset=opset)
            if opset == versions(op)[-1]:
                yield Case(op, [numbers(dtype)], attributes, opset=opset)
    for op in _OF_NUMBERS:
        for opset, dtype in itertools.product(versions(op), (*FLOATS, *INTEGERS)):
            yield Case(op, [edges(dtype)], opset=opset)
    for dtype in INTEGERS:
        yield Case("BitwiseNot", [edges(dtype)])
    for op in ("Not", "Identity"):
        yield Case(op, [edges("bool")])


def _binary() -> Iterator[Case]:
    for op in (*_ARITHMETIC, *_COMPARISONS):
        for opset, dtype in itertools.product(versions(op), (*FLOATS, *INTEGERS)):
            if dtype in INTEGERS and op == "Mean":
                continue
            x, y = _pairs(dtype)
            if op in ("Div", "Mod", "Pow") and dtype in INTEGERS:
                # Other tests have the cases that crash onnxruntime or that have no defined result.
                fits = (y != 0) & (np.abs(y.astype("float64")) < 4)
                fits &= ~((y.astype("float64") < 0) & (x == np.iinfo(dtype).min))
                fits &= np.abs(x.astype("float64")) < 1e4 if op == "Pow" else True
                fits &= (y > 0) if op == "Pow" else True
                x, y = x[fits], y[fits]
            is_float_mod = op == "Mod" and dtype in FLOATS
            yield Case(op, [x, y], {"fmod": 1} if is_float_mod else {}, opset=opset)
            if op == "Mod" and dtype in INTEGERS:
                yield Case(op, [x, y], {"fmod": 1}, opset=opset)
    for op, dtype in itertools.product(_BIT_BY_BIT, INTEGERS):
        yield Case(op, list(_pairs(dtype)))
    for op in ("And", "Or", "Xor", "Equal"):
        yield Case(op, list(_pairs("bool")))
    for dtype, direction in itertools.product(INTEGERS[4:], ("LEFT", "RIGHT")):
        x = edges(dtype)
        yield Case("BitShift", [x, (np.arange(len(x)) % 8).astype(dtype)], {"direction": direction})
    for base, power in itertools.product(("float32", "float64", "int32", "int64"), repeat=2):
        x, y = numbers(base, 3, 4), abs(numbers(power, 3, 4, seed=1)) % 4
        yield Case("Pow", [abs(x) if "float" in power else x, y.astype(power)])
    for dtype in FLOATS:
        x, slope = edges(dtype), np.array([0.5], dtype)
        for opset in versions("PRelu"):
            yield Case("PRelu", [x, slope], opset=opset)
            yield Case("PRelu", [x, np.zeros(1, dtype)], opset=opset)
        yield Case("PRelu", [numbers(dtype, 2, 3, 4, 4), numbers(dtype, 3, 1, 1)])


def _pairs(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """All pairs of numbers at the limits of a type."""
    values = edges(dtype)
    x, y = np.meshgrid(values, values)
    return x.ravel(), y.ravel()


def _broadcast() -> Iterator[Case]:
    ops = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Equal", "PRelu", "Pow", "Where")
    for op, (first, second) in itertools.product(ops, _SHAPES):
        x, y = abs(numbers("float32", *first)), numbers("float32", *second, seed=1)
        if op == "Where":
            yield Case(op, [x > 0.5, y, numbers("float32", *first)])
        elif op != "PRelu" or len(first) > len(second):
            yield Case(op, [x, y])
    for dtype in TYPES:
        yield Case("Where", [np.array([True, False]), numbers(dtype, 3, 1), numbers(dtype, 1)])
    for op in ("Max", "Min", "Sum", "Mean"):
        several = [numbers("float32", 3, 1), numbers("float32", 4), numbers("float32", 2, 1, 1)]
        for opset in versions(op, 8):
            yield Case(op, several, opset=opset)
            yield Case(op, [numbers("float32", 2, 3)], opset=opset)


def _bounds() -> Iterator[Case]:
    for dtype in (*FLOATS, *INTEGERS):
        x = edges(dtype)
        low, high = np.array(2, dtype), np.array(5, dtype)
        for opset in versions("Clip", 11):
            yield Case("Clip", [x, low, high], opset=opset)
            yield Case("Clip", [x, None, high], opset=opset)
            yield Case("Clip", [x, low], opset=opset)
            yield Case("Clip", [x], opset=opset)
            yield Case("Clip", [x, high, low], opset=opset)
    for dtype in FLOATS:
        nan, one = np.array(np.nan, dtype), np.array(1, dtype)
        yield Case("Clip", [edges(dtype), nan, one])
        yield Case("Clip", [edges(dtype), one, nan])
    yield Case("Clip", [edges("float32")], {"min": -1.0, "max": 2.0}, opset=7)
    yield Case("Clip", [edges("float32")], {"min": 0.0}, opset=7)


def _casts() -> Iterator[Case]:
    import onnx

    for source, target in itertools.product(TYPES, TYPES):
        x = edges(source)
        if source in FLOATS and target not in FLOATS and target != "bool":
            # ONNX does not define the cast of a number that does not fit into the new type.
            x = np.array([0, -0.0, 0.5, 1.5, 2.5, 3.99, 100, 127], source)
            if not target.startswith("u"):
                x = np.concatenate([x, -x])
        number = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(target)))
        for opset in versions("Cast", 9) if "float32" in (source, target) else [24]:
            yield Case("Cast", [x], {"to": number}, opset=opset)
        if "float32" in (source, target):
            yield Case("CastLike", [x, np.zeros(1, target)])


def _others() -> Iterator[Case]:
    for dtype in FLOATS:
        x = numbers(dtype, 2, 3)
        for opset in versions("Dropout"):
            if opset < 12:
                yield Case("Dropout", [x], {"ratio": 0.3}, opset=opset)
            else:
                yield Case("Dropout", [x, np.array(0.3, "float32")], opset=opset)
        for opset in versions("Mean", 8):
            yield Case("Mean", [edges(dtype), edges(dtype)[::-1].copy()], opset=opset)
