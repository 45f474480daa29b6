"""Tests the linker of kernels: it is checked before anything is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import tvm

import tvm_interop
from tests.nets import chain
from tvm_interop import tvmc
from tvm_interop.cli.app import run_app
from tvm_interop.errors import DeviceError
from tvm_interop.kernels.linker import Linker, find_linker


def compiler(folder: Path, name: str, triple: str) -> str:
    """Write a fake compiler that reports the target `triple` and fails with 100 error lines."""
    path = folder / name
    path.write_text(
        f'#!/bin/sh\n[ "$*" = -dumpmachine ] && echo {triple} && exit\n'
        'for i in $(seq 100); do echo "error: relocation $i"; done\nexit 1\n'
    )
    path.chmod(0o755)
    return str(path)


class Told:
    """A progress function that notes the steps of the compilation."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, stages_done: int, stages_total: int) -> None: ...

    def say(self, what: str) -> None:
        self.said.append(what)


def refused(**options: object) -> str:
    """The error of a compilation that is refused before its first step."""
    told = Told()
    with pytest.raises(DeviceError) as error:
        tvm_interop.compile(
            chain(), scheduler="sequential", latency_db=":memory:", progress=told, **options
        )
    assert told.said == []
    return str(error.value)


def test_a_missing_compiler_is_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "no compiler `no-such-g++`" in refused(cross_compiler="no-such-g++")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no C++ compiler is called `no-such-compiler`" in refused()
    monkeypatch.delenv("CXX")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C++ compiler was found" in refused()


def test_a_compiler_for_another_cpu_is_said_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = tvm.target.Target("llvm").attrs["mtriple"].partition("-")[0]
    other = "aarch64" if here == "x86_64" else "x86_64"
    triple = f"llvm -mtriple={other}-linux-gnu"
    said = refused(target=triple)
    assert f"the target is for {other}, and `" in said
    assert "--cross-compiler" in said
    assert f"`{other}-linux-gnu-g++`" in said
    monkeypatch.setenv("CXX", compiler(tmp_path, "other-g++", f"{other}-linux-gnu"))
    assert f"the target is for {here}" in refused()
    target = tvm.target.Target({"kind": "llvm", "mtriple": f"{other}-linux-gnu"})
    assert find_linker(target).command == str(tmp_path / "other-g++")


def test_names_of_one_architecture(tmp_path: Path) -> None:
    named = compiler(tmp_path, "arm-g++", "arm64-apple-darwin")
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})
    assert find_linker(target, f"{named}") == Linker(named)


def test_a_linker_that_fails_says_little(tmp_path: Path) -> None:
    named = compiler(tmp_path, "broken-g++", "x86_64-linux-gnu")
    with pytest.raises(DeviceError, match=r"linking the kernels with `.*broken-g") as error:
        Linker(named).link([], tmp_path / "kernels.so")
    assert "error: relocation 1\n" in str(error.value)
    assert len(str(error.value).splitlines()) <= 3


def test_the_compiler_that_is_named_links(tmp_path: Path) -> None:
    log = tmp_path / "log"
    mine = tmp_path / "mine-g++"
    mine.write_text(f'#!/bin/sh\necho "$*" >> {log}\nexec g++ "$@"\n')
    mine.chmod(0o755)
    tvm_interop.compile(
        chain(), scheduler="sequential", latency_db=":memory:", cross_compiler=f"{mine} -O1"
    )
    assert "-shared" in log.read_text()
    assert "-O1" in log.read_text()


def test_the_command_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["squeezenet", "-o", str(tmp_path / "m.tar"), "--cross-compiler", "no-such-g++"]
    assert run_app(["compile", *arguments]) == 2
    assert "no compiler `no-such-g++`" in capsys.readouterr().err
    words = tvmc.translate(["compile", *arguments, "--cross-compiler-options=-O2 -s"])
    assert words[words.index("--cross-compiler") + 1] == "no-such-g++ -O2 -s"
