"""Finds the files for programs in C and C++: the runtime library, its headers, its CMake files."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from .library_path import installed_file

RuntimeFile = Literal["library", "header", "cmake", "pkgconfig"]
_FILES: dict[RuntimeFile, str] = {
    "library": "tvm_interop/libtvm_interop_runtime.so.1",
    "header": "tvm_interop/include/tvm_interop/runtime.h",
    "cmake": "tvm_interop/cmake/tvm_interopConfig.cmake",
    "pkgconfig": "tvm_interop/pkgconfig/tvm_interop.pc",
}


def runtime_file(kind: RuntimeFile) -> Path:
    """Return the path of an installed file of the runtime library.

    In an editable install, the runtime library's files are not in the folder of this module.

    Raises
    ------
    DeviceError
        The file is not installed.
    """
    return installed_file(_FILES[kind])
