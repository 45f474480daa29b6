"""Tests how models are loaded: names, shapes, and clear errors for unsupported models."""

from __future__ import annotations

import gc
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tests import nets
from tests.numerics.reference import run_program
from tests.one_node import computed, one_node
from tvm_interop.errors import InputError, UnsupportedModelError
from tvm_interop.frontend import load_model
from tvm_interop.transform import LowerToUnits, extract


def _names(mod: tvm.IRModule) -> list[str]:
    return [b.var.name for block in mod["main"].body.blocks for b in block.bindings]


def test_path_and_proto_give_the_same(tmp_path: Path) -> None:
    model = nets.branches()
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    loaded = [load_model(model), load_model(path), load_model(str(path))]
    for mod in loaded[1:]:
        tvm.ir.assert_structural_equal(loaded[0], mod)


def test_bindings_carry_the_names_of_nodes() -> None:
    names = _names(load_model(nets.branches()))
    assert {"c1/Conv", "dw/Conv", "cat/Concat", "logits/Gemm"} <= set(names)
    assert not [name for name in names if name.startswith("lv")]


def test_unnamed_nodes_go_by_their_first_output() -> None:
    names = _names(load_model(nets.branches(name_nodes=False)))
    assert {"c1", "dw", "cat", "logits"} <= set(names)


def test_names_of_inputs_and_outputs_survive() -> None:
    main = load_model(nets.attention())["main"]
    assert [param.name for param in main.params] == ["hidden.states"]
    assert list(main.attrs["tvm_interop.output_names"]) == ["out", "probs"]


def test_initializers_listed_as_inputs_are_weights() -> None:
    model = nets.branches()
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    assert [param.name for param in load_model(model)["main"].params] == ["x"]


def test_dynamic_dimension_is_refused_with_the_option_to_give() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(nets.branches(batch="N"))
    message = str(caught.value)
    assert "`x` has shape (N, 8, 8, 8)" in message
    assert 'input_shapes={"x": (1, 8, 8, 8)}' in message
    assert '--input-shapes "x:[1,8,8,8]"' in message


def test_input_of_unknown_rank_is_refused() -> None:
    net = nets.Net()
    net.op("Relu", [net.input("x", None)], "y")
    model = net.model("y", check=False)
    with pytest.raises(UnsupportedModelError, match="`x` has no shape at all"):
        load_model(model)
    mod = load_model(model, {"x": (2, 3)})
    assert [int(dim) for dim in mod["main"].ret_ty.shape] == [2, 3]


