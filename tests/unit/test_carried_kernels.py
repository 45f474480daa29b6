"""Tests compilations with the kernels that were chosen for other shapes of the inputs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_interop
from tests.nets import Net
from tvm_interop import Artifact, ArtifactError, InputError
from tvm_interop.artifact.chosen_kernels import ChosenKernel, ChosenKernels
from tvm_interop.compiler import checked_kernels
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.measure.measured import MeasuredLatency

pytestmark = pytest.mark.skipif(library_version("onednn") is None, reason="needs oneDNN")

CHANNELS = 16


def chain() -> onnx.ModelProto:
    """Two convolutions. Between them are two element-wise operators, which no library runs."""
    net = Net()
    x = net.input("x", [1, CHANNELS, "height", "width"])
    first = net.conv(x, "first", (CHANNELS, CHANNELS), 3)
    cosine = net.op("Cos", [first], "cosine")
    net.conv(cosine, "second", (CHANNELS, CHANNELS), 3)
    return net.model("second")


def compiled(like: Any = None, size: int = 24, **options: Any) -> Artifact:
    return tvm_interop.compile(
        chain(),
        scheduler="sequential",
        latency_db=":memory:",
        fallback=False,
        input_shapes={"x": (1, CHANNELS, size, size)},
        like=like,
        **options,
    )


def kernels(artifact: Artifact) -> dict[str, ChosenKernel]:
    return ChosenKernels.of(artifact).chosen


def assert_right(artifact: Artifact) -> None:
    ((port,), _) = tvm_interop.GraphModule(artifact).ports()
    x = np.random.default_rng(0).standard_normal(port.shape).astype(np.float32)
    (wanted,) = onnxruntime.InferenceSession(chain().SerializeToString()).run(None, {"x": x})
    (made,) = tvm_interop.GraphModule(artifact)(x=x)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def donor() -> Artifact:
    """The model with the kernels that are chosen without a measurement: both convolutions are
    oneDNN's, and the image between them is blocked."""
    return compiled(size=16, time_budget=0)


@pytest.fixture
def _nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("something is measured")

    monkeypatch.setattr(MeasuredLatency, "stages", fail)
    monkeypatch.setattr(MeasuredLatency, "near", fail)


def changed(artifact: Artifact, **of_first: Any) -> ChosenKernels:
    """The kernels of `artifact`, with another kernel for the convolution `first`."""
    found = ChosenKernels.of(artifact)
    first = msgspec.structs.replace(found.chosen["first/Conv"], **of_first)
    return msgspec.structs.replace(found, chosen={**found.chosen, "first/Conv": first})


@pytest.mark.usefixtures("_nothing_is_measured")
def test_kernels_and_layouts_are_those_of_the_artifact(donor: Artifact, tmp_path: Path) -> None:
    assert kernels(donor)["first/Conv"] == ChosenKernel("onednn", "conv2d", True)
    assert kernels(donor)["second/Conv"] == ChosenKernel("onednn", "conv2d", False)
    donor.save(tmp_path / "donor.tar")
    for like in (donor, tmp_path / "donor.tar", str(tmp_path / "donor.tar")):
        made = compiled(like)
        assert kernels(made) == kernels(donor)
        assert_right(made)


@pytest.mark.usefixtures("_nothing_is_measured")
def test_tvms_kernels_stay_and_images_beside_them_are_plain(donor: Artifact) -> None:
    made = compiled(changed(donor, library=None, is_blocked=False))
    found = kernels(made)
    assert found["first/Conv"].library is None
    assert found["second/Conv"].library == "onednn"
    # TVM's kernel of `first` gives a plain image, and `cosine` reads it. An element-wise operator
    # writes the layout that it reads, so the image that `cosine` gives is plain too.
    assert not any(kernel.is_blocked for kernel in found.values())
    assert_right(made)


