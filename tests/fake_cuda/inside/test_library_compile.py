"""Compiles models with kernels of cuDNN and cuBLASLt, and runs them on the fake GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm

import tvm_interop
from tests.fake_cuda import fake_gpu
from tests.fake_cuda.fake_gpu import DISPATCHES
from tests.nets import Net, in_float16, inception_like
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import Artifact, ExecutionError, GraphModule
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.measure import cuda_timer
from tvm_interop.measure.stage_timer import Rounds

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

LIBRARIES = ["cudnn", "cublaslt"]
FAST = dict.fromkeys((0, 1), -0.0005)
"""Times for `algorithm_times`: algorithms 0 and 1 take half the time of an ordinary kernel."""


@pytest.fixture(autouse=True, scope="module")
def few_repetitions() -> Iterator[None]:
    """Time stages with few repetitions, because the fake libraries compute their results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_timer, "_IN_A_ROW", 1)
        yield


@pytest.fixture(scope="module", params=["float32", "float16"])
def artifact(request: pytest.FixtureRequest) -> Artifact:
    """An artifact in which libraries run every operator that they can run."""
    model = inception_like() if request.param == "float32" else in_float16(inception_like())
    return tvm_interop.compile(
        model, target="cuda", scheduler="nimble", keep_slower=True, providers=LIBRARIES
    )


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_kernels_are_ordered_as_their_data_is(
    artifact: Artifact, dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    plan = artifact.plan
    used = Counter(op.library for op in plan.operators)
    assert used["cudnn"] == 12
    assert used["cublaslt"] == 1
    assert len(plan.streams) > 1
    kernels = fake_gpu.Noted(artifact.load_kernels(), plan)
    instance = CudaInstance(plan, kernels, artifact.weights, dispatch=dispatch)
    assert instance.dispatch == dispatch
    instance.run()
    instance.run()
    accesses = fake_gpu.accesses_of(instance)
    del instance, kernels
    assert check_log(accesses) == []


def convolutions(channels: int = 8) -> onnx.ModelProto:
    """A model that cuDNN can run as a whole: two branches and their sum, one branch grouped.

    Algorithms are chosen once in a process, so each test that is about the choice has its own
    number of `channels`.
    """
    net, both = Net(), (channels, channels)
    x = net.input("x", [1, channels, 6, 6])
    one = net.op("Relu", [net.conv(x, "one", both, 3)], "one_relu")
    two = net.op("Relu", [net.conv(x, "two", both, 5)], "two_relu")
    deep = net.conv(net.conv(one, "grouped", both, 3, group=4), "deep", both, 1)
    net.op("Relu", [net.op("Add", [deep, two], "sum")], "y")
    return net.model("y")


def test_a_whole_network_of_libraries_gives_onnxruntimes_numbers() -> None:
    """The fake cuDNN really computes, so its results can be compared with onnxruntime's results.

    Every schedule, in every dispatch mode, must give the output bits of sequential execution.
    """
    model = convolutions()
    options = CompileOptions("cuda", providers=LIBRARIES, latency_db=":memory:", streams=2)
    compilation = Compilation(model, options)
    assert _libraries(compilation) == {"cudnn": 4}
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 6)).astype(np.float32)
    (expected,) = run_onnxruntime(model, {"x": x}).values()
    outputs = []
    for name in ("sequential", "nimble", "lios"):
        plan = compilation.plan(compilation.schedule(name))
        for dispatch in DISPATCHES:
            instance = CudaInstance(
                plan, compilation.loaded_kernels, compilation.program.weights, dispatch=dispatch
            )
            for array in (np.zeros_like(x), x):
                instance.write(plan.inputs[0], array)
                instance.run()
            outputs.append(instance.read(plan.outputs[0]))
    np.testing.assert_allclose(outputs[0], expected, rtol=1e-4, atol=1e-4)
    for output in outputs:
        np.testing.assert_array_equal(output, outputs[0])
    module = GraphModule(compilation.artifact(compilation.schedule("nimble")))
    module.run(x=tvm.runtime.tensor(x, device=tvm.cuda(0)))
    np.testing.assert_array_equal(module.get_output(0).numpy(), outputs[0])


def test_the_fastest_provider_is_chosen() -> None:
    options = CompileOptions("cuda", latency_db=":memory:")
    # If the providers are equally fast, TVM's kernels run.
    assert set(_libraries(Compilation(convolutions(), options))) == {None}
    with fake_gpu.algorithm_times(FAST):
        compilation = Compilation(convolutions(24), options)
    assert _libraries(compilation) == {"cudnn": 4}


