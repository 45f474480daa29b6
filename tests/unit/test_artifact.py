"""Tests the artifact file: how it is written, read and checked."""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import mmap
import os
import platform
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_interop
from tests.native_runtime import load_in_both
from tests.nets import two_inputs
from tvm_interop import ArtifactError, DeviceError, GraphModule, InputError
from tvm_interop.execution.open_instance import open_instance
from tvm_interop.machine.kernel_libraries import why_missing

needs_onednn = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "model.tar"
    tvm_interop.compile(two_inputs(), scheduler="lios", streams=2, out=path, keep_slower=True)
    return path


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}


def write(path: Path, contents: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in contents.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_round_trip(saved: Path) -> None:
    artifact = load_in_both(saved)
    again = load_in_both(saved)
    assert artifact.plan == again.plan
    assert artifact.schedule == again.schedule
    assert artifact.schedule.scheduler == "lios"
    assert (
        artifact.manifest.target.startswith('{"kind": "llvm"') or "llvm" in artifact.manifest.target
    )
    module = GraphModule(artifact)
    module.run(image=np.ones((1, 4, 2, 2), "float32"), vector=np.ones((1, 6), "float32"))
    assert np.isfinite(module.get_output(0).numpy()).all()


MEMBERS = {"manifest.json", "plan.json", "schedule.json", "kernels.so", "weights.bin"}


def test_members(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    tvm_interop.compile(two_inputs(), scheduler="lios", out=path, providers=["tvm"])
    assert set(members(path)) == MEMBERS
    assert load_in_both(path).fallback is None


@needs_onednn
def test_an_artifact_that_needs_a_library_has_a_plan_without(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    artifact = tvm_interop.compile(two_inputs(), "llvm", "lios", path, providers=["onednn"])
    assert set(members(path)) == {*MEMBERS, "fallback.json"}
    assert any(op.library == "onednn" for op in artifact.plan.operators)
    loaded = load_in_both(path)
    assert loaded.usable_plan() == loaded.plan == artifact.plan
    assert loaded.fallback is not None
    assert loaded.fallback == artifact.fallback
    assert not any(op.library for op in loaded.fallback.operators)
    assert len(loaded.fallback.streams) == 1
    names = [[plan.values[v].name for v in plan.outputs] for plan in (loaded.plan, loaded.fallback)]
    assert names[0] == names[1]


@needs_onednn
def test_a_missing_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.tar"
    tvm_interop.compile(two_inputs(), "llvm", "lios", path, providers=["onednn"])
    feeds = {"image": np.ones((1, 4, 2, 2), "float32"), "vector": np.ones((1, 6), "float32")}
    module = GraphModule(load_in_both(path))
    module.run(**feeds)
    libraries = "tvm_interop.machine.kernel_libraries"
    monkeypatch.setattr(f"{libraries}.library_version", lambda name: None)
    monkeypatch.setattr(f"{libraries}.why_missing", lambda name: "nobody installed it")
    artifact = load_in_both(path)
    # This process has loaded oneDNN, so the native library would find it although the patched
    # functions say that it is missing. An assignment to the manifest makes Python open the
    # artifact, and Python asks the patched functions.
    artifact.manifest = artifact.manifest
    with caplog.at_level("WARNING", logger="tvm_interop"):
        without = GraphModule(artifact)
    assert "`onednn`, which is missing here (nobody installed it)" in caplog.text
    assert without.plan == artifact.fallback
    without.run(**feeds)
    for i in range(2):
        np.testing.assert_allclose(
            without.get_output(i).numpy(), module.get_output(i).numpy(), rtol=1e-5, atol=1e-6
        )
    artifact.fallback = None
    with pytest.raises(ArtifactError, match="`onednn`, which is missing here: nobody installed"):
        GraphModule(artifact)


@needs_onednn
def test_a_damaged_or_missing_fallback_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    tvm_interop.compile(two_inputs(), "llvm", "lios", path, providers=["onednn"])
    contents = members(path)
    broken = {**contents, "fallback.json": contents["fallback.json"][:-1]}
    with pytest.raises(ArtifactError, match=r"`fallback\.json` is damaged"):
        load_in_both(write(tmp_path / "damaged.tar", broken))
    del contents["fallback.json"]
    with pytest.raises(ArtifactError, match=r"`fallback\.json` is missing"):
        load_in_both(write(tmp_path / "lacking.tar", contents))


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.97])
def test_truncated(saved: Path, tmp_path: Path, keep: float) -> None:
    data = saved.read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(data[: int(len(data.rstrip(b"\0")) * keep)])
    with pytest.raises(ArtifactError, match=r"cut\.tar"):
        load_in_both(cut)


@pytest.mark.parametrize("name", ["plan.json", "schedule.json", "kernels.so", "weights.bin"])
def test_a_damaged_or_missing_member_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    contents = members(saved)
    flipped = bytearray(contents[name])
    flipped[len(flipped) // 2] ^= 1
    path = write(tmp_path / "damaged.tar", {**contents, name: bytes(flipped)})
    with pytest.raises(ArtifactError, match=f"`{name}` is damaged"):
        load_in_both(path)
    path = write(tmp_path / "lacking.tar", {k: v for k, v in contents.items() if k != name})
    with pytest.raises(ArtifactError, match=f"`{name}` is missing"):
        load_in_both(path)


def test_foreign_files(saved: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not an artifact")
    with pytest.raises(ArtifactError, match="not an artifact"):
        load_in_both(text)
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        load_in_both(write(tmp_path / "other.tar", {"data.bin": b"1234"}))
    with pytest.raises(ArtifactError, match="is not a file"):
        load_in_both(tmp_path / "nowhere.tar")
    with pytest.raises(ArtifactError, match="is not a file"):
        load_in_both(tmp_path)


def test_newer_and_unknown_manifests(saved: Path, tmp_path: Path) -> None:
    contents = members(saved)
    manifest = json.loads(contents["manifest.json"])
    newer = json.dumps({**manifest, "version": 8, "new_field": 1}).encode()
    with_newer = {**contents, "manifest.json": newer, "new_member.bin": b"1234"}
    with pytest.raises(ArtifactError, match=r"version 8.*upgrade"):
        load_in_both(write(tmp_path / "newer.tar", with_newer))
    unknown = json.dumps({**manifest, "colour": "red"}).encode()
    with pytest.raises(ArtifactError, match="colour"):
        load_in_both(write(tmp_path / "odd.tar", {**contents, "manifest.json": unknown}))
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        load_in_both(write(tmp_path / "list.tar", {**contents, "manifest.json": b"[]"}))


def test_saving_fails_whole(saved: Path, tmp_path: Path) -> None:
    artifact = load_in_both(saved)
    with pytest.raises(InputError, match=r"no folder.*nowhere"):
        artifact.save(tmp_path / "nowhere" / "model.tar")
    target = tmp_path / "model.tar"
    target.write_bytes(b"an older file")
    artifact.weights = {}
    with pytest.raises(ArtifactError, match="no data for weight"):
        artifact.save(target)
    artifact.weights = load_in_both(saved).weights
    artifact.weights[max(artifact.weights)] = np.zeros(3, "complex64")
    with pytest.raises(ArtifactError, match=r"is complex64\(3,\), the plan says"):
        artifact.save(target)
    assert target.read_bytes() == b"an older file"
    assert [p.name for p in tmp_path.iterdir()] == ["model.tar"]


# The next tests are about artifacts of earlier versions.

OLD = Path(__file__).parents[1] / "data" / "artifacts"
"""The folder of artifacts of `two_inputs` for two streams and any x86-64 CPU.

One artifact has kernels of TVM, and one has kernels of oneDNN with a fallback.
"""


def unpacked(name: str, folder: Path) -> Path:
    path = folder / f"{name}.tar"
    path.write_bytes(lzma.decompress((OLD / f"{name}.tar.xz").read_bytes()))
    return path


@pytest.mark.parametrize("name", ["version_1_tvm", "version_1_onednn"])
def test_artifacts_of_version_1(name: str, tmp_path: Path) -> None:
    artifact = load_in_both(unpacked(name, tmp_path))
    assert artifact.manifest.version == 1
    assert (artifact.fallback is not None) == (name == "version_1_onednn")
    again = tmp_path / "again.tar"
    artifact.save(again)
    assert set(members(again)) >= {"weights.bin"}
    rewritten = load_in_both(again)
    assert rewritten.manifest.version == 2
    assert rewritten.plan == artifact.plan
    for v, array in artifact.weights.items():
        np.testing.assert_array_equal(rewritten.weights[v], array)
    if platform.machine() != "x86_64":
        return
    feeds = {"image": np.ones((1, 4, 2, 2), "float32"), "vector": np.ones((1, 6), "float32")}
    now = tvm_interop.compile(two_inputs(), "llvm -mcpu=x86-64", "lios", providers=["tvm"])
    outputs = []
    for each in (artifact, rewritten, now):
        module = GraphModule(each)
        module.run(**feeds)
        outputs.append([module.get_output(i).numpy() for i in range(2)])
    for i in range(2):
        np.testing.assert_array_equal(outputs[0][i], outputs[1][i])
        np.testing.assert_allclose(outputs[0][i], outputs[2][i], rtol=1e-5, atol=1e-6)


# The next tests are about weights, which stay in the file until they are used.


def test_weights_are_in_memory_once(saved: Path) -> None:
    artifact = load_in_both(saved)
    assert artifact.weights
    instance = open_instance(artifact)
    for v, array in artifact.weights.items():
        assert array.ctypes.data % 64 == 0
        assert np.shares_memory(array, instance.arrays[v])
        base = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base, memoryview | mmap.mmap)


def test_weights_of_a_module_that_is_in_use(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    shutil.copy(saved, path)
    feeds = {"image": np.ones((1, 4, 2, 2), "float32"), "vector": np.ones((1, 6), "float32")}
    artifact = load_in_both(path)
    module = GraphModule(artifact)
    module.run(**feeds)
    before = module.get_output(0).numpy()
    artifact.save(path)  # The new file replaces the file that holds the weights.
    module.run(**feeds)
    np.testing.assert_array_equal(module.get_output(0).numpy(), before)
    v = min(artifact.weights)
    artifact.weights[v][...] = 7  # This changes the weights in memory, not in the file.
    assert not (load_in_both(path).weights[v] == 7).any()


# The next tests are about malicious files, in which every digest is right.


def crafted(saved: Path, path: Path, **changes: bytes | None) -> Path:
    """Write a copy of `saved` with some members changed. All digests of the copy are right.

    Parameters
    ----------
    changes: the new content of each changed member, or None to leave the member out. In the name
        of a member, `__` stands for a dot.
    """
    contents = {**members(saved), **{name.replace("__", "."): c for name, c in changes.items()}}
    kept = {name: data for name, data in contents.items() if data is not None}
    manifest = json.loads(kept.pop("manifest.json"))
    manifest["sha256"] = {name: hashlib.sha256(data).hexdigest() for name, data in kept.items()}
    return write(path, {"manifest.json": json.dumps(manifest).encode(), **kept})


def test_a_plan_that_is_unsafe_names_the_file(saved: Path, tmp_path: Path) -> None:
    plan = json.loads(members(saved)["plan.json"])
    plan["arena_bytes"] = 2**62
    path = crafted(saved, tmp_path / "crafted.tar", plan__json=json.dumps(plan).encode())
    with pytest.raises(ArtifactError, match=r"crafted\.tar`: the arena has 4611686018427387904"):
        load_in_both(path)


def test_a_schedule_of_another_model(saved: Path, tmp_path: Path) -> None:
    text = members(saved)["schedule.json"]
    path = crafted(saved, tmp_path / "a.tar", schedule__json=text.replace(b"left/", b"rite/"))
    with pytest.raises(ArtifactError, match=r"`left/Conv` is in the plan alone"):
        load_in_both(path)
    for damage in (b"\xff\xff", b"[" * 100_000, b""):
        path = crafted(saved, tmp_path / "b.tar", schedule__json=damage)
        with pytest.raises(ArtifactError, match=r"b\.tar`: the schedule"):
            load_in_both(path)


LAUNCH = {"function": "f", "blocks": 2, "threads": 64, "registers": 0}


@pytest.mark.parametrize(
    ("kernel", "says"),
    [
        ({"flops": 7, "launches": {"sm_90": [{**LAUNCH, "assumed": True}, LAUNCH]}}, None),
        ({}, None),
        ({"flops": -1}, "."),
        ({"colour": 1}, "."),
        ({"launches": {"sm_90": LAUNCH}}, "."),
        ({"launches": {"sm_90": [{**LAUNCH, "threads": 0}]}}, "."),
        ({"launches": {"sm_90": [{**LAUNCH, "blocks": 2**63}]}}, "."),
        ({"launches": {"sm_90": [{**LAUNCH, "dynamic_shared_bytes": -1}]}}, "."),
        ({"launches": {"sm_90": [{**LAUNCH, "assumed": 1}]}}, "."),
        ({"launches": {"sm_90": [{**LAUNCH, "warps": 2}]}}, "."),
        ({"launches": {"sm_90": [{"function": "f", "blocks": 2, "threads": 64}]}}, "."),
    ],
)
def test_what_kernels_ask_of_a_gpu(
    saved: Path, tmp_path: Path, kernel: dict[str, Any], says: str | None
) -> None:
    contents = members(saved)
    manifest = {**json.loads(contents["manifest.json"]), "gpu_kernels": {"k": kernel}}
    path = write(
        tmp_path / "crafted.tar", {**contents, "manifest.json": json.dumps(manifest).encode()}
    )
    if says is None:
        assert "k" in load_in_both(path).manifest.gpu_kernels
    else:
        with pytest.raises(ArtifactError, match=says):
            load_in_both(path)


def test_manifests_out_of_bounds(saved: Path, tmp_path: Path) -> None:
    contents = members(saved)
    manifest = json.loads(contents["manifest.json"])
    (first, *_) = manifest["weights"]
    for fields, message in (
        ({"weights": {}}, "there is no data for weight"),
        ({"weights": {**manifest["weights"], first: 2**62}}, "does not fit there"),
        ({"weights": {**manifest["weights"], first: -64}}, "does not fit there"),
        ({"weights": {**manifest["weights"], first: 4}}, "does not fit there"),
        ({"weights": {**manifest["weights"], first: 2**70}}, "."),
        ({"sha256": {**manifest["sha256"], "x.bin": "00"}}, "`x.bin` that is not a SHA-256"),
        (
            {"sha256": {**manifest["sha256"], "x.bin": "0" * 64}},
            "a member `'x.bin'`, and artifacts have no",
        ),
    ):
        text = json.dumps({**manifest, **fields}).encode()
        path = write(tmp_path / "crafted.tar", {**contents, "manifest.json": text})
        with pytest.raises(ArtifactError, match=message):
            load_in_both(path)
    path = write(tmp_path / "deep.tar", {**contents, "manifest.json": b"[" * 100_000})
    with pytest.raises(ArtifactError, match=r"`manifest\.json` cannot be read"):
        load_in_both(path)


def test_sparse_and_linked_members(saved: Path, tmp_path: Path) -> None:
    """A file of ten kilobytes claims to hold eight gigabytes, for example as a sparse file."""
    contents = members(saved)
    for kind, size, message in (
        (tarfile.GNUTYPE_SPARSE, 512, "not a plain file"),
        (tarfile.SYMTYPE, 0, "not a plain file"),
        (tarfile.XHDTYPE, 512, "not a plain file"),
        (tarfile.GNUTYPE_LONGNAME, 2**33, "not a plain file"),
        (tarfile.REGTYPE, 2**33, "`weights.bin` should have 8589934592 bytes, and the file has"),
        (tarfile.REGTYPE, 2**62, "`weights.bin` should have 4611686018427387904 bytes"),
    ):
        path = tmp_path / "sparse.tar"
        data = write(path, {"manifest.json": contents["manifest.json"]}).read_bytes()
        info = tarfile.TarInfo("weights.bin")
        info.type, info.size = kind, size
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[482:483] = b"\1"  # The next block lists more pieces of the sparse file.
        header[148:156] = b"        "
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        end = len(data.rstrip(b"\0")) // 512 * 512 + 512
        path.write_bytes(data[:end] + bytes(header) + bytes(8192))
        with pytest.raises(ArtifactError, match=message):
            load_in_both(path)


def test_members_twice(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "twice.tar"
    with tarfile.open(path, "w") as tar:
        for name, data in [*members(saved).items(), ("plan.json", b"{}")]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    with pytest.raises(ArtifactError, match=r"two members `plan\.json`"):
        load_in_both(path)


def npz(**members_: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members_.items():
            archive.writestr(f"{name.removeprefix('v')}.npy", data)
    return buffer.getvalue()


def test_weights_of_version_1_that_claim_more(tmp_path: Path) -> None:
    """The header of an array claims terabytes. No memory may be allocated for the array."""
    old = unpacked("version_1_tvm", tmp_path)
    weights = [v for v, e in enumerate(load_in_both(old).plan.values) if e.storage == "weight"]
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**40,)}
    )
    claims = npz(**{f"v{v}": header.getvalue() + bytes(2000) for v in weights})
    pickled = npz(**{f"v{v}": b"\x93NUMPY\1\0" + bytes(2000) for v in weights})
    for data, message in (
        (claims, r"is float32\(1099511627776,\), the plan says"),
        (pickled, r"`weights\.npz` cannot be read"),
        (npz() + bytes(2000), r"`weights\.npz` cannot be read"),
        (b"", "smaller than the plan's weights"),
        (bytes(2000), r"`weights\.npz` cannot be read"),
    ):
        path = crafted(old, tmp_path / "crafted.tar", weights__npz=data)
        with pytest.raises(ArtifactError, match=message):
            load_in_both(path)


# The next tests are about artifacts whose code is not run.


def test_without_kernels(saved: Path, tmp_path: Path) -> None:
    artifact = load_in_both(saved, kernels=False)
    whole = load_in_both(saved)
    assert (artifact.plan, artifact.schedule) == (whole.plan, whole.schedule)
    assert artifact.kernels is None
    for use in (GraphModule, lambda a: a.save(tmp_path / "again.tar")):
        with pytest.raises(ArtifactError, match="loaded with kernels=False"):
            use(artifact)
    assert not list(tmp_path.iterdir())
    # The code is checked for damage although it is not run.
    other = write(tmp_path / "other.tar", {**members(saved), "kernels.so": b"other code"})
    with pytest.raises(ArtifactError, match=r"`kernels\.so` is damaged"):
        load_in_both(other, kernels=False)


def test_a_pinned_digest(saved: Path, tmp_path: Path) -> None:
    digest = hashlib.sha256(saved.read_bytes()).hexdigest()
    assert load_in_both(saved, sha256=digest).plan == load_in_both(saved).plan
    assert load_in_both(saved, sha256=digest.upper()).path == saved
    other = crafted(saved, tmp_path / "other.tar", kernels__so=b"other code")
    load_in_both(other)  # The file is valid, but has another digest than `saved`.
    with pytest.raises(ArtifactError, match=f"other.tar`: its SHA-256 is .*, not {digest}"):
        load_in_both(other, sha256=digest)
    longer = tmp_path / "longer.tar"
    longer.write_bytes(saved.read_bytes() + b"more")
    with pytest.raises(ArtifactError, match="its SHA-256 is"):
        load_in_both(longer, sha256=digest)
    with pytest.raises(ArtifactError, match="its SHA-256 is"):
        load_in_both(saved, sha256="")


def test_a_folder_that_nothing_may_run_from(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = load_in_both(saved)

    def refuse(path: object) -> None:
        raise RuntimeError("failed to map segment from shared object")

    monkeypatch.setattr("tvm_interop._native.kernels.load_kernels", refuse)
    with pytest.raises(ArtifactError, match="do not load here: failed to map"):
        artifact.load_kernels()
    flags = os.statvfs_result((0,) * 8 + (os.ST_NOEXEC, 255))
    monkeypatch.setattr("os.statvfs", lambda path: flags)
    with pytest.raises(DeviceError, match=r"mounted `noexec`; set TMPDIR"):
        artifact.load_kernels()


def test_no_folder_for_temporary_files(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = load_in_both(saved)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    with pytest.raises(DeviceError, match=r"cannot be written to the folder.*set TMPDIR"):
        artifact.load_kernels()