@pytest.mark.usefixtures("_nothing_is_measured")
def test_winograd_stays_unless_it_is_forbidden(donor: Artifact) -> None:
    like = changed(donor, kind="winograd_conv2d")
    made = compiled(like)
    assert kernels(made)["first/Conv"].kind == "winograd_conv2d"
    assert kernels(made)["second/Conv"].kind == "conv2d"
    assert kernels(made)["first/Conv"].is_blocked
    assert_right(made)
    assert kernels(compiled(like, winograd=False))["first/Conv"].kind == "conv2d"


@pytest.mark.usefixtures("_nothing_is_measured")
def test_other_operators_get_a_librarys_kernel(donor: Artifact) -> None:
    found = ChosenKernels.of(donor)
    some = {name: kernel for name, kernel in found.chosen.items() if name != "first/Conv"}
    made = compiled(msgspec.structs.replace(found, chosen=some))
    assert kernels(made)["first/Conv"] == ChosenKernel("onednn", "conv2d", False)
    unknown = msgspec.structs.replace(found.chosen["first/Conv"], library="not there")
    some["first/Conv"] = unknown
    made = compiled(msgspec.structs.replace(found, chosen=some))
    assert kernels(made)["first/Conv"].library == "onednn"
    assert_right(made)


def test_the_checks_of_large_kernels_are_not_repeated(donor: Artifact) -> None:
    checked = compiled(donor, 16)  # `checked` has the kernels of `donor`.
    assert ChosenKernels.of(checked).are_checked
    # The time budget of `donor` is 0, which leaves no time for checks.
    assert not ChosenKernels.of(donor).are_checked
    other = changed(checked, kind="matmul")
    for like, size, count in ((checked, 80, 0), (donor, 80, 2), (checked, 16, 2), (other, 80, 1)):
        check = compiled(like, size).manifest.kernel_check
        assert check is not None
        assert check.libraries == count
        assert check.checked > 0  # TVM's kernels are always checked.


def test_a_shorter_check_does_not_count_as_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the kernels of `like` were checked, large kernels of TVM are checked on fewer kinds of
    numbers. If the kernels of `like` were not checked, the same kernels are checked on all kinds.
    """
    monkeypatch.setattr(checked_kernels, "LONG", 0)
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path))
    tried: list[Any] = []
    usual = checked_kernels.find_faults

    def find_faults(kernels: Any, count: Any = None) -> Any:
        tried.extend(kernel.kinds for kernel in kernels)
        return usual(kernels, count)

    monkeypatch.setattr(checked_kernels, "find_faults", find_faults)
    checked = compiled(size=16, providers=["onednn"])
    unchecked = compiled(size=16, time_budget=0)
    tried.clear()
    for like, kinds in (
        (checked, [("ordinary", "small")]), (checked, []), (unchecked, [()]), (unchecked, []),
    ):  # fmt: skip
        compiled(like, 17)
        assert tried == kinds
        tried.clear()


def test_a_gpu_is_refused(donor: Artifact) -> None:
    with pytest.raises(InputError, match="`like` is for CPUs"):
        compiled(donor, target="cuda")


def test_what_is_not_an_artifact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`like` is a `int`: give an artifact of the same model"):
        compiled(7)
    (tmp_path / "m.tar").write_bytes(b"no")
    with pytest.raises(ArtifactError, match=r"m\.tar"):
        compiled(tmp_path / "m.tar")


def test_a_long_recurrent_kernel_is_not_taken_for_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """On large numbers a recurrence amplifies rounding errors, so the check of a recurrent kernel
    uses small numbers."""
    net, hidden = Net(), 256
    x = net.input("x", [210, 1, 8])
    weights = [net.weight(1, 4 * hidden, 8), net.weight(1, 4 * hidden, hidden)]
    net.op("LSTM", [x, *weights], "y", hidden_size=hidden)
    with caplog.at_level(logging.WARNING):
        made = tvm_interop.compile(
            net.model("y"), scheduler="sequential", latency_db=":memory:", providers=["tvm"]
        )
    assert made.manifest.kernel_check is not None
    assert made.manifest.kernel_check.plain == {}
    assert "wrong" not in caplog.text
