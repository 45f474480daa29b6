"""Tests `Session` as programs that were written for onnxruntime use it."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import tvm_interop
from tests.nets import branches, chain, feeds, two_inputs
from tests.nets import two_inputs_feed as feed
from tvm_interop import DeviceError, ExecutionError, InputError, Session, UnsupportedModelError
from tvm_interop.session.kept_artifacts import KeptArtifacts

QUICK = {"scheduler": "sequential", "latency_db": ":memory:"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("session") / "model.tar"
    tvm_interop.compile(two_inputs(), scheduler="greedy", keep_slower=True, out=path)
    return path


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    return tmp_path / "kept" / "artifacts"


def theirs(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)


def assert_close(got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert isinstance(one, np.ndarray)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_names_shapes_and_types_as_onnxruntime_has_them(path: Path) -> None:
    session = Session(path)
    other = onnxruntime.InferenceSession(two_inputs().SerializeToString())
    for ours, wanted in (
        (session.get_inputs(), other.get_inputs()),
        (session.get_outputs(), other.get_outputs()),
    ):
        assert [(i.name, list(i.shape), i.type) for i in ours] == [
            (i.name, i.shape, i.type) for i in wanted
        ]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.path == path
    assert "image" in repr(session)
    assert "\n" not in repr(session)


def test_all_outputs_or_those_named(path: Path) -> None:
    session = Session(str(path))
    wanted = theirs(two_inputs(), feed())
    assert_close(session.run(None, feed()), wanted)
    names = [output.name for output in session.outputs]
    assert_close(session.run(names[::-1], feed()), wanted[::-1])
    assert_close(session.run([names[1]], feed()), wanted[1:])


def test_a_later_run_changes_no_output(path: Path) -> None:
    session = Session(path)
    first = session.run(None, feed(1))
    kept = [output.copy() for output in first]
    session.run(None, feed(2))
    for one, other in zip(first, kept, strict=True):
        np.testing.assert_array_equal(one, other)


def test_torch_and_lists_in(path: Path) -> None:
    session = Session(path)
    wanted = session.run(None, feed())
    tensors = {name: torch.from_numpy(array) for name, array in feed().items()}
    lists = {name: array.tolist() for name, array in feed().items()}
    for given in (tensors, lists):
        for one, other in zip(session.run(None, given), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_wrong_requests_are_named(path: Path) -> None:
    session = Session(path)
    with pytest.raises(InputError, match=r"no output `score` \(did you mean `scores`\?\)"):
        session.run(["score"], feed())
    with pytest.raises(InputError, match="input `vector` is missing"):
        session.run(None, {"image": feed()["image"]})
    with pytest.raises(InputError, match=r"no input `vectr` \(did you mean `vector`\?\)") as told:
        session.run(None, {**feed(), "vectr": feed()["vector"]})
    assert "initializer" not in str(told.value)
    with pytest.raises(InputError, match="to give one as an input, remove its initializer"):
        session.run(None, {**feed(), "w": feed()["vector"]})
    with pytest.raises(InputError, match=r"`vector` must be float32 .*float64"):
        session.run(None, {**feed(), "vector": feed()["vector"].astype("float64")})
    ragged = r"input `vector` \(float32 of shape \[1, 6\]\) cannot be made from the given value"
    with pytest.raises(InputError, match=ragged):
        session.run(None, {**feed(), "vector": [[1.0], [2.0, 3.0]]})
    with pytest.raises(InputError, match="a `list`; give a dictionary"):
        session.run(None, [feed()["image"]])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="`scheduler`: options are for models"):
        Session(path, scheduler="ios")
    with pytest.raises(DeviceError, match="CPUExecutionProvider"):
        Session(path, providers=["CUDAExecutionProvider"])
    with pytest.raises(InputError, match="`instances` is 0"):
        Session(path, instances=0)


@pytest.mark.parametrize("instances", [1, 2])
def test_several_threads(path: Path, instances: int) -> None:
    session = Session(path, instances=instances)
    wanted = {seed: session.run(None, feed(seed)) for seed in range(4)}
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            for _ in range(50):
                for one, other in zip(session.run(None, feed(seed)), wanted[seed], strict=True):
                    np.testing.assert_array_equal(one, other)
        except Exception as error:
            wrong.append(f"{seed}: {error}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_in_the_background(path: Path) -> None:
    told: list[tuple[object, object, str]] = []
    with Session(path) as session:
        future = session.run_async(
            None, feed(), lambda results, data, error: told.append((results, data, error)), "mine"
        )
        assert_close(future.result(), theirs(two_inputs(), feed()))
        wrong = session.run_async(None, {}, lambda *given: told.append(given))
        assert isinstance(wrong.exception(), InputError)
    assert (told[0][0], told[0][1:]) == (future.result(), ("mine", ""))
    assert told[1][0] is None
    assert "is missing" in told[1][2]


def test_arguments_of_the_wrong_kind(path: Path) -> None:
    with Session(path) as session:
        with pytest.raises(InputError, match="`output_names` is 'scores'; give a list"):
            session.run("scores", feed())
        with pytest.raises(InputError, match="`callback` is 3; give a function"):
            session.run_async(None, feed(), 3)  # type: ignore[arg-type]
    for threads in (-1, "2"):
        with pytest.raises(InputError, match=f"`threads` is {threads!r}; give a whole number"):
            Session(path, threads=threads)  # type: ignore[arg-type]
    for model in (None, 3):
        with pytest.raises(InputError, match=f"cannot be made from a `{type(model).__name__}`"):
            Session(model)


def test_closed(path: Path) -> None:
    with Session(path) as session:
        session.run(None, feed())
    with pytest.raises(ExecutionError, match="was closed"):
        session.run(None, feed())
    with pytest.raises(ExecutionError, match="pickled"):
        pickle.dumps(session)


def test_profile(path: Path) -> None:
    session = Session(path)
    rows = session.profile(feed())
    assert len(rows) == len(tvm_interop.load(path).plan.operators)


def test_memory_of_the_callers(path: Path) -> None:
    session = Session(path)
    binding = session.io_binding()
    image = tvm_interop.aligned_empty((1, 4, 2, 2), "float32")
    vector = tvm_interop.aligned_empty((1, 6), "float32")
    scores = tvm_interop.aligned_empty((1, 16), "float32")
    binding.bind_cpu_input("image", image)
    binding.bind_cpu_input("vector", vector)
    assert binding.bind_output("scores", scores).ctypes.data == scores.ctypes.data
    for seed in range(3):
        image[...], vector[...] = feed(seed).values()
        scores[...] = 0
        session.run_with_iobinding(binding)
        wanted = session.run(None, feed(seed))
        np.testing.assert_array_equal(scores, wanted[1])
        for one, other in zip(binding.copy_outputs_to_cpu(), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    tensor = torch.from_numpy(tvm_interop.aligned_empty((1, 16), "float32"))
    binding.bind_output("scores", tensor)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(tensor.numpy(), scores)


def test_memory_that_cannot_be_bound(path: Path) -> None:
    binding = Session(path).io_binding()
    locked = tvm_interop.aligned_empty((1, 16), "float32")
    locked.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        binding.bind_output("scores", locked)
    with pytest.raises(InputError, match="float32 of shape"):
        binding.bind_output("scores", np.zeros((1, 17), "float32"))
    with pytest.raises(InputError, match="the model has no input `nothing`"):
        binding.bind_cpu_input("nothing", locked)
    with pytest.raises(InputError, match="no output `nothing`"):
        binding.bind_output("nothing")


def test_memory_that_is_copied(path: Path) -> None:
    """If the memory of an array cannot be used in place, the array can be bound, and is copied."""
    session = Session(path)
    binding = session.io_binding()
    first = binding.bind_output("scores")
    assert repr(binding) == "Binding(in place: scores; copied in each run: nothing)"
    image = np.ndarray((1, 4, 2, 2), "float32", np.zeros(4 * 4 * 4 + 1, np.uint8), 1)
    vector = tvm_interop.aligned_empty((1, 6), "float32")
    scores = np.zeros((1, 32), "float32")[:, ::2]
    binding.bind_cpu_input("image", image)
    binding.bind_cpu_input("vector", vector)
    assert binding.bind_output("scores", scores) is scores
    assert repr(binding) == "Binding(in place: vector; copied in each run: image, scores)"
    first[...] = 7
    for seed in range(2):
        image[...], vector[...] = feed(seed).values()
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(scores, session.run(["scores"], feed(seed))[0])
    assert (first == 7).all()


def test_an_output_in_the_memory_of_another() -> None:
    from tests.nets import Net

    net = Net()
    net.op("Add", [net.input("x", [2, 3]), net.input("y", [2, 3])], "sum")
    net.op("Flatten", ["sum"], "flat")
    binding = Session(net.model("flat"), **QUICK).io_binding()
    for one in ("x", "y"):
        binding.bind_cpu_input(one, np.ones((2, 3), "float32"))
    bound = binding.bind_output("flat")
    binding.run()
    np.testing.assert_array_equal(bound, 2)


def test_a_state_that_stays_where_it_is() -> None:
    """An array that is bound as an output and as an input carries a sum from run to run."""
    from tests.nets import Net

    net = Net()
    net.op("Add", [net.input("past", [4]), net.input("x", [4])], "present")
    binding = Session(net.model("present"), **QUICK).io_binding()
    state = binding.bind_output("present")
    state[...] = 0
    binding.bind_cpu_input("past", state)
    x = tvm_interop.aligned_empty((4,), "float32")
    binding.bind_cpu_input("x", x)
    for number in (1, 2, 3):
        x[...] = number
        binding.run()
    np.testing.assert_array_equal(state, 6)


def test_a_model_is_compiled_once(
    tmp_path: Path, kept: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(branches(), file)
    with caplog.at_level(logging.INFO, "tvm_interop"):
        first = Session(file, **QUICK, providers=["CPUExecutionProvider"])
    assert first.path is not None
    assert first.path.parent == kept
    assert f"kept as `{first.path}`" in caplog.text
    assert kept.stat().st_mode & 0o777 == 0o700
    assert_close(first.run(None, feeds(branches())), theirs(branches(), feeds(branches())))
    changed_at = first.path.stat().st_mtime_ns
    with monkeypatch.context() as patch:
        patch.setattr("tvm_interop.compiler.api.compile", None)  # Compiling would fail.
        again = Session(file, **QUICK)
    assert again.path == first.path
    assert changed_at <= again.path.stat().st_mtime_ns
    assert Session(file, **QUICK, threads=1).path != first.path
    cores = tvm_interop.num_threads()
    tvm_interop.set_num_threads(cores + 1)
    try:
        assert Session(file, **QUICK).path != first.path, "it was chosen for fewer threads"
    finally:
        tvm_interop.set_num_threads(cores)
    onnx.save(chain(), file)
    assert Session(file, **QUICK).path != first.path


def test_what_options_do_not_tell_is_not_kept(kept: Path) -> None:
    """Two schedules may have equal `repr`, so the `repr` of a schedule cannot be part of an
    artifact's key."""
    artifact = tvm_interop.compile(branches(), **QUICK)
    session = Session(branches(), schedule=artifact.schedule, latency_db=":memory:")
    assert session.path is None
    assert not kept.exists()
    assert_close(session.run(None, feeds(branches())), theirs(branches(), feeds(branches())))


