"""Finds the C++ compiler that links kernels, and checks it before anything is compiled."""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from tvm.support import cc

from ..errors import DeviceError

_ALIKE = {"amd64": "x86_64", "arm64": "aarch64"}
"""Other names of architectures, each with the name that a target triple uses."""
_ANSWERS_IN_S = 10.0
"""The time limit for a compiler to name its architecture, in seconds."""
_LINES = 3
"""Number of lines of a linker's output that an error message quotes."""


class Linker(NamedTuple):
    """A C++ compiler and its options."""

    command: str
    options: tuple[str, ...] = ()

    def link(self, objects: list[str], library: Path) -> None:
        """Link object files into a shared library.

        Raises
        ------
        DeviceError
            The compiler fails.
        """
        try:
            cc.create_shared(str(library), objects, [*self.options], self.command)
        except (OSError, RuntimeError) as error:
            said = [line for line in str(error).splitlines() if line.strip()]
            raise DeviceError(
                f"linking the kernels with `{self.command}` failed: "
                + "\n".join(said[1 : 1 + _LINES] or said)
            ) from error


def find_linker(target: Any = None, named: str | None = None) -> Linker:
    """The compiler to link kernels with.

    If `named` is None, the environment variable `CXX` names the compiler. If the variable is not
    set, the system's compiler is used.

    Parameters
    ----------
    target: TVM's target for a CPU; None if the kernels are for this machine.
    named: a cross compiler, perhaps with options, such as `aarch64-linux-gnu-g++ -O2`.

    Raises
    ------
    DeviceError
        The compiler does not exist, or it links for another architecture than the target's.
    """
    words = shlex.split(named if named is not None else cc.get_cc() or "")
    if not words or shutil.which(words[0]) is None:
        if named is not None:
            raise DeviceError(f"there is no compiler `{named}` to link the kernels with: check "
                              "`cross_compiler`")  # fmt: skip
        found = f"is called `{words[0]}`" if words else "was found"
        raise DeviceError(
            f"no C++ compiler {found} to link the kernels with: install one (`apt install g++`, "
            "`dnf install gcc-c++`) or name it in the environment variable CXX"
        )
    linker = Linker(words[0], tuple(words[1:]))
    wanted = _architecture_of(target)
    made = _links_for(linker, shutil.which(words[0])) if wanted else ""
    if made and wanted != made:
        raise DeviceError(
            f"the target is for {wanted}, and `{linker.command}` links for {made}: name a compiler "
            f"for {wanted} with --cross-compiler (`cross_compiler` of `compile`), such as "
            f"`{wanted}-linux-gnu-g++`"
        )
    return linker


def _architecture_of(target: Any) -> str:
    """The architecture in a target's triple; "" if the target has no triple."""
    return "" if target is None else _architecture(str(target.attrs.get("mtriple", "")))


def _architecture(triple: str) -> str:
    name = triple.partition("-")[0]
    return _ALIKE.get(name, name)


@functools.cache
def _links_for(linker: Linker, path: str | None) -> str:
    """The architecture that a compiler links for; "" if the compiler does not name it.

    Parameters
    ----------
    path: the compiler's file, used only as the key of a cache, so that each process asks a compiler
        once.
    """
    try:
        told = subprocess.run(
            [linker.command, *linker.options, "-dumpmachine"],
            capture_output=True, text=True, timeout=_ANSWERS_IN_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    triple = told.stdout.strip()
    return _architecture(triple) if told.returncode == 0 and "-" in triple else ""