def test_a_stage_that_cannot_be_captured_has_no_price() -> None:
    """A time without a CUDA graph must not be compared with times in CUDA graphs."""
    options = CompileOptions("cuda", latency_db=":memory:", streams=2)
    compilation = Compilation(convolutions(), options)
    program = compilation.program
    timer = compilation._lowered.stage_timer(program, 2, 1)
    names = "`, `".join(program.operators[op].name for op in (0, 1))

    def job(rounds: Rounds) -> list[list[float]]:
        return rounds([[[0], [1]]])([0], 1)

    fake_gpu.fail_next("cudaStreamBeginCapture", 900)
    with pytest.raises(ExecutionError) as raised:
        list(timer.do([job]))
    says = f"`{names}` cannot be timed in a CUDA graph: `cudaStreamBeginCapture` failed"
    assert says in str(raised.value)
    assert list(timer.do([job]))


def test_a_timer_makes_its_tensors_with_few_calls(tmp_path: Path) -> None:
    """A timer of stages has two tensors for each value of the program. If it called CUDA for each
    tensor, this would take long."""
    options = CompileOptions("cuda", latency_db=":memory:", streams=2)
    compilation = Compilation(convolutions(), options)
    timer = compilation._lowered.stage_timer(compilation.program, 2, 1)
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    assert timer.why_not(0) == ""
    fake_gpu.stop_log()
    calls = Counter(json.loads(line)["call"] for line in log.read_text().splitlines())
    assert calls["cudaMalloc"] == calls["cudaMallocHost"] == 1
    assert calls["cudaMemcpyAsync"] >= 3
    assert calls["cudaStreamCreate"] == calls["cudaMemsetAsync"] == 0


def test_a_kernel_of_a_library_that_cannot_be_captured_is_left_out() -> None:
    options = CompileOptions("cuda", providers=LIBRARIES, latency_db=":memory:")
    compilation = Compilation(convolutions(), options)
    timer = compilation._lowered.stage_timer(compilation.program, 1, 1)
    assert timer.why_not(0) == ""
    fake_gpu.fail_next("cudaStreamBeginCapture", 900)
    name = compilation.program.operators[0].name
    assert timer.why_not(0).startswith(f"`{name}` cannot be timed in a CUDA graph: `cudaStream")


def test_what_a_library_fails_at_is_left_to_tvm(caplog: pytest.LogCaptureFixture) -> None:
    options = CompileOptions("cuda", latency_db=":memory:")
    fake_gpu.fail_next("cudnnGetConvolutionForwardAlgorithm_v7", 3000)
    with fake_gpu.algorithm_times(FAST):
        compilation = Compilation(convolutions(40), options)
    (warning,) = [r.message for r in caplog.records if "no kernel of cudnn" in r.message]
    assert "CUDNN_STATUS_NOT_SUPPORTED" in warning
    assert _libraries(compilation)["cudnn"] == 3


def test_what_was_measured_decides_the_next_time(tmp_path: Path) -> None:
    options = CompileOptions("cuda", latency_db=tmp_path / "latencies.db")
    with fake_gpu.algorithm_times(FAST):
        first = Compilation(convolutions(32), options)
    again = Compilation(convolutions(32), options)
    assert _libraries(again) == _libraries(first) == {"cudnn": 4}


def _libraries(compilation: Compilation) -> Counter[str | None]:
    return Counter(op.library for op in compilation.program.operators)


ASK = """
import logging, sys
from tvm_interop import ArtifactError, DeviceError, GraphModule, load
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.measure.stage_timer import Rounds

logging.basicConfig(format="%(message)s", stream=sys.stdout)
artifact = load(sys.argv[1])
assert GraphModule(artifact).plan == artifact.fallback
try:
    CudaInstance(artifact.plan, artifact.load_kernels(), artifact.weights)
except ArtifactError as error:
    print(error)
try:
    Compilation(sys.argv[2], CompileOptions("cuda", providers=["tvm", "cudnn"]))
except DeviceError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("/nowhere/libcudnn.so.9", "/nowhere/libcudnn.so.9: cannot open shared object file"),
        ("libcuda.so.1", "`libcuda.so.1` has no `cudnnGetVersion`"),
    ],
)
def test_a_missing_library_is_named(file: str, why: str, tmp_path: Path) -> None:
    path, model = tmp_path / "model.tar", tmp_path / "model.onnx"
    onnx.save(convolutions(), model)
    tvm_interop.compile(model, target="cuda", scheduler="sequential", out=path, providers=["cudnn"])
    environment = {**os.environ, "TVM_INTEROP_CUDNN_LIBRARY": file}
    command = [sys.executable, "-c", ASK, str(path), str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    warned, refused, not_compiled = done.stdout.splitlines()
    for line in (warned, refused, not_compiled):
        assert "`cudnn`, which is missing here" in line or "`cudnn` is missing here" in line
        assert why in line
        assert "install `tvm-interop[cudnn]`" in line
    assert warned.startswith("the model was compiled for kernel library")
    assert "TVM's kernels run" in warned
    assert refused.startswith("operator `")
