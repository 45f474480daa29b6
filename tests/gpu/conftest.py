"""Tests on a real GPU; all are skipped, and say so, where there is none."""

from __future__ import annotations

import pytest

from tvm_interop import DeviceError
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import require_gpu
from tvm_interop.plan.plan import Plan, Stream


def why_not() -> str:
    """Why these tests cannot be run here; empty where they can."""
    nothing = Plan((Stream("cuda:0", 1),), (), (), (), (), 0, False)
    try:
        require_gpu(nothing)
        name = _cuda.describe_device(0)
    except DeviceError as error:
        return str(error)
    return "the GPU is a fake one" if name.startswith("Fake") else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent.name == "gpu"]
    reason = why_not() if here else ""
    for item in here:
        if reason:
            item.add_marker(pytest.mark.skip(reason=f"no real GPU: {reason}"))
