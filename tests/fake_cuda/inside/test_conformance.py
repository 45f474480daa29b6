"""Runs the tests that all executors must pass on the executor for GPUs, in each dispatch mode."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance import KERNEL, InstanceSuite, crossing_chains, crossing_plan
from tests.fake_cuda import fake_gpu
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.execution.instance import PlanInstance


def _add_one(x: np.ndarray, y: np.ndarray) -> None:
    y[...] = x + np.float32(1)


@pytest.mark.parametrize("dispatch", ["streams", "captured", "linked"])
class TestCuda(InstanceSuite):
    @pytest.fixture
    def instance(self, dispatch: _cuda.Dispatch) -> PlanInstance:
        kernels = fake_gpu.Kernels({KERNEL: _add_one})
        weights = crossing_chains().weights
        return CudaInstance(crossing_plan("cuda:0"), kernels, weights, dispatch=dispatch)

    other = instance
