"""Tests artifacts for several input shapes: a run uses the plan that fits its inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

import tvm_interop
from tests.nets import Net
from tvm_interop.artifact.artifact import load
from tvm_interop.cli.app import app
from tvm_interop.cli.shape_options import parse_ranges
from tvm_interop.compiler import needed_memory
from tvm_interop.errors import ArtifactError, DeviceError, InputError, TVMInteropError
from tvm_interop.program.host_memory import memory_nbytes
from tvm_interop.session import session as session_module

_QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


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


def test_sizes_too_large_for_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory cannot hold the input and the output together, but it can hold each of them
    alone."""
    path, rows = tmp_path / "large.tar", memory_nbytes() // 2 // (64 * 4)
    with pytest.raises(InputError, match=r"GiB of memory where input `x` has the shape .*smaller"):
        tvm_interop.compile(_net(), input_shapes={"x": (rows, 64)}, **_QUICK)
    monkeypatch.setattr(needed_memory, "memory_nbytes", lambda: 2**60)
    made = tvm_interop.compile(_net(), input_shapes={"x": (rows, 64)}, out=path, **_QUICK)
    for artifact in (made, path):
        with pytest.raises(DeviceError, match=r"GiB for its tensors, .* larger machine"):
            tvm_interop.GraphModule(artifact)


@pytest.mark.parametrize("shape", [4, ("many", 64), (2.5, 64)])
def test_shapes_are_of_whole_numbers(shape: Any) -> None:
    with pytest.raises(InputError, match=r"gives `x` the shape .* whole number for each dim"):
        tvm_interop.compile(_net(), input_shapes={"x": shape}, **_QUICK)


def _segmenter() -> onnx.ModelProto:
    """A network of convolutions on images of any size, with a pool and a resize in it."""
    net = Net()
    x = net.input("x", ["batch", 3, "height", "width"])
    inner = net.op("Relu", [net.conv(x, "c1", (3, 4), 3)], "r1")
    pooled = net.op("MaxPool", [inner], "p", kernel_shape=[2, 2], strides=[2, 2])
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    wide = net.op("Resize", [net.conv(pooled, "c2", (4, 4), 3), "", scales], "wide")
    net.conv(net.op("Add", [inner, wide], "sum"), "y", (4, 2), 1)
    return net.model("y", check=False)


_EXACT: dict[str, Any] = {"batch": 1, "height": {8, 12}, "width": {8, 16, 20}}


def test_sets_of_sizes_run_exactly_these(tmp_path: Path) -> None:
    import onnxruntime

    model = _segmenter()
    made = tvm_interop.compile(model, shapes=_EXACT, out=tmp_path / "a.tar", **_QUICK)
    assert [each["x"][2:] for each in made.input_shapes] == [
        (8, 8), (8, 16), (8, 20), (12, 8), (12, 16), (12, 20)
    ]  # fmt: skip
    session = tvm_interop.Session(tmp_path / "a.tar")
    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    for shape in [(1, 3, 12, 20), (1, 3, 8, 8), (1, 3, 12, 8)]:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        expected = theirs.run(None, {"x": x})[0]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=r"not compiled for the shapes .*10.*\(1, 3, 8, 16\)"):
        session.run(None, {"x": np.zeros((1, 3, 8, 10), np.float32)})


def test_a_range_of_image_sizes_is_refused_with_the_set_to_give() -> None:
    shapes = {"batch": 1, "height": 8, "width": (8, 12)}
    with pytest.raises(InputError, match=r'range of `width`.*--shapes "width=8,12"'):
        tvm_interop.compile(_segmenter(), shapes=shapes, **_QUICK)


@pytest.mark.parametrize(
    ("shapes", "more", "message"),
    [
        ({"height": {8}, "width": (8, 9)}, {}, "`width` a range, and another dimension a set"),
        ({"height": {8, 0}}, {}, r"`height` the value \{.*\}: give whole numbers above 0"),
        ({"height": set()}, {}, "give whole numbers above 0"),
        ({"height": {8}, "width": "8"}, {}, "`width` the value '8'"),
        ({"height": set(range(1, 66))}, {}, "gives 65 combinations of sizes.*at most 64"),
        ({"hight": {8, 9}}, {}, "no open dimension `hight`"),
        ({"height": {8, 9}}, {"most_sizes": 2}, "`most_sizes` is for a range"),
        ({**_EXACT}, {"batch_sizes": [1]}, "cannot be combined with `input_shapes` or"),
        ({"height": {8, 9}}, {}, "a schedule needs every dimension"),
        ({"batch": 10**13, "height": 8, "width": {4, 8}}, {}, "GiB .*`x` has the shape .10{13}, 3"),
        ({"batch": 0, "height": 8, "width": 8}, {}, "`batch` the value 0: give whole numbers abov"),
    ],
)
def test_sets_of_no_use_are_refused(
    shapes: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(TVMInteropError, match=message):
        tvm_interop.compile(_segmenter(), shapes=shapes, **more, **_QUICK)


def test_sets_on_the_command_line() -> None:
    assert parse_ranges("batch=1,height=8, 12,width=8..16") == {
        "batch": 1, "height": {8, 12}, "width": (8, 16)
    }  # fmt: skip
    with pytest.raises(InputError, match="gives `height` twice"):
        parse_ranges("height=8..16,width=8,height=8")
    for text in ("8,height=8", "height=8..16,20", "height=8,x", "height=8,"):
        with pytest.raises(InputError, match="--shapes: cannot read"):
            parse_ranges(text)


def test_a_session_keeps_what_it_compiled_for_a_set_and_few_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path))
    model = _segmenter().SerializeToString()
    quick = {name: value for name, value in _QUICK.items() if name != "providers"}
    shapes = {"batch": 1, "height": 8, "width": {8, 16}}
    first = tvm_interop.Session(model, shapes=shapes, **quick)
    again = tvm_interop.Session(model, shapes={**shapes, "width": {16, 8}}, **quick)
    assert first.path is not None
    assert first.path == again.path
    monkeypatch.setattr(session_module, "_MOST_SHAPES", 2)
    session = tvm_interop.Session(model, **quick)
    for width in (8, 10, 12, 8):
        caplog.clear()
        session.run(None, {"x": np.zeros((1, 3, 8, width), np.float32)})
        assert len(session._by_shape) <= 2
    assert "takes a while" not in caplog.text, "the file of the first size must be used again"
