"""Tests artifacts with outputs whose size depends on the data, and everything that reads them."""

from __future__ import annotations

import ctypes
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest

import tvm_interop
from tests import counted_nets
from tests.cuda_emulation.compare import check_kernel, kernels_of
from tests.native_runtime import INVALID_ARGUMENT, NativeModel, RuntimeLibraryError, library
from tests.nets import Net
from tvm_interop import GraphModule, Session
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.artifact.layout import check_counted
from tvm_interop.artifact.manifest import CountedOutput
from tvm_interop.artifact.reading import read
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import api
from tvm_interop.errors import ArtifactError, CannotFillUpError, InputError
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.ticket import Ticket

FEEDS = [counted_nets.feeds(seed, scale) for seed, scale in enumerate((0.3, 0.7, 2.0))]


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("counted") / "detector.tar"
    return tvm_interop.compile(
        counted_nets.detector(), scheduler="greedy", keep_slower=True, streams=2, out=path,
        latency_db=":memory:",
    )  # fmt: skip


@pytest.fixture(scope="module")
def path(artifact: Artifact) -> Path:
    assert artifact.path is not None
    return artifact.path


@pytest.fixture(scope="module")
def wanted() -> list[list[np.ndarray]]:
    """The results of onnxruntime for `FEEDS`, three inputs in which the detector finds no boxes,
    some boxes, and as many boxes as it can return."""
    model = counted_nets.detector().SerializeToString()
    session = onnxruntime.InferenceSession(model)
    found = [session.run(None, feed) for feed in FEEDS]
    assert found[0][0].shape == (0, 3)
    assert len({results[0].shape for results in found}) == len(FEEDS)
    return found


