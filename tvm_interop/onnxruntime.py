"""The names of onnxruntime, for programs that change one import.

    >>> import tvm_interop.onnxruntime as ort  # was: import onnxruntime as ort
    >>> session = ort.InferenceSession("model.onnx", providers=ort.get_available_providers())
    >>> session.run(None, {"image": image})[0].tolist()
    [[0.0, 0.0, 2.0]]

`InferenceSession` is this package's `Session`. Other names, such as `SessionOptions` and
`OrtValue`, are those of onnxruntime. If onnxruntime is not installed, this module has classes of
its own for the options of sessions and runs.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from .session import option_names
from .session.session import Session as InferenceSession

__all__ = [
    "InferenceSession",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]


def get_available_providers() -> list[str]:
    """Return the execution provider that runs sessions unless `target` names a GPU."""
    return ["CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    """Return the names of the devices that a session can run on."""
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def get_device() -> str:
    """Return `CPU`, the device of sessions for which no `target` is given."""
    return "CPU"


def set_default_logger_severity(severity: int) -> None:
    """Do nothing: messages go to the logger `tvm_interop` of Python's module `logging`."""


def set_default_logger_verbosity(verbosity: int) -> None:
    """Do nothing: messages go to the logger `tvm_interop` of Python's module `logging`."""


def __getattr__(name: str) -> Any:
    if name.startswith("_") and name != "__version__":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    try:
        theirs = importlib.import_module("onnxruntime")
    except ImportError:
        theirs = option_names
    if theirs is sys.modules[__name__]:  # A program has put this module in place of onnxruntime.
        theirs = option_names
    if not hasattr(theirs, name):
        hint = "" if theirs is not option_names else ", because onnxruntime is not installed"
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`{hint}")
    return getattr(theirs, name)
