"""Tests methods other than `run` that programs written for onnxruntime call."""

from __future__ import annotations

import concurrent.futures
import json
import math
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_interop
from tests.nets import Net, branches, chain, feeds, two_inputs
from tests.nets import two_inputs_feed as feed
from tvm_interop import DeviceError, ExecutionError, InputError, Session, UnsupportedModelError
from tvm_interop.session import option_names
from tvm_interop.session.ort_value import OrtValue

QUICK: dict[str, Any] = {"scheduler": "sequential", "latency_db": ":memory:"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("like_onnxruntime") / "model.tar"
    tvm_interop.compile(two_inputs(), out=path, **QUICK)
    return path


def theirs(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString())


def test_no_names_of_outputs_stand_for_all(path: Path) -> None:
    wanted = theirs(two_inputs()).run([], feed())
    for got in (Session(path).run([], feed()), Session(path).run_async((), feed()).result()):
        assert len(got) == len(wanted) == 2
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_shapes_are_lists() -> None:
    model = branches(batch="batch")
    ours, other = Session(model, **QUICK), theirs(model)
    for got, wanted in (
        (ours.get_inputs(), other.get_inputs()),
        (ours.get_outputs(), other.get_outputs()),
    ):
        assert [(i.name, i.shape, i.type) for i in got] == [
            (i.name, i.shape, i.type) for i in wanted
        ]
    shape = ours.get_inputs()[0].shape
    shape[0] = 1  # As programs do.
    assert shape == [1, 8, 8, 8]


def test_the_arguments_of_an_inference_session(path: Path) -> None:
    cpu = "CPUExecutionProvider"
    Session(str(path), None, [cpu], [{"arena_extend_strategy": "kSameAsRequested"}])
    Session(path, providers=[(cpu, {}), "CUDAExecutionProvider"], disabled_optimizers=["A"])
    named = Session(
        path_or_bytes=path, sess_options=None, providers=[cpu], provider_options=None,
        enable_fallback=False,
    )  # fmt: skip
    assert named.path == path
    Session(path, providers=cpu)
    with pytest.raises(InputError, match="`model` and `path_or_bytes` are two names"):
        Session(path, path_or_bytes=path)
    with pytest.raises(InputError, match="cannot be made from a `NoneType`"):
        Session()


def test_more_threads_than_cores() -> None:
    """onnxruntime takes any number of threads, and programs ask for four on each machine."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = tvm_interop.num_threads() + 7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = Session(branches(), options, **QUICK)
        (got,) = session.run(None, feeds(branches()))
    assert sum(s.threads for s in session.io_binding()._module.plan.streams) <= (
        tvm_interop.num_threads()
    )
    np.testing.assert_allclose(got, theirs(branches()).run(None, feeds(branches()))[0], rtol=1e-4)
    assert session.get_session_options() is options


def test_what_a_session_says_of_itself(path: Path) -> None:
    session, other = Session(path), theirs(two_inputs())
    assert session.get_provider_options() == other.get_provider_options()
    assert session.get_overridable_initializers() == other.get_overridable_initializers() == []
    assert session.get_session_options().intra_op_num_threads == 0
    assert session.end_profiling() == ""
    assert session.get_profiling_start_time_ns() == other.get_profiling_start_time_ns() == 0
    session.disable_fallback()
    session.enable_fallback()
    session.set_providers(["CUDAExecutionProvider", ("CPUExecutionProvider", {})])
    session.set_providers()
    with pytest.raises(DeviceError, match="the session runs on CPUExecutionProvider"):
        session.set_providers(["CUDAExecutionProvider"])


@pytest.mark.parametrize("has_version", [False, True])
def test_what_an_exporter_wrote(path: Path, has_version: bool) -> None:
    model = chain()
    model.producer_name, model.domain, model.doc_string = "mine", "org.mine", "A chain."
    model.graph.doc_string = "Of the graph."
    model.metadata_props.add(key="labels", value="cat,dog")
    if has_version:
        model.model_version = 3
    got, wanted = Session(model, **QUICK).get_modelmeta(), theirs(model).get_modelmeta()
    for name in (
        "producer_name", "graph_name", "domain", "description", "graph_description", "version",
        "custom_metadata_map",
    ):  # fmt: skip
        assert getattr(got, name) == getattr(wanted, name), name
    with pytest.raises(InputError, match="does not hold the metadata"):
        Session(path).get_modelmeta()


def test_run_options_are_taken(path: Path) -> None:
    session, options = Session(path), onnxruntime.RunOptions()
    wanted = session.run(None, feed(), options)
    done = session.run_async(None, feed(), lambda *_: None, None, options).result()
    binding = session.io_binding()
    for name, array in feed().items():
        binding.bind_cpu_input(name, array)
    session.run_with_iobinding(binding, run_options=options)
    for got in (done, binding.copy_outputs_to_cpu()):
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_memory_by_its_address(path: Path) -> None:
    session = Session(path)
    binding, arrays = session.io_binding(), feed()
    types = {"image": np.float32, "vector": onnx.TensorProto.FLOAT}
    for name, array in arrays.items():
        binding.bind_input(
            name=name, device_type="cpu", device_id=0, element_type=types[name],
            shape=array.shape, buffer_ptr=array.ctypes.data,
        )  # fmt: skip
    scores = np.zeros((1, 16), np.float32)
    binding.bind_output("features", "cpu")
    binding.bind_output("scores", "cpu", 0, np.float32, scores.shape, scores.ctypes.data)
    for seed in (1, 2):
        for name, array in feed(seed).items():
            arrays[name][...] = array
        session.run_with_iobinding(binding)
        wanted = session.run(None, feed(seed))
        np.testing.assert_array_equal(scores, wanted[1])
        for got, want in zip(binding.get_outputs(), wanted, strict=True):
            np.testing.assert_array_equal(got.numpy(), want)


def test_wrong_addresses(path: Path) -> None:
    binding = Session(path).io_binding()
    with pytest.raises(InputError, match="`vector` is bound to an address on the device `cuda`"):
        binding.bind_input("vector", "cuda", 0, np.float32, (1, 6), 64)
    with pytest.raises(InputError, match="give `element_type` and `shape`"):
        binding.bind_output("scores", "cpu", 0, buffer_ptr=64)
    with pytest.raises(InputError, match="the device `cuda`, because the model runs on the CPU"):
        binding.bind_output("scores", "cuda")
    with pytest.raises(InputError, match="float32 of shape"):
        binding.bind_input("vector", "cpu", 0, np.float64, (1, 6), feed()["vector"].ctypes.data)


def test_ortvalues(path: Path) -> None:
    session = Session(path)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(a) for name, a in feed().items()}
    wanted = session.run(None, feed())
    for one, other in zip(session.run(None, values), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    binding = session.io_binding()
    for name in list(values):
        binding.bind_ortvalue_input(name, values.pop(name))  # The binding keeps the value.
    scores = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, 16), np.float32))
    binding.bind_ortvalue_output("scores", scores)
    binding.synchronize_inputs()
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    np.testing.assert_array_equal(scores.numpy(), wanted[1])


def test_what_was_bound_is_cleared(path: Path) -> None:
    session = Session(path)
    binding, wanted = session.io_binding(), session.run(None, feed())
    arrays = {name: tvm_interop.aligned_empty(a.shape, a.dtype) for name, a in feed().items()}
    for name, array in arrays.items():
        array[...] = feed()[name]
        binding.bind_cpu_input(name, array)
    scores, copied = binding.bind_output("scores"), np.zeros((1, 32), np.float32)[:, ::2]
    binding.bind_output("features", copied)
    session.run_with_iobinding(binding)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    for array in (*arrays.values(), scores, copied):
        array[...] = 7
    session.run_with_iobinding(binding)
    assert (scores == 7).all()
    assert (copied == 7).all()
    for one, other in zip(binding.copy_outputs_to_cpu(), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert repr(binding) == "Binding(in place: nothing; copied in each run: nothing)"


def test_memory_for_open_dimensions() -> None:
    model = branches(batch="batch")
    binding = Session(model, **QUICK).io_binding()
    binding.bind_output("y", "cpu")
    with pytest.raises(InputError, match="input `x` is missing"):
        binding.run()
    rng = np.random.default_rng(0)
    for size in (2, 1):
        x, y = rng.standard_normal((size, 8, 8, 8)).astype(np.float32), np.zeros((size, 10), "f")
        binding.bind_input("x", "cpu", 0, onnx.TensorProto.FLOAT, list(x.shape), x.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        binding.run()
        wanted = theirs(model).run(None, {"x": x})
        for got in (y, binding.get_outputs()[0].numpy(), binding.copy_outputs_to_cpu()[0]):
            np.testing.assert_allclose(got, wanted[0], rtol=1e-4, atol=1e-6)
    binding.bind_cpu_input("x", np.ones((2, 8, 8, 8), np.float32))
    with pytest.raises(InputError, match=r"`out` must be float32 of shape \(2, 10\)"):
        binding.run()
    binding.clear_binding_outputs()
    binding.run()
    assert binding.get_outputs()[0].numpy().shape == (2, 10)
    with pytest.raises(InputError, match="the device `cuda`, because a model with open"):
        binding.bind_output("y", "cuda")
    for name in ("input", "output"):
        with pytest.raises(InputError, match=f"the model has no {name} `z`"):
            getattr(binding, f"bind_{name}")("z", np.ones(1))
    binding.clear_binding_inputs()
    with pytest.raises(InputError, match="input `x` is missing"):
        binding.run()


def test_a_cancelled_run_is_told(path: Path) -> None:
    session, may_go = Session(path), threading.Event()
    told: list[tuple[object, object, str]] = []
    session._workers.submit(may_go.wait, 60)
    run = session.run_async(None, feed(), lambda *given: told.append(given), "mine")
    assert run.cancel()
    may_go.set()
    assert told == [(None, "mine", "the run was cancelled before it began")]


def test_runs_that_wait_end_before_the_session(path: Path) -> None:
    told: list[str] = []
    with Session(path) as session:
        runs = [session.run_async(None, feed(), lambda *g: told.append(g[2])) for _ in range(20)]
    for run in runs:
        assert len(run.result()) == 2
    assert told == [""] * 20


def test_a_callback_closes_its_session(path: Path) -> None:
    session, closed = Session(path), concurrent.futures.Future[None]()

    def close(*_: object) -> None:
        try:
            closed.set_result(session.close())
        except BaseException as error:
            closed.set_exception(error)

    session.run_async(None, feed(), close)
    closed.result(60)
    with pytest.raises(ExecutionError, match="was closed"):
        session.run(None, feed())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (b"", "are empty"),
        (b"garbage", "7 bytes that were given are not an ONNX file"),
        (b"\x00\x01\x00\x00ORTM\x00\x00", "are in onnxruntime's own format: give the ONNX file"),
    ],
)
def test_bytes_that_are_not_a_model(given: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        Session(given, **QUICK)
    if b"ORTM" in given:
        (tmp_path / "model.ort").write_bytes(given)
        with pytest.raises(
            UnsupportedModelError, match=r"model\.ort` is in onnxruntime's own format"
        ):
            Session(tmp_path / "model.ort", **QUICK)


def test_a_wrong_type_is_refused_before_compiling(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session(branches(batch="batch"), **QUICK)
    for dtype in ("float64", "int32", "float16", "bool"):
        with pytest.raises(InputError, match=rf"`x` .* is given an array of {dtype}: convert"):
            session.run(None, {"x": np.ones((2, 8, 8, 8), dtype)})
    for shape in ((2, 8, 8, 7), (8, 8, 8), (2, 7, 8, 8)):
        with pytest.raises(InputError, match=r"`x` .* is given an array of shape"):
            session.run(None, {"x": np.ones(shape, np.float32)})
    assert "compiling" not in caplog.text


def test_a_session_outlives_a_change_of_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(branches(batch="batch"), tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    session = Session("net.onnx", **QUICK)
    monkeypatch.chdir("/")
    assert session.run(None, {"x": np.ones((2, 8, 8, 8), np.float32)})[0].shape == (2, 10)


def _tripled(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with weights that are three times as large."""
    for weight in model.graph.initializer:
        array = onnx.numpy_helper.to_array(weight) * 3
        weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    return model


def test_a_model_that_changed_is_not_kept_as_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    file, model = tmp_path / "net.onnx", branches(batch="batch")
    x = np.random.default_rng(0).standard_normal((2, 8, 8, 8)).astype(np.float32)
    onnx.save(model, file)
    of_file, of_proto = Session(file, **QUICK), Session(model, **QUICK)
    onnx.save(_tripled(branches(batch="batch")), file)
    _tripled(model)
    for session in (of_file, of_proto):
        with pytest.raises(ExecutionError, match="changed since the session was made"):
            session.run(None, {"x": x})
    onnx.save(branches(batch="batch"), file)
    (wanted,) = theirs(branches(batch="batch")).run(None, {"x": x})
    np.testing.assert_allclose(of_file.run(None, {"x": x})[0], wanted, rtol=1e-4, atol=1e-6)


def test_weights_beside_a_model_in_memory(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(chain(), file, save_as_external_data=True, location="w", size_threshold=0)
    for model in (onnx.load(file, load_external_data=False), file.read_bytes()):
        with pytest.raises(UnsupportedModelError, match="weights are in other files"):
            Session(model, **QUICK)


def test_an_output_that_is_named_twice(path: Path) -> None:
    one, other = Session(path).run(["scores", "scores"], feed())
    one += 1
    np.testing.assert_array_equal(one, other + 1)


PROGRAM = """
import numpy as np
{imports}
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.intra_op_num_threads = 1
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
options.log_severity_level = 3
ort.set_default_logger_severity(3)
ort.disable_telemetry_events()
session = ort.InferenceSession({path!r}, options, providers=ort.get_available_providers())
feed = {{}}
for each in session.get_inputs():
    shape = [1 if isinstance(size, str) else size for size in each.shape]
    feed[each.name] = np.ones(shape, np.float32)
names = [each.name for each in session.get_outputs()]
results = session.run(names, feed, ort.RunOptions())
print(ort.get_device(), [np.round(each, 4).tolist() for each in results])
"""


@pytest.mark.parametrize(
    "imports",
    [
        "import tvm_interop.onnxruntime as ort",
        "import sys; sys.modules['onnxruntime'] = None\nimport tvm_interop.onnxruntime as ort",
        "import sys, tvm_interop.onnxruntime\n"
        "sys.modules['onnxruntime'] = tvm_interop.onnxruntime\nimport onnxruntime as ort",
    ],
    ids=["beside onnxruntime", "without onnxruntime", "in its place"],
)
def test_one_import_changes(tmp_path: Path, imports: str) -> None:
    onnx.save(branches(batch="batch"), tmp_path / "net.onnx")
    said = []
    for each in ("import onnxruntime as ort", imports):
        program = PROGRAM.format(imports=each, path=str(tmp_path / "net.onnx"))
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stderr
        said.append(ended.stdout)
    wanted, got = (json.loads(each.partition(" ")[2]) for each in said)
    assert said[1].startswith("CPU ")
    np.testing.assert_allclose(got, wanted, atol=2e-4)


def test_names_that_need_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm_interop.onnxruntime as ort

    assert ort.OrtValue is onnxruntime.OrtValue
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(AttributeError, match="`OrtDevice`, because onnxruntime is not installed"):
        _ = ort.OrtDevice
    assert ort.OrtValue is OrtValue
    assert ort.__version__ == option_names.__version__
    with pytest.raises(InputError, match=r"`ops\.so` holds custom operators"):
        ort.SessionOptions().register_custom_ops_library("ops.so")


def test_an_input_without_a_shape() -> None:
    """onnxruntime takes any number of dimensions where the model does not say one."""
    net = Net()
    net.op("Relu", [net.input("x", None)], "y")
    model = net.model("y", check=False)
    session, other = Session(model, **QUICK), theirs(model)
    assert session.get_inputs()[0].shape == other.get_inputs()[0].shape == []
    assert str(session.inputs[0]) == "`x` (float32 of any shape)"
    for shape in ((2, 3), (4,)):
        x = np.linspace(-1, 1, math.prod(shape), dtype=np.float32).reshape(shape)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))
