"""Tests `explain --operator`: which provider runs an operator, and why others refuse it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.nets import Net, inception_like
from tests.unit.test_parts_of_products import program_of, row
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.offers import Offer, offers
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.errors import ExecutionError, GraphError
from tvm_interop.explaining.operator import explain_operator, operator_text
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.program import Program

pytestmark = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


def net() -> onnx.ModelProto:
    """A model with a convolution and a cumulative sum.

    No library has kernels for cumulative sums.
    """
    built = Net()
    x = built.conv(built.input("x", (1, 3, 8, 8)), "conv", (3, 16), 3)
    axis = built.constant(np.array(1))
    return built.model(built.op("CumSum", [x, axis], "sum"))


def options(**more: object) -> CompileOptions:
    return CompileOptions(streams=2, latency_db=":memory:", **more)  # type: ignore[arg-type]


def test_those_who_can_say_how_long_it_takes() -> None:
    explained = explain_operator(net(), "conv/Conv", options=options())
    assert (explained.kind, explained.parts) == ("conv2d", 1)
    assert [(offer.provider, offer.refusal) for offer in explained.offers] == [
        ("tvm", ""),
        ("onednn", ""),
    ]
    assert all(0 < offer.us < math.inf for offer in explained.offers)
    assert "  onednn: " in operator_text(explained)


def test_what_no_library_knows() -> None:
    explained = explain_operator(net(), "sum/CumSum", measure=False, options=options())
    assert explained.kind is None
    assert explained.offers[1] == Offer("onednn", "is not of a kind that libraries compute")
    assert "onednn: is not of a kind" in operator_text(explained)


def test_what_was_refused_when_it_was_lowered() -> None:
    """oneDNN has no convolution of float16, so the operator has no description for libraries."""
    built = Net()
    x = built.op("Cast", [built.input("x", (1, 3, 8, 8))], "half", to=onnx.TensorProto.FLOAT16)
    weight = built.op("Cast", [built.weight(16, 3, 3, 3)], "w", to=onnx.TensorProto.FLOAT16)
    model = built.model(built.op("Conv", [x, weight], "conv", kernel_shape=[3, 3]))
    explained = explain_operator(model, "conv/Conv", measure=False, options=options())
    assert explained.provider == "tvm"
    assert explained.offers[1].refusal == "`conv2d` is not of float32 or bfloat16"


def test_those_who_were_not_asked() -> None:
    explained = explain_operator(
        net(), "conv/Conv", measure=False, options=options(providers=("tvm",))
    )
    assert explained.offers[1] == Offer("onednn", "is not among `providers`")
    explained = explain_operator(
        net(), "conv/Conv", measure=False, options=options(providers=("onednn",))
    )
    assert explained.offers[0].refusal.startswith("is not among `providers`, and runs only the")
    assert not explained.offers[1].refusal


def test_libraries_of_gpus_say_why_without_one() -> None:
    providers = ("tvm", "cudnn", "cublaslt")
    explained = explain_operator(
        net(),
        "conv/Conv",
        options=CompileOptions("cuda", providers=providers, latency_db=":memory:"),
    )
    tvm, cudnn, cublaslt = explained.offers
    assert (tvm.provider, tvm.refusal) == ("tvm", "")
    assert (cudnn.provider, cudnn.refusal) == ("cudnn", "")
    assert cublaslt.provider == "cublaslt"
    assert "computes matrix products here, no `conv2d`" in cublaslt.refusal
    assert all(math.isnan(offer.us) for offer in explained.offers)


def test_kernels_that_are_wrong_or_not_for_the_device() -> None:
    program = program_of(row(4, 8))

    def us_of(program: Program) -> float:
        if program.operators[0].library == "onednn":
            raise ExecutionError("too old")
        return 3.0

    asked = ("tvm", "onednn")
    program.operators[0] = replace(program.operators[0], library=None)
    assert offers(program, 0, asked, asked, us_of) == (
        Offer("tvm", "", 3.0),
        Offer("onednn", "has no kernel for this device: too old"),
    )
    (wrong,) = offers(program, 0, asked, ("onednn",), us_of, "it writes past its end")
    assert wrong.refusal == "its kernel is at fault: it writes past its end"


def test_an_artifact_and_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compilation = Compilation(inception_like(), options(providers=("onednn",)))
    path = tmp_path / "net.tar"
    compilation.artifact(compilation.sequential()).save(path)
    name = next(
        op.whole or op.name for op in compilation.program.operators if op.library == "onednn"
    )
    assert run_app(["explain", str(path), "--operator", name, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["provider"] == "onednn"
    assert facts["offers"] == [
        {"provider": "tvm", "refusal": "has no kernel for it in the artifact", "us": None},
        {"provider": "onednn", "refusal": "", "us": None},
    ]
    assert run_app(["explain", str(path), "--operator", name, "--pair", name, name]) == 2
    assert "leave --pair and --try out" in capsys.readouterr().err
    with pytest.raises(GraphError, match=r"no operator `nobody`.*the first are `"):
        explain_operator(path, "nobody")
