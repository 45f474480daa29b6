"""Tests which operators cuDNN and cuBLASLt run, on a machine without a GPU."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tests.unit.test_cuda_compile import has_driver
from tvm_interop import ArtifactError, InputError
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.machine import kernel_libraries
from tvm_interop.machine.kernel_libraries import provider_names, why_unsupported
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Operator

without_gpu = pytest.mark.skipif(has_driver(), reason="there is a GPU's driver")
LIBRARIES = ("cudnn", "cublaslt")

CONV = library_op(
    op="conv2d",
    shapes=((1, 4, 6, 6), (8, 4, 3, 3), (1, 8, 6, 6)),
    layouts=("plain", "plain", "plain"),
    window=(3, 3),
    strides=(1, 1),
    padding=(1, 1, 1, 1),
    dilation=(1, 1),
)
MATMUL = library_op(op="matmul", shapes=((2, 3), (3, 4), (2, 4)), layouts=("plain",) * 3)


def operators(model: onnx.ModelProto, **options: object) -> dict[str, Operator]:
    """The operators by name, as they are compiled without a GPU."""
    compilation = Compilation(model, CompileOptions("cuda", **options))  # type: ignore[arg-type]
    return {op.name: op for op in compilation.program.operators}


@pytest.mark.parametrize(
    ("library", "op", "fields", "why"),
    [
        ("cudnn", CONV, {}, ""),
        ("cudnn", CONV, {"dtype": "float16"}, ""),
        ("cudnn", CONV, {"activation": "relu"}, ""),
        (
            "cudnn",
            CONV,
            {"activation": "clip", "clip_high": 6.0},
            "`cudnn` supports no activation but ReLU",
        ),
        ("cudnn", CONV, {"padding": (0, 1, 2, 1)}, "more padding on one side than on the other"),
        ("cudnn", CONV, {"groups": 3}, "cannot make"),
        (
            "cudnn",
            CONV,
            {"layouts": ("blocked16", "plain", "plain")},
            "blocked tensor, which libraries for GPUs",
        ),
        ("cudnn", MATMUL, {}, "`cudnn` computes convolutions here, no `matmul`"),
        ("cublaslt", MATMUL, {}, ""),
        ("cublaslt", MATMUL, {"activation": "clip", "clip_high": 1.0}, "no activation but ReLU"),
        ("cublaslt", CONV, {}, "`cublaslt` computes matrix products here, no `conv2d`"),
        ("onednn", CONV, {"dtype": "float16"}, "is not of float32"),
    ],
)
def test_why_a_library_cannot(
    library: str, op: LibraryOp, fields: dict[str, object], why: str
) -> None:
    if library == "onednn" and kernel_libraries.why_missing("onednn"):
        pytest.skip("no oneDNN")
    said = why_unsupported(library, op.with_fields(**fields))
    assert why in said
    assert bool(said) == bool(why)


def test_texts_of_operators_are_as_they_were() -> None:
    """The texts of operators must not change: they are keys in users' databases of latencies."""
    assert MATMUL.to_json().endswith('"lrn_beta":0.0,"lrn_bias":0.0}')
    for op in (MATMUL, CONV.with_fields(dtype="float16", allow_tf32=True)):
        assert LibraryOp.from_json(op.to_json()) == op


def residual() -> onnx.ModelProto:
    net = nets.Net()
    x = net.input("x", [1, 8, 6, 6])
    net.op("Relu", [net.conv(x, "a", (8, 8), 3, group=4)], "a_relu")
    net.conv("a_relu", "b", (8, 8), 3)
    net.op("Relu", [net.op("Add", [x, "b"], "sum")], "sum_relu")
    limits = [net.constant(np.float32(limit)) for limit in (0, 6)]
    net.op("Clip", [net.conv("sum_relu", "c", (8, 8), 1), *limits], "clipped")
    net.op("Flatten", ["clipped"], "flat")
    net.op("Gemm", ["flat", net.weight(5, 288), net.weight(5)], "gemm", transB=1)
    return net.model("gemm")


