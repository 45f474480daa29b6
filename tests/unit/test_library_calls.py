"""Tests operators that kernel libraries run: how they are found, planned and chosen."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import ArtifactError, GraphModule, compile, load
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.kernel_choice import choose_kernels
from tvm_interop.frontend import load_model
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.plan.check import read_plan
from tvm_interop.program.library_op import LibraryOp
from tvm_interop.program.program import Program
from tvm_interop.transform import InterOpSchedule, LowerToUnits, extract

pytestmark = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)

OPTIONS = CompileOptions(latency_db=":memory:", providers=["onednn"], streams=2, threads=1)
"""With these options, oneDNN runs every operator that it can run."""


def ending(op: LibraryOp) -> tuple[bool, bool, str]:
    """Whether an operator has a bias, whether it adds a tensor, and its activation."""
    fields = op.fields()
    return fields["has_bias"], fields["has_sum"], fields["activation"]


def described(model: onnx.ModelProto) -> dict[str, LibraryOp | None]:
    """The description of each schedule unit that a library could compute, by the unit's name."""
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(model)))
    return {op.name: op.description for op in program.operators}


def residual() -> onnx.ModelProto:
    """A residual block. Its two branches are summed, and one branch is longer."""
    net = nets.Net()
    x = net.input("x", [1, 8, 6, 6])
    net.op("Relu", [net.conv(x, "a", (8, 8), 3)], "a_relu")
    net.conv("a_relu", "b", (8, 8), 3)
    net.conv(x, "shortcut", (8, 8), 1)
    net.op("Add", ["shortcut", "b"], "sum")
    net.op("Relu", ["sum"], "y")
    return net.model("y")


def mixed() -> onnx.ModelProto:
    """A model with operators that can be fused with a convolution or product, and with operators
    that cannot: two activations of the same value, a product of both, and a mean."""
    net = nets.Net()
    x = net.input("x", [1, 8, 7, 7])
    net.conv(net.conv(x, "depthwise", (8, 8), 3, group=8), "twice", (8, 8), 1)
    net.op("Relu", ["twice"], "relu")
    net.op("Sigmoid", ["twice"], "sigmoid")
    net.op("Mul", ["relu", "sigmoid"], "product")
    net.op("GlobalAveragePool", ["product"], "mean")
    net.op("Flatten", ["mean"], "flat")
    net.op("Gemm", ["flat", net.weight(5, 8), net.weight(5)], "logits", transB=1)
    return net.model("logits", "relu")


def test_groups_of_a_residual_block() -> None:
    units = described(residual())
    assert set(units) == {"a/Conv", "b/Conv", "shortcut/Conv"}
    fused = units["b/Conv"]
    assert fused is not None
    assert ending(fused) == (True, True, "relu")
    # The sum is fused with `b`, the deeper convolution, so `shortcut` need not wait for `b`.
    alone = units["shortcut/Conv"]
    assert alone is not None
    assert ending(alone) == (True, False, "none")


def test_groups_end_where_a_library_does_no_more() -> None:
    units = described(mixed())
    depthwise, twice, mean = (
        units[name] for name in ("depthwise/Conv", "twice/Conv", "mean/GlobalAveragePool")
    )
    assert depthwise is not None
    assert (depthwise.fields()["groups"], depthwise.has_bias) == (8, True)
    assert twice is not None
    assert ending(twice)[-1] == "none"
    assert mean is not None
    assert (mean.op, mean.fields()["window"]) == ("avg_pool2d", (7, 7))
    gemm = units["logits/Gemm"]
    assert gemm is not None
    assert (gemm.op, gemm.has_bias) == ("matmul", True)
    assert None in units.values()


def repeated() -> onnx.ModelProto:
    """A model in which `square` multiplies a tensor by itself, and `double` concatenates a tensor
    with itself."""
    net = nets.Net()
    x = net.input("x", [1, 16, 4, 4])
    net.conv(x, "a", (16, 16), 3)
    net.op("Add", ["a", x], "sum")
    net.op("MatMul", ["sum", "sum"], "square")
    net.op("Concat", ["square", "square"], "double", axis=1)
    net.conv("double", "y", (32, 16), 1)
    return net.model("y")


def test_a_description_has_each_argument_once() -> None:
    """A kernel takes each tensor once, even if the operator reads it twice."""
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(repeated())))
    for op in program.operators:
        arguments = [program.values[v].shape for v in (*op.inputs, *op.outputs)]
        if op.description is not None:
            assert len(op.description.shapes) == len(arguments), op.name
    kinds = {op.name: op.description.op for op in program.operators if op.description}
    assert kinds == {"a/Conv": "conv2d", "y/Conv": "conv2d"}


