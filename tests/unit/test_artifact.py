"""The artifact: one file, checked whole."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.nets import two_inputs
from tvm_interop import ArtifactError, GraphModule, InputError
from tvm_interop.kernel_libraries import why_missing

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
    artifact = tvm_interop.load(saved)
    again = tvm_interop.load(saved)
    assert artifact.plan == again.plan
    assert artifact.schedule == again.schedule
    assert artifact.schedule.scheduler == "lios"
    assert (
        artifact.manifest.target.startswith('{"kind": "llvm"') or "llvm" in artifact.manifest.target
    )
    module = GraphModule(artifact)
    module.run(image=np.ones((1, 4, 2, 2), "float32"), vector=np.ones((1, 6), "float32"))
    assert np.isfinite(module.get_output(0).numpy()).all()


MEMBERS = {"manifest.json", "plan.json", "schedule.json", "kernels.so", "weights.npz"}


def test_members(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    tvm_interop.compile(two_inputs(), scheduler="lios", out=path, providers=["tvm"])
    assert set(members(path)) == MEMBERS
    assert tvm_interop.load(path).fallback is None


@needs_onednn
def test_an_artifact_that_needs_a_library_has_a_plan_without(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    artifact = tvm_interop.compile(two_inputs(), "llvm", "lios", path, providers=["onednn"])
    assert set(members(path)) == {*MEMBERS, "fallback.json"}
    assert any(op.library == "onednn" for op in artifact.plan.operators)
    loaded = tvm_interop.load(path)
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
    module = GraphModule(tvm_interop.load(path))
    module.run(**feeds)
    monkeypatch.setattr("tvm_interop.artifact.library_version", lambda name: None)
    monkeypatch.setattr("tvm_interop.artifact.why_missing", lambda name: "nobody installed it")
    artifact = tvm_interop.load(path)
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
        tvm_interop.load(write(tmp_path / "damaged.tar", broken))
    del contents["fallback.json"]
    with pytest.raises(ArtifactError, match=r"`fallback\.json` is missing"):
        tvm_interop.load(write(tmp_path / "lacking.tar", contents))


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.9, 0.97])
def test_truncated(saved: Path, tmp_path: Path, keep: float) -> None:
    data = saved.read_bytes()
    cut = tmp_path / "cut.tar"
    cut.write_bytes(data[: int(len(data.rstrip(b"\0")) * keep)])
    with pytest.raises(ArtifactError, match=r"cut\.tar"):
        tvm_interop.load(cut)


@pytest.mark.parametrize("name", ["plan.json", "schedule.json", "kernels.so", "weights.npz"])
def test_a_damaged_or_missing_member_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    contents = members(saved)
    flipped = bytearray(contents[name])
    flipped[len(flipped) // 2] ^= 1
    path = write(tmp_path / "damaged.tar", {**contents, name: bytes(flipped)})
    with pytest.raises(ArtifactError, match=f"`{name}` is damaged"):
        tvm_interop.load(path)
    path = write(tmp_path / "lacking.tar", {k: v for k, v in contents.items() if k != name})
    with pytest.raises(ArtifactError, match=f"`{name}` is missing"):
        tvm_interop.load(path)


def test_foreign_files(saved: Path, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not an artifact")
    with pytest.raises(ArtifactError, match="no artifact"):
        tvm_interop.load(text)
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        tvm_interop.load(write(tmp_path / "other.tar", {"data.bin": b"1234"}))
    with pytest.raises(ArtifactError, match="is no file"):
        tvm_interop.load(tmp_path / "nowhere.tar")
    with pytest.raises(ArtifactError, match="is no file"):
        tvm_interop.load(tmp_path)


def test_newer_and_unknown_manifests(saved: Path, tmp_path: Path) -> None:
    contents = members(saved)
    manifest = json.loads(contents["manifest.json"])
    newer = json.dumps({**manifest, "version": 2, "new_field": 1}).encode()
    with pytest.raises(ArtifactError, match=r"version 2.*upgrade"):
        tvm_interop.load(write(tmp_path / "newer.tar", {**contents, "manifest.json": newer}))
    unknown = json.dumps({**manifest, "colour": "red"}).encode()
    with pytest.raises(ArtifactError, match="colour"):
        tvm_interop.load(write(tmp_path / "odd.tar", {**contents, "manifest.json": unknown}))
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        tvm_interop.load(write(tmp_path / "list.tar", {**contents, "manifest.json": b"[]"}))


def test_saving_fails_whole(saved: Path, tmp_path: Path) -> None:
    artifact = tvm_interop.load(saved)
    with pytest.raises(InputError, match=r"no folder.*nowhere"):
        artifact.save(tmp_path / "nowhere" / "model.tar")
    target = tmp_path / "model.tar"
    target.write_bytes(b"an older file")
    artifact.weights = {0: object()}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="allow_pickle"):
        artifact.save(target)
    assert target.read_bytes() == b"an older file"
    assert [p.name for p in tmp_path.iterdir()] == ["model.tar"]
