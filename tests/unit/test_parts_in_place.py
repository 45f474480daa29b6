"""Tests that a split of an image's channels copies nothing, and that the results stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_interop
from tests.nets import Net
from tvm_interop.frontend.load import load_model
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.lower import LowerToUnits
from tvm_interop.program.kinds.part import Part
from tvm_interop.program.parts_in_place import parts_in_place
from tvm_interop.program.program import Program

SIDE = 12


def split_net(parts: list[int], size: int = SIDE) -> Net:
    """A convolution whose channels are split into `part0`, `part1` and so on."""
    net = Net()
    net.input("image", (1, 8, size, size))
    net.conv("image", "whole", (8, sum(parts)), 3)
    names = [f"part{i}" for i in range(len(parts))]
    net.op("Split", ["whole", net.constant(np.array(parts))], *names, axis=1)
    return net


def joined(parts: list[int], of: list[str], size: int = SIDE) -> onnx.ModelProto:
    """A block as in YOLO: a convolution reads `part1`, and its result is concatenated with the
    tensors `of`."""
    net = split_net(parts, size)
    net.conv("part1", "more", (parts[1], 16), 3)
    net.op("Concat", [*of, "more"], "all", axis=1)
    channels = 16 + sum({"whole": sum(parts)}.get(name) or parts[int(name[-1])] for name in of)
    net.conv("all", "y", (channels, 16), 1)
    return net.model("y")


def gated(*outputs: str) -> onnx.ModelProto:
    net = split_net([16, 16])
    net.op("Sigmoid", ["part1"], "gate")
    net.op("Mul", ["part0", "gate"], "y")
    return net.model("y", *outputs)


def of_input() -> onnx.ModelProto:
    net = Net()
    net.input("image", (1, 32, SIDE, SIDE))
    net.op("Split", ["image", net.constant(np.array([16, 16]))], "left", "right", axis=1)
    net.conv("left", "a", (16, 8), 3)
    net.conv("right", "b", (16, 8), 3)
    return net.model("a", "b")


def nested() -> onnx.ModelProto:
    net = split_net([32, 32])
    net.op("Split", ["part1", net.constant(np.array([16, 16]))], "left", "right", axis=1)
    for name in ("left", "right"):
        net.conv(name, f"of_{name}", (16, 8), 3)
    net.conv("part0", "of_part0", (32, 8), 1)
    return net.model("of_left", "of_right", "of_part0")


def sliced() -> onnx.ModelProto:
    """A slice of 16 channels that begins at channel 8, so not at a block of channels."""
    net = Net()
    net.input("image", (1, 8, SIDE, SIDE))
    net.conv("image", "whole", (8, 32), 3)
    bounds = [net.constant(np.array([number])) for number in (8, 24, 1)]
    net.op("Slice", ["whole", *bounds], "middle")
    net.conv("middle", "y", (16, 16), 3)
    net.conv("whole", "z", (32, 16), 3)
    return net.model("y", "z")


def without_pixels() -> onnx.ModelProto:
    net = Net()
    net.input("image", (1, 32, 0, 4))
    net.op("Relu", ["image"], "whole")
    net.op("Split", ["whole", net.constant(np.array([16, 16]))], "left", "right", axis=1)
    net.op("Mul", ["left", "right"], "y")
    return net.model("y")


def single() -> onnx.ModelProto:
    net = split_net([16])
    net.op("Relu", ["part0"], "y")
    return net.model("y")


def placed(model: onnx.ModelProto) -> Program:
    return parts_in_place(extract(LowerToUnits("llvm")(load_model(model))))


def copies(program: Program) -> list[str]:
    """The names of the slices and splits that remain as operators."""
    return [
        op.name
        for op in program.operators
        if isinstance(op.description, Part) or "split" in op.kernel
    ]


NONE_COPIED = {
    "all parts joined": joined([16, 16], ["part0", "part1"]),
    "parts of several sizes": joined([16, 24], ["part0", "part1"]),
    "a part that ends within a block": joined([24, 16], ["part0", "part1"]),
    "a slice that begins within a block": sliced(),
    "a gate": gated(),
    "a split of a part": nested(),
    "an image without pixels": without_pixels(),
    "a single part": single(),
}
SOME_COPIED = {
    "a part joined alone": joined([16, 16], ["part0"]),
    "parts in another order": joined([16, 16], ["part1", "part0"]),
    "parts that are outputs": gated("part0"),
    "an unaligned part": joined([15, 17], ["part0", "part1"], size=7),
    "a split of an input": of_input(),
}
NETS = NONE_COPIED | SOME_COPIED


@pytest.mark.parametrize("name", NONE_COPIED)
def test_no_part_is_copied(name: str) -> None:
    assert not copies(placed(NONE_COPIED[name]))


@pytest.mark.parametrize("name", SOME_COPIED)
def test_parts_that_need_storage_of_their_own_are_copied(name: str) -> None:
    assert copies(placed(SOME_COPIED[name]))


def test_an_image_takes_the_place_of_its_parts_in_a_concatenation() -> None:
    program = placed(NONE_COPIED["all parts joined"])
    (concat,) = (op for op in program.operators if "concat" in op.kernel)
    assert [program.values[v].shape[1] for v in concat.inputs] == [32, 16]


def test_a_part_is_read_after_all_operators_that_write_it() -> None:
    program = placed(NONE_COPIED["a gate"])
    edges = {(program.operators[a].name, program.operators[b].name) for a, b in program.edges()}
    readers = [op.name for op in program.operators[1:]]
    assert edges >= {("whole/Conv", name) for name in readers}


@pytest.mark.parametrize(
    "options",
    [
        {"time_budget": 0},
        {"time_budget": 0, "providers": ["tvm"]},
        {"scheduler": "greedy", "streams": 2, "keep_slower": True},
    ],
    ids=["blocked where possible", "tvm", "two streams"],
)
@pytest.mark.parametrize("name", NETS)
def test_results_are_right(name: str, options: dict[str, Any]) -> None:
    model = NETS[name]
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    image = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"image": image})
    artifact = tvm_interop.compile(model, latency_db=":memory:", **options)
    module = tvm_interop.GraphModule(artifact)
    module.run(image=image)
    for i, array in enumerate(wanted):
        np.testing.assert_allclose(module.get_output(i).numpy(), array, rtol=1e-4, atol=1e-4)
