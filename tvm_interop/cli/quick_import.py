"""Imports TVM without PyTorch, for command lines that have no use for it."""

from __future__ import annotations

import sys


def import_tvm(model: str = "") -> None:
    """Import TVM; PyTorch, which TVM imports where it is installed, only for what holds its model.

    That takes a second, as long as anything else that is imported. Whoever needs PyTorch later
    imports it then. Nothing is done where either is imported already.
    """
    if model.endswith(".pt2") or not {"torch", "tvm", "tvm_ffi"}.isdisjoint(sys.modules):
        return
    sys.modules["torch"] = None  # type: ignore[assignment]  # How to say that there is none.
    try:
        import tvm  # noqa: F401
    finally:
        del sys.modules["torch"]
