"""Intermediate results of kernels become tensors of the program, planned like all others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..program.program import Program, Value

_GLOBAL = "global"
"""The scope of memory that all threads of a GPU see."""


def lift_workspaces(program: Program) -> Program:
    """`program` with kernels that take no memory of the GPU for themselves.

    What a kernel keeps between its loops becomes an output more, which nobody reads: so it has a
    place in the arena for just as long as the operator runs, and the plan's checks cover it. TVM
    would take it from a pool at the launch and put it back when the launch returns, long before the
    GPU is done with it: on another stream the next kernel may get the same bytes, and a graph would
    keep the address of memory that the pool gives away. Operators would have to wait for each other
    in the order of their launches to be safe from the one, and could not be from the other.

    Only what a kernel keeps for all of its loops is lifted; see `kernels_with_workspace` for what
    is left. Operators that share a kernel get a workspace each.
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
    """`func` with the buffers that it allocates for all threads as parameters, after its own.

    Returns
    -------
    The function, and those buffers. The one given is not changed.
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
