"""Turns workspaces of GPU kernels into tensors of the program, so that their memory is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..program.program import Program, Value

_GLOBAL = "global"
"""The scope of memory that all threads of a GPU see."""


def lift_workspaces(program: Program) -> Program:
    """`program` with kernels that allocate no GPU memory of their own.

    A workspace is memory in which a kernel keeps results between its loops. It becomes an
    additional output, which no operator reads. It then has a place in the arena for exactly as long
    as its operator runs, and the plan's checks cover it.

    TVM would instead take a workspace from a pool at the launch, and return it when the launch
    returns, long before the GPU has finished. This has two faults. On another stream the next
    kernel may get the same bytes. A CUDA graph would keep the address of memory that the pool gives
    to other kernels. If each operator waited for the operator launched before it, the first fault
    would not occur, but the second fault would.

    Only buffers that a kernel allocates around all of its loops are lifted.
    `kernels_with_workspace` finds the kernels that have other buffers in GPU memory. Operators that
    share a kernel get one workspace each.
    """
    lifted = {
        var.name_hint: lift_workspace(func) for var, func in program.kernels.functions_items()
    }
    workspaces = {name: buffers for name, (_, buffers) in lifted.items() if buffers}
    if not workspaces:
        return program
    values = list(program.values)
    names = {value.name for value in values}
    operators = []
    for op in program.operators:
        outputs = list(op.outputs)
        for buffer in workspaces.get(op.kernel, ()):
            outputs.append(len(values))
            values.append(_workspace(op.name, buffer, names))
        operators.append(replace(op, outputs=tuple(outputs)))
    kernels = tvm.IRModule({name: func for name, (func, _) in lifted.items()})
    return replace(program, values=values, operators=operators, kernels=kernels)


def lift_workspace(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, list[Any]]:
    """`func` with one more parameter at the end for each buffer that it allocates for all threads.

    Returns
    -------
    The new function, and these buffers. `func` itself is not changed.
    """
    body = func.body
    if not isinstance(body, s_tir.SBlockRealize):
        return func, []
    root = body.block
    buffers = [buffer for buffer in root.alloc_buffers if buffer.scope() == _GLOBAL]
    if not buffers:
        return func, []
    others = [buffer for buffer in root.alloc_buffers if buffer.scope() != _GLOBAL]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        root.body,
        root.init,
        others,
        root.match_buffers,
        root.annotations,
    )
    realized = s_tir.SBlockRealize(body.iter_values, body.predicate, block)
    return tirx.PrimFunc([*func.params, *buffers], realized, func.ret_type, func.attrs), buffers


def _workspace(op: str, buffer: Any, names: set[str]) -> Value:
    name = stem = f"{op}:{buffer.name}"
    count = 1
    while name in names:
        count += 1
        name = f"{stem}_{count}"
    names.add(name)
    return Value(name, tuple(int(dim) for dim in buffer.shape), str(buffer.dtype))
