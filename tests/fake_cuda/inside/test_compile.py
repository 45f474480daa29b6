"""Compiles models for the fake GPU and runs them. The values of the results are not tested."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import tvm

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.nets import in_float16, inception_like
from tests.workspaces import two_attentions
from tvm_interop import (
    Artifact,
    DeviceError,
    GraphModule,
    InputError,
    PlanError,
    measure_interleaved,
)
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.api import CompileOptions, new_compilation
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.latency import Link
from tvm_interop.plan.check import check_plan, read_plan
from tvm_interop.viz.record import record

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    """An artifact that was scheduled by latencies from the clock of the fake GPU."""
    return tvm_interop.compile(
        inception_like(), target="cuda", scheduler="nimble", keep_slower=True, latency_db=":memory:"
    )


def test_the_gpus_own_architecture_is_compiled_for(artifact: Artifact) -> None:
    assert '"arch":"sm_90"' in artifact.manifest.target
    assert len(artifact.plan.streams) > 1


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_tvms_kernels_are_ordered_as_their_data_is(
    artifact: Artifact, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    kernels = fake_gpu.Noted(artifact.load_kernels(), artifact.plan)
    instance = CudaInstance(artifact.plan, kernels, artifact.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    instance.run()
    instance.run()
    accesses = fake_gpu.accesses_of(instance)
    del instance, kernels
    assert check_log(accesses) == []


@pytest.fixture(scope="module")
def on_two_gpus() -> Artifact:
    options = CompileOptions("cuda", latency_db=":memory:")
    compilation = new_compilation(inception_like(), options)
    made = compilation.schedule("nimble")
    devices = [s % 2 for s in range(made.num_streams)]
    return compilation.artifact(dataclasses.replace(made, devices=devices))


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_tvms_kernels_run_on_the_gpu_of_their_stream(
    on_two_gpus: Artifact, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    """One library serves all GPUs. TVM loads its code for a GPU at the first launch on this GPU."""
    plan = on_two_gpus.plan
    kernels = fake_gpu.Noted(on_two_gpus.load_kernels(), plan)
    instance = CudaInstance(plan, kernels, on_two_gpus.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    instance.run()
    accesses = fake_gpu.accesses_of(instance)
    del instance, kernels
    assert check_log(accesses) == []


def test_a_module_on_two_gpus(on_two_gpus: Artifact, check_log: Callable[..., list[str]]) -> None:
    module = GraphModule(on_two_gpus)
    module.run()
    assert len(module.profile()) == len(on_two_gpus.plan.operators)
    assert module.benchmark(tvm.cuda(0), repeat=2).mean > 0
    assert "peer copy" in {row.kernel for row in module.profile()}
    drawn = record(on_two_gpus, "two GPUs", runs=1)
    assert drawn.arena_bytes == sum(on_two_gpus.plan.arenas.values())
    name, index = next(
        (value.name, v)
        for v, value in enumerate(on_two_gpus.plan.values)
        if value.storage == "weight" and value.copy_of is None
    )
    other = tvm.runtime.tensor(np.ones_like(on_two_gpus.weights[index]))
    module.load_params(tvm.runtime.save_param_dict({name: other}))
    assert module._instance.read(index).all()
    del module
    assert check_log() == []


def test_a_gpu_that_is_not_there(on_two_gpus: Artifact) -> None:
    text = on_two_gpus.plan.to_json().replace("cuda:1", "cuda:5")
    missing = dataclasses.replace(on_two_gpus, plan=read_plan(text))
    with pytest.raises(DeviceError, match="no device `cuda:5`: this machine has 3"):
        GraphModule(missing)


def test_a_module_on_a_gpu(artifact: Artifact, check_log: Callable[..., list[str]]) -> None:
    module = GraphModule(artifact)
    shapes, _ = module.get_input_info()
    ((name, shape),) = shapes.items()
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    module.run(**{name: x})
    np.testing.assert_array_equal(module.get_input(name).numpy(), x)
    assert tuple(module.get_output(0).shape) == artifact.plan.values[artifact.plan.outputs[0]].shape
    assert module.benchmark(tvm.cuda(0), repeat=2).mean > 0
    with pytest.raises(DeviceError, match="runs on cuda:0, not on"):
        module.benchmark(tvm.cpu(0))
    assert len(module.profile()) == len(artifact.plan.operators)
    with pytest.raises(DeviceError, match="use set_input"):
        module.set_input_zero_copy(name, x)
    assert len(measure_interleaved({"a": module, "b": module}, 3)["a"]) == 3
    del module
    assert check_log() == []


@pytest.fixture(scope="module")
def of_float16() -> Artifact:
    model = in_float16(inception_like())
    options = CompileOptions("cuda", providers=["tvm"], latency_db=":memory:")
    compilation = new_compilation(model, options)
    return compilation.artifact(compilation.schedule("nimble"))


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_a_model_of_float16(
    of_float16: Artifact, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    plan = of_float16.plan
    kernels = fake_gpu.Noted(of_float16.load_kernels(), plan)
    instance = CudaInstance(plan, kernels, of_float16.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    x = np.linspace(-1, 1, 8 * 14 * 14).reshape(1, 8, 14, 14).astype(np.float16)
    instance.write(plan.inputs[0], x)
    instance.run()
    np.testing.assert_array_equal(instance.read(plan.inputs[0]), x)
    assert instance.read(plan.outputs[0]).dtype == np.float16
    accesses = fake_gpu.accesses_of(instance)
    del instance, kernels
    assert check_log(accesses) == []


@pytest.fixture(scope="module")
def with_workspaces() -> Artifact:
    compilation = new_compilation(two_attentions(), CompileOptions("cuda", latency_db=":memory:"))
    return compilation.artifact(compilation.schedule("nimble"))


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize("are_shared", [False, True])
def test_kernels_with_a_workspace_run_side_by_side(
    with_workspaces: Artifact,
    are_shared: bool,
    dispatch: _cuda.Dispatch,
    check_log: Callable[..., list[str]],
) -> None:
    plan = with_workspaces.plan
    first, second = (op for op in plan.operators if op.kernel == "attention")
    assert first.stream != second.stream
    if are_shared:  # As in TVM's own runtime, both kernels get the same workspace.
        places = dict(zip(second.outputs[1:], first.outputs[1:], strict=True))
        values = tuple(
            msgspec.structs.replace(v, offset=plan.values[places[i]].offset) if i in places else v
            for i, v in enumerate(plan.values)
        )
        plan = msgspec.structs.replace(plan, values=values)
        with pytest.raises(PlanError, match="nothing orders the two"):
            check_plan(plan)
    kernels = fake_gpu.Noted(with_workspaces.load_kernels(), plan)
    instance = CudaInstance(plan, kernels, with_workspaces.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    instance.run()
    accesses = fake_gpu.accesses_of(instance)
    del instance, kernels
    race = f"`{first.name}` writes and `{second.name}` writes without an order"
    faults = check_log(accesses)
    assert any(race in fault for fault in faults) == are_shared == bool(faults)


def test_weights_are_replaced(artifact: Artifact) -> None:
    module = GraphModule(artifact)
    v, weight = next(iter(artifact.weights.items()))
    name = artifact.plan.values[v].name
    params = tvm.runtime.save_param_dict({name: tvm.runtime.tensor(np.zeros_like(weight))})
    module.load_params(params)
    assert not module._instance.read(v).any()
    assert GraphModule(artifact)._instance.read(v).any()


def test_the_stream_with_the_longest_chain_is_preferred() -> None:
    artifact = tvm_interop.compile(
        inception_like(),
        target="cuda",
        scheduler="nimble",
        keep_slower=True,
        providers=["tvm"],
        latency_db=":memory:",
        stream_priorities=True,
    )
    urgent = [stream.urgent for stream in artifact.plan.streams]
    assert sum(urgent) == 1 < len(urgent)
    assert _cuda.urgent_streams(GraphModule(artifact)._instance.streams) == urgent


def test_stages_are_measured_with_the_gpus_clock() -> None:
    options = CompileOptions("cuda", streams=2, latency_db=":memory:")
    compilation = new_compilation(inception_like(), options)
    schedule = compilation.schedule("lios")
    assert compilation.measured_latency.measured > 0
    assert compilation.measured_latency.op(0) >= 0
    checked = compilation.check_speed(schedule)
    assert checked.sequential_us > 0
    assert checked.scheduled_us > 0


@pytest.mark.parametrize("gpus", [1, 2])
def test_multi_gpu_measures_few_stages_with_the_gpus_clock(gpus: int) -> None:
    pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")
    options = CompileOptions(
        "cuda", providers=["tvm"], streams=2, latency_db=":memory:", link=Link(1e5, 1.0)
    )
    compilation = new_compilation(inception_like(), options)
    made = compilation.schedule("multi-gpu", "learned", gpus=gpus, max_measurements=4)
    made.validate(compilation.graph)
    assert made.stats["stages_measured"] <= 4
    assert made.stats["operators_measured"] == made.stats["operators_in_all"]
    check_plan(compilation.plan(made))


def test_clocks_are_not_mixed(artifact: Artifact) -> None:
    on_gpu = GraphModule(artifact)
    on_cpu = GraphModule(
        tvm_interop.compile(
            inception_like(), scheduler="sequential", providers=["tvm"], time_budget=0
        )
    )
    with pytest.raises(InputError, match="cannot be timed against each other"):
        measure_interleaved({"gpu": on_gpu, "cpu": on_cpu}, 1)
