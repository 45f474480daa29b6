"""Tests small and quantised operators of onnxruntime's own domain against onnxruntime.

All cases of a test are in one model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.masked_nets import theirs
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

MICROSOFT = "com.microsoft"
RNG = np.random.default_rng(5)
STEP, ZERO = np.float32(0.02), np.uint8(120)


def numbers(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def bytes_of(*shape: int, dtype: str = "uint8") -> np.ndarray:
    whole = np.iinfo(dtype)
    return RNG.integers(whole.min, whole.max, shape, dtype, endpoint=True)


def weights_of(*shape: int) -> np.ndarray:
    """Weights of int8. onnxruntime's products with them are exact on CPUs without VNNI too, where
    it adds two products in 16 bits.
    """
    return RNG.integers(-60, 61, shape, np.int8)


class Nodes:
    """A model of independent nodes.

    An input of a node is an array, a tensor of ONNX (a constant), or None if it is left out.
    """

    def __init__(self, opset: int = 17) -> None:
        self.graph = onnx.GraphProto(name="g")
        self.feed: dict[str, np.ndarray] = {}
        self.opset = opset

    def add(
        self,
        op: str,
        given: Sequence[object],
        constants: Sequence[object] = (),
        **attributes: object,
    ) -> None:
        """Add a node with the inputs `given` and then `constants`."""
        number = len(self.graph.node)
        names = []
        for i, value in enumerate((*given, *constants)):
            names.append("" if value is None else f"n{number}_{i}")
            if isinstance(value, onnx.TensorProto):
                self.graph.initializer.add().CopyFrom(value)
                self.graph.initializer[-1].name = names[-1]
            elif value is not None and i >= len(given):
                array = numpy_helper.from_array(np.asarray(value), names[-1])
                self.graph.initializer.append(array)
            elif value is not None:
                array = np.asarray(value)
                self.feed[names[-1]] = array
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                self.graph.input.append(helper.make_tensor_value_info(names[-1], kind, array.shape))
        outputs = [f"y{number}"]
        node = helper.make_node(
            op, names, outputs, f"{op}_{number}", domain=MICROSOFT, **attributes
        )
        self.graph.node.append(node)
        self.graph.output.append(onnx.ValueInfoProto(name=f"y{number}"))

    def model(self) -> onnx.ModelProto:
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        ir_version = 10 if self.opset > 18 else 8
        return helper.make_model(self.graph, opset_imports=opsets, ir_version=ir_version)

    def check(self, units: int = 0) -> None:
        """Compare the model's outputs with onnxruntime's. Integers may differ by `units`."""
        model = self.model()
        results = zip(computed(model, self.feed), theirs(model, self.feed), strict=True)
        for number, (ours, wanted) in enumerate(results):
            assert (ours.shape, ours.dtype) == (wanted.shape, wanted.dtype), number
            error = units if ours.dtype.kind in "iu" else 1e-4
            np.testing.assert_allclose(ours.astype(float), wanted, 1e-5, error, err_msg=str(number))


def test_distances_of_rows() -> None:
    nodes = Nodes()
    nodes.add("CDist", [numbers(4, 3), numbers(5, 3)], metric="euclidean")
    nodes.add("CDist", [numbers(4, 3), numbers(1, 3)], metric="sqeuclidean")
    nodes.add("CDist", [numbers(4, 3).astype("float64"), numbers(5, 3).astype("float64")])
    nodes.check()


def test_a_model_that_does_not_import_the_domain() -> None:
    """tf2onnx writes models that do not import this domain, and onnxruntime runs these models."""
    nodes = Nodes()
    nodes.add("Gelu", [numbers(2, 3)])
    model = nodes.model()
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y0", TensorProto.FLOAT, (2, 3)))
    del model.opset_import[1]
    (wanted,) = theirs(model, nodes.feed)
    np.testing.assert_allclose(computed(model, nodes.feed)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [10, 17])
def test_operators_that_a_later_opset_has(opset: int) -> None:
    nodes = Nodes(opset)
    x, grid = numbers(1, 2, 4, 4), RNG.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
    nodes.add("GridSample", [x, grid], padding_mode="border", align_corners=1)
    nodes.add("GridSample", [x, grid], mode="bicubic")
    nodes.add("GatherND", [numbers(2, 3, 4), np.array([[0, 1], [1, -2]])])
    nodes.add("Pad", [numbers(2, 3)], [np.array([1, 0, 0, 2]), np.float32(5)], mode="constant")
    nodes.add("Pad", [numbers(2, 3)], [np.array([1, 0, 0, 2])], mode="edge")
    nodes.add("ExpandDims", [numbers(2, 3)], [np.int32(-1)])
    nodes.add("Range", [], [np.float32(1), np.float32(6), np.float32(2)])
    nodes.add("Range", [], [np.int64(4), np.int64(9)])
    for dtype in (np.float32, np.float64):
        matrices = numbers(2, 4, 4).astype(dtype)
        matrices[0, 0, 0] = 0  # Row 0 has no pivot in column 0.
        nodes.add("Inverse", [matrices])
    nodes.check()


def test_a_range_of_computed_length_is_refused() -> None:
    nodes = Nodes()
    nodes.add("Range", [np.int64(4), np.int64(9)])
    with pytest.raises(UnsupportedModelError, match=r"`Range_0`.*length of its result is computed"):
        load_model(nodes.model())


def test_poolings_with_channels_last() -> None:
    nodes = Nodes()
    for dtype in ("uint8", "int8"):
        window = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 0, 0, 1]}
        nodes.add("NhwcMaxPool", [bytes_of(1, 5, 6, 3, dtype=dtype)], **window)
    nodes.check()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_parts_of_packed_blocks(bits: int) -> None:
    nodes = Nodes(21)
    where = np.array([[0, 5], [-2, 1]])
    sizes = {"block_size": 16, "bits": bits}
    packed, steps = bytes_of(6, 64 * bits // 8), numbers(6, 4)
    zeros = bytes_of(6, 4 * bits // 8)
    nodes.add("GatherBlockQuantized", [], [packed, where, steps], quantize_axis=-1, **sizes)
    nodes.add("GatherBlockQuantized", [], [packed, where[0], steps, zeros], **sizes)
    nodes.check()


def test_parts_of_blocks_of_few_bits() -> None:
    nodes = Nodes(21)
    where, steps = np.array([0, 5, -2], np.int32), numbers(6, 2)
    for kind, least in ((TensorProto.INT4, -8), (TensorProto.UINT4, 0)):
        numbers_, points = (RNG.integers(least, least + 16, (6, n)) for n in (32, 2))
        data, zeros = (
            helper.make_tensor("w", kind, array.shape, array.ravel().tolist())
            for array in (numbers_, points)
        )
        for more in ([], [zeros]):
            nodes.add("GatherBlockQuantized", [], [data, where, steps, *more], block_size=16)
    nodes.check()


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("opset", [12, 13])
def test_softmax_of_old_opsets_has_one_long_axis(opset: int, axis: int) -> None:
    nodes = Nodes()
    steps = [np.float32(0.05), ZERO, np.float32(1 / 256), np.uint8(0)]
    nodes.add("QLinearSoftmax", [bytes_of(2, 3, 5)], steps, axis=axis, opset=opset)
    nodes.check(units=1)


def test_attention_of_bytes() -> None:
    nodes = Nodes()
    # On some CPUs, onnxruntime adds products in 16 bits, which overflows unless the weights are
    # small.
    weights, bias = RNG.integers(-60, 60, (8, 24)).astype(np.int8), numbers(24)
    masks = [None, np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32), np.array([3, 2], np.int32)]
    for causal in (0, 1):
        for mask in masks:
            rest = [weights, bias, STEP, np.float32(0.01), mask, ZERO, np.int8(0)]
            nodes.add("QAttention", [bytes_of(2, 4, 8)], rest, num_heads=2, unidirectional=causal)
    columns = np.abs(numbers(24)) / 100
    rest = [weights, bias, STEP, columns, None, ZERO, np.zeros(24, np.int8)]
    nodes.add("QAttention", [bytes_of(2, 4, 8)], rest, num_heads=2)
    nodes.check()


def test_weights_in_another_order() -> None:
    nodes = Nodes()
    order = RNG.permutation(np.repeat(np.arange(3), 32)).astype(np.int32)
    steps, sizes = np.abs(numbers(15)) / 50, {"K": 96, "N": 5, "block_size": 32}
    for points in (None, numbers(15)):
        weights = [bytes_of(5, 3, 16), steps, points, order]
        nodes.add("MatMulNBits", [numbers(3, 96)], weights, **sizes)
    nodes.check()


def test_weights_in_the_order_of_a_gpu_are_refused() -> None:
    nodes = Nodes()
    weights = [bytes_of(16, 4, 16), numbers(64)]
    nodes.add("MatMulNBits", [numbers(3, 128)], weights, K=128, N=16, block_size=32,
              weight_prepacked=1)  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="weight_prepacked"):
        load_model(nodes.model())


@pytest.mark.parametrize("kind", [0, 1])
def test_weights_of_four_bit_floats(kind: int) -> None:
    nodes = Nodes()
    for block in (16, 64):
        weights = [bytes_of(48 * 11 // 2), np.abs(numbers(-(-48 * 11 // block)))]
        sizes = {"K": 48, "N": 11, "block_size": block, "quant_type": kind}
        nodes.add("MatMulBnb4", [numbers(2, 3, 48)], weights, **sizes)
    nodes.check()


@pytest.mark.parametrize("has_segments", [False, True])
def test_embeddings_of_bytes(has_segments: bool) -> None:
    nodes = Nodes()
    tables = [bytes_of(20, 8), bytes_of(10, 8), bytes_of(2, 8), bytes_of(8), bytes_of(8)]
    steps, points = [STEP] * 5, [ZERO] * 5
    if not has_segments:
        tables[2] = steps[2] = points[2] = None
    words = RNG.integers(0, 20, (2, 4), np.int32)
    segments = RNG.integers(0, 2, (2, 4), np.int32) if has_segments else None
    constants = [*tables, None, *steps, *points]
    nodes.add("QEmbedLayerNormalization", [words, segments], constants)
    nodes.graph.node[0].output.append("counts")
    nodes.graph.output.append(onnx.ValueInfoProto(name="counts"))
    nodes.check()


@pytest.mark.parametrize("layout", [0, 1])
def test_convolutions_of_bytes(layout: int) -> None:
    nodes = Nodes()
    for group, pads in ((1, [1, 0, 0, 1]), (3, [0, 0, 0, 0])):
        image = bytes_of(1, *((6, 7, 3) if layout else (3, 6, 7)))
        weights = [weights_of(6, 3 // group, 3, 3), np.full(6, STEP), np.zeros(6, "i1")]
        constants = [STEP, ZERO, *weights, np.float32(2), ZERO, RNG.integers(-900, 900, 6, "i4")]
        nodes.add("QLinearConv", [image], constants, group=group, pads=pads, strides=[2, 1],
                  channels_last=layout)  # fmt: skip
    nodes.check(units=1)


@pytest.mark.parametrize(("direction", "number"), [("forward", 1), ("bidirectional", 2)])
@pytest.mark.parametrize("of_gates", [False, True])
def test_lstm_of_bytes(direction: str, number: int, of_gates: bool) -> None:
    """onnxruntime rounds the inputs and the states to bytes, which is less exact."""
    hidden, inputs = 8, 6
    x, bias = numbers(5, 2, inputs), numbers(number, 8 * hidden)
    of_scale = (number, 4 * hidden) if of_gates else (number,)
    weights = [weights_of(number, size, 4 * hidden) for size in (inputs, hidden)]
    steps = [RNG.uniform(0.002, 0.004, of_scale).astype(np.float32) for _ in weights]
    zeros = [np.zeros(of_scale, np.int8) for _ in weights]
    nodes = Nodes()
    given = [*weights, bias, None, None, None, None, steps[0], zeros[0], steps[1], zeros[1]]
    nodes.add("DynamicQuantizeLSTM", [x], given, hidden_size=hidden, direction=direction)
    nodes.graph.node[0].output.extend(["h", "c"])
    nodes.graph.output.extend(onnx.ValueInfoProto(name=name) for name in "hc")
    model = nodes.model()
    results = computed(model, nodes.feed), theirs(model, nodes.feed)
    for ours, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(ours, wanted, 0.02, 0.02)
    # The same layer with weights of floats.
    wide = [
        (w * step.reshape(number, 1, -1)).transpose(0, 2, 1).astype(np.float32)
        for w, step in zip(weights, steps, strict=True)
    ]
    floats = Nodes()
    floats.add("LSTM", [x], [*wide, bias], hidden_size=hidden, direction=direction)
    floats.graph.node[0].domain = ""
    floats.graph.node[0].output.extend(["h", "c"])
    floats.graph.output.extend(onnx.ValueInfoProto(name=name) for name in "hc")
    for ours, wanted in zip(results[0], theirs(floats.model(), floats.feed), strict=True):
        np.testing.assert_allclose(ours, wanted, 1e-4, 1e-5)
