"""Tests the time and the memory that the proof for ranges of sizes takes."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.masked_nets import Masked
from tests.nets import Net
from tvm_interop.compiler import imported_sizes
from tvm_interop.compiler.imported_sizes import Imported
from tvm_interop.compiler.range_proofs import _programs
from tvm_interop.compiler.row_ranges import row_range
from tvm_interop.errors import InputError
from tvm_interop.frontend.size_conditions import SizeConditions, attach
from tvm_interop.frontend.size_values import follow_sizes


def test_the_programs_of_a_proof_share_their_weights() -> None:
    net = Net()
    net.op("MatMul", [net.input("x", ["batch", 8]), net.weight(8, 8)], "y")
    chosen = row_range(net.model("y", check=False), {"batch": (1, 9)}, 3)
    shapes = {size: chosen.shapes((size,)) for size in (3, 6, 9)}
    programs, _ = _programs(Imported(net.model("y", check=False)), shapes, *chosen.axes)
    first, *others = programs.values()
    assert len(others) == 2
    assert first.weights
    for v, array in first.weights.items():
        assert all(other.weights[v] is array for other in others)


def test_not_all_pairs_of_two_long_ranges_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The conditions of a program of `torch.export` are checked for at most some thousand pairs."""
    net, tried = Net(), []
    net.op("Relu", [net.input("x", ["a", "b", 4])], "y")
    model = net.model("y", check=False)
    ranges = {"a": (2, None), "b": (2, None)}
    attach(model, SizeConditions("program", ["x.size()[0] != 33"], ranges))
    check = imported_sizes.check_sizes

    def counted(model: onnx.ModelProto, shapes: Any) -> None:
        tried.append(shapes)
        check(model, shapes)

    monkeypatch.setattr(imported_sizes, "check_sizes", counted)
    Imported(model).check_sizes(row_range(model, {"a": (40, 90), "b": (2, 90)}, 4))
    assert len(tried) < 51 * 89 / 2
    with pytest.raises(InputError, match=r"does not run for the input shapes.*33"):
        Imported(model).check_sizes(row_range(model, {"a": (2, 90), "b": (2, 90)}, 4))


def test_inputs_that_cannot_fit_are_refused_before_the_model_is_imported() -> None:
    net = Masked(batch="batch")
    model = net.model(net.do("Add", net.scores(), net.later()), check=False)
    with pytest.raises(InputError, match="GiB of memory where input `x` has the shape"):
        tvm_interop.compile(model, shapes={"batch": (1, 2), "seq": 1 << 50})


def test_large_numbers_from_sizes_are_not_kept() -> None:
    """A model computes many tensors of a number for each pair of positions."""
    net, length, count = Masked(), 256, 20
    at = net.do("Unsqueeze", net.positions(), net.ints(0))
    for i in range(count):
        at = net.do("Add", net.do("Reshape", at, net.ints(1, -1)) if i == 0 else at,
                    net.do("Unsqueeze", net.positions(), net.ints(1)))  # fmt: skip
    wide = net.do("Cast", at, to=onnx.TensorProto.FLOAT)
    model = net.model(net.do("Add", net.scores(), wide), check=False)
    imported = Imported(model)
    for size in (2, 3, length):
        shapes = {"x": (1, size, 6), "mask": (1, size)}
        imported._import(shapes, (size,))
    tracemalloc.start()
    sizes = [(size,) for size in range(2, length + 1)]
    assert follow_sizes(model, ["seq"], sizes, imported._seen) == {}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.7 * count * np.dtype(np.int64).itemsize * length**2
