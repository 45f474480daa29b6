"""Finds the native library, without loading it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from .. import errors
from ..ownership import TRUSTED_FOLDERS, why_not_trusted

OVERRIDE = "TVM_INTEROP_LIBRARY"
_NAME = "libtvm_interop.so"


def library_path() -> Path:
    """Return the path of `libtvm_interop.so`.

    The environment variable `TVM_INTEROP_LIBRARY` can name another build of the library, such as a
    sanitizer build. The named file must not belong to another user. Without the variable, the
    library of the installed distribution is taken. In an editable install, the library is not in
    the folder of this file.

    Raises
    ------
    DeviceError
        The library is not installed, or there is no file that `TVM_INTEROP_LIBRARY` names.
    ExecutionError
        Another user can change the file that `TVM_INTEROP_LIBRARY` names.
    """
    override = os.environ.get(OVERRIDE)
    if override:
        reason = why_not_trusted(override)
        if reason is not None:
            raise errors.ExecutionError(
                f"{reason}, so the library that {OVERRIDE} names is not loaded; if you trust the "
                f"users who may write there, name the library's folder in {TRUSTED_FOLDERS}"
            )
        if not Path(override).is_file():
            raise errors.DeviceError(
                f"there is no file `{override}`, which {OVERRIDE} names: correct the variable, or "
                "unset it"
            )
        return Path(override)
    return installed_file(f"tvm_interop/{_NAME}")


def runtime_library_path() -> Path:
    """Return the path of the library with the C interface.

    `libtvm_interop.so` contains the C interface too. If this library is installed, its path is
    returned. Then a process that also compiles models has only one pool of threads.

    Raises
    ------
    DeviceError, ExecutionError
        The same cases as for `library_path`.
    """
    alone = Path(__file__).parents[1] / "libtvm_interop_runtime.so.1"
    is_alone = alone.is_file() and not alone.with_name(_NAME).is_file()
    return alone if is_alone and not os.environ.get(OVERRIDE) else library_path()


def installed_file(name: str) -> Path:
    """Return the path of an installed file of this package, by its name in the wheel.

    Raises
    ------
    DeviceError
        The file is not installed.
    """
    beside = Path(__file__).parents[2] / name
    if beside.is_file():
        return beside
    import importlib.metadata

    for distribution in ("tvm-interop", "tvm-interop-runtime"):
        try:
            files = importlib.metadata.files(distribution) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            path = Path(str(file.locate()))
            if str(file) == name and path.is_file():
                return path
    raise errors.DeviceError(f"`{name}` is not installed: install `tvm-interop` again")


def tvm_ffi_path() -> Path | None:
    """Return the path of `libtvm_ffi.so`, which the native library needs; None if it is missing.

    tvm-ffi itself is not imported, because its import also imports PyTorch, if PyTorch is
    installed.
    """
    package = importlib.util.find_spec("tvm_ffi")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "lib" / "libtvm_ffi.so"
    return path if path.is_file() else None
