"""Tests artifacts for several input shapes: a run uses the plan that fits its inputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import tvm_interop
from tvm_interop.artifact.artifact import load
from tvm_interop.cli.app import app
from tvm_interop.errors import ArtifactError, InputError


def _net() -> onnx.ModelProto:
    """The model `y = relu(x W) + b` for any number of rows. `b` is an input with one row."""
    weight = np.random.default_rng(0).standard_normal((64, 96), np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "W"], ["p"], name="product"),
        helper.make_node("Relu", ["p"], ["r"], name="relu"),
        helper.make_node("Add", ["r", "b"], ["y"], name="sum"),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ("rows", 64)),
            helper.make_tensor_value_info("b", TensorProto.FLOAT, (1, 96)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("rows", 96))],
        [onnx.numpy_helper.from_array(weight, "W")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _compiled(*rows: int, out: Path | None = None) -> tvm_interop.Artifact:
    shapes = [{"x": (n, 64)} for n in rows]
    return tvm_interop.compile(
        _net(),
        scheduler="sequential",
        out=out,
        input_shapes=shapes if len(shapes) > 1 else shapes[0],
        providers=["tvm"],
        latency_db=":memory:",
    )


def _inputs(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.standard_normal((rows, 64), np.float32),
        "b": rng.standard_normal((1, 96), np.float32),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "net.tar"
    _compiled(4, 1, 7, out=path)
    return path


def test_the_shape_that_fits_runs(path: Path) -> None:
    module = tvm_interop.GraphModule(load(path))
    for rows in (4, 7, 1, 7, 4):
        alone = tvm_interop.GraphModule(_compiled(rows))
        for each in (module, alone):
            each.run(**_inputs(rows))
        np.testing.assert_array_equal(module.get_output(0).numpy(), alone.get_output(0).numpy())


def test_inputs_that_are_not_given_keep_their_values(path: Path) -> None:
    module = tvm_interop.GraphModule(load(path))
    first, second = _inputs(4), _inputs(7)
    module.run(**first)
    module.run(x=second["x"])
    weight = onnx.numpy_helper.to_array(_net().graph.initializer[0])
    wanted = np.maximum(second["x"] @ weight, 0) + first["b"]
    np.testing.assert_allclose(module.get_output(0).numpy(), wanted, 1e-4, 1e-4)


def test_another_shape_is_refused_and_names_those_there_are(path: Path) -> None:
    module = tvm_interop.GraphModule(load(path))
    with pytest.raises(InputError, match=r"\(7, 64\)"):
        module.run(**_inputs(5))
    module.run(**_inputs(4))


def test_weights_are_kept_once(path: Path, tmp_path: Path) -> None:
    artifact = load(path)
    weights = [
        {array.ctypes.data for array in each.weights.values() if array.nbytes == 64 * 96 * 4}
        for each in (artifact, *artifact.others)
    ]
    assert weights[0]
    assert weights[0] == weights[1] == weights[2]


def test_what_is_loaded_saves_the_same(path: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.tar"
    load(path).save(again)
    assert again.read_bytes() == path.read_bytes()


def test_one_shape_is_written_as_older_versions_read_it(tmp_path: Path) -> None:
    path = tmp_path / "one.tar"
    _compiled(4, out=path)
    assert load(path).manifest.version == 2


def test_weights_given_later_reach_every_shape(path: Path) -> None:
    import tvm

    module = tvm_interop.GraphModule(load(path))
    module.run(**_inputs(4))
    names = [v.name for v in module.plan.values if v.storage == "weight" and v.shape == (64, 96)]
    params = {name: tvm.runtime.tensor(np.zeros((64, 96), np.float32)) for name in names}
    module.load_params(tvm.runtime.save_param_dict(params))
    for rows in (4, 7):
        inputs = _inputs(rows)
        module.run(**inputs)
        wanted = np.broadcast_to(inputs["b"], (rows, 96))
        np.testing.assert_array_equal(module.get_output(0).numpy(), wanted)


def test_shapes_given_twice_are_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        _compiled(4, 4)


def test_models_that_differ_are_refused(tmp_path: Path) -> None:
    artifact = _compiled(4)
    artifact.others = [_compiled(4)]
    with pytest.raises(ArtifactError, match="the same"):
        artifact.save(tmp_path / "twice.tar")
    assert not list(tmp_path.iterdir())


def test_damage_to_a_further_shape_is_named(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    at = data.index(b"shapes/1/plan.json\0") + 512
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(data[: at + 10] + b"#" + data[at + 11 :])
    with pytest.raises(ArtifactError, match="shapes/1/plan"):
        load(damaged)


def test_command_line(tmp_path: Path) -> None:
    model, out = tmp_path / "net.onnx", tmp_path / "net.tar"
    onnx.save(_net(), model)
    command = ["compile", str(model), "-o", str(out), "--scheduler", "sequential", "--json"]
    shapes = ["--input-shapes", "x:[2,64]", "--input-shapes", "x:[3,64]"]
    result = CliRunner().invoke(app, [*command, *shapes, "--providers", "tvm"])
    assert result.exit_code == 0, result.output
    assert [each["x"] for each in json.loads(result.output)["input_shapes"]] == [[2, 64], [3, 64]]
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **_inputs(3))
    result = CliRunner().invoke(app, ["run", str(out), "--inputs", str(inputs), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["outputs"]["y"]["shape"] == [3, 96]
