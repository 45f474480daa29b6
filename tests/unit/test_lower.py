"""Tests lowering to schedule units (fused kernels): results, names, and reshapes without cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model
from tvm_interop.transform import LowerToUnits

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def _bindings(mod: tvm.IRModule) -> list[relax.Binding]:
    return [binding for block in mod["main"].body.blocks for binding in block.bindings]


def _units(mod: tvm.IRModule) -> dict[str, str]:
    """The kernel of each unit, by the unit's name."""
    return {
        b.var.name: b.value.args[0].name_hint
        for b in _bindings(mod)
        if isinstance(b.value, relax.Call) and b.value.op == _CALL_TIR
    }


def _run_stock(mod: tvm.IRModule, feeds: list[np.ndarray]) -> list[np.ndarray]:
    executable = tvm.compile(mod, target="llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*[tvm.runtime.tensor(feed) for feed in feeds])
    return [r.numpy() for r in (result if not hasattr(result, "numpy") else [result])]


@pytest.mark.parametrize("make", nets.ALL.values(), ids=nets.ALL)
def test_stock_tvm_runs_it_to_the_same_numbers(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    feeds = nets.feeds(model)
    lowered = LowerToUnits()(load_model(model))
    want = list(run_onnxruntime(model, feeds).values())
    got = _run_stock(lowered, list(feeds.values()))
    assert len(got) == len(want)
    for result, expected in zip(got, want, strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", nets.ALL.values(), ids=nets.ALL)
def test_lowering_twice_changes_nothing(make: Callable[[], onnx.ModelProto]) -> None:
    lowered = LowerToUnits()(load_model(make()))
    again = LowerToUnits()(lowered)
    tvm.ir.assert_structural_equal(lowered, again)
    assert list(_units(lowered)) == list(_units(again))


def test_module_given_stays_as_it_was() -> None:
    mod = load_model(nets.norms())
    before = mod.script()
    LowerToUnits()(mod)
    assert mod.script() == before


def test_only_units_are_left() -> None:
    for make in nets.ALL.values():
        for binding in _bindings(LowerToUnits()(load_model(make()))):
            if isinstance(binding.value, relax.Call):
                assert binding.value.op.name in ("relax.call_tir", "relax.reshape")


def test_unit_is_named_after_its_heaviest_node() -> None:
    units = _units(LowerToUnits()(load_model(nets.branches())))
    assert list(units) == [
        "pool/MaxPool", "c1/Conv", "c2/Conv", "c3a/Conv", "c3/Conv", "dw/Conv", "c4/Conv",
        "cat/Concat", "gap/GlobalAveragePool", "logits/Gemm", "y/Softmax",
    ]  # fmt: skip
    # Two units have the same kernel, and each has its own name.
    assert units["c1/Conv"] == units["c2/Conv"]


def test_names_do_not_depend_on_nodes_having_names() -> None:
    units = _units(LowerToUnits()(load_model(nets.branches(name_nodes=False))))
    assert {"c1", "c2", "dw", "cat", "logits", "y"} <= set(units)


def test_attention_units() -> None:
    units = _units(LowerToUnits()(load_model(nets.attention())))
    assert {"q_mm/MatMul", "scores/MatMul", "probs/Softmax", "norm/LayerNormalization"} <= set(
        units
    )
    assert not [kernel for kernel in units.values() if "reshape" in kernel]


def test_equal_names_get_a_suffix() -> None:
    net = nets.Net()
    x = net.input("x", [1, 4])
    net.op("Softmax", [x], "a", axis=-1)
    net.op("Softmax", ["a"], "b", axis=-1)
    model = net.model("b")
    for node in model.graph.node:
        node.name = "same"
    assert list(_units(LowerToUnits()(load_model(model)))) == ["same", "same_1"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_equal_operators_keep_the_names_of_what_follows(order: str) -> None:
    """It does not matter which of two equal poolings is fused with their sum."""
    net = nets.Net()
    x = net.input("x", [1, 4, 6, 6])
    for i in range(3):
        for name in (f"a{i}", f"b{i}"):
            net.op("AveragePool", [x], name, kernel_shape=[3, 3], pads=[1] * 4)
        net.op("Add", [f"{name}{i}" for name in order], f"sum{i}")
        x = net.conv(f"sum{i}", f"conv{i}", (4, 4), 3)
    model = net.model(x)
    units = _units(LowerToUnits()(load_model(model)))
    assert set(units) <= {node.name for node in model.graph.node}
    assert {f"conv{i}/Conv" for i in range(3)} < set(units)


def test_norms_fold_into_convolutions() -> None:
    lowered = LowerToUnits()(load_model(nets.norms()))
    units = _units(lowered)
    # The convolution's bias, batch norm, scale and shift become new weights and one addition.
    assert units["conv/Conv"].startswith("fused_conv2d_add_relu")
    # A batch norm on an input is a scale and a shift. The batch norm stays separate if its input
    # has two readers.
    assert set(units) == {"bn_in/BatchNormalization", "conv/Conv", "shared/Conv"}


def test_scales_and_shifts_without_a_convolution_keep_their_order() -> None:
    net = nets.Net()
    y = net.input("x", [2, 3, 4, 4])
    numbers = {"Mul": 3.0, "Add": 3 * 2.0**24, "Sub": 3 * 2.0**24, "Div": 3.0}
    for kind, number in numbers.items():
        y = net.op(kind, [y, net.constant(np.float32(number))], f"y_{kind}")
    model = net.model(y)
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 4)).astype(np.float32)
    (want,) = run_onnxruntime(model, {"x": x}).values()
    assert set(np.unique(want * 3)) <= {-12, -8, -4, 0, 4, 8, 12}  # `Add` has rounded the numbers.
    np.testing.assert_array_equal(computed(model, {"x": x})[0], want)


def test_a_convolution_to_one_channel_is_no_scale() -> None:
    """The convolution's weight has one number for each input channel, as a scale would have."""
    net = nets.Net()
    x = net.input("x", [1, 5, 3, 3])
    model = net.model(net.op("Conv", [x, net.weight(1, 5, 1, 1)], "y", kernel_shape=[1, 1]))
    assert list(_units(LowerToUnits()(load_model(model)))) == ["y/Conv"]


def test_target_decides_lowering() -> None:
    """Lowering without a target uses the current target of TVM."""
    mod = load_model(nets.branches())
    with tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}):
        inside = LowerToUnits()(mod)
    tvm.ir.assert_structural_equal(LowerToUnits({"kind": "llvm", "mcpu": "x86-64-v3"})(mod), inside)


