"""Errors of this package that are also of onnxruntime's classes, for programs that catch those."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import (
    ArtifactError,
    DeviceError,
    ExecutionError,
    InputError,
    TVMInteropError,
    UnsupportedModelError,
)

_THEIRS = "onnxruntime.capi.onnxruntime_pybind11_state"
_DONE = "_is_of_onnxruntime"
"""The attribute of classes that this module makes."""
_NAMES: dict[type[TVMInteropError], tuple[str, ...]] = {
    InputError: ("InvalidArgument",),
    UnsupportedModelError: ("NotImplemented", "InvalidGraph", "Fail"),
    ArtifactError: ("InvalidProtobuf", "Fail"),
    ExecutionError: ("RuntimeException", "Fail"),
    DeviceError: ("EPFail", "Fail"),
}
"""The errors that onnxruntime raises where this package raises the error of the key."""


@contextlib.contextmanager
def raised_as_theirs(model: Any = None) -> Iterator[None]:
    """Raise an error of the `with` block as an error that also has a class of onnxruntime.

    The new error has the class and the message of the old one. If onnxruntime is not installed, it
    has no further class, but an `InputError` is a `ValueError` too.

    Parameters
    ----------
    model: the model from which a session is made in the `with` block; None for other blocks.
    """
    try:
        yield
    except TVMInteropError as error:
        if hasattr(error, _DONE):
            raise
        raise _as_theirs(error, _names_of(error, model)) from error.__cause__


def _names_of(error: TVMInteropError, model: Any) -> tuple[str, ...]:
    if isinstance(error, UnsupportedModelError):
        is_path = isinstance(model, (str, os.PathLike))
        if is_path and not Path(model).exists():
            return ("NoSuchFile",)
        # Protobuf's error has been in several modules.
        if type(error.__cause__).__name__ == "DecodeError":
            return ("InvalidProtobuf",)
    return next((names for kind, names in _NAMES.items() if isinstance(error, kind)), ())


def _as_theirs(error: TVMInteropError, names: tuple[str, ...]) -> TVMInteropError:
    ours: Any = type(error)
    kind = _class_of(ours, names)
    made: TVMInteropError = kind.__new__(kind)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    return made.with_traceback(error.__traceback__)


@functools.cache
def _class_of(ours: Any, names: tuple[str, ...]) -> Any:
    """Return a class derived from `ours` and from onnxruntime's classes `names`."""
    try:
        theirs = importlib.import_module(_THEIRS)
    except ImportError:
        found = []
    else:
        found = [getattr(theirs, name) for name in names if hasattr(theirs, name)]
    if issubclass(ours, InputError):
        found.append(ValueError)  # onnxruntime raises it if an input is missing.
    # TVMInteropError is an Exception, and so are all classes in `found`.
    return type(ours.__name__, (ours, *found), {"__module__": ours.__module__, _DONE: True})
