"""Fourth tests on a GPU: numbers and bits of kernels of cuDNN and cuBLASLt.

The tests are skipped if the libraries do not load. PyTorch contains them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.gpu.agreement import assert_like_onnxruntime
from tests.library_cases import CASES, matmul, numbers, plan_of, reference
from tests.nets import branches, inception_like
from tests.networks import feeds
from tvm_interop import GraphModule
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.library_op import LibraryOp

LIBRARIES = ["cudnn", "cublaslt"]


@pytest.fixture(autouse=True)
def needs_libraries() -> None:
    for name in LIBRARIES:
        why = why_missing(name)
        if why is not None:
            pytest.skip(f"no {name}: {why}")


def result(op: LibraryOp, dispatch: _cuda.Dispatch) -> np.ndarray:
    instance = CudaInstance(plan_of(op), None, {}, dispatch=dispatch)
    assert instance.dispatch == dispatch
    arrays = numbers(op)
    for v, array in enumerate(arrays):
        instance.write(v, array)
    instance.run()
    return instance.read(len(arrays))


@pytest.mark.parametrize("case", CASES)
def test_numbers_of_one_operator(case: str) -> None:
    op = CASES[case]
    captured = result(op, "captured")
    tolerance = 1e-4 if op.dtype == "float32" else 2e-2
    expected = reference(op, numbers(op))
    np.testing.assert_allclose(captured, expected, rtol=tolerance, atol=tolerance)
    for dispatch in ("streams", "linked"):
        np.testing.assert_array_equal(result(op, dispatch), captured)


def test_tf32_rounds_where_it_is_allowed() -> None:
    op = matmul((256, 256), (256, 256))
    expected = reference(op, numbers(op))
    exact = result(op, "captured")
    rounded = result(matmul((256, 256), (256, 256), allow_tf32=True), "captured")
    assert np.abs(exact - expected).max() < 1e-3
    assert 1e-3 < np.abs(rounded - expected).max() < 1


@pytest.mark.parametrize("make", [inception_like, branches])
def test_networks(make: Callable[[], onnx.ModelProto]) -> None:
    model = make()
    artifact = tvm_interop.compile(
        model, target="cuda", scheduler="nimble", keep_slower=True, providers=LIBRARIES
    )
    assert {op.library for op in artifact.plan.operators} >= {"cudnn"}
    assert_like_onnxruntime(GraphModule(artifact), model)


def test_schedules_give_the_same_bits() -> None:
    model = inception_like()
    options = CompileOptions("cuda", providers=LIBRARIES, latency_db=":memory:")
    compilation = Compilation(model, options)
    (x,) = feeds(model, 1).values()
    outputs = []
    for scheduler in ("sequential", "nimble", "lios", "opara"):
        plan = compilation.plan(compilation.schedule(scheduler))
        instance = compilation.instance(plan)
        for _ in range(20):
            instance.write(plan.inputs[0], x)
            instance.run()
            outputs.append(instance.read(plan.outputs[0]))
    for output in outputs[1:]:
        np.testing.assert_array_equal(output, outputs[0])
