"""Finds the native library and loads it when this module is imported."""

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
    """Return the path of `libtvm_interop.so`.

    The environment variable `TVM_INTEROP_LIBRARY` can name another build of the library, such as a
    sanitizer build. That file must not belong to another user. Without the variable, the library of
    the installed distribution is taken. In an editable install this library is not in the folder of
    this Python file.
    """
    override = os.environ.get(OVERRIDE)
    if override:
        reason = why_not_trusted(override)
        if reason is not None:
            raise errors.ExecutionError(
                f"{reason}, so the library that {OVERRIDE} names is not loaded; if you trust those "
                f"who may write there, name its folder in {TRUSTED_FOLDERS}"
            )
        return Path(override)
    return Path(load_lib_ctypes("tvm-interop", "tvm_interop", "RTLD_LOCAL")._name)


# The library raises these errors. Only Python raises the other errors of the module `errors`.
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
"""The path of the loaded library."""
LIBRARY = tvm_ffi.load_module(LIBRARY_PATH)
"""The loaded library. Its functions are registered with tvm-ffi under `tvm_interop.*`."""


@functools.cache
def native_function(group: str, name: str) -> Any:
    """Return the library's function `name` of a group, such as `runtime` or `cuda`."""
    return tvm_ffi.get_global_func(f"tvm_interop.{group}.{name}")


class OperatorTiming(NamedTuple):
    """When one operator ran, in microseconds since the run began.

    Attributes
    ----------
    op, stream: indices of the operator and of its stream in the plan.
    start_us, end_us: when the operator started and when it ended.
    thread: on a CPU, the thread that ran it: 0 for the thread that called `run`, else the number of
        a helper thread.
    on_core_us: on a CPU, for how long that thread had a core between start and end.
    """

    op: int
    stream: int
    start_us: float
    end_us: float
    thread: int | None = None
    on_core_us: float | None = None


def cpu_timings(flat: Iterable[Any]) -> list[OperatorTiming]:
    """Convert timings of the native CPU runtime: a flat sequence of six numbers per operator.

    Times in `flat` are in nanoseconds.
    """
    return [
        OperatorTiming(int(op), int(stream), start / 1e3, end / 1e3, int(thread), on_core / 1e3)
        for op, stream, start, end, thread, on_core in zip(*[iter(flat)] * 6, strict=True)
    ]


def gpu_timings(flat: Iterable[Any]) -> list[OperatorTiming]:
    """Convert timings of the native CUDA runtime: a flat sequence of four numbers per operator.

    Times in `flat` are in nanoseconds.
    """
    return [
        OperatorTiming(int(op), int(stream), start / 1e3, end / 1e3)
        for op, stream, start, end in zip(*[iter(flat)] * 4, strict=True)
    ]