@without_gpu
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_libraries_that_are_named_run_what_they_can(dtype: str) -> None:
    model = residual() if dtype == "float32" else nets.in_float16(residual())
    found = operators(model, providers=["tvm", *LIBRARIES])
    libraries = {name: op.library for name, op in found.items()}
    assert Counter(libraries.values()) == {"cudnn": 3, "cublaslt": 1, None: 1}
    described = [op.description for op in found.values() if op.library is not None]
    first, second, third, product = (op for op in described if op is not None)
    assert {op.dtype for op in (first, second, third, product)} == {dtype}
    names = ("groups", "has_bias", "has_sum", "activation")
    endings = [[op.fields()[name] for name in names] for op in (first, second, third, product)]
    assert endings[0] == [4, True, False, "relu"]
    assert endings[1] == [1, True, True, "relu"]
    assert endings[2][1::2] == [True, "none"]  # cuDNN has no clip, so TVM computes it.
    assert (product.op, *endings[3][1::2]) == ("matmul", True, "none")


@without_gpu
def test_without_a_gpu_tvms_kernels_run_all_of_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="tvm_interop"):
        found = operators(residual())
    assert {op.library for op in found.values()} == {None}
    assert (
        "only TVM's kernels are used, because no kernel can be measured: no CUDA here"
        in caplog.text
    )
    one = operators(residual(), providers=["tvm", "cublaslt"])
    assert Counter(op.library for op in one.values()) == {None: 3, "cublaslt": 1}


@without_gpu
def test_tf32_is_off_unless_it_is_allowed() -> None:
    def allowed(model: onnx.ModelProto, **options: object) -> set[bool]:
        found = operators(model, providers=LIBRARIES, **options)
        return {
            op.description.fields()["allow_tf32"]
            for op in found.values()
            if op.description is not None
        }

    assert allowed(residual()) == {False}
    assert allowed(residual(), allow_tf32=True) == {True}
    assert allowed(nets.in_float16(residual()), allow_tf32=True) == {False}
    with pytest.raises(
        InputError, match=r"no library is among the providers: .*name `cudnn` or `cublaslt`"
    ):
        operators(residual(), allow_tf32=True)
    with pytest.raises(InputError, match="`allow_tf32` is for GPUs"):
        tvm_interop.compile(residual(), allow_tf32=True)


def test_libraries_of_another_device_are_refused() -> None:
    assert provider_names("cuda") == ("tvm", *LIBRARIES)
    assert provider_names("cpu") == ("tvm", "onednn")
    with pytest.raises(InputError, match=r"`cudnn` has no kernels for a CPU: .* tvm, onednn"):
        tvm_interop.compile(residual(), providers=["tvm", "cudnn"])
    with pytest.raises(InputError, match=r"`onednn` has no kernels for a GPU: .* cudnn, cublaslt"):
        tvm_interop.compile(residual(), target="cuda", providers=["onednn"])
    with pytest.raises(InputError, match="there is no kernel provider `cutlass`"):
        tvm_interop.compile(residual(), target="cuda", providers=["cutlass"])


def test_the_command_line_says_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.tar"
    assert run_app(["compile", "squeezenet", "--allow-tf32", "-o", str(out)]) == 2
    assert "`allow_tf32` is for GPUs" in capsys.readouterr().err
    assert not out.exists()


@without_gpu
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_an_artifact_that_needs_cudnn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "model.tar"
    tvm_interop.compile(
        residual(),
        target="cuda",
        archs=["sm_90"],
        scheduler="nimble",
        keep_slower=True,
        out=out,
        providers=["tvm", "cudnn"],
        allow_tf32=True,
    )
    artifact = tvm_interop.load(out)
    used = [op for op in artifact.plan.operators if op.library == "cudnn"]
    assert len(used) == 3
    assert all(op.description is not None and op.description.fields()["allow_tf32"] for op in used)
    assert artifact.fallback is not None
    assert {stream.device for stream in artifact.fallback.streams} == {"cuda:0"}
    assert not any(op.library for op in artifact.fallback.operators)
    libraries = "tvm_interop.machine.kernel_libraries"
    monkeypatch.setattr(f"{libraries}.library_version", lambda name: None)
    monkeypatch.setattr(f"{libraries}.why_missing", lambda name: "nobody installed it")
    with caplog.at_level("WARNING", logger="tvm_interop"):
        assert artifact.usable_plan() == artifact.fallback
    assert "`cudnn`, which is missing here (nobody installed it)" in caplog.text
    assert "install `tvm-interop[cudnn]`" in caplog.text
    artifact.fallback = None
    with pytest.raises(ArtifactError, match=r"`cudnn`, which is missing.*`tvm-interop\[cudnn\]`"):
        artifact.usable_plan()