def test_given_shape_is_taken() -> None:
    mod = load_model(nets.branches(batch="N"), {"x": (3, 8, 8, 8)})
    assert [int(dim) for dim in mod["main"].params[0].ty.shape] == [3, 8, 8, 8]
    assert [int(dim) for dim in mod["main"].ret_ty.shape] == [3, 10]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"y": (1, 8, 8, 8)}, "names `y`, which is not an input of the model: its inputs are `x`"),
        ({"x": (1, 8, 8)}, "`x` has 4 dimensions, input_shapes gives it 3"),
        ({"x": (0, 8, 8, 8)}, "sizes start at 1"),
    ],
)
def test_wrong_shapes_are_refused(shapes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_model(nets.branches(), shapes)


def test_numbers_drawn_at_random_are_refused_and_named() -> None:
    net = nets.Net()
    drawn = net.op("RandomNormalLike", [net.input("x", [2, 3])], "noise")
    model = net.model(net.op("Relu", [drawn], "y"), check=False)
    with pytest.raises(UnsupportedModelError, match=r"at random: `RandomNormalLike` .*an input"):
        load_model(model)


@pytest.mark.parametrize("name", ["weights.pt", "weights.pt2"])
def test_a_file_of_torch_save_is_named_as_such(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / name, "w") as file:
        file.writestr("weights/data.pkl", b"")
    with pytest.raises(
        UnsupportedModelError, match=r"was written by torch\.save .*export it to ONNX"
    ):
        load_model(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\x00\xff\x17garbage\x80" * 9, "is not an ONNX file"),
        (b"just some text, no model\n", "is not an ONNX"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "holds no graph"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)


def test_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(nets.branches().SerializeToString()[:-100])
    with pytest.raises(UnsupportedModelError, match=r"model\.onnx"):
        load_model(path)


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Protobuf returns names that are not UTF-8 as bytes."""
    path = tmp_path / "model.onnx"
    for name in (b"Conv", b"c0"):
        path.write_bytes(nets.chain(2).SerializeToString().replace(name, name[:-1] + b"\xff"))
        with pytest.raises(UnsupportedModelError, match=r"is damaged: its .* is not UTF-8"):
            load_model(path)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"no file .*none\.onnx"):
        load_model(tmp_path / "none.onnx")
    with pytest.raises(UnsupportedModelError, match="is a directory"):
        load_model(tmp_path)


def test_missing_external_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        nets.branches(), path, save_as_external_data=True, location="weights", size_threshold=0
    )
    load_model(path)
    (tmp_path / "weights").unlink()
    with pytest.raises(UnsupportedModelError, match="weights"):
        load_model(path)


def test_something_else_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="not `int`"):
        load_model(3)  # type: ignore[arg-type]


def test_unknown_operators_are_named_with_their_nodes() -> None:
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["t"], name="frob.1", domain="my.ops"),
        helper.make_node("Frobnicate", ["t"], ["y"], domain="my.ops"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    with pytest.raises(UnsupportedModelError, match=r"`my\.ops\.Frobnicate` \(nodes `frob.1`, `y`"):
        load_model(helper.make_model(graph, opset_imports=opsets, ir_version=9))


def test_operators_of_classical_machine_learning() -> None:
    """No opset of ONNX defines the operator, so the error must not recommend another opset."""
    nodes = [onnx.helper.make_node("CategoryMapper", ["x"], ["y"], domain="ai.onnx.ml")]
    (x, y) = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("ai.onnx.ml", 1)]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "net", [x], [y]), opset_imports=opsets, ir_version=9
    )
    with pytest.raises(UnsupportedModelError, match=r"`ai\.onnx\.ml\.CategoryMapper`.*Compute"):
        load_model(model)


def test_integers_of_4_bits() -> None:
    """Integers of 4 bits are stored with 8 bits. So a model must not return them as outputs."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float[2, 5] x) => (float[5, 2] y) <float step = {0.5}, int4 zero = {1}> {
        q = QuantizeLinear(x, step, zero)
        t = Transpose <perm = [1, 0]> (q)
        y = DequantizeLinear(t, step, zero)
    }"""
    model = onnx.parser.parse_model(text)
    x = np.array([[-9, -4.6, -4.5, -0.25, 0], [0.25, 0.75, 2.9, 3.1, 9]], "float32")
    (got,) = computed(model, {"x": x})
    steps = np.clip(np.round(x / np.float32(0.5)) + 1, -8, 7) - 1
    np.testing.assert_array_equal(got, steps.T * 0.5)
    del model.graph.node[2:]
    model.graph.output[0].name = "t"
    with pytest.raises(UnsupportedModelError, match=r"output `t` is of INT4"):
        load_model(model)


def test_invalid_onnx_is_refused_in_the_checkers_words() -> None:
    model = nets.branches()
    model.graph.node[0].input[0] = "nowhere"
    with pytest.raises(UnsupportedModelError, match=r"not valid ONNX.*"):
        load_model(model)


def test_node_tvm_fails_on_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    net = nets.Net()
    x = net.input("x", [1, 1, 4, 4])
    sizes = net.input("sizes", [4], TensorProto.INT64)
    net.op("Resize", [x, "", "", sizes], "z", mode="cubic", antialias=1)
    model = net.model("z", opset=18, check=False)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", 1, [1, 1, None, None]))
    with pytest.raises(UnsupportedModelError, match=r"node `z/Resize` \(`Resize`\)"):
        load_model(model)
    # If a `BlockBuilder` was left unfinished, TVM warns when it is destroyed here.
    gc.collect()
    told = capfd.readouterr()
    assert told.out == ""
    assert "BlockBuilder" not in told.err


def test_sequence_input_is_refused() -> None:
    value = helper.make_tensor_sequence_value_info("xs", TensorProto.FLOAT, [2])
    node = helper.make_node("ConcatFromSequence", ["xs"], ["y"], axis=0)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    graph = helper.make_graph([node], "g", [value], [result])
    opsets = [helper.make_opsetid("", 17)]
    with pytest.raises(UnsupportedModelError, match="`xs` is a sequence_type"):
        load_model(helper.make_model(graph, opset_imports=opsets, ir_version=9))


@I.ir_module
class _Dynamic:
    @R.function
    def main(x: R.Tensor(("n", 4), "float32")) -> R.Tensor(("n", 4), "float32"):
        with R.dataflow():
            y = R.nn.relu(x)
            R.output(y)
        return y


def test_relax_module_passes_through() -> None:
    mod = load_model(nets.branches())
    tvm.ir.assert_structural_equal(load_model(mod), mod)


def test_dynamic_relax_module_takes_shapes() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`x` has shape \(n, 4\)"):
        load_model(_Dynamic)
    main = load_model(_Dynamic, {"x": (5, 4)})["main"]
    assert [int(dim) for dim in main.ret_ty.shape] == [5, 4]
    with pytest.raises(InputError, match="dimension of 4 where input_shapes gives 3"):
        load_model(_Dynamic, {"x": (5, 3)})


def test_relax_module_without_main_lists_its_functions() -> None:
    mod = tvm.IRModule({"forward": _Dynamic["main"].without_attr("global_symbol")})
    with pytest.raises(UnsupportedModelError, match="no function `main`, only `forward`"):
        load_model(mod)


def test_sum_fuses_like_add() -> None:
    """TVM's importer stacks the inputs of `Sum`. Our importer adds them up."""
    ops = [
        block_binding.value.op.name
        for block in load_model(nets.norms())["main"].body.blocks
        for block_binding in block.bindings
        if isinstance(block_binding.value, relax.Call)
    ]
    assert "relax.stack" not in ops
    assert np.sum([op == "relax.add" for op in ops]) >= 2


def test_gather_stays_within_bounds(tmp_path: Path) -> None:
    """An index beyond the last row takes the last row. TVM's own kernel reads other memory."""
    net = nets.Net()
    rows = net.constant(np.arange(6, dtype=np.float32).reshape(3, 2))
    ids = net.input("ids", [4], TensorProto.INT64)
    net.op("Gather", [rows, ids], "y")
    program = extract(LowerToUnits()(load_model(net.model("y"))))
    got = run_program(program, {"ids": np.array([2, -3, 3, 10**6])}, tmp_path)
    np.testing.assert_array_equal(got["y"][:, 0], [4, 0, 4, 4])


@I.ir_module
class _Gathers:
    @R.function
    def main(x: R.Tensor((3, 2), "float32"), at: R.Tensor((4, 2), "int64")) -> R.Tensor(
        (4, 2), "float32"
    ):
        y: R.Tensor((4, 2), "float32") = R.gather_elements(x, at, axis=0)
        return y


def test_indices_of_a_relax_module_stay_within_bounds(tmp_path: Path) -> None:
    program = extract(LowerToUnits()(load_model(_Gathers)))
    at = np.array([2, -3, 3, 10**6])[:, None].repeat(2, axis=1)
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(3, 2), "at": at}
    (got,) = run_program(program, feeds, tmp_path).values()
    np.testing.assert_array_equal(got[:, 0], [4, 0, 4, 4])


