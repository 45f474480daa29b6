"""Turns workspaces of GPU kernels into tensors of the program, so that the plan includes their
memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..program.program import Program, Value

_GLOBAL = "global"
"""TVM's name for memory that all threads of a GPU share."""


def lift_workspaces(program: Program) -> Program:
    """Return `program` with kernels that do not allocate GPU memory.

    A workspace is memory in which a kernel keeps results between its loops. It becomes an
    additional output of the kernel, which no operator reads. The plan then gives it memory for
    exactly as long as the operator runs, and the checks of the plan cover it.

    TVM would take a workspace from a pool at the launch, and give it back when the launch returns,
    long before the GPU has finished. This is wrong for two reasons. First, a kernel on another
    stream may get the same memory while it is in use. This cannot happen if each operator waits for
    the operator launched before it. Second, a CUDA graph would keep using memory that the pool has
    since given to other kernels. This can always happen.

    Only buffers that a kernel allocates outside of all its loops become outputs.
    `kernels_with_workspace` finds the kernels with other buffers in GPU memory. If operators share
    a kernel, each operator gets its own workspace.
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
    """Return `func` with one more parameter for each buffer that it allocates for all threads.

    Returns
    -------
    The new function, with the new parameters at the end, and the buffers that these stand for.
    `func` itself is not changed.
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
