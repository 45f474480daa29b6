"""Loads a shared library of compiled TVM kernels into this process."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import tvm_ffi

from ..errors import DeviceError
from ..scratch import scratch_folder
from .cpu import take_over_parallel_loops
from .tvm_runtime import load_tvm_runtime


def load_kernels(path: str | os.PathLike[str]) -> Any:
    """Load the library of TVM's kernels at `path`; afterwards the file may be deleted.

    The library is unloaded when its last kernel is freed. By default, TVM would keep it until the
    process ends.
    """
    load_tvm_runtime()
    library = tvm_ffi.load_module(str(path), keep_module_alive=False)
    take_over_parallel_loops(str(path))
    return library


def load_kernels_from(code: bytes) -> Any:
    """Load a library of TVM's kernels from `code`, the content of its file.

    Raises
    ------
    DeviceError
        No file can be written to the folder for temporary files, or the folder's file system is
        mounted `noexec`.
    """
    # The system loads libraries only from files. Once the library is in memory, the file may be
    # deleted.
    try:
        with scratch_folder() as folder:
            library = folder / "kernels.so"
            library.write_bytes(code)
            try:
                return load_kernels(library)
            except Exception as error:
                if not os.statvfs(folder).f_flag & os.ST_NOEXEC:
                    raise
                raise DeviceError(
                    "no library can be loaded from the folder for temporary files, "
                    f"`{tempfile.gettempdir()}`: its file system is mounted `noexec`; set TMPDIR "
                    "to a folder on another file system"
                ) from error
    except OSError as error:
        raise DeviceError(
            f"the kernels cannot be written to the folder for temporary files: {error}; set TMPDIR "
            "to another folder"
        ) from error
