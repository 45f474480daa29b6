"""Tests that local response normalisation is found in imported models and computed correctly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import GraphModule
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.frontend import load_model
from tvm_interop.lowering.lrn_pattern import Lrn, find_lrn
from tvm_interop.lowering.names import bindings_of
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.library_op import library_op
from tvm_interop.transform import LowerToUnits, extract

needs_onednn = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


def found(module: tvm.IRModule) -> Lrn | None:
    """The first local response normalisation in `main`, or None if there is none.

    Each normalisation ends with a division.
    """
    values = {binding.var: binding.value for binding in bindings_of(module["main"])}
    divisions = [var for var, value in values.items() if getattr(value, "op", None) == _DIVIDE]
    assert divisions
    results = [find_lrn(values, var) for var in divisions]
    return next((result for result in results if result is not None), None)


_DIVIDE = tvm.ir.Op.get("relax.divide")


def normalised(size: int = 5, channels: int = 20, **constants: float) -> onnx.ModelProto:
    net = nets.Net()
    x = net.input("x", [1, channels, 6, 7])
    net.op("LRN", [x], "y", size=size, **constants)
    return net.model("y")


CONSTANTS = [
    (5, {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}),
    (3, {"alpha": 0.5, "beta": 0.5, "bias": 2.0}),
    (1, {"alpha": 0.25, "beta": 1.0, "bias": 0.5}),
    (7, {}),
]


@pytest.mark.parametrize(("size", "constants"), CONSTANTS)
def test_onnx_lrn_is_found(size: int, constants: dict[str, float]) -> None:
    lrn = found(load_model(normalised(size, **constants)))
    assert lrn is not None
    expected = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0} | constants
    assert lrn.size == size
    got = {"alpha": lrn.alpha, "beta": lrn.beta, "bias": lrn.bias}
    assert got == pytest.approx(expected)
    assert len(lrn.vars) == 8
    assert lrn.data.name == "x"


Change = dict[str, Any]


def chain(**changes: Any) -> tvm.IRModule:
    """The operators of a normalisation over five channels. One operator is changed."""
    pool = {
        "pool_size": (5, 1, 1),
        "strides": (1, 1, 1),
        "padding": (2, 0, 0, 2, 0, 0),
        "dilation": (1, 1, 1),
        "count_include_pad": True,
    } | changes.pop("pool", {})
    given = {"alpha": 0.1, "bias": 1.0, "beta": 0.75, "axis": [1], "other": False} | changes
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 8, 4, 4), "float32"))
    z = relax.Var("z", relax.TensorType((1, 8, 4, 4), "float32"))

    def constant(value: float | list[float]) -> Any:
        return relax.const(np.array(value, np.float32))

    with builder.function("main", [x, z]):
        with builder.dataflow():
            square = builder.emit(relax.op.multiply(x, z if given["other"] == "square" else x))
            deep = builder.emit(relax.op.expand_dims(square, given["axis"]))
            mean = builder.emit(relax.op.nn.avg_pool3d(deep, **pool))
            flat = builder.emit(relax.op.squeeze(mean, given["axis"]))
            scaled = builder.emit(relax.op.multiply(flat, constant(given["alpha"])))
            biased = builder.emit(relax.op.add(scaled, constant(given["bias"])))
            power = builder.emit(relax.op.power(biased, constant(given["beta"])))
            data = z if given["other"] == "data" else x
            out = builder.emit_output(relax.op.divide(data, power))
        builder.emit_func_output(out)
    return builder.get()


def test_the_chain_is_one() -> None:
    lrn = found(chain())
    assert lrn is not None
    assert (lrn.size, lrn.bias, lrn.beta) == (5, 1.0, 0.75)
    assert found(chain(pool={"pool_size": (3, 1, 1), "padding": (1, 0, 0, 1, 0, 0)})) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": {"pool_size": (4, 1, 1), "padding": (2, 0, 0, 1, 0, 0)}},
        {"pool": {"padding": (1, 0, 0, 3, 0, 0)}},
        {"pool": {"pool_size": (5, 3, 1), "padding": (2, 1, 0, 2, 1, 0)}},
        {"pool": {"dilation": (2, 1, 1), "padding": (4, 0, 0, 4, 0, 0)}},
        {"pool": {"count_include_pad": False}},
        {"alpha": [[0.1, 0.1, 0.1, 0.2]]},
        {"bias": [1.0]},
        {"beta": [[[0.5]]]},
        {"axis": [2]},
        {"other": "square"},
        {"other": "data"},
    ],
)  # fmt: skip
def test_what_only_looks_like_one(changes: Change) -> None:
    assert found(chain(**changes)) is None


def test_a_division_of_something_else() -> None:
    net = nets.Net()
    net.op("Div", [net.input("x", [1, 8, 4, 4]), net.weight(1, 8, 1, 1)], "y")
    assert found(load_model(net.model("y"))) is None


def kinds(module: tvm.IRModule) -> list[str]:
    program = extract(LowerToUnits(libraries=("onednn",))(module))
    return [op.description.op for op in program.operators if op.description is not None]


@needs_onednn
def test_one_unit_is_made_of_it() -> None:
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(normalised(3, bias=2.0))))
    (op,) = program.operators
    assert op.description is not None
    fields = op.description.fields()
    assert fields["lrn_alpha"] == pytest.approx(1e-4)
    assert op.description == library_op(
        op="lrn",
        shapes=((1, 20, 6, 7),) * 2,
        layouts=("plain",) * 2,
        lrn_size=3,
        lrn_alpha=fields["lrn_alpha"],
        lrn_beta=0.75,
        lrn_bias=2.0,
    )


@needs_onednn
@pytest.mark.parametrize("at", range(7))
def test_what_is_used_elsewhere_too_is_left(at: int) -> None:
    """Each case makes another intermediate result an output of the model."""
    module = chain()
    main = module["main"]
    bindings = list(bindings_of(main))
    builder = relax.BlockBuilder()
    with builder.function("main", list(main.params)):
        with builder.dataflow():
            for binding in bindings[:-1]:
                builder.emit_normalized(binding)
            out = builder.emit_output(bindings[-1].value)
            extra = builder.emit_output(relax.op.negative(bindings[at].var))
        builder.emit_func_output(relax.Tuple([out, extra]))
    assert kinds(chain()) == ["lrn"]
    assert "lrn" not in kinds(builder.get())


@pytest.mark.parametrize("provider", ["tvm", pytest.param("onednn", marks=needs_onednn)])
@pytest.mark.parametrize(("size", "constants"), CONSTANTS)
def test_numbers(size: int, constants: dict[str, float], provider: str) -> None:
    model = normalised(size, **constants)
    feeds = {name: 3 * array for name, array in nets.feeds(model).items()}
    options = CompileOptions(streams=1, threads=1, providers=[provider], latency_db=":memory:")
    compilation = Compilation(model, options)
    library = None if provider == "tvm" else provider
    assert [op.library for op in compilation.program.operators] == [library] or provider == "tvm"
    module = GraphModule(compilation.artifact(compilation.sequential()))
    module.run(**feeds)
    (expected,) = run_onnxruntime(model, feeds).values()
    np.testing.assert_allclose(module.get_output(0).numpy(), expected, rtol=1e-5, atol=1e-6)