def same(got: Any, want: Any) -> None:
    for ours, theirs in zip(got, want, strict=True):
        array = ours if isinstance(ours, np.ndarray) else ours.numpy()
        assert (array.shape, array.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(array, theirs)


def test_modules_cut_outputs_to_their_sizes(
    artifact: Artifact, path: Path, wanted: list[list[np.ndarray]]
) -> None:
    """The first module runs the plan in Python, the second in the native library."""
    for module in (GraphModule(artifact), GraphModule(path)):
        assert module.get_num_outputs() == 3
        assert module.get_output_info()[0] == {
            "rows": (15, 3), "detections": (15, 6), "score": (15,)
        }  # fmt: skip
        assert module.get_output_index("rows_count") == -1
        for feed, want in zip(FEEDS, wanted, strict=True):
            same(module(**feed), want)
            out = np.empty_like(want[2])
            module.run_into(feed, {"score": out})
            same([out], want[2:])
            same([module.get_output_zero_copy("rows")], want[:1])
            same(module.run_on(feed, [1, 0]).values(), [want[1], want[0]])
        with pytest.raises(InputError, match="shape"):
            module.get_output("score", np.empty(1, np.float32))
        with pytest.raises(InputError, match="the size of output `rows` depends on computed"):
            module.set_output_zero_copy("rows")


def test_a_session_gives_what_onnxruntime_gives(path: Path, wanted: list[list[np.ndarray]]) -> None:
    session = Session(path)
    assert [info.shape for info in session.get_outputs()] == [
        ["rows_count", 3], ["detections_count", 6], ["score_count"]
    ]  # fmt: skip
    for feed, want in zip(FEEDS, wanted, strict=True):
        same(session.run(None, feed), want)
        same(session.run(["score"], feed), want[2:])
    binding = session.io_binding()
    for name, array in FEEDS[1].items():
        binding.bind_input(name, array)
    with pytest.raises(InputError, match="the size of output `rows` depends on computed"):
        binding.bind_output("rows")
    session.run_with_iobinding(binding)
    same(binding.copy_outputs_to_cpu(), wanted[1])
    same(binding.get_outputs(), wanted[1])


def test_new_weights_keep_the_sizes(path: Path, wanted: list[list[np.ndarray]]) -> None:
    """A module whose weights are replaced runs the plan in Python from then on."""
    module = GraphModule(path)
    module._replace_weights(0, {})
    module._changeable(0)
    same(module(**FEEDS[1]), wanted[1])
    assert module.get_num_outputs() == 3


def test_the_server_gives_what_onnxruntime_gives(
    path: Path, wanted: list[list[np.ndarray]]
) -> None:
    for is_divided in (False, True):
        model = Model("detector", tvm_interop.load(path))
        assert [spec.shape for spec in model.outputs] == [(-1, 3), (-1, 6), (-1,)]
        if is_divided:
            model.divide(2)
        for feed, want in zip(FEEDS, wanted, strict=True):
            ticket = Ticket(
                0, 0, 0.0, inputs=feed, rows=1, shape=0, checked_by=model,
                done=lambda ticket: None, served="detector",
            )  # fmt: skip
            if is_divided:
                for block in range(model.num_blocks):
                    model.run_block(0, block, ticket)
            else:
                model.run(0, [ticket])
            assert ticket.outputs is not None
            same(ticket.outputs, want)


def test_the_command_line_tells_the_sizes(
    path: Path, wanted: list[list[np.ndarray]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", **FEEDS[1])
    arguments = ["run", str(path), "-i", str(tmp_path / "in.npz"), "-o", str(tmp_path / "out.npz")]
    run_app(arguments)
    rows = wanted[1][0].shape[0]
    assert f"output rows: int64 of shape ({rows}, 3)" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as given:
        same([given[name] for name in ("rows", "detections", "score")], wanted[1])


def test_the_c_interface(path: Path, wanted: list[list[np.ndarray]]) -> None:
    model = NativeModel(path)
    native = library()
    assert native.tvi_model_num_outputs(model.model) == 3
    assert [native.tvi_model_output_counted_axis(model.model, i) for i in range(4)] == [0, 0, 0, -1]
    with pytest.raises(RuntimeLibraryError, match="run the model by tvi_run_counted") as error:
        model.run(*FEEDS[1].values())
    assert error.value.status == INVALID_ARGUMENT
    instance = model.instance
    for feed, want in zip(FEEDS, wanted, strict=True):
        sizes = (ctypes.c_int64 * 3)()
        outputs = [np.empty((15, *array.shape[1:]), array.dtype) for array in want]
        addresses = (
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            for arrays in (list(feed.values()), outputs)
        )
        assert native.tvi_run_counted(instance, *addresses, sizes) == 0
        assert list(sizes) == [len(array) for array in want]
        same([array[:size] for array, size in zip(outputs, sizes, strict=True)], want)
    assert native.tvi_run_counted(instance, None, None, None) == INVALID_ARGUMENT
    assert not native.tvi_instance_output_buffer(instance, 3)


def test_an_older_version_refuses_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format of version 5 has no sizes that depend on the data. A package that knows only
    version 5 would return the unused rows of an output too."""
    with tarfile.open(path) as file:
        manifest = json.loads(file.extractfile("manifest.json").read())  # type: ignore[union-attr]
    assert manifest["version"] == 6
    assert manifest["counted"] == [{"output": i, "axis": 0, "count": 3} for i in range(3)]
    monkeypatch.setattr("tvm_interop.artifact.reading.VERSION", 5)
    with path.open("rb") as opened, pytest.raises(ArtifactError, match=r"version 6.* up to 5; up"):
        read(opened, False, None)


@pytest.mark.parametrize(
    ("counted", "message"),
    [
        ([(3, 0, 3)], "output 3 .* does not exist|is not among the model's 3"),
        ([(0, 2, 3)], "axis 2"),
        ([(0, 0, 2)], "not the last outputs"),
        ([(0, 0, 4)], "not the last outputs"),
        ([(0, 0, 3), (0, 1, 3)], "two sizes of"),
        ([(0, 0, 2), (1, 0, 3)], "not one int64|has a size that is not one int64"),
    ],
)
def test_both_readers_refuse_wrong_sizes(
    artifact: Artifact, tmp_path: Path, counted: list[tuple[int, int, int]], message: str
) -> None:
    wrong = msgspec.structs.replace(
        artifact.manifest, counted=tuple(CountedOutput(*each) for each in counted)
    )
    with pytest.raises(ArtifactError, match=message):
        check_counted(wrong, [artifact.plan])
    path = _with_counted(artifact, tmp_path, counted)
    with pytest.raises(RuntimeLibraryError, match=message):
        NativeModel(path)


def _with_counted(artifact: Artifact, folder: Path, counted: list[tuple[int, int, int]]) -> Path:
    """Write a file whose manifest lists other sizes, without the checks of `save`."""
    assert artifact.path is not None
    path = folder / "wrong.tar"
    with tarfile.open(artifact.path) as old, tarfile.open(path, "w") as new:
        for member in old.getmembers():
            data: Any = old.extractfile(member)
            text = data.read()
            if member.name == "manifest.json":
                fields = json.loads(text)
                names = ("output", "axis", "count")
                fields["counted"] = [dict(zip(names, each, strict=True)) for each in counted]
                text = json.dumps(fields).encode()
            member.size = len(text)
            new.addfile(member, io.BytesIO(text))
    return path


def test_batches_and_ranges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"the size of its output `rows`, .* depends on comp"):
        tvm_interop.compile(
            counted_nets.detector(), batch_sizes=[1], scheduler="sequential", time_budget=0
        )
    net = Net()
    net.op("Relu", [net.input("x", ["batch", 4])], "y")
    is_some = net.op("Greater", [net.input("q", [6]), net.constant(np.zeros(1, np.float32))], "is")
    net.op("Compress", ["q", is_some], "some", axis=0)
    message = r"a range of `batch`: the size of its output `some` depends .*set of the sizes"
    # The model is refused before anything is compiled.
    monkeypatch.setattr(api, "_compile_one", None)
    with pytest.raises(CannotFillUpError, match=message):
        tvm_interop.compile(net.model("y", "some", check=False), shapes={"batch": (1, 4)})


def test_a_thread_of_a_gpu_runs_the_kernels() -> None:
    """The check of kernels on the CPU can run `non_max_suppression` and `true_positions`, because
    their hand-written loops contain no threads of a GPU."""
    found = {}
    for kernel in kernels_of(counted_nets.detector(boxes=6, classes=2)):
        if kernel.name in ("non_max_suppression", "true_positions"):
            verdict = check_kernel(kernel)
            found[kernel.name] = (verdict.fault, verdict.not_executed, verdict.error)
    assert found == dict.fromkeys(("non_max_suppression", "true_positions"), ("", "", 0.0))