def test_a_clip_is_fused() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 4), "float32"))
    w = relax.const(np.eye(4, dtype=np.float32))
    with builder.function("main", [x]):
        with builder.dataflow():
            product = builder.emit(relax.op.matmul(x, w))
            out = builder.emit_output(relax.op.clip(product, 0, 6))
        builder.emit_func_output(out)
    program = extract(LowerToUnits(libraries=("onednn",))(builder.get()))
    (op,) = program.operators
    assert op.description is not None
    clip = op.description.fields()
    assert (clip["activation"], clip["clip_low"], clip["clip_high"]) == ("clip", 0.0, 6.0)


@pytest.mark.parametrize("make", [residual, mixed, repeated, *nets.ALL.values()])
def test_a_whole_model_on_the_library(make: object) -> None:
    model = make()  # type: ignore[operator]
    compilation = Compilation(model, OPTIONS)
    feeds = nets.feeds(model)
    module = GraphModule(compilation.artifact(compilation.sequential()))
    module.run(**feeds)
    for i, expected in enumerate(run_onnxruntime(model, feeds).values()):
        np.testing.assert_allclose(
            module.get_output(i).numpy(), expected, rtol=1e-4, atol=1e-5 * abs(expected).max()
        )


def test_without_a_library_nothing_changes() -> None:
    with_library = described(nets.inception_like())
    plain = extract(LowerToUnits()(load_model(nets.inception_like())))
    assert [op.name for op in plain.operators] == list(with_library)
    # No library runs a concatenation. A concatenation has a description only so that its inputs can
    # be written directly into its result.
    kinds = {op.name: op.description.op for op in plain.operators if op.description}
    assert kinds == {"aout/Concat": "concat", "bout/Concat": "concat"}


def test_stock_tvm_runs_what_the_pass_returns() -> None:
    model = nets.inception_like()
    module = InterOpSchedule("greedy", latency_db=":memory:", streams=2)(load_model(model))
    executable = tvm.compile(module, "llvm")
    feeds = nets.feeds(model)
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(feeds["x"]))
    got = got if isinstance(got, tvm.runtime.Tensor) else got[0]
    artifact = compile(module, latency_db=":memory:", providers=["onednn"], keep_slower=True)
    assert any(op.library == "onednn" for op in artifact.plan.operators)
    ours = GraphModule(artifact)
    ours.run(**feeds)
    np.testing.assert_allclose(ours.get_output(0).numpy(), got.numpy(), rtol=1e-4, atol=1e-6)


def test_plans_keep_descriptions_and_are_checked() -> None:
    compilation = Compilation(residual(), OPTIONS)
    plan = compilation.plan(compilation.sequential())
    assert read_plan(plan.to_json()) == plan
    op = plan.operators[0]
    assert op.description is not None
    for change, message in (
        ({"description": None}, "`onednn`'s, but has no description"),
        (
            {"description": op.description.with_fields(shapes=((9, 9),))},
            "described with 1 shapes and 4 layouts",
        ),
        ({"library": "magic"}, "needs kernel library `magic`; known are `onednn`"),
        (
            {"description": op.description.with_fields(strides=(3, 3))},
            f"operator `{op.name}`: `conv2d` cannot make",
        ),
    ):
        broken = msgspec.structs.replace(op, **change)
        edited = msgspec.structs.replace(plan, operators=(broken, *plan.operators[1:]))
        with pytest.raises(ArtifactError, match=message):
            compilation.instance(read_plan(edited.to_json()))


def test_new_weights_are_packed_anew() -> None:
    compilation = Compilation(residual(), OPTIONS)
    module = GraphModule(compilation.artifact(compilation.sequential()))
    module.run(x=np.ones((1, 8, 6, 6), np.float32))
    before = module.get_output(0).numpy()
    weights = {
        value.name: tvm.runtime.tensor(compilation.program.weights[i] * 2)
        for i, value in enumerate(compilation.program.values)
        if i in compilation.program.weights and len(value.shape) == 4 and value.shape[2] == 3
    }
    assert weights
    module.load_params(tvm.runtime.save_param_dict(weights))
    module.run()
    assert not np.array_equal(module.get_output(0).numpy(), before)
    module.load_params(
        tvm.runtime.save_param_dict(
            {name: tvm.runtime.tensor(tensor.numpy() / 2) for name, tensor in weights.items()}
        )
    )
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), before)


def test_an_input_elsewhere() -> None:
    compilation = Compilation(residual(), OPTIONS)
    module = GraphModule(compilation.artifact(compilation.sequential()))
    module.run(x=np.full((1, 8, 6, 6), 3, np.float32))
    expected = module.get_output(0).numpy()
    elsewhere = tvm.runtime.tensor(np.full((1, 8, 6, 6), 3, np.float32))
    module.run(x=np.zeros((1, 8, 6, 6), np.float32))
    module.set_input_zero_copy("x", elsewhere)
    module.run()
    np.testing.assert_array_equal(module.get_output(0).numpy(), expected)


