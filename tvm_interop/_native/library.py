"""Finds the native library and loads it when this module is imported."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import tvm_ffi

from .. import errors
from .library_path import library_path
from .timing import OperatorTiming

# Register the errors that the library raises. Only Python code raises the other classes in
# `errors`. TVM has a `ScheduleError` of its own, so this package's class has another name in native
# code.
tvm_ffi.register_error("InterOpScheduleError", errors.ScheduleError)
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
# TVM's compiler calls Python functions. If a signal interrupts one of these, tvm-ffi would turn the
# interrupt into an error of the function, and the compilation would go on without what it makes.
for _end in (KeyboardInterrupt, errors.Terminated):
    tvm_ffi.register_error(_end.__name__, _end)

LIBRARY_PATH = library_path()
"""The path of the loaded library."""
LIBRARY = tvm_ffi.load_module(LIBRARY_PATH)
"""The loaded library. Its functions are registered with tvm-ffi under `tvm_interop.*`."""


def find(name: str) -> Any:
    """Return the library's function `name`."""
    return tvm_ffi.get_global_func(f"tvm_interop.{name}")


@functools.cache
def native_function(group: str, name: str) -> Any:
    """Return the library's function `name` in a group such as `runtime` or `cuda`."""
    return find(f"{group}.{name}")


def cpu_timings(flat: Iterable[Any]) -> list[OperatorTiming]:
    """Convert timings of the native CPU runtime from numbers to objects.

    `flat` holds six numbers for each operator, in the order of the fields of `OperatorTiming`.
    Times in `flat` are in nanoseconds.
    """
    return [
        OperatorTiming(int(op), int(stream), start / 1e3, end / 1e3, int(thread), on_core / 1e3)
        for op, stream, start, end, thread, on_core in zip(*[iter(flat)] * 6, strict=True)
    ]


def gpu_timings(flat: Iterable[Any]) -> list[OperatorTiming]:
    """Convert timings of the native CUDA runtime from numbers to objects.

    `flat` holds four numbers for each operator, in the order of the first fields of
    `OperatorTiming`. Times in `flat` are in nanoseconds.
    """
    return [
        OperatorTiming(int(op), int(stream), start / 1e3, end / 1e3)
        for op, stream, start, end in zip(*[iter(flat)] * 4, strict=True)
    ]
