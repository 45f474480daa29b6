"""Finds and loads the native library, once, before anything asks for its functions."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from .. import errors
from ..ownership import TRUSTED_FOLDERS, why_not_trusted

OVERRIDE = "TVM_INTEROP_LIBRARY"


def _path() -> Path:
    """Where `libtvm_interop.so` lies.

    The environment variable `TVM_INTEROP_LIBRARY` names another build of it (a sanitizer
    build, say), which must not be another user's. Without it the installed distribution's own
    is taken: in an editable install the library does not lie beside this file.
    """
    override = os.environ.get(OVERRIDE)
    if override:
        reason = why_not_trusted(override)
        if reason is not None:
            raise errors.ExecutionError(
                f"{reason}, so the library that {OVERRIDE} names is not loaded; if you trust the "
                f"users who may write there, name the library's folder in {TRUSTED_FOLDERS}"
            )
        return Path(override)
    return Path(load_lib_ctypes("tvm-interop", "tvm_interop", "RTLD_LOCAL")._name)


# What the library raises; the others are raised in Python alone.
tvm_ffi.register_error("InterOpScheduleError", errors.ScheduleError)  # TVM has a `ScheduleError`.
for _error in (
    errors.UnsupportedModelError,
    errors.GraphError,
    errors.LatencyError,
    errors.PlanError,
    errors.ArtifactError,
    errors.DeviceError,
    errors.InputError,
    errors.ExecutionError,
):
    tvm_ffi.register_error(_error.__name__, _error)

LIBRARY_PATH = _path()
"""The file of the library that is loaded."""
LIBRARY = tvm_ffi.load_module(LIBRARY_PATH)
"""Its functions have registered themselves under `tvm_interop.*`."""


@functools.cache
def native_function(group: str, name: str) -> Any:
    """The library's function `name` of a group, such as `runtime` or `cuda`."""
    return tvm_ffi.get_global_func(f"tvm_interop.{group}.{name}")


class OperatorTiming(NamedTuple):
    """When one operator ran, in microseconds since the run began.

    Attributes
    ----------
    op, stream: indices into the plan's.
    thread: on a CPU, the thread that ran it: 0 for the one that called, or a helper's number.
    on_core_us: on a CPU, for how long of the time from start to end that thread had a core.
    """

    op: int
    stream: int
    start_us: float
    end_us: float
    thread: int | None = None
    on_core_us: float | None = None


def cpu_timings(flat: Iterable[Any]) -> list[OperatorTiming]:
    """Of a CPU's: six numbers an operator in a row, in nanoseconds."""
    return [
        OperatorTiming(int(op), int(stream), start / 1e3, end / 1e3, int(thread), on_core / 1e3)
        for op, stream, start, end, thread, on_core in zip(*[iter(flat)] * 6, strict=True)
    ]


def gpu_timings(flat: Iterable[Any]) -> list[OperatorTiming]:
    """Of a GPU's: four numbers an operator in a row, in nanoseconds."""
    return [
        OperatorTiming(int(op), int(stream), start / 1e3, end / 1e3)
        for op, stream, start, end in zip(*[iter(flat)] * 4, strict=True)
    ]
