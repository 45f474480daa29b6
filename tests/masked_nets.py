"""Small networks on a sequence with a mask, for the tests of ranges of lengths."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.nets import Net
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.lower import LowerToUnits
from tvm_interop.lowering.masked_positions import Masks, masked_positions

WIDTH = 6
GIVEN, LENGTH = 4, 7
"""The number of positions in the tests' inputs, and the length of the sequence after padding."""
LOWEST = float(np.finfo(np.float32).min)
Build = Callable[["Masked"], str]
"""Adds operators to a net, and returns the name of its output."""


class Masked(Net):
    """A net with the inputs `x` of shape (batch, seq, 6) and `mask` of shape (batch, seq)."""

    def __init__(self, batch: int | str = 1, mask_type: int = TensorProto.INT64) -> None:
        super().__init__()
        self.batch, self._count = batch, 0
        self.input("x", [batch, "seq", WIDTH])
        self.input("mask", [batch, "seq"], mask_type)

    def do(self, kind: str, *inputs: str, **attrs: object) -> str:
        self._count += 1
        return self.op(kind, inputs, f"t{self._count}", **attrs)

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def number(self, value: float, dtype: Any = np.float32) -> str:
        return self.constant(np.array(value, dtype))

    def float_mask(self, mask: str = "mask") -> str:
        return self.do("Cast", mask, to=TensorProto.FLOAT)

    def length(self) -> str:
        return self.do("Gather", self.do("Shape", "x"), self.number(1, np.int64))

    def positions(self) -> str:
        ends = self.number(0, np.int64), self.length(), self.number(1, np.int64)
        return self.do("Range", *ends)

    def columns(self, x: str) -> str:
        """`x` times the mask. The mask gets one more axis at its end, to fit the shape of `x`."""
        return self.do("Mul", x, self.do("Unsqueeze", self.float_mask(), self.ints(2)))

    def biased(self) -> str:
        """The input plus a bias. Where the input is padded with 0, this sum is not 0."""
        return self.do("Add", "x", self.positive(WIDTH))

    def scores(self, x: str = "x") -> str:
        turned = self.do(
            "Transpose", self.do("MatMul", x, self.weight(WIDTH, WIDTH)), perm=[0, 2, 1]
        )
        return self.do("MatMul", x, turned)

    def left_out(self, lowest: float = LOWEST, mask: str = "mask", axis: int = 1) -> str:
        """The numbers that a mask adds to scores: 0 where it is 1, and `lowest` where it is 0."""
        wide = self.do("Unsqueeze", self.float_mask(mask), self.ints(axis))
        return self.do("Mul", self.do("Sub", self.number(1), wide), self.number(lowest))

    def later(self) -> str:
        """The numbers to add to attention scores for a causal mask."""
        at = self.positions()
        rows = self.do("Unsqueeze", at, self.ints(1))
        is_later = self.do("Less", rows, self.do("Unsqueeze", at, self.ints(0)))
        return self.do("Where", is_later, self.number(LOWEST), self.number(0))

    def mixed(self, scores: str, x: str = "x") -> str:
        return self.do("MatMul", self.do("Softmax", scores, axis=-1), x)

    def attention(self, x: str = "x") -> str:
        return self.mixed(self.do("Add", self.scores(x), self.left_out()), x)


def model(build: Build, **options: Any) -> onnx.ModelProto:
    net = Masked(**options)
    return net.model(build(net), check=False)


