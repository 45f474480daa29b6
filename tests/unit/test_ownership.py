"""Tests that code, latencies and records are read only from files of the same user."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_interop.cli.app import run_app
from tvm_interop.measure.kept_files import KeptFiles
from tvm_interop.measure.store import open_store
from tvm_interop.ownership import TRUSTED_FOLDERS, why_not_trusted

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


def kept_in(folder: Path) -> KeptFiles:
    """A folder of kept files, with some machine code in it."""
    KeptFiles(folder).put("kernels", "a", b"code")
    assert KeptFiles(folder).get("kernels", "a") == b"code"
    return KeptFiles(folder)


@needs_root
def test_code_in_the_folder_of_another_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = kept_in(tmp_path / "kept")
    os.chown(tmp_path / "kept", NOBODY, NOBODY)
    with caplog.at_level(logging.WARNING):
        assert kept.get("kernels", "a") is None
        kept.put("kernels", "b", b"other code")
        assert kept.get("kernels", "b") is None
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert caplog.text.count("nothing is written to or read from") == 1
    assert f"`{tmp_path}/kept` belongs to user" in caplog.text
    assert TRUSTED_FOLDERS in caplog.text


@needs_root
def test_a_file_of_another_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = kept_in(tmp_path / "kept")
    (file,) = (tmp_path / "kept").iterdir()
    os.chown(file, NOBODY, NOBODY)
    with caplog.at_level(logging.WARNING):
        assert kept.get("kernels", "a") is None
    assert f"`{file}` is not used: it belongs to user" in caplog.text


@pytest.mark.parametrize("where", ["kept", "."])
@pytest.mark.parametrize("mode", [0o777, 0o702])
def test_what_others_may_write_to_is_not_used(tmp_path: Path, where: str, mode: int) -> None:
    (above := tmp_path / "above").mkdir()
    kept = kept_in(above / "kept")
    (above / where).chmod(mode)
    assert kept.get("kernels", "a") is None


def test_a_group_that_others_are_in_counts_as_others(tmp_path: Path) -> None:
    kept = kept_in(tmp_path / "kept")
    others = next(group for group in range(60000, 65000) if group not in os.getgroups())
    if os.geteuid() != 0:
        pytest.skip("only root can give files to such a group")
    os.chown(tmp_path / "kept", 0, others)
    (tmp_path / "kept").chmod(0o770)
    assert kept.get("kernels", "a") is None


def test_a_folder_for_temporary_files_above_it_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    assert kept_in(tmp_path / "tmp" / "kept").get("kernels", "a") == b"code"


def test_shared_folders_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shared := tmp_path / "shared").mkdir()
    kept = kept_in(shared / "kept")
    shared.chmod(0o777)
    assert why_not_trusted(shared / "kept") is not None
    monkeypatch.setenv(TRUSTED_FOLDERS, f"/nowhere{os.pathsep}{shared}")
    assert why_not_trusted(shared / "kept") is None
    assert kept.get("kernels", "a") == b"code"


def test_links_are_followed(tmp_path: Path) -> None:
    (open_to_all := tmp_path / "open").mkdir()
    open_to_all.chmod(0o777)
    (tmp_path / "link").symlink_to(open_to_all)
    assert "`chmod o-w` it" in str(why_not_trusted(tmp_path / "link" / "kept"))


@needs_root
def test_prices_of_another_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("TVM_INTEROP_LATENCY_DB", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert open_store().path == str(tmp_path / "tvm_interop" / "latency.db")
    os.chown(tmp_path / "tvm_interop" / "latency.db", NOBODY, NOBODY)
    with caplog.at_level(logging.WARNING):
        assert open_store().path == ":memory:"
    assert "belongs to user" in caplog.text


@needs_root
def test_a_folder_that_another_has_made_meanwhile_is_not_used(tmp_path: Path) -> None:
    """Another user makes the folder after the check found that it did not exist."""
    kept = KeptFiles(tmp_path / "kept")
    assert kept.get("kernels", "a") is None
    (tmp_path / "kept").mkdir()
    os.chown(tmp_path / "kept", NOBODY, NOBODY)
    kept.put("kernels", "a", b"code")
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_file_with_the_name_of_another_is_not_what_was_asked_for(tmp_path: Path) -> None:
    kept = kept_in(tmp_path / "kept")
    (file,) = (tmp_path / "kept").iterdir()
    kept.put("kernels", "b", b"other code")
    (other,) = set((tmp_path / "kept").iterdir()) - {file}
    file.rename(other)
    assert kept.get("kernels", "b") is None


def test_folders_that_are_made_are_for_their_owner_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        kept_in(tmp_path / "new" / "below" / "kept")
    finally:
        os.umask(before)
    for folder in ("new", "new/below", "new/below/kept"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700


@needs_root
def test_a_native_library_of_another_is_not_loaded(tmp_path: Path) -> None:
    library = tmp_path / "libtvm_interop.so"
    library.write_bytes(b"no code at all")
    os.chown(library, NOBODY, NOBODY)
    command = [sys.executable, "-c", "import tvm_interop; tvm_interop.num_threads()"]
    environment = {**os.environ, "TVM_INTEROP_LIBRARY": str(library)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"`{library}` belongs to user" in done.stderr
    assert "is not loaded" in done.stderr
    assert TRUSTED_FOLDERS in done.stderr


@needs_root
def test_tuning_records_of_another_are_not_found_by_chance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tuning_records").mkdir()
    os.chown(tmp_path / "tuning_records", NOBODY, NOBODY)
    monkeypatch.chdir(tmp_path)
    assert run_app(["tune", "squeezenet", "--kernels", "--max-trials", "0"]) == 2
    assert "belongs to user" in capsys.readouterr().err
    assert not os.listdir(tmp_path / "tuning_records")
