"""Compares our executor's overhead with that of TVM's Relax VM, in nanoseconds per operator.

The program is a chain of operators that do next to nothing. It runs in these ways:
- on one stream;
- on two streams. Every second operator is on the second stream, so that each operator waits for the
  operator before it on the other stream;
- in Relax's VM, in both its modes, `compiled` and `bytecode`.

Contestants take turns. `ours, one stream` takes part twice, which shows the noise.

    python benchmarks/dispatch.py [--operators 100] [--json]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import tvm
from tvm import relax, te

import tvm_interop  # This import sets how TVM binds threads, so it comes before any kernel runs.
from tvm_interop import Schedule
from tvm_interop._native import cpu as _runtime
from tvm_interop.execution.cpu import Instance
from tvm_interop.kernels.build import build_kernels
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.plan.make import make_plan
from tvm_interop.program.program import Operator, Program, Value

ROUNDS = 41
RUNS = 200
OPAQUE = 8
"""TVM's operator pattern `kOpaque`. It forbids fusion, which would make one kernel of the chain."""


def tiny_kernel() -> tvm.tirx.PrimFunc:
    """A kernel that adds 1 to a tensor of one element."""
    x = te.placeholder((1,), "float32", name="x")
    y = te.compute((1,), lambda i: x[i] + 1.0, name="y")
    return te.create_prim_func([x, y]).with_attrs(
        {"global_symbol": "add_one", "op_pattern": OPAQUE}
    )


def chain_program(operators: int) -> Program:
    """The chain of operators as a `Program`, the input of our planner."""
    names = ["x", *(f"y{i}" for i in range(operators))]
    return Program(
        values=[Value(name, (1,), "float32") for name in names],
        operators=[Operator(f"op{i}", "add_one", (i,), (i + 1,)) for i in range(operators)],
        inputs=(0,),
        outputs=(operators,),
    )


def relax_module(operators: int, tiny: tvm.tirx.PrimFunc) -> tvm.IRModule:
    """The chain of calls of the kernel `tiny`, as a Relax module."""
    builder = relax.BlockBuilder()
    kernel = builder.add_func(tiny, "add_one")
    x = relax.Var("x", relax.TensorType((1,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(operators):
                value = builder.emit(relax.call_tir(kernel, [value], x.ty))
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.finalize()


def relax_timer(operators: int, exec_mode: str) -> Callable[[], float]:
    """A function that returns the seconds a run of the chain takes in Relax's VM.

    The loop over runs is in C++, so the time includes no calls from Python.
    """
    executable = relax.build(relax_module(operators, tiny_kernel()), "llvm", exec_mode=exec_mode)
    machine = relax.VirtualMachine(executable, tvm.cpu())
    argument = tvm.runtime.tensor(np.zeros(1, "float32"))
    assert machine["main"](argument).numpy()[0] == operators
    timer = machine.time_evaluator("main", tvm.cpu(), number=RUNS)
    return lambda: timer(argument).mean


def our_timer(operators: int, streams: int, kernels: object) -> Callable[[], float]:
    """A function that returns the seconds a run of the chain takes in our executor.

    Operator i runs on stream i modulo `streams`. The loop over runs is in C++, so the time includes
    no calls from Python.
    """
    program = chain_program(operators)
    names = tuple(op.name for op in program.operators)
    orders = [list(range(s, operators, streams)) for s in range(streams)]
    plan = make_plan(program, Schedule("by hand", names, streams=orders))
    instance = Instance(plan, kernels, {})
    instance.run()
    assert instance.arrays[program.outputs[0]][0] == operators
    return lambda: _runtime.time(instance.executor, RUNS) / RUNS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operators", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    operators = arguments.operators
    with TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        build_kernels(tvm.IRModule({"add_one": tiny_kernel()}), tvm.target.Target("llvm"), library)
        kernels = tvm.runtime.load_module(str(library))
    contestants = {
        "ours, one stream": our_timer(operators, 1, kernels),
        "ours, one stream, again": our_timer(operators, 1, kernels),
        "ours, a wait before each operator": our_timer(operators, 2, kernels),
        "Relax VM, compiled": relax_timer(operators, "compiled"),
        "Relax VM, bytecode": relax_timer(operators, "bytecode"),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(ROUNDS):
        for name, timer in contestants.items():
            seconds[name].append(timer())
    ns = {name: float(np.median(s)) * 1e9 / operators for name, s in seconds.items()}
    if arguments.json:
        print(json.dumps({"machine": cpu_model(), "operators": operators, "ns_per_operator": ns}))
        return
    print(f"{operators} operators in a chain, {cpu_model()}, tvm_interop {tvm_interop.__version__}")
    for name, value in ns.items():
        ratio = value / ns["ours, one stream"]
        print(f"{name:36s}{value:10.1f} ns an operator{ratio:8.2f} x")


if __name__ == "__main__":
    main()
