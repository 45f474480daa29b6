"""Imports TVM and tvm-ffi without PyTorch, for command lines that do not need PyTorch."""

from __future__ import annotations

import importlib
import sys


def import_tvm(model: str = "") -> None:
    """Import TVM, and keep it from importing PyTorch unless `model` is a .pt2 file.

    If TVM, tvm-ffi or PyTorch is imported already, do nothing.
    """
    if not model.endswith(".pt2"):
        _import_without_torch("tvm")


def import_tvm_ffi() -> None:
    """Import tvm-ffi, and keep it from importing PyTorch."""
    _import_without_torch("tvm_ffi")


def _import_without_torch(module: str) -> None:
    """Import `module`, and keep it from importing PyTorch, which would take a second.

    Only this import is kept from importing PyTorch. Code that runs later can import PyTorch.
    """
    if not {"torch", "tvm", "tvm_ffi"}.isdisjoint(sys.modules):
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # Makes imports of PyTorch fail.
    try:
        importlib.import_module(module)
    finally:
        del sys.modules["torch"]
