"""Tests that kernels on constants are built once, and give the results of TVM's own folding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

import tvm_interop
from tests.nets import Net
from tvm_interop.frontend import load
from tvm_interop.frontend.load import load_model, read_once
from tvm_interop.lowering import constant_kernels
from tvm_interop.lowering.constant_kernels import run_on_constants
from tvm_interop.lowering.fold_calls import FoldCalls
from tvm_interop.lowering.names import bindings_of

_X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
op = relax.op


def _module(call: Callable[[], relax.Expr]) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            found = builder.emit_output(call())
        builder.emit_func_output(found)
    return relax.transform.LegalizeOps()(builder.get())


@pytest.mark.parametrize(
    "call",
    [
        lambda: op.exp(relax.const(_X)),
        lambda: op.sum(relax.const(_X), axis=[1]),
        lambda: op.astype(op.multiply(relax.const(_X), relax.const(np.float32(9))), "int32"),
        lambda: relax.TupleGetItem(op.split(relax.const(_X), 2, axis=1), 1),
    ],
)
def test_a_result_has_the_bits_of_tvms_own_folding(call: Callable[[], relax.Expr]) -> None:
    mod = _module(call)
    ours = list(run_on_constants(mod, mod["main"]).values())[-1][0].value.numpy()
    folded = relax.transform.CanonicalizeBindings()(relax.transform.FoldConstant()(mod))["main"]
    values = {binding.var: binding.value for binding in bindings_of(folded)}
    theirs = values.get(folded.body.body, folded.body.body).value.numpy()
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()


def test_a_kernel_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mod = _module(lambda: op.tan(relax.const(_X[:2, :3])))
    (first,) = run_on_constants(mod, mod["main"]).values()

    def build_no_more(kernel: object) -> None:
        raise AssertionError("the kernel is there already")

    monkeypatch.setattr(constant_kernels, "_build", build_no_more)
    mod = _module(lambda: op.tan(relax.const(_X[1:, 1:])))
    (second,) = run_on_constants(mod, mod["main"]).values()
    np.testing.assert_allclose(first[0].value.numpy(), np.tan(_X[:2, :3]), rtol=1e-5)
    np.testing.assert_allclose(second[0].value.numpy(), np.tan(_X[1:, 1:]), rtol=1e-5)


def test_not_more_than_a_few_kernels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_kernels, "_built", {})
    monkeypatch.setattr(constant_kernels, "_MOST_KERNELS", 2)
    for size in (1, 2, 3, 4):
        mod = _module(lambda size=size: op.exp(relax.const(_X[:, :size])))
        run_on_constants(mod, mod["main"])
    assert len(constant_kernels._built) == 2


def test_a_call_whose_kernel_cannot_be_built_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_kernels, "_built", {})
    monkeypatch.setattr(constant_kernels, "_build", lambda kernel: None)
    mod = _module(lambda: op.exp(relax.const(_X)))
    assert not run_on_constants(mod, mod["main"])


def test_kernels_that_the_importer_made_are_not_looked_for() -> None:
    """The importer writes a kernel of its own for `CumProd`. Constant folding cannot look up this
    kernel, so it must leave the call as it is."""
    net = Net()
    axis = net.constant(np.array(1, np.int64))
    product = net.op("CumProd", [net.constant(_X), axis], "product")
    made = net.model(net.op("Neg", [product], "y"), opset=26)
    artifact = tvm_interop.compile(made, time_budget=0, latency_db=":memory:")
    run = tvm_interop.GraphModule(artifact)
    run.run()
    np.testing.assert_allclose(run.get_output(0).numpy(), -np.cumprod(_X, axis=1), rtol=1e-6)


def test_a_call_that_reads_an_input_stays() -> None:
    x = relax.Var("x", relax.TensorType((3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            constant = builder.emit(op.exp(relax.const(_X)))
            found = builder.emit_output(op.add(x, constant))
        builder.emit_func_output(found)
    main = FoldCalls()(builder.get())["main"]
    assert [b.value.op.name for b in bindings_of(main) if isinstance(b.value, relax.Call)] == [
        "relax.add"
    ]


def test_a_model_is_checked_once_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    monkeypatch.setattr(load, "_check", lambda model, origin: checked.append(origin))
    net = Net()
    net.input("x", ["batch", 4])
    made: onnx.ModelProto = net.model(net.op("Relu", ["x"], "y"), check=False)
    once = read_once(made)
    for batch in (1, 2, 3):
        assert load_model(once, {"x": (batch, 4)})["main"].params[0].ty.shape[0] == batch
    assert len(checked) == 1
