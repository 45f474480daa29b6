"""Tests `--precision bf16`: which numbers are rounded to bfloat16, and which are not."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tvm_interop
from tests import nets
from tvm_interop.artifact.artifact import load
from tvm_interop.artifact.manifest import Precision
from tvm_interop.cli.app import app
from tvm_interop.compiler.cpu import BF16_FEATURE
from tvm_interop.compiler.precision import repeated_or_cut
from tvm_interop.errors import ArtifactError, DeviceError, InputError, UnsupportedModelError
from tvm_interop.machine import cpu_features
from tvm_interop.machine.kernel_libraries import why_missing

needs_bf16 = pytest.mark.skipif(
    why_missing("onednn") is not None or BF16_FEATURE not in cpu_features.host_features(),
    reason="needs oneDNN and a CPU with AVX512-BF16",
)
BOUND = 0.02
"""The largest allowed error.

A rounding to bfloat16 is off by at most 2 ** -9, and these nets are not deep.
"""


def compiled(model: onnx.ModelProto, **fields: Any) -> Any:
    given = {"scheduler": "sequential", "precision": "bf16", "streams": 2, **fields}
    return tvm_interop.compile(model, **given)


@functools.cache
def in_bf16(net: Callable[[], onnx.ModelProto]) -> Any:
    return compiled(net())


def outputs(artifact: Any) -> list[np.ndarray]:
    module = tvm_interop.GraphModule(artifact)
    rng = np.random.default_rng(1)
    shapes, dtypes = module.get_input_info()
    module.run(
        **{name: rng.uniform(-1, 1, shape).astype(dtypes[name]) for name, shape in shapes.items()}
    )
    return [module.get_output(i).numpy().copy() for i in range(len(artifact.plan.outputs))]


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def multiplied(artifact: Any) -> set[str]:
    return {
        op.description.dtype
        for op in artifact.plan.operators
        if op.description is not None and op.description.op in ("conv2d", "matmul")
    }


def types_between(artifact: Any) -> set[str]:
    return {value.dtype for value in artifact.plan.values if value.storage in ("arena", "alias")}


@needs_bf16
@pytest.mark.parametrize("net", [nets.inception_like, nets.attention, nets.norms, nets.chain])
def test_bf16_is_close_to_f32(net: Any) -> None:
    narrow, wide = in_bf16(net), compiled(net(), precision="f32")
    for got, wanted in zip(outputs(narrow), outputs(wide), strict=True):
        assert got.dtype == wanted.dtype == np.float32
        assert 0 < error(got, wanted) < BOUND
    assert 0 < narrow.manifest.precision.error < BOUND
    assert "bfloat16" in types_between(narrow)
    assert types_between(wide) <= {"float32"}
    assert multiplied(wide) <= {"float32"}
    assert wide.manifest.precision is None


@needs_bf16
def test_all_schedules_give_the_same_bits() -> None:
    # In bf16, the size of 16 channels of 7 x 7 pixels is not a multiple of 64 bytes.
    model = nets.inception_like(7, 32)
    first, *others = (
        compiled(model, scheduler=name, keep_slower=True)
        for name in ("sequential", "nimble", "lios")
    )
    assert multiplied(first) == {"bfloat16"}
    for other in others:
        assert len(other.plan.streams) > 1
        for one, two in zip(outputs(first), outputs(other), strict=True):
            np.testing.assert_array_equal(one, two)


@needs_bf16
def test_what_runs_without_onednn_is_close_too() -> None:
    artifact = in_bf16(nets.inception_like)
    assert artifact.fallback is not None
    alone = dataclasses.replace(artifact, plan=artifact.fallback)
    for got, exact in zip(outputs(alone), outputs(artifact), strict=True):
        assert error(got, exact) < BOUND


@needs_bf16
@pytest.mark.parametrize(
    ("op", "constants", "attributes"),
    [
        ("CumSum", [np.array(1)], {}),
        ("LRN", [], {"size": 3}),
        ("ScatterElements", [np.zeros((1, 1, 1, 1), np.int64), np.ones((1, 1, 1, 1), "f4")], {}),
    ],
)
def test_operators_whose_kernels_are_not_joined(
    op: str, constants: list[np.ndarray], attributes: dict[str, Any]
) -> None:
    net = nets.Net()
    x = net.conv(net.input("x", (1, 4, 6, 6)), "conv", (4, 4), 3)
    names = [net.constant(array) for array in constants]
    net.op("MatMul", [net.op(op, [x, *names], "middle", **attributes), net.weight(6, 5)], "y")
    narrow, wide = compiled(net.model("y")), compiled(net.model("y"), precision="f32")
    for got, wanted in zip(outputs(narrow), outputs(wide), strict=True):
        assert error(got, wanted) < BOUND


@needs_bf16
def test_operators_may_stay_in_f32() -> None:
    model = nets.inception_like()
    kept = compiled(model, keep_f32=["b3/*", "max_pool2d"])
    assert multiplied(kept) == {"float32", "bfloat16"}
    all_kept = compiled(model, keep_f32=["*"])
    assert types_between(all_kept) == {"float32"}
    assert all_kept.manifest.precision.error < 1e-6
    assert all_kept.manifest.precision.keep_f32 == ("*",)
    with pytest.raises(InputError, match="`softmaxes`, and the model has no operator"):
        compiled(model, keep_f32=["softmaxes"])


@needs_bf16
def test_auto_goes_by_the_error() -> None:
    model = nets.chain()
    taken = compiled(model, precision="auto", max_error=BOUND)
    assert taken.precision_choice.startswith("bf16: the error of bf16 is 0.0")
    assert "bfloat16" in types_between(taken)
    refused = compiled(model, precision="auto", max_error=1e-5)
    assert refused.precision_choice.startswith("f32: the error of bf16 is 0.0")
    assert refused.precision_choice.endswith("above 1e-05")
    assert refused.manifest.precision is None
    assert types_between(refused) == {"float32"}


@needs_bf16
def test_outputs_that_are_infinite_in_bf16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def infinite(*_: Any) -> Precision:
        return Precision((), np.inf, np.inf, "random")

    monkeypatch.setattr("tvm_interop.compiler.api.measured_precision", infinite)
    with pytest.raises(UnsupportedModelError, match="in bf16 the outputs are infinite or NaN"):
        compiled(nets.chain())
    assert compiled(nets.chain(), precision="auto").manifest.precision is None


def test_auto_takes_f32_where_the_cpu_cannot() -> None:
    artifact = compiled(nets.chain(), precision="auto", target="llvm -mcpu=core-avx2")
    assert "needs a CPU with AVX512-BF16" in artifact.precision_choice
    assert artifact.manifest.precision is None


@needs_bf16
def test_the_error_is_that_on_the_inputs_given() -> None:
    model = nets.chain()
    artifact = in_bf16(nets.chain)
    shapes = tvm_interop.GraphModule(artifact).get_input_info()[0]
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    given = compiled(model, inputs=zeros).manifest.precision
    assert given.inputs == "given"
    assert given.error != artifact.manifest.precision.error
    with pytest.raises(InputError, match="missing or unknown: `z`"):
        compiled(model, inputs={**zeros, "z": np.zeros(1)})
    with pytest.raises(InputError, match="and `inputs` has float64"):
        compiled(model, inputs={name: array.astype(float) for name, array in zeros.items()})


@needs_bf16
@pytest.mark.parametrize("shapes", [{"batch": (1, 3)}, {"batch": {2, 5}}])
def test_given_inputs_are_repeated_or_cut_for_several_shapes(shapes: Any) -> None:
    net, rng = nets.Net(), np.random.default_rng(0)
    net.op("MatMul", [net.input("x", ["batch", 64]), net.weight(64, 48)], "y")
    x = rng.standard_normal((2, 64)).astype(np.float32)
    model = net.model("y", check=False)
    made = compiled(model, shapes=shapes, inputs={"x": x}, time_budget=60)
    for artifact in (made, *made.others):
        assert artifact.manifest.precision.inputs == "given"
    with pytest.raises(InputError, match="and `inputs` has float64"):
        compiled(model, shapes=shapes, inputs={"x": x.astype(float)})


def test_numbers_are_repeated_or_cut() -> None:
    given = {"x": np.arange(6).reshape(2, 3), "y": np.ones(2), "z": np.ones((0, 2))}
    found = repeated_or_cut(given, {"x": (3, 2), "y": (2, 2), "z": (1, 2), "other": (4,)})
    assert found is not None
    np.testing.assert_array_equal(found["x"], [[0, 1], [3, 4], [0, 1]])
    assert found["y"] is given["y"]
    assert found["z"] is given["z"]
    assert found.keys() == given.keys()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "fp8"}, "`precision` is 'fp8'; give `f32`, `bf16` or `auto`"),
        ({"precision": "f32", "keep_f32": ["*"]}, "`keep_f32` is for `precision` bf16"),
        ({"precision": "f32", "inputs": {}}, "`inputs` is for `precision` bf16"),
        ({"precision": "auto", "max_error": -1.0}, "`max_error` is -1.0"),
        ({"precision": "auto", "max_error": float("nan")}, "`max_error` is nan"),
        ({"target": "cuda"}, "`precision` bf16 is for CPUs"),
    ],
)
def test_wrong_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compiled(nets.chain(), **fields)


def test_a_target_without_the_instructions_is_refused() -> None:
    with pytest.raises(DeviceError, match="needs a CPU with AVX512-BF16"):
        compiled(nets.chain(), target="llvm -mcpu=core-avx2")


@needs_bf16
def test_without_onednn_it_is_refused() -> None:
    with pytest.raises(DeviceError, match="needs oneDNN"):
        compiled(nets.chain(), providers=["tvm"])


@needs_bf16
def test_a_saved_artifact_tells_and_refuses_other_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.tar"
    made = compiled(nets.chain(), out=path)
    found = load(path)
    assert found.manifest.precision == made.manifest.precision
    for one, two in zip(outputs(found), outputs(made), strict=True):
        np.testing.assert_array_equal(one, two)
    others = tuple(f for f in cpu_features.host_features() if f != BF16_FEATURE)
    monkeypatch.setattr(cpu_features, "host_features", lambda: others)
    with pytest.raises(ArtifactError, match="this machine lacks: avx512bf16"):
        load(path).load_kernels()


@needs_bf16
def test_the_command_line_tells_the_error(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(nets.chain(), model)
    args = ["compile", str(model), "-o", str(tmp_path / "m.tar"), "--scheduler", "sequential"]
    args += ["--latency-db", str(tmp_path / "db"), "--precision", "auto", "--max-error", "0.5"]
    text = CliRunner().invoke(app, args)
    assert text.exit_code == 0, text.output
    assert "precision bf16: the error of bf16 is" in text.output
    assert "error against f32 on random inputs" in text.output
    facts = json.loads(CliRunner().invoke(app, [*args, "--json"]).output)
    assert facts["precision"]["name"] == "bf16"
    assert 0 < facts["precision"]["error"] < BOUND
