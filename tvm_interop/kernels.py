"""Compiles the kernels of a program, and says what they are."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm.support import cc

from .errors import DeviceError

Target: TypeAlias = "tvm.target.Target | str | dict[str, Any]"


def build_kernels(kernels: tvm.IRModule, target: Target, out_path: str | os.PathLike[str]) -> Path:
    """Compile `kernels` to the shared library `out_path`.

    `tvm.runtime.load_module` opens it and gives every kernel by name, to be called with its
    tensors, outputs last. The file appears complete or not at all.

    Raises
    ------
    DeviceError
        There is no C++ compiler to link with, or TVM cannot compile for `target`.
    """
    _require_compiler()
    out = Path(out_path)
    try:
        compiled = tvm.compile(kernels, target=tvm.target.Target(target))
    except Exception as err:
        raise DeviceError(f"TVM cannot compile the kernels for `{target}`: {err}") from err
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        library = Path(scratch) / "kernels.so"
        try:
            compiled.export_library(str(library))
        except RuntimeError as err:
            raise DeviceError(f"linking `{out}` failed: {err}") from err
        os.replace(library, out)
    return out


def kernel_hashes(kernels: tvm.IRModule) -> dict[str, str]:
    """A hash of what each kernel computes, by name, the same in every process.

    It leaves out the kernel's own name and the names of its variables, so that equal kernels
    of different models share one.
    """
    return {
        name: f"{tvm_ffi.structural_hash(func.without_attr('global_symbol')) % 2**64:016x}"
        for name, func in _functions(kernels)
    }


def uses_parallel_loops(kernels: tvm.IRModule) -> dict[str, bool]:
    """Whether each kernel, by name, runs a loop on TVM's thread pool."""
    return {name: _has_parallel_loop(func) for name, func in _functions(kernels)}


def _functions(kernels: tvm.IRModule) -> list[tuple[str, tirx.PrimFunc]]:
    return [(var.name_hint, func) for var, func in kernels.functions_items()]


def _has_parallel_loop(func: tirx.PrimFunc) -> bool:
    kinds = set()
    tvm_ffi.structural_walk(func.body, (tirx.For, lambda loop: kinds.add(loop.kind)))
    return tirx.ForKind.PARALLEL in kinds


def _require_compiler() -> None:
    compiler = cc.get_cc()
    if compiler is None or shutil.which(compiler) is None:
        found = "was found" if compiler is None else f"is called `{compiler}`"
        raise DeviceError(
            f"no C++ compiler {found} to link the kernels with: install one (`apt install g++`, "
            "`dnf install gcc-c++`) or name it in the environment variable CXX"
        )
