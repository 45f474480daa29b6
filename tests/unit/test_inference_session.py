"""Tests `tvm_interop.onnxruntime`, whose sessions do what onnxruntime's sessions do."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tvm_interop.onnxruntime as ort
from tests.nets import Net
from tvm_interop import ExecutionError, InputError, Session
from tvm_interop.errors import TVMInteropError, UnsupportedModelError
from tvm_interop.session import option_names
from tvm_interop.session.ort_value import OrtValue

QUICK: dict[str, Any] = {"scheduler": "sequential", "latency_db": ":memory:"}
C = onnxruntime.capi.onnxruntime_pybind11_state
X = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)


def product() -> onnx.ModelProto:
    """`y`, of shape [batch, 4], is the product of `x` and the weight `w0`."""
    net = Net()
    net.op("MatMul", [net.input("x", ["batch", 3]), net.weight(3, 4)], "y")
    return net.model("y")


def cached_attention() -> onnx.ModelProto:
    """Attention over a cache, `past`, which grows to `present`."""
    net = Net()
    past, new = net.input("past", ["b", 2, "p", 4]), net.input("new", ["b", 2, "s", 4])
    present = net.op("Concat", [past, new], "present", axis=2)
    keys = net.op("Transpose", [present], "keys", perm=[0, 1, 3, 2])
    scores = net.op("MatMul", [net.input("query", ["b", 2, "s", 4]), keys], "scores")
    net.op("MatMul", [net.op("Softmax", [scores], "weights", axis=-1), present], "y")
    return net.model("y", "present")


def step(past: int, new: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(past)
    sizes = {"past": past, "new": new, "query": new}
    return {n: rng.standard_normal((1, 2, s, 4)).astype(np.float32) for n, s in sizes.items()}


def theirs(model: onnx.ModelProto, *args: Any) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString(), *args)


def ours(model: onnx.ModelProto, *args: Any, **options: Any) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), *args, **QUICK, **options)


def assert_same(got: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def session() -> ort.InferenceSession:
    return ours(product())


def test_names_from_a_generator(session: ort.InferenceSession) -> None:
    for names in ((name for name in ["y"]), map(str, ["y"]), {"y": 0}.keys()):
        assert len(session.run(names, {"x": X})) == 1


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (ValueError, lambda s: s.run(None, {})),
        (C.InvalidArgument, lambda s: s.run(None, {"x": X.astype(np.float64)})),
        (C.InvalidArgument, lambda s: s.run(["z"], {"x": X})),
        (C.InvalidArgument, lambda s: s.run_async(None, {}).result()),
        (C.InvalidArgument, lambda s: s.io_binding().bind_cpu_input("z", X)),
        (C.NoSuchFile, lambda _: ort.InferenceSession("there_is_none.onnx")),
        (C.InvalidProtobuf, lambda _: ort.InferenceSession(b"garbage")),
    ],
)
def test_errors_are_also_onnxruntimes(
    session: ort.InferenceSession, kind: type[Exception], call: Any
) -> None:
    with pytest.raises(kind) as raised:
        call(session)
    assert isinstance(raised.value, TVMInteropError)


def test_a_provider_that_is_not_here() -> None:
    model = product()
    for given in (["CUDAExecutionProvider"], [("TensorrtExecutionProvider", {})]):
        with pytest.warns(UserWarning, match="runs on CPUExecutionProvider") as told:
            session = ours(model, providers=given)
        assert told[0].filename == __file__
        assert session.get_providers() == theirs(model).get_providers()
        with pytest.warns(UserWarning, match="runs on CPUExecutionProvider") as told:
            session.set_providers(given)
        assert told[0].filename == __file__


class Pickled(ort.InferenceSession):
    """A session that can be pickled, as insightface has it."""

    def __init__(self, model_path: str) -> None:
        super().__init__(model_path, **QUICK)
        self.model_path = model_path

    def __getstate__(self) -> dict[str, str]:
        return {"model_path": self.model_path}

    def __setstate__(self, values: dict[str, str]) -> None:
        self.__init__(values["model_path"])  # type: ignore[misc]


def test_a_subclass_that_can_be_pickled(tmp_path: Path, session: ort.InferenceSession) -> None:
    path = str(tmp_path / "net.onnx")
    onnx.save(product(), path)
    copied = pickle.loads(pickle.dumps(Pickled(path)))
    assert copied._model_path == path
    assert session._model_path is None
    assert_same(copied.run(None, {"x": X}), theirs(product()).run(None, {"x": X}))
    with pytest.raises(ExecutionError, match="neither copied nor pickled"):
        pickle.dumps(session)


def test_empty_inputs(session: ort.InferenceSession) -> None:
    for rows in (0, 2, 0):
        feed = {"x": X[:rows]}
        assert_same(session.run(None, feed), theirs(product()).run(None, feed))
    with pytest.raises(InputError, match=r"`x` .* is given an array of shape \(0, 4\)"):
        session.run(None, {"x": np.zeros((0, 4), np.float32)})
    model = cached_attention()
    decoder = ours(model)
    for feed in (step(0, 3), step(3, 1)):
        assert_same(decoder.run(None, feed), theirs(model).run(None, feed))
    assert len(decoder.profile(step(0, 3))) > 0


@pytest.mark.parametrize("names", [ort, option_names], ids=["onnxruntime's", "our own"])
def test_a_cache_that_is_bound(names: Any) -> None:
    found = []
    for make, values in ((ours, names), (theirs, onnxruntime)):
        session = make(cached_attention())
        feed, results = step(0, 3), []
        cache = values.OrtValue.ortvalue_from_numpy(feed["past"])
        for new in (3, 1):
            binding = session.io_binding()
            for name in ("new", "query"):
                binding.bind_cpu_input(name, step(0, new)[name])
            binding.bind_ortvalue_input("past", cache)
            binding.bind_output("y")
            binding.bind_output("present", "cpu", 0)
            session.run_with_iobinding(binding)
            y, cache = binding.get_outputs()
            np.testing.assert_array_equal(np.from_dlpack(y), np.asarray(y))
            assert (y.shape(), y.data_type()) == ([1, 2, new, 4], "tensor(float)")
            results += [y.numpy(), cache.numpy()]
        found.append(results)
    assert_same(*found)


def test_names_of_bindings_and_values(session: ort.InferenceSession) -> None:
    assert isinstance(session.io_binding(), ort.IOBinding)
    binding = ort.IOBinding(Session(product(), **QUICK))
    assert repr(binding) == repr(binding._bound)
    value = ort.OrtValue.ortvalue_from_numpy(X)
    (got,) = session.run_with_ort_values(["y"], {"x": value})
    assert_same([got.numpy()], theirs(product()).run(None, {"x": X}))


def test_weights_in_the_options(tmp_path: Path) -> None:
    weight, path = np.ones((3, 4), np.float32), tmp_path / "net.onnx"
    onnx.save(product(), path, save_as_external_data=True, location="w", size_threshold=0)
    (tmp_path / "w").unlink()
    for names in (ort, option_names):
        options = names.SessionOptions()
        options.add_external_initializers(["w0"], [names.OrtValue.ortvalue_from_numpy(weight)])
        for given in (product().SerializeToString(), path):
            session = ort.InferenceSession(given, options, **QUICK)
            np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ weight, rtol=1e-5)
        options.add_initializer("w", names.OrtValue.ortvalue_from_numpy(weight))
        with pytest.raises(InputError, match="give the weight `w`, and the model has no such"):
            ours(product(), options)
        for unreadable in (b"no model", tmp_path / "missing.onnx"):
            with pytest.raises(UnsupportedModelError):
                ort.InferenceSession(unreadable, options)
        options = names.SessionOptions()
        options.add_initializer("w0", names.OrtValue.ortvalue_from_numpy(weight.T.copy()))
        with pytest.raises(InputError, match=r"float32 of shape \(4, 3\), and the model has it as"):
            ours(product(), options)
        with pytest.raises(InputError, match="files of weights in memory are not read"):
            options.add_external_initializers_from_files_in_memory(["w"], [b""], [0])


def test_a_profile_in_a_file(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "of_net")
    session = ours(product(), options)
    assert session.get_profiling_start_time_ns() > 0
    assert_same(session.run(None, {"x": X}), ours(product()).run(None, {"x": X}))
    file = Path(session.end_profiling())
    events = json.loads(file.read_text())
    assert file.name.startswith("of_net_")
    assert [event["cat"] for event in events] == ["Session", "Node"]
    assert events[0]["name"] == "model_run"
    assert events[0]["dur"] >= events[1]["dur"]
    assert events[1]["args"]["provider"] == "CPUExecutionProvider"
    session.run(None, {"x": X})
    assert session.end_profiling() == str(file)
    assert json.loads(file.read_text()) == events


@pytest.mark.parametrize("labels", [{"int64s": [3, 7]}, {"strings": ["no", "yes"]}])
def test_dictionaries_of_a_zip_map(labels: dict[str, list[Any]]) -> None:
    ((kind, keys),) = labels.items()
    table = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])
    key = TensorProto.STRING if kind == "strings" else TensorProto.INT64
    row = helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    result = helper.make_value_info("z", helper.make_sequence_type_proto(row))
    nodes = [
        helper.make_node("Softmax", ["x"], ["p"]),
        helper.make_node(
            "ZipMap", ["p"], ["z"], domain="ai.onnx.ml", **{f"classlabels_{kind}": keys}
        ),
    ]
    graph = helper.make_graph(nodes, "classes", [table], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session, other = ours(model), theirs(model)
    for names in (None, ["z"]):
        (got,), (wanted,) = session.run(names, {"x": X[:, :2]}), other.run(names, {"x": X[:, :2]})
        assert [row.keys() for row in got] == [row.keys() for row in wanted]
        for one, two in zip(got, wanted, strict=True):
            np.testing.assert_allclose([*one.values()], [*two.values()], rtol=1e-4)
    info, wanted = session.get_outputs()[0], other.get_outputs()[0]
    assert (info.name, info.shape, info.type) == (wanted.name, wanted.shape, wanted.type)


IN_PLACE = """
import sys
import tvm_interop.onnxruntime
sys.modules["onnxruntime"] = tvm_interop.onnxruntime
import onnxruntime
from onnxruntime.capi import _pybind_state as C
from onnxruntime.quantization import QuantType
assert "CPUExecutionProvider" in C.get_available_providers()
assert onnxruntime.InferenceSession is tvm_interop.onnxruntime.InferenceSession
assert onnxruntime.OrtValue.__module__.startswith("onnxruntime.")
try:
    onnxruntime.InferenceSession("there_is_none.onnx")