def test_an_empty_list_of_axes_means_all_axes() -> None:
    """Some exporters write an empty list of axes, and TVM's importer fails on it."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    model, feeds = one_node("ReduceMax", [x], opset=13, keepdims=0)
    axes = onnx.AttributeProto(name="axes", type=onnx.AttributeProto.INTS)
    model.graph.node[0].attribute.append(axes)
    (got,) = computed(model, feeds)
    assert got == 5


@pytest.mark.parametrize("op", ["Add", "Sub"])
def test_kernels_with_the_least_integer_as_a_constant_are_right(
    op: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If a kernel were wrong, the check of kernels would rebuild it, and warn."""
    least = np.array(np.iinfo("int32").min, "int32")
    x = np.array([least, -7, 0, 7], "int32")
    (got,) = computed(*one_node(op, [x, least], (1,)))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x + least if op == "Add" else x - least)
    assert "is wrong as it was compiled" not in caplog.text


def test_a_variance_far_from_zero_keeps_its_digits() -> None:
    """For numbers near 200, the mean of the squares and the square of the mean are nearly equal. A
    variance computed as their difference would have few correct digits."""
    x = (np.random.default_rng(0).standard_normal((2, 3, 8, 9)) + 200).astype(np.float32)
    (got,) = computed(*one_node("MeanVarianceNormalization", [x], opset=13))
    centred = x - x.mean((0, 2, 3), keepdims=True, dtype=np.float64)
    deviation = np.sqrt((centred**2).mean((0, 2, 3), keepdims=True))
    np.testing.assert_allclose(got, centred / deviation, atol=1e-3)


def test_regions_without_samples_give_zeros() -> None:
    x = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    regions = np.array([[0.5, 0.5, 2.5, 2.5], [2, 1, 1, 2]], np.float32)
    named = {"output_height": 1, "output_width": 1, "sampling_ratio": 0}
    given = [x, regions, np.zeros(2, np.int64)]
    (got,) = computed(*one_node("RoiAlign", given, opset=16, **named))
    np.testing.assert_allclose(got.ravel(), [4, 0], atol=1e-6)
