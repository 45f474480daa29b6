"""Finds and loads the native library, once, before anything asks for its functions."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import tvm  # noqa: F401  (registers a `ScheduleError` too: ours comes after it)
import tvm_ffi
from tvm_ffi.libinfo import load_lib_module

from . import errors

OVERRIDE = "TVM_INTEROP_LIBRARY"


def _load() -> object:
    """Load `libtvm_interop.so`; its functions register themselves under `tvm_interop.*`.

    The environment variable `TVM_INTEROP_LIBRARY` names another build of it (a sanitizer
    build, say). Without it the installed distribution's own is taken: in an editable install
    the library does not lie beside this file.
    """
    override = os.environ.get(OVERRIDE)
    if override:
        return tvm_ffi.load_module(override)
    return load_lib_module("tvm-interop", "tvm_interop")


# What the library raises; the others are raised in Python alone.
for _error in (
    errors.UnsupportedModelError,
    errors.GraphError,
    errors.ScheduleError,
    errors.PlanError,
    errors.ArtifactError,
    errors.DeviceError,
    errors.InputError,
    errors.ExecutionError,
):
    tvm_ffi.register_error(_error.__name__, _error)

LIBRARY = _load()


@functools.cache
def native_function(group: str, name: str) -> Any:
    """The library's function `name` of a group, such as `runtime` or `cuda`."""
    return tvm_ffi.get_global_func(f"tvm_interop.{group}.{name}")


def profile_rows(flat: Sequence[Any]) -> list[tuple[int, int, float, float]]:
    """Operator, stream, start and end in microseconds, of numbers in a row with nanoseconds."""
    return [
        (flat[i], flat[i + 1], flat[i + 2] / 1e3, flat[i + 3] / 1e3) for i in range(0, len(flat), 4)
    ]
