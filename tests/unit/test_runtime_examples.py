"""The programs in `examples/` are built against the installed files, and run a model."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import nets
from tests.native_runtime import library_path
from tests.unit.test_runtime_library import by_tvm_ffi, saved
from tvm_interop._native.runtime_files import runtime_file
from tvm_interop.machine.library_files import ONEDNN

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: object, **options: Any) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package's folder as a wheel installs it, with the files for C and C++."""
    if not (library_path().parent / "cmake_install.cmake").exists():
        return runtime_file("cmake").parents[1]
    folder = tmp_path_factory.mktemp("installed")
    run(BIN / "cmake", "--install", library_path().parent, "--prefix", folder)
    return folder / "tvm_interop"


@pytest.fixture(scope="module")
def examples(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    run(
        BIN / "cmake", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}",
        f"-Dtvm_interop_DIR={installed / 'cmake'}", "-DCMAKE_C_FLAGS=-Wall -Wextra -Werror",
        "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror", "-S", ROOT / "examples", "-B", folder,
    )  # fmt: skip
    run(BIN / "cmake", "--build", folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(nets.inception_like(), tmp_path_factory.mktemp("model") / "model.tar")


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | {"TVM_INTEROP_ONEDNN_LIBRARY": ONEDNN.find()}


def test_in_c(examples: Path, model: Path, environment: dict[str, str], tmp_path: Path) -> None:
    feeds = nets.feeds(nets.inception_like())
    files = []
    for i, array in enumerate(feeds.values()):
        files.append(tmp_path / f"input{i}.bin")
        array.tofile(files[-1])
    said = run(examples / "run_model", model, *files, cwd=tmp_path, env=environment)
    (expected,) = by_tvm_ffi(model, feeds)
    assert f"{expected.nbytes} bytes, shape ({', '.join(map(str, expected.shape))})" in said
    made = np.fromfile(tmp_path / "output0.bin", expected.dtype).reshape(expected.shape)
    assert made.tobytes() == expected.tobytes()


def test_in_c_a_wrong_file_is_named(examples: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [examples / "run_model", tmp_path / "none.tar"], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f"run_model: `{tmp_path / 'none.tar'}`: it cannot be read" in done.stderr


def test_in_cpp_with_many_threads(examples: Path, model: Path, environment: dict[str, str]) -> None:
    said = run(examples / "many_threads", model, 4, 30, env=environment)
    assert "all outputs are equal" in said


def test_in_cpp_on_the_programs_threads(
    examples: Path, model: Path, environment: dict[str, str]
) -> None:
    for threads in (0, 1, 3):
        said = run(examples / "own_pool", model, threads, 30, env=environment)
        assert f"runs a second with {threads} threads of the pool" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root of the file system")
def test_a_container_needs_no_other_files(examples: Path, model: Path, tmp_path: Path) -> None:
    """The folder that `container.sh` makes is the whole file system of the program."""
    root = tmp_path / "root"
    path = f"{BIN}:{os.environ['PATH']}"
    script = ROOT / "examples" / "container.sh"
    run("sh", script, examples / "run_model", model, root, env=os.environ | {"PATH": path})
    command = ["--fork", "--pid", f"--root={root}", "--mount-proc", "/app/program"]
    done = subprocess.run(
        [shutil.which("unshare") or "unshare", *command, "/app/model.tar"],
        capture_output=True, text=True, env={},
    )  # fmt: skip
    if "Operation not permitted" in done.stderr:
        pytest.skip("this process may not make a namespace")
    assert done.returncode == 0, done.stderr
    assert not done.stderr  # The program would warn if oneDNN were missing.
    feeds = {name: np.zeros_like(x) for name, x in nets.feeds(nets.inception_like()).items()}
    (expected,) = by_tvm_ffi(model, feeds)
    assert (root / "output0.bin").read_bytes() == expected.tobytes()
    assert sum(file.stat().st_size for file in root.rglob("*") if file.is_file()) < 100e6
    check_listing(root)


def check_listing(root: Path) -> None:
    """Check that the listing in docs/deploy.rst has a container's files and their sizes.

    The size of the model does not matter, because the page lists another model. The size of the
    system's libraries may differ a little between machines, and sizes by 2% between compilers.
    """
    page = (ROOT / "docs" / "deploy.rst").read_text()
    listed = re.findall(r"^   (\S.*?)  +(<?\d+) MB    ", page, re.MULTILINE)
    sizes = {str(file.relative_to(root)): file.stat().st_size for file in (root / "app").iterdir()}
    *ours, (system, system_said) = listed
    assert dict(ours).keys() == sizes.keys()
    for path, said in ours:
        near = (sizes[path] * factor for factor in (0.98, 1.0, 1.02))
        rounded = {"<1" if size < 1e6 else str(round(size / 1e6)) for size in near}
        assert path == "app/model.tar" or said in rounded, path
    assert system == "lib/, lib64/"
    libraries = [
        file for file in root.rglob("*.so*") if file.is_file() and file.parent.name != "app"
    ]
    assert sum(file.stat().st_size for file in libraries) / 1e6 == pytest.approx(
        int(system_said), abs=2
    )
    total = sum(int(said) for _, said in listed if said != "<1")
    assert f"the folder takes {total} MB::" in page


def test_a_container_without_its_parts_is_refused(tmp_path: Path) -> None:
    script = ROOT / "examples" / "container.sh"
    done = subprocess.run(["sh", script, "program"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "usage: sh container.sh PROGRAM MODEL.tar FOLDER" in done.stderr


def test_pkg_config(installed: Path, model: Path, tmp_path: Path) -> None:
    """A program can be built and run with only the options that `tvm_interop.pc` gives."""
    if shutil.which("pkg-config") is None:
        pytest.skip("there is no pkg-config")
    environment = os.environ | {"PKG_CONFIG_PATH": str(installed / "pkgconfig")}
    flags = run("pkg-config", "--cflags", "--libs", "tvm_interop", env=environment).split()
    program = tmp_path / "program"
    run("cc", ROOT / "examples" / "run_model.c", "-o", program, *flags)
    said = run(program, model, cwd=tmp_path)
    assert "output" in said


def test_config_names_what_is_installed(installed: Path) -> None:
    """In a wheel and in an editable install, `tvm-interop config` names the same files."""
    for option, path in {
        "--cmakedir": "cmake", "--includedir": "include", "--pkgconfigdir": "pkgconfig",
        "--library": "libtvm_interop_runtime.so.1", "--onednn": Path(ONEDNN.find()).name,
    }.items():  # fmt: skip
        assert option == "--onednn" or (installed / path).exists()
        said = run(BIN / "tvm-interop", "config", option)
        assert Path(said.strip()).name == path
        assert Path(said.strip()).exists()
