"""Imports TVM without PyTorch, for command lines that do not need PyTorch."""

from __future__ import annotations

import sys


def import_tvm(model: str = "") -> None:
    """Import TVM, and keep it from importing PyTorch unless `model` is a .pt2 file.

    TVM imports PyTorch if it is installed, which takes a second. Code that needs PyTorch later
    still can import it. This function does nothing if TVM or PyTorch is imported already.
    """
    if model.endswith(".pt2") or not {"torch", "tvm", "tvm_ffi"}.isdisjoint(sys.modules):
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # Makes imports of PyTorch fail.
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]