except onnxruntime.capi.onnxruntime_pybind11_state.NoSuchFile as error:
    print(error)
"""


def test_other_modules_of_onnxruntime() -> None:
    ended = subprocess.run([sys.executable, "-c", IN_PLACE], capture_output=True, text=True)
    assert ended.stdout == "there is no file `there_is_none.onnx`: check the path\n", ended.stderr


def test_values_without_onnxruntime() -> None:
    value, other = OrtValue.ortvalue_from_numpy(X), onnxruntime.OrtValue.ortvalue_from_numpy(X)
    for name in (
        "shape", "data_type", "element_type", "device_name", "tensor_size_in_bytes", "has_value",
        "is_tensor", "is_tensor_sequence", "is_sparse_tensor", "data_ptr",
    ):  # fmt: skip
        assert getattr(value, name)() == getattr(other, name)(), name
    np.testing.assert_array_equal(np.from_dlpack(value), X)
    np.testing.assert_array_equal(np.asarray(value, np.float64), X)
    made = OrtValue.ortvalue_from_shape_and_type([2, 3], TensorProto.FLOAT)
    made.update_inplace(X)
    np.testing.assert_array_equal(made.numpy(), X)
    with pytest.raises(InputError, match="made on the device `cuda`"):
        OrtValue.ortvalue_from_numpy(X, "cuda")
