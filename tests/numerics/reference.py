"""Runs a `Program` one kernel after the other. Every executor must give the same results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tvm

from tvm_interop.kernels.build import build_kernels
from tvm_interop.program.program import Program


def run_program(
    program: Program, feeds: Mapping[str, np.ndarray], folder: Path, target: object = "llvm"
) -> dict[str, np.ndarray]:
    """Outputs of `program` by name. Its kernels are compiled into `folder`."""
    library = tvm.runtime.load_module(build_kernels(program.kernels, target, folder / "kernels.so"))
    device = tvm.cpu()
    tensors: dict[int, tvm.runtime.Tensor] = {}
    for index, array in program.weights.items():
        tensors[index] = tvm.runtime.tensor(array, device)
    for index in program.inputs:
        tensors[index] = tvm.runtime.tensor(feeds[program.values[index].name], device)

    def tensor_of(index: int) -> tvm.runtime.Tensor:
        value = program.values[index]
        stored = tensors[program.storage_of(index)]
        return stored if value.alias_of is None else stored._create_view(value.shape)

    for operator in program.operators:
        for index in operator.outputs:
            value = program.values[index]
            assert index not in tensors, f"{value.name} is written twice"
            tensors[index] = tvm.runtime.empty(value.shape, value.dtype, device)
        arguments = [tensor_of(index) for index in (*operator.inputs, *operator.outputs)]
        library[operator.kernel](*arguments)
    return {program.values[i].name: tensor_of(i).numpy() for i in program.outputs}
