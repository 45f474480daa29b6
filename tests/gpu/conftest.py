"""Settings of tests on a real GPU. Without a GPU, all of them are skipped, with the reason."""

from __future__ import annotations

import pytest

from tvm_interop import DeviceError
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import require_gpu
from tvm_interop.plan.plan import Plan, Stream


def why_not() -> str:
    """The reason why these tests cannot run here, or "" if they can."""
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
