"""Schedules that merge operators, for tests: latencies that favour merging, and small models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from tvm import relax

from tests.nets import Net
from tvm_interop import Schedule, Stage
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.latency import LatencyTable
from tvm_interop.lowering import merge_convs

MERGED = "one/Conv+three/Conv"
"""The name of the operator that replaces the two convolutions of `two_convs`."""


class Eager(LatencyTable):
    """A latency model in which merged operators take no time."""

    def __init__(self, made: Compilation) -> None:
        super().__init__([10.0] * made.graph.num_ops)
        self.known = made.merges

    def mergeable(self) -> Sequence[Sequence[int]]:
        return self.known.sets

    def merges(self, sets: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
        return np.array([0.0 if self.known.can_merge(ops) else math.inf for ops in sets])


def by_hand(made: Compilation, names: Sequence[str]) -> Schedule:
    """A schedule with one operator in each stage.

    The operators in `names` form one merged stage, at the place of the last of them.
    """
    ids = [made.graph.names.index(name) for name in names]
    stages = []
    for op in made.graph.topological_order():
        if op == ids[-1]:
            stages.append(Stage(tuple((i,) for i in ids), (0,) * len(ids), "merge"))
        elif op not in ids:
            stages.append(Stage(((op,),), (0,)))
    return Schedule("by hand", made.graph.names, stages=tuple(stages))


def two_convs() -> onnx.ModelProto:
    """Two convolutions of an image, whose results are the outputs."""
    net = Net()
    x = net.input("x", [1, 4, 8, 8])
    one = net.op("Relu", [net.conv(x, "one", (4, 3), 1)], "one_relu")
    three = net.op("Relu", [net.conv(x, "three", (4, 5), 3)], "three_relu")
    return net.model(one, three)


def fire() -> onnx.ModelProto:
    """Two convolutions whose results are joined by a concat.

    So the merged result is not cut into parts.

    The shapes are those of the model `two_convs`, so that both models can share compiled kernels.
    """
    net = Net()
    x = net.input("x", [1, 4, 8, 8])
    one = net.op("Relu", [net.conv(x, "c1", (4, 3), 1)], "r1")
    three = net.op("Relu", [net.conv(x, "c3", (4, 5), 3)], "r3")
    return net.model(net.op("Concat", [one, three], "cat", axis=1))


def small_inception() -> onnx.ModelProto:
    """A block of an Inception network that is small enough for the fake libraries to compute."""
    net = Net()
    x = net.input("x", [1, 4, 7, 7])
    pooled = net.op("MaxPool", [x], "pool", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    outs = []
    for source, name, channels, size in (
        (x, "a1", (4, 4), 1),
        (x, "a3r", (4, 3), 1),
        ("a3r_relu", "a3", (3, 5), 3),
        (x, "a5r", (4, 2), 1),
        ("a5r_relu", "a5", (2, 3), 5),
        (pooled, "app", (4, 2), 1),
    ):
        outs.append(net.op("Relu", [net.conv(source, name, channels, size)], f"{name}_relu"))
    net.op("Concat", [out for out in outs if "r_" not in out], "cat", axis=1)
    return net.model(net.op("GlobalAveragePool", ["cat"], "mean"))


def cut_too_late(patch: pytest.MonkeyPatch) -> None:
    """Plant a fault: each part is cut out one channel too late, if there is such a channel."""
    cut = relax.op.strided_slice

    def off_by_one(whole: Any, axes: Any, begin: list[int], end: list[int]) -> Any:
        late = int(end[0] < int(whole.ty.shape[axes[0]]))
        return cut(whole, axes=axes, begin=[begin[0] + late], end=[end[0] + late])

    patch.setattr(merge_convs.relax.op, "strided_slice", off_by_one)
