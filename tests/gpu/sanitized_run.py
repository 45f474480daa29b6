"""Runs an artifact on the GPU under compute-sanitizer: `python -m tests.gpu.sanitized_run`.

The artifact runs in each dispatch mode. The last run has no arena: each tensor has its own memory.
In an arena, a kernel that leaves its tensor touches another tensor, which the sanitizer does not
notice. All runs must give the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

import tvm_interop
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance, require_gpu
from tvm_interop.plan.plan import Plan

DISPATCHES: tuple[_cuda.Dispatch, ...] = ("streams", "captured", "linked")


class TensorsApart(CudaInstance):
    """An instance in which only views share memory with other tensors."""

    def _allocate(self, plan: Plan) -> list[Any]:
        blocks = {
            v: self._block(plan.device_of(v), value.nbytes)
            for v, value in enumerate(plan.values)
            if value.storage != "alias"
        }
        return [
            _cuda.tensor_within(
                blocks[plan.root_of(v)],
                (value.offset or 0) if value.storage == "alias" else 0,
                value.shape,
                value.dtype,
            )
            for v, value in enumerate(plan.values)
        ]


def main(path: str) -> int:
    """Run the artifact at `path`. Returns 0 if all runs agree."""
    artifact = tvm_interop.load(path)
    plan = artifact.plan
    require_gpu(plan)
    rng = np.random.default_rng(0)
    inputs = {
        v: rng.standard_normal(plan.values[v].shape).astype(plan.values[v].dtype)
        for v in plan.inputs
    }
    kernels = artifact.load_kernels()
    apart = TensorsApart(plan, kernels, artifact.weights, dispatch="streams")
    expected = outputs(apart, inputs)
    for dispatch in DISPATCHES:
        instance = CudaInstance(plan, kernels, artifact.weights, dispatch=dispatch)
        if instance.dispatch != dispatch:
            print(f"{dispatch}: {_cuda.why_no_graph(instance.executor)}")
            return 1
        for _ in range(2):
            got = outputs(instance, inputs)
            if not all(map(np.array_equal, got, expected)):
                print(f"{dispatch}: other results than with every tensor in memory of its own")
                return 1
    return 0


def outputs(instance: CudaInstance, inputs: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """The outputs of one run."""
    for v, array in inputs.items():
        instance.write(v, array)
    instance.run()
    return [instance.read(v) for v in instance.plan.outputs]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
