"""Loads TVM's runtime library, which kernels call, without importing TVM's Python package.

TVM's Python package is not imported, because the import takes about a second.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from tvm_ffi.libinfo import load_lib_ctypes

from ..errors import DeviceError


@functools.cache
def load_tvm_runtime() -> None:
    """Load `libtvm_runtime.so` as TVM itself does, unless TVM is already imported.

    Compiled kernels get memory and global functions from `libtvm_runtime.so`. If TVM is imported
    later, it uses the library that is loaded already.

    Raises
    ------
    DeviceError
        TVM is not installed, or its library does not load.
    """
    if "tvm" in sys.modules:
        return
    package = importlib.util.find_spec("tvm")
    if package is None or package.origin is None:
        raise DeviceError(
            "TVM is not installed, and kernels need its runtime: install `apache-tvm`"
        )
    home = Path(package.origin).parent
    folders = [home / "lib", home.parent.parent / "build" / "lib", home.parent.parent / "lib"]
    override = os.environ.get("TVM_LIBRARY_PATH")
    if override:
        folders.insert(0, Path(override))
    try:
        load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders)
    except (OSError, RuntimeError) as error:
        raise DeviceError(f"TVM's runtime does not load: {error}; install it again") from error


def tvm_version() -> str:
    """Return the version of TVM.

    The version is read from the installed package `apache-tvm`. Only if this package is missing,
    for example because TVM was built from source, TVM is imported to ask for its version.
    """
    try:
        return importlib.metadata.version("apache-tvm")
    except importlib.metadata.PackageNotFoundError:
        import tvm

        return str(tvm.__version__)
