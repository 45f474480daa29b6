"""Tests artifacts for several batch sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tvm_interop
from tests.nets import Net
from tests.served import direct, perceptron, rows
from tvm_interop.artifact.artifact import load
from tvm_interop.cli.app import app
from tvm_interop.errors import ArtifactError, InputError, UnsupportedModelError


def test_every_size_is_there_and_weights_are_kept_once(tmp_path: Path) -> None:
    perceptron().save(tmp_path / "net.tar")
    loaded = load(tmp_path / "net.tar")
    assert loaded.manifest.batch_sizes == (1, 2, 4)
    assert [shapes["x"] for shapes in loaded.input_shapes] == [(1, 12), (2, 12), (4, 12)]
    places = [
        {array.ctypes.data for array in each.weights.values() if array.nbytes == 12 * 32 * 4}
        for each in (loaded, *loaded.others)
    ]
    assert places[0]
    assert places[0] == places[1] == places[2]
    for count in (1, 2, 4):
        got = direct(loaded, {"x": rows(count)})[0]
        ones = np.concatenate([direct(loaded, {"x": row[None]})[0] for row in rows(count)])
        np.testing.assert_allclose(got, ones, rtol=1e-5, atol=1e-6)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    mine = rows(1, 9)
    results = []
    for place in range(4):
        for seed in (1, 2):
            batch = rows(4, seed)
            batch[place] = mine
            results.append(direct(perceptron(), {"x": batch})[0][place])
    for result in results:
        np.testing.assert_array_equal(result, results[0])


def test_what_has_no_batch_sizes_is_written_as_before(tmp_path: Path) -> None:
    perceptron(None).save(tmp_path / "one.tar")
    assert b"batch_sizes" not in (tmp_path / "one.tar").read_bytes()
    assert load(tmp_path / "one.tar").manifest.version == 2


@pytest.mark.parametrize("sizes", [[], [0, 1], [1, 1], [True], list(range(1, 100))])
def test_sizes_of_no_use_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InputError, match="`batch_sizes` is"):
        tvm_interop.compile(_two_dims(), batch_sizes=sizes)


def test_a_model_whose_outputs_have_no_batch_is_refused() -> None:
    net = Net()
    net.op("ReduceSum", [net.input("x", ["n", 3])], "y", keepdims=0)
    with pytest.raises(InputError, match=r"`y` has shape \(\) for a batch of 1"):
        tvm_interop.compile(
            net.model("y"), scheduler="sequential", batch_sizes=[1, 2], providers=["tvm"]
        )


@pytest.mark.parametrize("batch", [1, 2, "n"])
@pytest.mark.parametrize("source", ["model", "file"])
def test_a_model_that_holds_its_batch_is_refused(
    batch: int | str, source: str, tmp_path: Path
) -> None:
    net = Net()
    hidden = net.op("Relu", [net.input("x", [batch, 12])], "h")
    rows_held = 1 if batch == "n" else int(batch)
    shape = net.constant(np.array([rows_held, 3, 4], np.int64))
    net.op("Reshape", [hidden, shape], "y")
    model: Any = net.model("y")
    if source == "file":
        onnx.save(model, tmp_path / "net.onnx")
        model = tmp_path / "net.onnx"
    missing = 2 if rows_held == 1 else 1
    said = rf"for a batch of {missing}: node `y/Reshape` \(`Reshape`\).*export the model with a"
    with pytest.raises(InputError, match=said):
        tvm_interop.compile(
            model, scheduler="sequential", streams=1, batch_sizes=[1, 2], providers=["tvm"],
            latency_db=":memory:",
        )  # fmt: skip


def test_what_no_batch_size_can_be_imported_with_is_another_fault() -> None:
    net = Net()
    shape = net.constant(np.array([1, 5], np.int64))
    net.op("Reshape", [net.input("x", ["n", 12]), shape], "y")
    with pytest.raises(UnsupportedModelError, match="cannot import node"):
        tvm_interop.compile(
            net.model("y"), scheduler="sequential", streams=1, batch_sizes=[1, 2],
            providers=["tvm"], latency_db=":memory:",
        )  # fmt: skip


def test_other_dimensions_are_given() -> None:
    made = tvm_interop.compile(
        _two_dims(), scheduler="sequential", batch_sizes=[2, 1], input_shapes={"x": (1, 7)},
        providers=["tvm"],
    )  # fmt: skip
    assert [shapes["x"] for shapes in made.input_shapes] == [(2, 7), (1, 7)]


def test_relax_modules_are_given_every_shape() -> None:
    from tvm_interop.frontend import load_model

    module = load_model(_two_dims(), {"x": (1, 7)})
    with pytest.raises(InputError, match="give `input_shapes` for each batch size"):
        tvm_interop.compile(module, batch_sizes=[1, 2])


@pytest.mark.parametrize(
    ("sizes", "said"), [((1, 2), "for 3 shapes"), ((2, 1, 4), "for a batch of 2")]
)
def test_a_manifest_that_lies_is_refused(
    sizes: tuple[int, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = perceptron()
    monkeypatch.setattr(
        artifact, "manifest", msgspec.structs.replace(artifact.manifest, batch_sizes=sizes)
    )
    with pytest.raises(ArtifactError, match=said):
        artifact.save(tmp_path / "net.tar")
    # `load` must refuse wrong sizes too. To write a file with wrong sizes, `save` must not check
    # them.
    monkeypatch.setattr("tvm_interop.artifact.writing.check_batch_sizes", lambda *_: None)
    artifact.save(tmp_path / "net.tar")
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match=said):
        load(tmp_path / "net.tar")


def test_command_line(tmp_path: Path) -> None:
    onnx.save(_two_dims(), tmp_path / "net.onnx")
    command = [
        "compile", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net.tar"), "--json",
        "--scheduler", "sequential", "--providers", "tvm", "--input-shapes", "x:[1,7]",
    ]  # fmt: skip
    result = CliRunner().invoke(app, [*command, "--batch-sizes", "1,4"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["batch_sizes"] == [1, 4]
    result = CliRunner().invoke(app, [*command, "--batch-sizes", "1,four"])
    assert "give whole numbers" in str(result.exception)


def _two_dims() -> onnx.ModelProto:
    net = Net()
    net.op("Relu", [net.input("x", ["n", "m"])], "y")
    return net.model("y")