class _MadeUp(MeasuredLatency):
    """Made-up latencies in which the library is slower for the operators called `shortcut`."""

    def __init__(self, program: Program) -> None:
        self._operators = program.operators

    def stages(self, stages: object) -> np.ndarray:
        return np.array([self._us(groups[0][0]) for groups in stages])  # type: ignore[attr-defined]

    def why_not(self, op: int) -> str:
        return ""

    def has_only_reference(self, op: int) -> bool:
        return False

    def near(self, ops: Sequence[int], than_us: Sequence[float]) -> list[int]:
        return list(ops)

    def rough_us(self, ops: Sequence[int]) -> list[float]:
        return [self._us(op) for op in ops]

    def take_longer(self, ops: Sequence[int], than_us: Sequence[float]) -> list[bool]:
        return [self._us(op) > us for op, us in zip(ops, than_us, strict=True)]

    def _us(self, op: int) -> float:
        operator = self._operators[op]
        if operator.library is None:
            return 2.0
        return 3.0 if operator.name.startswith("shortcut") else 1.0


def test_the_fastest_is_chosen() -> None:
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(residual())))
    chosen = choose_kernels(program, ("tvm", "onednn"), _MadeUp)
    assert {op.name: op.library for op in chosen.operators} == {
        "a/Conv": "onednn",
        "b/Conv": "onednn",
        "shortcut/Conv": None,
    }
    forced = choose_kernels(program, ("onednn",), _MadeUp)
    assert {op.library for op in forced.operators} == {"onednn"}
    none = choose_kernels(program, ("tvm",), _MadeUp)
    assert {op.library for op in none.operators} == {None}


def test_the_choice_is_remembered(tmp_path: Path) -> None:
    options = CompileOptions(latency_db=tmp_path / "latency.db", streams=1)
    first = Compilation(nets.inception_like(), options)
    again = Compilation(nets.inception_like(), options)
    assert [op.library for op in first.program.operators] == [
        op.library for op in again.program.operators
    ]


def test_an_artifact_runs_where_the_library_is_missing(tmp_path: Path) -> None:
    model = nets.inception_like()
    path = tmp_path / "model.tar"
    artifact = compile(model, out=path, latency_db=":memory:", providers=["onednn"])
    assert load(path).plan == artifact.plan
    feeds = nets.feeds(model)
    np.savez(tmp_path / "inputs.npz", **feeds)
    code = f"""
import logging, sys
import numpy as np
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
import tvm_interop
folder = {str(tmp_path)!r}
module = tvm_interop.GraphModule(tvm_interop.load(folder + "/model.tar"))
module.run(**np.load(folder + "/inputs.npz"))
np.save(folder + "/output.npy", module.get_output(0).numpy())
"""
    environment = os.environ | {"TVM_INTEROP_ONEDNN_LIBRARY": "/nowhere/libdnnl.so.3"}
    output = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout
    assert output.count("`onednn`, which is missing here (/nowhere/libdnnl.so.3") == 1
    (expected,) = run_onnxruntime(model, feeds).values()
    np.testing.assert_allclose(np.load(tmp_path / "output.npy"), expected, rtol=1e-4, atol=1e-6)


def test_the_command_line_tells_of_a_missing_library(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(nets.chain(2), model)
    command = [sys.executable, "-m", "tvm_interop", "compile", str(model)]
    command += ["-o", str(tmp_path / "model.tar"), "--latency-db", ":memory:"]
    environment = os.environ | {"TVM_INTEROP_ONEDNN_LIBRARY": "/nowhere/libdnnl.so.3"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "no kernels of onednn; TVM's kernels run instead: /nowhere/libdnnl.so.3" in ran.stderr
    assert "kernels: 2 of tvm" in ran.stdout
    ran = subprocess.run([*command, "--providers", "onednn"], capture_output=True, text=True)
    assert "kernels: 2 of onednn" in ran.stdout
    ran = subprocess.run([*command, "--providers", "magic"], capture_output=True, text=True)
    assert ran.returncode == 2
    assert "no kernel provider `magic`" in ran.stderr


def test_clip_of_onnx_ends_the_convolution_before_it() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.conv(x, "a", (16, 16), 3)
    low, high = (net.constant(np.array(bound, np.float32)) for bound in (0, 6))
    net.op("Clip", ["a", low, high], "y")
    operators = Compilation(net.model("y"), OPTIONS).program.operators
    assert [op.description.fields()["activation"] for op in operators if op.description] == ["clip"]