def encoder(
    batch: int | str = 1, layers: int = 2, most: int = 128, vocabulary: int = 40
) -> onnx.ModelProto:
    """A BERT-like encoder with random weights: ids, positions, masked attention of two heads."""
    net, width, heads = Masked.__new__(Masked), 16, 2
    Net.__init__(net)
    net.batch, net._count = batch, 0
    ids = net.input("input_ids", [batch, "seq"], TensorProto.INT64)
    net.input("attention_mask", [batch, "seq"], TensorProto.INT64)
    kinds = net.input("token_type_ids", [batch, "seq"], TensorProto.INT64)
    length = net.do("Gather", net.do("Shape", ids), net.number(1, np.int64))
    at = net.do("Range", net.number(0, np.int64), length, net.number(1, np.int64))
    x = net.do("Gather", net.weight(vocabulary, width, scale=1.0), ids)
    x = net.do("Add", x, net.do("Gather", net.weight(2, width), kinds))
    x = net.do("Add", x, net.do("Gather", net.weight(most, width, scale=1.0), at))
    x = net.do("LayerNormalization", x, net.positive(width), net.weight(width))
    wide = net.do("Unsqueeze", net.float_mask("attention_mask"), net.ints(1, 2))
    left_out = net.do("Mul", net.do("Sub", net.number(1), wide), net.number(LOWEST))
    for _ in range(layers):
        split = {}
        for name in "qkv":
            made = net.do("MatMul", x, net.weight(width, width))
            made = net.do(
                "Reshape", net.do("Add", made, net.weight(width)), net.ints(0, -1, heads, 8)
            )
            split[name] = net.do(
                "Transpose", made, perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
            )
        scores = net.do("Div", net.do("MatMul", split["q"], split["k"]), net.number(8**0.5))
        mixed = net.mixed(net.do("Add", scores, left_out), split["v"])
        mixed = net.do("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = net.do("Reshape", mixed, net.ints(0, -1, width))
        x = net.do("Add", net.do("MatMul", mixed, net.weight(width, width)), x)
        x = net.do("LayerNormalization", x, net.positive(width), net.weight(width))
        up = net.do("MatMul", x, net.weight(width, 2 * width))
        gelu = net.do("Mul", up, net.do("Add", net.do("Erf", up), net.number(1)))
        x = net.do("Add", net.do("MatMul", gelu, net.weight(2 * width, width)), x)
        x = net.do("LayerNormalization", x, net.positive(width), net.weight(width))
    net.op("Identity", [x], "states")
    first = net.do("Gather", "states", net.number(0, np.int64), axis=1)
    net.op("Tanh", [net.do("MatMul", first, net.weight(width, width))], "pooled")
    return net.model("states", "pooled", check=False)


def feed_of_encoder(length: int, seed: int, batch: int = 1, ones: float = 0.8) -> dict[str, Any]:
    """Random inputs; each row of the mask begins with 1."""
    rng = np.random.default_rng([seed, length])
    mask = (rng.random((batch, length)) < ones).astype(np.int64)
    mask[:, 0] = 1
    return {
        "input_ids": rng.integers(0, 40, (batch, length)),
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (batch, length)),
    }


def theirs(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of onnxruntime."""
    found: list[np.ndarray] = _session(model.SerializeToString()).run(None, dict(feed))
    return found


@functools.lru_cache(maxsize=2)
def _session(model: bytes) -> Any:
    """A session of onnxruntime, on one thread. Tests run the same model on many inputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def shapes_of(made: onnx.ModelProto, length: int) -> dict[str, tuple[int, ...]]:
    dims = {i.name: i.type.tensor_type.shape.dim for i in made.graph.input}
    return {
        name: tuple(length if dim.dim_param else dim.dim_value for dim in each)
        for name, each in dims.items()
    }


def proof(made: onnx.ModelProto, least: int = 1) -> Masks:
    programs = {
        length: extract(LowerToUnits("llvm")(load_model(made, shapes_of(made, length))))
        for length in (3, 5, 8)
    }
    axes = {
        i.name: [bool(dim.dim_param) for dim in i.type.tensor_type.shape.dim].index(True)
        for i in made.graph.input
    }
    return masked_positions(programs, axes, least)


def of_given(array: np.ndarray) -> np.ndarray:
    """The part of a padded output that lies at the positions before the padding."""
    for axis, size in enumerate(array.shape):
        if size == LENGTH:
            array = array.take(range(GIVEN), axis)
    return array