@I.ir_module
class _Plain:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), w: R.Tensor((3, 3), "float32")) -> R.Tensor:
        with R.dataflow():
            lv = R.matmul(x, w)
            lv1 = R.nn.relu(lv)
            head = R.matmul(lv1, w)
            lv2 = R.add(head, x)
            lv3 = R.matmul(lv2, w)
            R.output(lv3)
        return lv3


def test_plain_relax_keeps_names_given_and_makes_up_the_rest() -> None:
    assert list(_units(LowerToUnits()(_Plain))) == ["fused_matmul_relu", "head", "matmul"]


def test_works_in_a_sequence_of_passes() -> None:
    seq = tvm.transform.Sequential([relax.transform.Normalize(), LowerToUnits()])
    assert list(_units(seq(_Plain))) == ["fused_matmul_relu", "head", "matmul"]


def test_module_lowered_elsewhere_is_taken() -> None:
    legal = relax.transform.LegalizeOps()(_Plain)
    assert list(_units(LowerToUnits()(legal))) == ["fused_matmul_relu", "head", "matmul"]


def test_operators_added_after_lowering_are_lowered() -> None:
    lowered = LowerToUnits()(_Plain)
    main = lowered["main"]
    call = relax.BlockBuilder().normalize(relax.op.tanh(main.body.body))
    extra = relax.Var("extra", call.ty)
    block = relax.BindingBlock([relax.VarBinding(extra, call)])
    body = relax.SeqExpr([*main.body.blocks, block], extra)
    lowered["main"] = relax.Function(main.params, body, call.ty, True, main.attrs)
    assert "extra" in _units(LowerToUnits()(lowered))


def test_module_without_main_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no function `main`"):
        LowerToUnits()(tvm.IRModule({}))
