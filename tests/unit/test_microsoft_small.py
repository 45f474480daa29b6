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
