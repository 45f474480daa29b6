"""The state while a random graph is built: names, constants and values."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto as TP
from onnx import helper, numpy_helper

DT = {
    "f32": TP.FLOAT,
    "f16": TP.FLOAT16,
    "f64": TP.DOUBLE,
    "i64": TP.INT64,
    "i32": TP.INT32,
    "bool": TP.BOOL,
    "i8": TP.INT8,
    "u8": TP.UINT8,
    "i16": TP.INT16,
    "u16": TP.UINT16,
    "u32": TP.UINT32,
    "u64": TP.UINT64,
}
"""ONNX's types by their short names."""
NP = {
    "f32": np.float32,
    "f16": np.float16,
    "f64": np.float64,
    "i64": np.int64,
    "i32": np.int32,
    "bool": np.bool_,
    "i8": np.int8,
    "u8": np.uint8,
    "i16": np.int16,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
}
"""NumPy's types by their short names."""


class Builder:
    """A graph that grows. Functions add operators, and return whether they found suitable values.

    Attributes
    ----------
    vals: the name, type and shape of each value so far.
    const: the initializers that are constants.
    """

    def __init__(self, seed: int, n: int) -> None:
        self.r = np.random.default_rng(seed)
        self.n = n
        self.nodes = []
        self.inits = []
        self.inputs = []
        self.vals = []  # Each entry has a name, a type and a shape.
        self.const = {}
        self.k = 0
        self.main = self.r.choice(["f32"] * 8 + ["f64", "f16"])
        self.weird = self.r.random() < 0.15

    def name(self, p: str = "t") -> Any:
        self.k += 1
        if self.weird:
            return self.r.choice(
                ["a b", "x/y:0", "if", "é", "<b>", '"q"', "a.b", "0", "%s", "{}", "main", "$"]
            ) + str(self.k)
        return f"{p}{self.k}"

    def pick(self, pred: Any = lambda v: True) -> Any:
        c = [v for v in self.vals if pred(v)]
        if not c:
            return None
        # Prefer recent values.
        w = np.arange(1, len(c) + 1, dtype=float)
        return c[self.r.choice(len(c), p=w / w.sum())]

    def add_init(self, arr: Any, p: str = "w") -> Any:
        n = self.name(p)
        self.inits.append(numpy_helper.from_array(np.asarray(arr, order="C").copy(), n))
        self.const[n] = arr
        return n

    def W(self, dt: str, shape: Any, scale: float | None = None) -> Any:
        # Share initializers sometimes.
        if self.r.random() < 0.25:
            for n, a in self.const.items():
                if a.shape == tuple(shape) and a.dtype == NP[dt] and a.ndim > 1:
                    return n
        if dt in ("f32", "f16", "f64"):
            fan = max(1, int(np.prod(shape[1:])) if len(shape) > 1 else 1)
            a = (self.r.standard_normal(shape) * (scale or 1 / np.sqrt(fan))).astype(NP[dt])
        elif dt == "bool":
            a = self.r.random(shape) < 0.5
        else:
            a = self.r.integers(0, 5, shape).astype(NP[dt])
        return self.add_init(np.asarray(a))

    def I64(self, v: Any) -> Any:
        return self.add_init(np.asarray(v, dtype=np.int64), "c")

    def node(self, op: str, ins: Any, outs: Any, **at: Any) -> Any:
        names = []
        for _ in outs:
            nm = self.name()
            names.append(nm)
        self.nodes.append(
            helper.make_node(
                op, ins, names, name=(self.name("n") if self.r.random() < 0.7 else ""), **at
            )
        )
        for nm, (dt, shape) in zip(names, outs, strict=False):
            self.vals.append((nm, dt, tuple(int(s) for s in shape)))
        return names

    def inp(self, dt: str, shape: Any) -> None:
        n = self.name("x")
        self.inputs.append((n, dt, tuple(shape)))
        self.vals.append((n, dt, tuple(shape)))
