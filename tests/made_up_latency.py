"""Latencies that a test makes up, for tests of how a compilation chooses kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from tests import nets
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.program.program import Operator, Program

Microseconds = Callable[[Operator], float]


class MadeUp(MeasuredLatency):
    def __init__(self, program: Program, us: Microseconds) -> None:
        self._operators, self._us = program.operators, us

    def stages(self, stages: object) -> np.ndarray:
        return np.array([self._us(self._operators[groups[0][0]]) for groups in stages])  # type: ignore[attr-defined]

    def why_not(self, op: int) -> str:
        return ""

    def has_only_reference(self, op: int) -> bool:
        return False

    def near(self, ops: Sequence[int], than_us: Sequence[float]) -> list[int]:
        return list(ops)

    def rough_us(self, ops: Sequence[int]) -> list[float]:
        return [self._us(self._operators[op]) for op in ops]

    def take_longer(self, ops: Sequence[int], than_us: Sequence[float]) -> list[bool]:
        return [self._us(self._operators[op]) > us for op, us in zip(ops, than_us, strict=True)]

    measured = 0


def two_islands() -> onnx.ModelProto:
    """Three convolutions, a softmax over pixels, three convolutions, and a reshape."""
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    for name in ("a", "b", "c"):
        x = net.conv(x, name, (16, 16), 3)
    x = net.op("Softmax", [x], "softmax", axis=-1)
    for name in ("d", "e", "f"):
        x = net.conv(x, name, (16, 16), 3)
    net.op("Flatten", ["f"], "flat")
    net.op("Gemm", ["flat", net.weight(16 * 36, 4)], "y")
    return net.model("y")
