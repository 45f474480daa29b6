"""Tests how a program is extracted from a lowered module, and which modules are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.numerics.reference import run_program
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model
from tvm_interop.program.program import Program, Value
from tvm_interop.transform import LowerToUnits, extract


def _program(model: onnx.ModelProto | tvm.IRModule) -> Program:
    return extract(LowerToUnits()(load_model(model)))


def _value(program: Program, name: str) -> Value:
    return next(value for value in program.values if value.name == name)


@pytest.mark.parametrize("make", nets.ALL.values(), ids=nets.ALL)
def test_runs_to_the_same_numbers(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    model = make()
    feeds = nets.feeds(model)
    got = run_program(_program(model), feeds, tmp_path)
    want = run_onnxruntime(model, feeds)
    assert list(got) == list(want)
    for name, expected in want.items():
        assert got[name].shape == expected.shape
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", nets.ALL.values(), ids=nets.ALL)
def test_program_is_well_formed(make: Callable[[], onnx.ModelProto]) -> None:
    program = _program(make())
    names = [value.name for value in program.values]
    assert len(set(names)) == len(names)
    assert len({op.name for op in program.operators}) == len(program.operators)
    ready = {*program.inputs, *program.weights}
    for operator in program.operators:
        assert {program.storage_of(index) for index in operator.inputs} <= ready
        assert not ready.intersection(operator.outputs)
        ready.update(operator.outputs)
    assert {program.storage_of(index) for index in program.outputs} <= ready
    for value in program.values:
        if value.alias_of is not None:
            root = program.values[value.alias_of]
            assert root.alias_of is None
            assert (root.nbytes, root.dtype) == (value.nbytes, value.dtype)
    called = {operator.kernel for operator in program.operators}
    assert {var.name_hint for var in program.kernels.get_global_vars()} == called
    for var, func in program.kernels.functions_items():
        assert func.attrs["global_symbol"] == var.name_hint
    for index, array in program.weights.items():
        value = program.values[index]
        assert (value.shape, value.dtype) == (array.shape, str(array.dtype))


def test_names_and_edges_of_a_network() -> None:
    program = _program(nets.branches())
    ids = {operator.name: i for i, operator in enumerate(program.operators)}
    edges = {(program.operators[a].name, program.operators[b].name) for a, b in program.edges()}
    assert ("c3a/Conv", "c3/Conv") in edges
    assert ("pool/MaxPool", "c4/Conv") in edges
    assert len([edge for edge in edges if edge[1] == "cat/Concat"]) == 5
    # The flatten between the pooling and `logits` costs nothing and is not an operator.
    assert ("gap/GlobalAveragePool", "logits/Gemm") in edges
    assert ids["c1/Conv"] < ids["cat/Concat"]
    assert program.values[program.inputs[0]].name == "x"
    assert [program.values[i].name for i in program.outputs] == ["y"]


def test_outputs_that_are_inputs_views_or_given_twice() -> None:
    program = _program(nets.split())
    assert len(program.operators) == 3
    (split,) = [operator for operator in program.operators if len(operator.outputs) > 1]
    assert [program.values[i].shape for i in split.outputs] == [(2, 1), (2, 2), (2, 3)]
    names = ["flat", "same", "relu", "relu_again", "x_view", "a"]
    assert [program.values[i].name for i in program.outputs] == names
    x, other = program.inputs
    assert _value(program, "x_view").alias_of == x
    assert _value(program, "same").alias_of == other
    relu = program.values.index(_value(program, "relu"))
    assert program.values[relu].alias_of is None
    assert _value(program, "relu_again").alias_of == relu
    assert _value(program, "flat").shape == (4,)


def test_chains_of_views_collapse() -> None:
    net = nets.Net()
    x = net.input("x", [2, 6])
    net.op("Relu", [x], "r")
    for source, out, shape in (("r", "v1", [12]), ("v1", "v2", [3, 4]), ("v2", "v3", [4, 3])):
        net.op("Reshape", [source, net.constant(np.array(shape, np.int64))], out)
    net.op("Transpose", ["v3"], "t", perm=[1, 0])
    program = _program(net.model("t", "v2"))
    relu = program.operators[0].outputs[0]
    assert program.values[program.operators[1].inputs[0]].alias_of == relu
    assert _value(program, "v2").alias_of == relu


def test_the_first_part_of_a_tensor_is_no_view_of_it(tmp_path: Path) -> None:
    net = nets.Net()
    x = net.input("x", [1, 6, 4])
    bounds = [net.constant(np.array([bound], np.int64)) for bound in (0, 3, 1)]
    model = net.model(net.op("Slice", [net.op("Relu", [x], "relu"), *bounds], "y"), "relu")
    program = _program(model)
    assert _value(program, "y").alias_of is None
    feeds = nets.feeds(model)
    got = run_program(program, feeds, tmp_path)
    np.testing.assert_array_equal(got["y"], np.maximum(feeds["x"][:, :3], 0))


def test_equal_weights_are_kept_once() -> None:
    net = nets.Net()
    x = net.input("x", [2, 4])
    array = np.eye(4, dtype=np.float32)
    net.op("MatMul", [x, net.constant(array)], "a")
    net.op("MatMul", ["a", net.constant(array.copy())], "b")
    net.op("MatMul", ["b", net.constant(array.reshape(1, 4, 4))], "c")
    program = _program(net.model("c"))
    assert sorted(value.shape for value in program.weights.values()) == [(1, 4, 4), (4, 4)]
    assert program.operators[0].inputs[1] == program.operators[1].inputs[1]


def test_constant_outputs() -> None:
    net = nets.Net()
    net.op("Relu", [net.input("x", [2])], "r")
    net.op("Add", [net.constant(np.ones(3, np.float32)), net.constant(np.ones(3, np.float32))], "k")
    program = _program(net.model("r", "k"))
    (index,) = program.weights
    assert program.storage_of(program.outputs[1]) == index
    np.testing.assert_array_equal(program.weights[index], np.full(3, 2, np.float32))
    assert program.values[program.outputs[1]].name == "k"


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int64", "float16", "float64"])
def test_weights_of_other_types(dtype: str) -> None:
    array = (np.arange(6) % 4).reshape(2, 3).astype(dtype)
    program = extract(LowerToUnits()(_take(relax.const(array, dtype))))
    (weight,) = program.weights.values()
    assert weight.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(weight, array)


def _take(table: relax.Expr) -> tvm.IRModule:
    """A module that looks up rows in a constant table of any type."""
    builder = relax.BlockBuilder()
    rows = relax.Var("rows", R.Tensor((4,), "int64"))
    with builder.function("main", [rows]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.take(table, rows, axis=0), "out")
        builder.emit_func_output(out)
    return builder.get()


def test_bfloat16_is_refused_by_name() -> None:
    table = relax.const(np.ones((2, 3), ml_dtypes.bfloat16), "bfloat16")
    with pytest.raises(UnsupportedModelError, match="dtype bfloat16, which NumPy lacks"):
        extract(LowerToUnits()(_take(table)))


@I.ir_module
class _Refused:
    @T.prim_func(private=True)
    def copy(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i] * T.float32(2)

    @R.function
    def packed(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.call_dps_packed("my.kernel", (x,), out_ty=R.Tensor((4,), "float32"))
        return y

    @R.function
    def unlowered(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.nn.relu(x)
        return y

    @R.function
    def branch(x: R.Tensor((4,), "float32"), c: R.Tensor((), "bool")) -> R.Tensor((4,), "float32"):
        if c:  # noqa: SIM108
            y = R.add(x, x)
        else:
            y = R.multiply(x, x)
        return y

    @R.function
    def dynamic(x: R.Tensor(("n",), "float32")) -> R.Tensor(("n",), "float32"):
        return x

    @R.function
    def checked(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        y = R.match_cast(x, R.Tensor((4,), "float32"))
        return y

    @R.function
    def nested(x: R.Tensor((4,), "float32")):
        return (x, (x, x))

    @R.function
    def shape(x: R.Tensor((4,), "float32")):
        s = R.shape([4])  # noqa: F841
        return x

    @R.function
    def plain(x: R.Tensor((4,), "float32")):
        lv = R.call_tir(_Refused.copy, (x,), out_ty=R.Tensor((4,), "float32"))
        return (lv, x, lv)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("packed", "binding `y` calls `relax.call_dps_packed` of `my.kernel`"),
        ("unlowered", "binding `y` calls `relax.nn.relu`.*run LowerToUnits first"),
        ("branch", "binding `y` uses `if`"),
        ("dynamic", r"has the dynamic shape"),
        ("checked", "binding `y` checks a shape"),
        ("nested", "a tuple within a tuple"),
        ("shape", "binding `s` uses ShapeExpr"),
        ("missing", "no function `missing`"),
    ],
)
def test_what_cannot_be_scheduled_is_named(function: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        extract(_Refused, function)


def test_function_by_name_without_output_names() -> None:
    program = extract(_Refused, "plain")
    out, same, again = program.outputs
    assert same == program.inputs[0]
    assert out == again
    assert program.operators[0].name == "copy"


@pytest.mark.parametrize(
    ("tensors", "more", "message"),
    [
        (["x"], [relax.ShapeExpr([4])], "binding `y` passes shape variables"),
        (["x", relax.prim_value(3)], [], "binding `y` uses IntImm, which is not a tensor"),
        (["x", relax.ShapeExpr([4])], [], "binding `y` uses ShapeExpr, which is not a tensor"),
    ],
)
def test_arguments_that_are_no_tensors_are_refused(
    tensors: list[relax.Expr | str], more: list[relax.Expr], message: str
) -> None:
    x, y = (relax.Var(name, R.Tensor((4,), "float32")) for name in "xy")
    var = _Refused.get_global_var("copy")
    arguments = relax.Tuple([x if isinstance(item, str) else item for item in tensors])
    call = relax.Call(tvm.ir.Op.get("relax.call_tir"), [var, arguments, *more], None, [y.ty])
    body = relax.SeqExpr([relax.BindingBlock([relax.VarBinding(y, call)])], y)
    mod = tvm.IRModule({var: _Refused[var], "main": relax.Function([x], body, y.ty)})
    with pytest.raises(UnsupportedModelError, match=message):
        extract(mod)


def test_empty_tensors_of_relax_are_refused() -> None:
    """An empty tensor of an ONNX model becomes a constant before lowering (see
    `test_empty_tensors`), but a Relax module may still contain one."""
    x = relax.Var("x", relax.TensorType((0, 4), "float32"))
    bb = relax.BlockBuilder()
    with bb.function("main", [x]):
        with bb.dataflow():
            result = bb.emit_output(relax.op.nn.relu(x))
        bb.emit_func_output(result)
    with pytest.raises(UnsupportedModelError, match=r"an empty tensor of shape \(0, 4\)"):
        extract(LowerToUnits("llvm")(bb.get()))


@pytest.mark.parametrize("name", ["x", "gpu_0/data_0", "data:0"])
def test_names_are_plain_strings(name: str) -> None:
    """The type of TVM's strings is a subclass of `str`.

    Such a string cannot be written into a plan.
    """
    net = nets.Net()
    net.op("Relu", [net.input(name, [1, 4])], "y")
    program = extract(LowerToUnits()(load_model(net.model("y"))))
    assert {type(value.name) for value in program.values} == {str}
    assert {type(op.name) for op in program.operators} == {str}
    assert program.values[program.inputs[0]].name == name
