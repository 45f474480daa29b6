"""Runs merged operators on the fake GPU, with kernels that compute.

The emulation executes TVM's kernels (see `tests/cuda_emulation`), and the fake libraries compute
the operators that they run. So results can be compared with onnxruntime's results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest

import tvm_interop
from tests.fake_cuda.emulated_kernels import EmulatedKernels
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.merging import MERGED, Eager, by_hand, cut_too_late, fire, small_inception, two_convs
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.unit.test_merge_products import attention
from tvm_interop import Schedule, ScheduleError
from tvm_interop._native.cuda import Dispatch
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.cuda import LoweredForCuda
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.measure import cuda_timer
from tvm_interop.plan.plan import Plan

LIBRARIES = ["cudnn", "cublaslt"]
CONVS = ("one/Conv", "three/Conv")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """The folder of the programs that execute kernels."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture(autouse=True)
def computing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make each instance of a compilation run emulated kernels, which really compute."""
    made: dict[Any, EmulatedKernels] = {}

    def kernels_of(lowered: LoweredForCuda) -> EmulatedKernels:
        module = lowered.program.kernels
        if module not in made:
            made[module] = EmulatedKernels(module, folder)
        return made[module]

    def instance(self: LoweredForCuda, plan: Plan) -> CudaInstance:
        return CudaInstance(plan, kernels_of(self), self.program.weights)

    monkeypatch.setattr(LoweredForCuda, "instance", instance)
    monkeypatch.setattr(LoweredForCuda, "emulated", property(kernels_of), raising=False)


def compilation(model: onnx.ModelProto, providers: list[str]) -> Compilation:
    return Compilation(
        model, CompileOptions("cuda", providers=providers, latency_db=":memory:", streams=3)
    )


def inputs_of(model: onnx.ModelProto) -> dict[str, npt.NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {
        given.name: rng.standard_normal(
            [dim.dim_value for dim in given.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for given in model.graph.input
    }


def outputs(
    home: Compilation, made: Schedule, feeds: dict[str, Any], dispatch: Dispatch
) -> list[Any]:
    """The outputs of the second run; the first run is on zeros."""
    plan = home.plan(made)
    kernels = home._lowered.emulated  # type: ignore[attr-defined]
    instance = CudaInstance(plan, kernels, home.program.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    for zero in (True, False):
        for v in plan.inputs:
            array = feeds[plan.values[v].name]
            instance.write(v, np.zeros_like(array) if zero else array)
        instance.run()
    return [instance.read(v) for v in plan.outputs]


def assert_merging_is_right(model: onnx.ModelProto, providers: list[str]) -> set[str]:
    """Check numbers and bits of a model with merged operators, and return the merged operators.

    All schedules of the merged model must give the same bits, in every dispatch mode.
    """
    made, feeds = compilation(model, providers), inputs_of(model)
    schedule = made.schedule("ios-merge", Eager(made))
    check = made.merge_check(schedule)
    assert check.largest is not None
    assert check.largest < 1e-5
    home, merging = made.realized(schedule)
    in_turn = outputs(home, home.sequential(), feeds, "streams")
    wanted = run_onnxruntime(model, feeds).values()
    for ours, theirs in zip(in_turn, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * np.abs(theirs).max())
    latency = Eager(home)
    others = [home.schedule(name, latency) for name in ("greedy", "ios-merge", "ios-both")]
    assert max(other.num_streams for other in others) > 1
    runs: list[tuple[Schedule, Dispatch]] = [(merging, dispatch) for dispatch in DISPATCHES]
    for run in [*runs, *((other, "linked") for other in others)]:
        for ours, theirs in zip(outputs(home, run[0], feeds, run[1]), in_turn, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    return set(check.differences)


PROVIDERS = pytest.mark.parametrize("providers", [["tvm"], LIBRARIES], ids=["tvm", "libraries"])


def test_libraries_and_cuts() -> None:
    """cuDNN computes the merged convolution, and kernels of TVM cut its output."""
    assert assert_merging_is_right(two_convs(), LIBRARIES) == {MERGED}


@pytest.mark.slow
@PROVIDERS
def test_an_inception_block(providers: list[str]) -> None:
    merged = assert_merging_is_right(small_inception(), providers)
    assert merged == {"a1/Conv+a3r/Conv+a5r/Conv"}


@pytest.mark.slow
@PROVIDERS
def test_queries_keys_and_values(providers: list[str]) -> None:
    merged = assert_merging_is_right(attention(), providers)
    assert merged == {"key/MatMul+query/MatMul+value/MatMul"}


def test_a_cut_at_a_wrong_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check refuses a merged operator whose numbers are wrong."""
    model = two_convs()
    made, feeds = compilation(model, LIBRARIES), inputs_of(model)
    cut_too_late(monkeypatch)
    schedule = by_hand(made, CONVS)
    with pytest.raises(
        ScheduleError, match=r"`one/Conv`, `three/Conv` cannot be merged: .* differ"
    ):
        made.artifact(schedule)
    home, realized = made.realized(schedule)
    (wanted, *_), (got, *_) = (
        list(run_onnxruntime(model, feeds).values()),
        outputs(home, realized, feeds, "streams"),
    )
    assert np.abs(got - wanted).max() > 1e-2 * np.abs(wanted).max()


def test_merged_operators_are_measured_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the fake GPU, one merged operator takes less time than two. No kernel cuts its output."""
    monkeypatch.setattr(cuda_timer, "_IN_A_ROW", 1)
    artifact = tvm_interop.compile(
        fire(),
        target="cuda",
        scheduler="ios-merge",
        providers=LIBRARIES,
        latency_db=":memory:",
        streams=1,
        keep_slower=True,
    )
    assert [op.name for op in artifact.plan.operators] == ["c1/Conv+c3/Conv"]
    check = artifact.manifest.merge_check
    assert check is not None
    assert check.largest is not None
    assert check.largest < 1e-5
