"""Compares our launch overhead on CUDA with TVM's Relax VM: the host's microseconds per operator.

The program is a chain of operators that do next to nothing. It runs in these ways:
- uncaptured on one stream;
- uncaptured on two streams. Every second operator is on the second stream, so that each operator
  waits for the operator before it on the other stream;
- as one CUDA graph;
- in Relax's VM, in both its modes, `compiled` and `bytecode`.

Contestants take turns. `ours, one stream` takes part twice, which shows the noise. Only the host's
time counts, so no GPU is needed: a fake CUDA library can take the place of the driver. With the
fake library, the times do not include the driver's own time:
    LD_LIBRARY_PATH=build/test/tests/fake_cuda python -m benchmarks.cuda_dispatch [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_interop
from benchmarks.dispatch import chain_program, relax_module, tiny_kernel
from tvm_interop import Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.cuda import native_arch
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.kernels.build_cuda import build_cuda_kernels, compiling_with_nvcc, cuda_target
from tvm_interop.kernels.cuda_schedule import DefaultCUDASchedule
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.plan.make import make_plan

ROUNDS = 21
RUNS = 50


def our_timer(
    operators: int, streams: int, dispatch: _cuda.Dispatch, kernels: Any
) -> Callable[[], float]:
    """A function that returns the seconds the host takes to launch the chain in our executor.

    Operator i runs on stream i modulo `streams`.
    """
    program = chain_program(operators)
    names = tuple(op.name for op in program.operators)
    orders = [list(range(s, operators, streams)) for s in range(streams)]
    plan = make_plan(program, Schedule("by hand", names, streams=orders), device="cuda:0")
    instance = CudaInstance(plan, kernels, {}, dispatch=dispatch)
    assert instance.dispatch == dispatch, _cuda.why_no_graph(instance.executor)
    return lambda: _cuda.time_launches(instance.executor, RUNS) / RUNS


def relax_timer(operators: int, arch: str, exec_mode: str) -> Callable[[], float]:
    """A function that returns the seconds the host takes to launch the chain in Relax's VM.

    Each run of the chain is one call from Python, so the time includes this call.
    """
    target = cuda_target((arch,))
    module = DefaultCUDASchedule(target)(relax_module(operators, tiny_kernel()))
    with target, compiling_with_nvcc((arch,)):
        executable = relax.build(module, target, exec_mode=exec_mode)
    device = tvm.cuda(0)
    run = relax.VirtualMachine(executable, device)["main"]
    argument = tvm.runtime.tensor(np.zeros(1, "float32"), device)

    def timer() -> float:
        began = time.perf_counter()
        for _ in range(RUNS):
            run(argument)
        took = time.perf_counter() - began
        device.sync()
        return took / RUNS

    timer()
    return timer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    operators, arch = arguments.operators, native_arch()
    with TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        tiny = tvm.IRModule({"add_one": tiny_kernel()})
        build_cuda_kernels(DefaultCUDASchedule(cuda_target((arch,)))(tiny), library, (arch,))
        kernels = tvm.runtime.load_module(str(library))
    contestants = {
        "ours, one stream": our_timer(operators, 1, "streams", kernels),
        "ours, one stream, again": our_timer(operators, 1, "streams", kernels),
        "ours, a wait before each operator": our_timer(operators, 2, "streams", kernels),
        "ours, one graph": our_timer(operators, 1, "captured", kernels),
        "Relax VM, compiled": relax_timer(operators, arch, "compiled"),
        "Relax VM, bytecode": relax_timer(operators, arch, "bytecode"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, timer in contestants.items():
            seconds[name].append(timer())
    us = {name: float(np.median(s)) * 1e6 / operators for name, s in seconds.items()}
    where = f"{_cuda.describe_device(0)}, host {cpu_model()}"
    if arguments.json:
        print(json.dumps({"machine": where, "operators": operators, "us_per_operator": us}))
        return
    print(f"{operators} operators in a chain, {where}, tvm_interop {tvm_interop.__version__}")
    for name, value in us.items():
        ratio = value / us["ours, one stream"]
        print(f"{name:36s}{value:10.4f} us an operator{ratio:8.2f} x")


if __name__ == "__main__":
    main()
