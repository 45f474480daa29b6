"""The names of onnxruntime, for programs that change one import.

    >>> import tvm_interop.onnxruntime as ort  # was: import onnxruntime as ort
    >>> session = ort.InferenceSession("model.onnx", providers=ort.get_available_providers())
    >>> session.run(None, {"image": image})[0].tolist()
    [[0.0, 0.0, 2.0]]

`InferenceSession` is this package's `Session`, which does what onnxruntime does where the two
differ. Other names, such as `RunOptions` and `OrtValue`, are those of onnxruntime. If onnxruntime
is not installed, this module has classes of its own for the options of sessions and runs, and for
values.

Other packages may import onnxruntime themselves. Then put this module in its place before they are
imported: `sys.modules["onnxruntime"] = tvm_interop.onnxruntime`.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any

from .session import option_names
from .session.inference_session import InferenceSession, IOBinding

__all__ = [
    "IOBinding",
    "InferenceSession",
    "get_all_providers",
    "get_available_providers",
    "get_device",
    "set_default_logger_severity",
    "set_default_logger_verbosity",
]

_NAME = "onnxruntime"
_HIDDEN: list[ModuleType] = []
"""onnxruntime's own module, if this module has taken its place and has loaded it."""


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
    if name == "__path__" and _takes_its_place():
        spec = _spec()
        if spec is not None and spec.submodule_search_locations is not None:
            # Python then finds onnxruntime's own modules, such as `onnxruntime.capi`.
            return list(spec.submodule_search_locations)
    if name.startswith("_") and name != "__version__":
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
    theirs = _theirs()
    if name in ("SessionOptions", "RunOptions", "LoraAdapter") and hasattr(theirs, name):
        return option_names.class_of(name, theirs)
    if not hasattr(theirs, name):
        hint = "" if theirs is not option_names else ", because onnxruntime is not installed"
        raise AttributeError(f"module `{__name__}` has no attribute `{name}`{hint}")
    return getattr(theirs, name)


def _takes_its_place() -> bool:
    """Whether a program has put this module in place of onnxruntime."""
    return sys.modules.get(_NAME) is sys.modules[__name__]


def _spec() -> importlib.machinery.ModuleSpec | None:
    return importlib.machinery.PathFinder.find_spec(_NAME)


def _theirs() -> ModuleType:
    """onnxruntime's module; if it is not installed, the module that stands in for it."""
    if not _takes_its_place():
        try:
            return importlib.import_module(_NAME)
        except ImportError:
            return option_names
    if not _HIDDEN:
        spec = _spec()
        if spec is None or spec.loader is None:
            return option_names
        # Keep the module before it is loaded, because modules that it imports may ask for it.
        _HIDDEN.append(importlib.util.module_from_spec(spec))
        try:
            spec.loader.exec_module(_HIDDEN[0])
        except ImportError:
            _HIDDEN[0] = option_names
    return _HIDDEN[0]