def test_weights_in_other_files_count(tmp_path: Path, kept: Path) -> None:
    file, weights = tmp_path / "net.onnx", tmp_path / "weights.bin"
    onnx.save(
        branches(), file, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    first = Session(file, **QUICK)
    content = bytearray(weights.read_bytes())
    content[:4] = np.float32(2).tobytes()
    weights.write_bytes(content)
    assert Session(file, **QUICK).path != first.path
    weights.unlink()
    with pytest.raises(UnsupportedModelError, match=r"net\.onnx.*weights"):
        Session(file, **QUICK)


def test_a_damaged_or_foreign_file_is_not_used(
    tmp_path: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = Session(branches(), **QUICK)
    assert first.path is not None
    wanted = first.run(None, feeds(branches()))
    content = bytearray(first.path.read_bytes())
    content[len(content) // 2] ^= 1
    first.path.write_bytes(content)
    assert_close(Session(branches(), **QUICK).run(None, feeds(branches())), wanted)
    assert "compiled again" in caplog.text
    caplog.clear()
    first.path.chmod(0o666)
    assert Session(branches(), **QUICK).path is not None
    assert "may be written to by anybody" in caplog.text
    caplog.clear()
    kept.chmod(0o777)
    assert Session(branches(), **QUICK).path is None
    assert "may be written to by anybody" in caplog.text


def test_the_oldest_go(tmp_path: Path) -> None:
    artifact = tvm_interop.compile(branches(), **QUICK)
    folder = KeptArtifacts(tmp_path / "kept", max_bytes=1)
    first = folder.keep("a", "1" * 64, artifact)
    assert first is not None
    os.utime(first, (1, 1))
    second = folder.keep("b/../c", "2" * 64, artifact)
    assert second is not None
    assert [path.name for path in folder.folder.iterdir()] == [second.name]
    assert second.parent == folder.folder


def test_open_dimensions_are_compiled_for_as_they_come(
    kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = branches(batch="batch")
    session = Session(model, **QUICK)
    (x,) = session.get_inputs()
    assert x.shape == ["batch", 8, 8, 8]
    rng = np.random.default_rng(0)
    for size in (2, 1, 2):
        array = rng.standard_normal((size, 8, 8, 8)).astype("float32")
        assert_close(session.run(None, {"x": array}), theirs(model, {"x": array}))
    # Only the first shape is measured. The second shape uses the kernels of the first.
    assert caplog.text.count("takes a while") == 1
    assert caplog.text.count("with the kernels that were chosen for {'x': (2, 8, 8, 8)}") == 1
    assert sorted(path.suffix for path in kept.iterdir()) == [".json", ".tar", ".tar"]
    given = Session(model, **QUICK, input_shapes={"x": (3, 8, 8, 8)})
    assert given.get_inputs()[0].shape == [3, 8, 8, 8]


def test_threads_of_onnxruntimes_options() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = Session(branches(), options, **QUICK)
    assert session.io_binding()._module.plan.streams[0].threads == 1
    assert len(session.io_binding()._module.plan.streams) == 1


def test_where_only_the_runtime_is_loaded(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(branches(), file)
    program = f"""
import numpy as np, tvm_interop
session = tvm_interop.Session({str(path)!r})
print(session.run(None, {{i.name: np.zeros(i.shape, i.dtype) for i in session.inputs}})[1].shape)
try:
    tvm_interop.Session({str(file)!r})
except tvm_interop.DeviceError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TVM_USE_RUNTIME_LIB": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert "(1, 16)" in ended.stdout
    assert "is a model, not an artifact, and compiling it needs TVM's compiler" in ended.stdout
