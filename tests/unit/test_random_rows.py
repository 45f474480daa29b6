"""Compares the proof that rows are independent with what random graphs compute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.nets import Net
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.independent_rows import RowsDependError, independent_rows
from tvm_interop.lowering.lower import LowerToUnits

_LENGTH, _WIDTH = 4, 6


class _Graph:
    """A random graph on a batch of matrices.

    All choices come from the seed alone, so that the graph is the same for each batch size.

    Attributes
    ----------
    shape: the shape of the current tensor. The axis of the batch has the size "batch".
    """

    def __init__(self, seed: int, batch: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._net, self._batch = Net(), batch
        self._at = self._net.input("x", [batch, _LENGTH, _WIDTH])
        self.shape: list[int | str] = ["batch", _LENGTH, _WIDTH]
        self._count = 0

    def model(self) -> onnx.ModelProto:
        steps = [
            self._normalise, self._reduce, self._turn, self._reshape, self._product, self._gather,
            self._flip, self._add, self._pool, self._running_sum,
        ]  # fmt: skip
        for _ in range(int(self._rng.integers(2, 7))):
            steps[int(self._rng.integers(len(steps)))]()
        at = self._op("Relu", [self._at])
        return self._net.model(at, check=False)

    def _op(self, kind: str, inputs: list[str], **attrs: object) -> str:
        self._count += 1
        return self._net.op(kind, inputs, f"t{self._count}", **attrs)

    def _ints(self, values: list[int]) -> str:
        return self._net.constant(np.array(values, np.int64))

    def _sizes(self, shape: list[int | str]) -> list[int]:
        return [self._batch if size == "batch" else int(size) for size in shape]

    def _axis(self) -> int:
        return int(self._rng.integers(len(self.shape)))

    def _normalise(self) -> None:
        kind = ("Softmax", "LogSoftmax", "Hardmax")[int(self._rng.integers(3))]
        self._at = self._op(kind, [self._at], axis=self._axis())

    def _reduce(self) -> None:
        """Subtract a mean or a maximum over an axis."""
        kind = ("ReduceMean", "ReduceMax")[int(self._rng.integers(2))]
        found = self._op(kind, [self._at], axes=[self._axis()], keepdims=1)
        self._at = self._op("Sub", [self._at, found])

    def _turn(self) -> None:
        order = [int(axis) for axis in self._rng.permutation(len(self.shape))]
        self._at = self._op("Transpose", [self._at], perm=order)
        self.shape = [self.shape[axis] for axis in order]

    def _reshape(self) -> None:
        """Merge the first two axes and split them in another order, so that rows may mix."""
        first, second, *rest = self.shape
        self._at = self._op("Reshape", [self._at, self._ints(self._sizes([second, first, *rest]))])
        self.shape = [second, first, *rest]

    def _product(self) -> None:
        """Multiply with a weight, or each matrix with its transpose."""
        last = self.shape[-1]
        if self._rng.integers(2) and last != "batch":
            self._at = self._op("MatMul", [self._at, self._net.weight(int(last), int(last))])
            return
        turned = self._op("Transpose", [self._at], perm=[0, 2, 1])
        scores = self._op("MatMul", [self._at, turned])
        self._at = self._op("MatMul", [scores, self._at])

    def _gather(self) -> None:
        axis = self._axis()
        size = self._sizes(self.shape)[axis]
        if self.shape[axis] == "batch":
            chosen = list(range(size))[:: 1 if self._rng.integers(2) else -1]
        else:
            chosen = [int(i) for i in self._rng.permutation(size)]
        self._at = self._op("Gather", [self._at, self._ints(chosen)], axis=axis)

    def _flip(self) -> None:
        axis = self._axis()
        ends = [self._ints([end]) for end in (-1, -(2**31), axis, -1)]
        self._at = self._op("Add", [self._at, self._op("Slice", [self._at, *ends])])

    def _add(self) -> None:
        """Add a weight to each row, or a number that depends on the row or on the batch."""
        kind = int(self._rng.integers(4))
        size = self._sizes(self.shape)[-1]
        values = {
            0: np.ones(size), 1: np.arange(size) / 8, 2: np.full(1, 0.25), 3: np.full(1, size / 8),
        }[kind]  # fmt: skip
        self._at = self._op("Add", [self._at, self._net.constant(values.astype(np.float32))])

    def _pool(self) -> None:
        """A maximum over neighbours along the last two axes."""
        shape = self._sizes(self.shape)
        image = self._op("Reshape", [self._at, self._ints([1, *shape])])
        window = [[3, 1], [1, 3]][int(self._rng.integers(2))]
        pads = [size // 2 for size in window] * 2
        made = self._op("MaxPool", [image], kernel_shape=window, pads=pads, strides=[1, 1])
        self._at = self._op("Reshape", [made, self._ints(shape)])

    def _running_sum(self) -> None:
        self._at = self._op("CumSum", [self._at, self._net.constant(np.array(self._axis()))])


def _outputs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def _rows_are_independent(seed: int, axis: int) -> bool:
    """Whether a row of the output stays the same if the other rows or the batch size change."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((5, _LENGTH, _WIDTH)).astype(np.float32)
    other = rng.standard_normal((5, _LENGTH, _WIDTH)).astype(np.float32)
    five, three = _Graph(seed, 5).model(), _Graph(seed, 3).model()
    all_rows = _outputs(five, x)
    for row in range(3):
        among = other.copy()
        among[row] = x[row]
        ours = np.take(all_rows, row, axis)
        if not np.allclose(np.take(_outputs(five, among), row, axis), ours, rtol=1e-4, atol=1e-5):
            return False
        if not np.allclose(np.take(_outputs(three, x[:3]), row, axis), ours, rtol=1e-4, atol=1e-5):
            return False
    return True


def check_graphs(seeds: range) -> tuple[int, int]:
    """Check the proof on random graphs.

    Return the number of graphs for which the proof succeeded, and for how many of these graphs the
    proof was wrong.
    """
    proven = wrong = 0
    for seed in seeds:
        programs = {
            size: extract(LowerToUnits("llvm")(load_model(_Graph(seed, size).model())))
            for size in (3, 5)
        }
        try:
            _, outs = independent_rows(programs, {"x": 0})
        except RowsDependError:
            continue
        (rows,) = outs.values()
        assert rows.each == 1
        proven += 1
        wrong += not _rows_are_independent(seed, rows.axis)
    return proven, wrong


@pytest.mark.parametrize("begin", range(0, 60, 20))
def test_what_is_proven_is_true(begin: int) -> None:
    proven, wrong = check_graphs(range(begin, begin + 20))
    assert proven >= 3
    assert wrong == 0
