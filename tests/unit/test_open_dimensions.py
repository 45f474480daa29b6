"""Tests open dimensions of models, and models of PyTorch that are not exported programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tests import nets
from tests.nets import Net, chain
from tvm_interop import Session
from tvm_interop.cli.app import run_app
from tvm_interop.cli.shape_options import parse_dims, parse_input_shapes
from tvm_interop.errors import InputError, UnsupportedModelError
from tvm_interop.frontend.load import batch_shapes, load_model
from tvm_interop.frontend.open_dimensions import shapes_of_dims


def cached() -> onnx.ModelProto:
    """One step of a model with a cache of past positions. Batch and lengths are open dimensions."""
    net = Net()
    past = net.input("past", ["batch", "length", 4])
    x = net.input("x", ["batch", 1, 4])
    mask = net.input("mask", ["batch", "length + 1", 4])
    joined = net.op("Concat", [past, x], "joined", axis=1)
    net.op("Mul", [joined, mask], "present")
    return net.model("present")


def test_all_are_told_at_once_with_an_example_that_works() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(cached())
    said = str(caught.value)
    for shape in (
        "`past` has shape (batch, length, 4)",
        "`x` has shape (batch, 1, 4)",
        "`mask` has shape (batch, length + 1, 4)",
    ):
        assert shape in said
    by_name = re.search(r'--dim "(.*?)"', said)
    typed = re.search(r'--input-shapes "(.*?)"', said)
    assert by_name is not None
    assert typed is not None
    assert by_name[1] == "batch=1,length=64"
    shapes = shapes_of_dims(cached(), parse_dims(by_name[1]))
    assert shapes == parse_input_shapes(typed[1])
    assert shapes == {"past": (1, 64, 4), "x": (1, 1, 4), "mask": (1, 65, 4)}
    load_model(cached(), shapes)


def _unnamed(name: str = "image") -> onnx.ModelProto:
    net = Net()
    net.op("Relu", [net.input(name, [None, 3, None, None])], "y")
    return net.model("y")


def test_dimensions_without_names_are_named_after_the_input() -> None:
    with pytest.raises(UnsupportedModelError, match=re.escape("image:[1,3,224,224]")) as caught:
        load_model(_unnamed())
    by_name = re.search(r'--dim "(.*?)"', str(caught.value))
    assert by_name is not None
    assert by_name[1] == "image[0]=1,image[2]=224,image[3]=224"
    assert shapes_of_dims(_unnamed(), parse_dims(by_name[1])) == {"image": (1, 3, 224, 224)}
    with pytest.raises(InputError, match=re.escape("it has `image[0]`, `image[2]`, `image[3]`")):
        shapes_of_dims(_unnamed(), {"batch": 1})


def test_a_size_of_minus_1_is_an_open_dimension() -> None:
    """Some exporters write -1 where they do not know the size, and onnxruntime takes any size."""
    net = Net()
    net.op("Relu", [net.input("x", [-1, 3])], "y")
    model = net.model("y", check=False)
    with pytest.raises(UnsupportedModelError, match=re.escape("`x` has shape (x[0], 3)")):
        load_model(model)
    assert shapes_of_dims(model, {"x[0]": 4}) == {"x": (4, 3)}
    assert batch_shapes(model, {}, 5) == {"x": (5, 3)}
    with Session(model, scheduler="sequential", time_budget=0, latency_db=":memory:") as session:
        assert session.inputs[0].shape == (None, 3)
        for rows in (2, 4):
            (y,) = session.run(None, {"x": np.ones((rows, 3), np.float32)})
            assert y.tolist() == [[1.0] * 3] * rows


def test_some_inputs_cannot_be_a_part_of_a_name() -> None:
    """A dimension such as `a+b[0]` would be read as a sum."""
    with pytest.raises(UnsupportedModelError, match=re.escape("a+b:[1,3,224,224]")) as caught:
        load_model(_unnamed("a+b"))
    assert "--dim" not in str(caught.value)
    with pytest.raises(InputError, match="none that has a name"):
        shapes_of_dims(_unnamed("a+b"), {"a+b[0]": 1})


def test_sizes_by_name_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "cached.onnx", tmp_path / "cached.tar"
    onnx.save(cached(), path)
    arguments = ["compile", str(path), "-o", str(out), "--scheduler", "sequential", "--json"]
    assert run_app([*arguments, "--dim", "batch=2,length=3"]) == 0
    (shapes,) = json.loads(capsys.readouterr().out)["input_shapes"]
    assert shapes == {"past": [2, 3, 4], "x": [2, 1, 4], "mask": [2, 4, 4]}
    for given, said in (
        ("lenght=3", "no open dimension `lenght` (did you mean `length`?); it has `batch`"),
        ("length", "--dim: cannot read `length`"),
        ("length=0", "dimension `length` is given the size 0"),
    ):
        assert run_app([*arguments, "--dim", given]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["bench", "compile", "explain", "run", "schedule", "tune"])
def test_verbs_that_compile_take_sizes_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    path = tmp_path / "cached.onnx"
    onnx.save(cached(), path)
    assert run_app([verb, str(path), "--dim", "lenght=3"]) == 2
    assert "no open dimension `lenght` (did you mean `length`?)" in capsys.readouterr().err


def test_a_schedule_of_sizes_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cached.onnx"
    onnx.save(cached(), path)
    arguments = ["schedule", str(path), "--scheduler", "sequential"]
    assert run_app([*arguments, "--dim", "batch=2,length=3"]) == 0
    assert json.loads(capsys.readouterr().out)["scheduler"] == "sequential"


def test_what_sizes_leave_open_is_told() -> None:
    shapes = shapes_of_dims(cached(), {"batch": 1})
    assert shapes == {"x": (1, 1, 4)}
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(cached(), shapes)
    assert "`past`" in str(caught.value)
    assert "`x`" not in str(caught.value)
    with pytest.raises(InputError, match="it has none that has a name"):
        shapes_of_dims(chain(), {"n": 1})


def test_modules_and_files_of_pytorch(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    script = torch.jit.trace(module, torch.zeros(1, 2))
    for given in (module, script):
        with pytest.raises(
            UnsupportedModelError, match=r"torch\.nn\.Module.*torch\.export\.export"
        ):
            load_model(given)
    saved, scripted, old = tmp_path / "a.pt", tmp_path / "b.pth", tmp_path / "c.pt"
    torch.save(module.state_dict(), saved)
    script.save(str(scripted))
    torch.save(module.state_dict(), old, _use_new_zipfile_serialization=False)
    for path in (saved, scripted, old):
        with pytest.raises(UnsupportedModelError, match=r"written by torch\.save.*torch\.export"):
            load_model(path)
    notes = tmp_path / "notes.onnx"
    notes.write_text("no model")
    with pytest.raises(UnsupportedModelError, match="is not an ONNX file"):
        load_model(notes)
    assert load_model(nets.chain()) is not None
