"""Second: captured, linked and launched one by one, under every scheduler: the same bits."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.networks import SMALL, feeds
from tvm_interop import _cuda, models
from tvm_interop.compiler import CompileOptions
from tvm_interop.cuda_compiler import CudaCompilation
from tvm_interop.cuda_instance import CudaInstance

SCHEDULERS = {"greedy": {}, "lios": {}, "nimble": {}, "opara": {}, "ios": {"max_group_ops": 2}}
DISPATCHES: tuple[_cuda.Dispatch, ...] = ("streams", "captured", "linked")


class Subject:
    """A network, compiled once for all tests, and its results when run sequentially."""

    def __init__(self) -> None:
        self.model: onnx.ModelProto = models.build("squeezenet", image_size=SMALL["squeezenet"])
        self.compilation = CudaCompilation(
            self.model, CompileOptions("cuda", latency_db=":memory:")
        )
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
    for turn in range(20):  # A race shows up now and then, not always.
        got = subject.outputs(instance, subject.inputs[turn % 2])
        for a, b in zip(got, subject.expected[turn % 2], strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_clock_and_the_profile(subject: Subject) -> None:
    instance = subject.instance("lios", "captured")
    assert 0 < instance.time(1) < 1
    rows = instance.profile()
    assert all(end >= start >= 0 for _, _, start, end in rows)
    start_of = {op: start for op, _, start, _ in rows}
    end_of = {op: end for op, _, _, end in rows}
    for op, planned in enumerate(instance.plan.operators):
        for awaited in planned.waits:
            assert start_of[op] >= end_of[awaited] - 1  # CUDA's clock ticks every half microsecond.
