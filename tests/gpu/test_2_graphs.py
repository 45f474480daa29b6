"""Second tests on a GPU: all dispatch modes and schedulers must give the same bits."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from benchmarks.gpu_report import earliest_us
from tests.networks import SMALL, feeds
from tests.workspaces import SHAPE, attentions_by_numpy, two_attentions
from tvm_interop import models
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.execution.cuda import CudaInstance

SCHEDULERS = {"greedy": {}, "lios": {}, "nimble": {}, "opara": {}, "ios": {"max_group_ops": 2}}
DISPATCHES: tuple[_cuda.Dispatch, ...] = ("streams", "captured", "linked")


class Subject:
    """A network that is compiled once for all tests, and its results of sequential execution."""

    def __init__(self) -> None:
        self.model: onnx.ModelProto = models.build("squeezenet", image_size=SMALL["squeezenet"])
        self.compilation = Compilation(self.model, CompileOptions("cuda", latency_db=":memory:"))
        sequential = self.instance("sequential", "streams")
        self.inputs = [feeds(self.model, seed) for seed in (1, 2)]
        self.expected = [self.outputs(sequential, inputs) for inputs in self.inputs]

    def instance(self, scheduler: str, dispatch: _cuda.Dispatch) -> CudaInstance:
        schedule = self.compilation.schedule(scheduler, **SCHEDULERS.get(scheduler, {}))
        plan = self.compilation.plan(schedule)
        weights = self.compilation.program.weights
        return CudaInstance(plan, self.compilation.loaded_kernels, weights, dispatch=dispatch)

    def outputs(self, instance: CudaInstance, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        for v in instance.plan.inputs:
            instance.write(v, inputs[instance.plan.values[v].name])
        instance.run()
        return [instance.read(v) for v in instance.plan.outputs]


@pytest.fixture(scope="module")
def subject() -> Subject:
    return Subject()


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("scheduler", ["sequential", *SCHEDULERS])
def test_the_same_bits(subject: Subject, scheduler: str, dispatch: _cuda.Dispatch) -> None:
    instance = subject.instance(scheduler, dispatch)
    assert instance.dispatch == dispatch, _cuda.why_no_graph(instance.executor)
    for turn in range(20):  # A race does not show in every run, so run often.
        got = subject.outputs(instance, subject.inputs[turn % 2])
        for a, b in zip(got, subject.expected[turn % 2], strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_the_same_bits_on_two_gpus(subject: Subject, dispatch: _cuda.Dispatch) -> None:
    if _cuda.device_count() < 2:
        pytest.skip("there is one GPU only")
    made = subject.compilation.schedule("nimble")
    devices = [s % 2 for s in range(made.num_streams)]
    plan = subject.compilation.plan(dataclasses.replace(made, devices=devices))
    assert any(op.is_copy for op in plan.operators)
    weights = subject.compilation.program.weights
    kernels = subject.compilation.loaded_kernels
    instance = CudaInstance(plan, kernels, weights, dispatch=dispatch)
    assert instance.dispatch == dispatch, _cuda.why_no_graph(instance.executor)
    for turn in range(20):
        got = subject.outputs(instance, subject.inputs[turn % 2])
        for a, b in zip(got, subject.expected[turn % 2], strict=True):
            np.testing.assert_array_equal(a, b)
    assert all(row.end_us >= row.start_us >= 0 for row in instance.profile())


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_workspaces_side_by_side(dispatch: _cuda.Dispatch) -> None:
    compilation = Compilation(two_attentions(), CompileOptions("cuda", latency_db=":memory:"))
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(3)]
    results = []
    for scheduler in ("sequential", "nimble"):
        plan = compilation.plan(compilation.schedule(scheduler))
        instance = CudaInstance(plan, compilation.loaded_kernels, {}, dispatch=dispatch)
        assert instance.dispatch == dispatch, _cuda.why_no_graph(instance.executor)
        for v, array in zip(plan.inputs, arrays, strict=True):
            instance.write(v, array)
        for _ in range(20):
            instance.run()
            results.append([instance.read(v) for v in plan.outputs])
    for got, expected in zip(results[0], attentions_by_numpy(arrays), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    for again in results[1:]:
        for a, b in zip(again, results[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_clock_and_the_profile(subject: Subject) -> None:
    instance = subject.instance("lios", "captured")
    assert 0 < instance.time(1) < 1
    rows = instance.profile()
    assert all(row.end_us >= row.start_us >= 0 for row in rows)
    assert any(op.waits for op in instance.plan.operators)
    assert earliest_us(instance) == 0
