"""Makes chains of tiny operators, which run without the compilation of a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import te

from tvm_interop import Schedule
from tvm_interop._native.kernels import load_kernels
from tvm_interop.execution.cpu import Instance
from tvm_interop.kernels.build import build_kernels
from tvm_interop.plan.make import make_plan
from tvm_interop.program.program import Operator, Program, Value

WIDTH = 64


def chain_kernels(folder: Path) -> Any:
    """Compile two kernels that add 1 to each number.

    `serial` has a serial loop, and `parallel` has a parallel loop.
    """
    x = te.placeholder((WIDTH,), "float32", name="x")
    y = te.compute((WIDTH,), lambda i: x[i] + 1.0, name="y")
    functions = {}
    for name in ("serial", "parallel"):
        module = tvm.IRModule({name: te.create_prim_func([x, y])})
        schedule = tvm.s_tir.Schedule(module[name])
        if name == "parallel":
            schedule.parallel(schedule.get_loops(schedule.get_sblock("y"))[0])
        functions[name] = schedule.mod["main"].with_attr("global_symbol", name)
    return load_kernels(build_kernels(tvm.IRModule(functions), "llvm", folder / "chain.so"))


class Chain:
    """A chain of operators on several streams.

    Operator i runs on stream i modulo the number of streams.
    """

    def __init__(
        self,
        kernels: Any,
        streams: int,
        kernel: str = "serial",
        threads: int = 1,
        operators: int = 24,
    ) -> None:
        self.operators = operators
        self._program = Program(
            values=[Value(f"v{i}", (WIDTH,), "float32") for i in range(operators + 1)],
            operators=[Operator(f"op{i}", kernel, (i,), (i + 1,)) for i in range(operators)],
            inputs=(0,),
            outputs=(operators,),
        )
        names = tuple(op.name for op in self._program.operators)
        orders = [list(range(s, operators, streams)) for s in range(streams)]
        schedule = Schedule("by hand", names, streams=orders)
        plan = make_plan(self._program, schedule, threads, parallel_kernels=kernel == "parallel")
        self.instance = Instance(plan, kernels, {})

    def check(self, start: float) -> None:
        """Run the chain on `start`, and check that the result is right."""
        self.instance.arrays[0][:] = start
        self.instance.run()
        np.testing.assert_array_equal(self.instance.arrays[self.operators], start + self.operators)
