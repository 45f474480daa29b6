"""Replaces calls of C library functions, such as `exp`, by expressions that LLVM vectorises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir.transform import PassContext
from tvm.tirx.transform import prim_func_pass

from . import vector_math
from .loops import in_turn

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "tirx.erf": vector_math.erf,
    "tirx.exp": vector_math.exp,
    "tirx.exp2": vector_math.exp2,
    "tirx.log": vector_math.log,
    "prim.log2": vector_math.log2,
    "tirx.log10": vector_math.log10,
    "tirx.pow": vector_math.power,
    "tirx.sigmoid": vector_math.sigmoid,
    "tirx.tanh": vector_math.tanh,
}
"""Maps the name of a TIR operator to the function that expresses it as float32 arithmetic."""


@prim_func_pass(opt_level=0, name="VectorizeMath")
class VectorizeMath:
    """Replace the transcendental functions in each kernel of a module by arithmetic.

    Functions of float16 are computed in float32, as in TVM. Calls with float64 arguments are not
    replaced. Apply this pass to scheduled kernels: a later schedule that inlines a long expression
    would repeat it at each use.
    """

    def transform_function(
        self, func: tirx.PrimFunc, mod: tvm.IRModule, ctx: PassContext
    ) -> tirx.PrimFunc:
        """Rewrite `func`; called by TVM's pass machinery."""
        return with_vector_math(func)


def with_vector_math(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """`func` with arithmetic in place of its calls of `FUNCTIONS` for float32 and float16.

    A kernel without calls of `FUNCTIONS` is returned unchanged.

    TVM's analyzer replaces each variable by the expression it is bound to. Two nested calls of
    functions would therefore take minutes to compile, and three nested calls hours. So an argument
    that contains a function is first stored in a buffer, and then read from the buffer. This is not
    done in a branch of a condition, because an argument there may be computed only if the condition
    holds. If such an argument contains a function, the call of the outer function is not replaced.
    """
    body = tvm_ffi.structural_map(func.body, (tirx.For, _vectors_with_arguments_first))
    in_vectors = _stores_in_vectors(body)

    def arguments_first(store: Any) -> Any:
        held: list[Any] = []
        steps = [store] if store in in_vectors else _steps(store, 0, 1, held)
        return _with_buffers(held, steps)

    def in_reduction(block: Any) -> Any:
        """Allocate the arguments' buffers in the reduction block itself.

        The buffers do not get a block of their own, because TVM allows no block with buffers inside
        a reduction block.
        """
        if block.init is None:
            return block
        held: list[Any] = []

        def steps(store: Any) -> Any:
            return store if store in in_vectors else in_turn(_steps(store, 0, 1, held))

        body = tvm_ffi.structural_map(block.body, (tirx.BufferStore, steps))
        return _with(block, body, [*block.alloc_buffers, *held]) if held else block

    body = tvm_ffi.structural_map(body, (s_tir.SBlock, in_reduction))
    body = tvm_ffi.structural_map(body, (tirx.BufferStore, arguments_first))
    body = tvm_ffi.structural_map(body, (tvm.ir.Call, _written_out))
    if body.same_as(func.body):
        return func
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)


def _with(block: Any, body: Any, buffers: list[Any]) -> Any:
    """A copy of `block` with the body `body`, in which `buffers` are allocated."""
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        init=block.init,
        alloc_buffers=buffers,
        match_buffers=block.match_buffers,
        annotations=block.annotations,
    )


def _vectors_with_arguments_first(loop: Any) -> Any:
    """Split a vectorised loop into one loop for each step.

    Each loop does its step for all elements, before the loop for the next step begins.
    """
    if loop.kind != tirx.ForKind.VECTORIZED:
        return loop
    held: list[Any] = []
    steps = _steps(loop.body, loop.loop_var, loop.extent, held)
    if not held:
        return loop
    return _with_buffers(held, [_loop_over(step, loop) for step in steps])


def _loop_over(step: Any, loop: Any) -> tirx.For:
    """A copy of `loop` with the body `step` and a new loop variable."""
    var = tirx.Var(loop.loop_var.name, loop.loop_var.ty)
    body = tvm_ffi.structural_map(
        step, (tirx.Var, lambda used: var if used.same_as(loop.loop_var) else used)
    )
    return tirx.For(var, loop.min, loop.extent, loop.kind, body)


def _steps(statement: Any, lane: Any, lanes: Any, held: list[Any]) -> list[Any]:
    """Split `statement` into steps that run one after the other.

    If a function's argument contains another function, a separate step stores the argument in a new
    buffer.

    Parameters
    ----------
    lane: the element of each new buffer that belongs to this loop iteration, as an index.
    lanes: the number of elements of each new buffer.
    held: a list to which the new buffers are appended.
    """
    if isinstance(statement, tirx.BufferStore):
        return _steps_of_store(statement, lane, lanes, held)
    if isinstance(statement, tirx.SeqStmt):
        return [step for each in statement.seq for step in _steps(each, lane, lanes, held)]
    if isinstance(statement, s_tir.SBlockRealize) and statement.block.init is None:
        block = statement.block
        steps = _steps(block.body, lane, lanes, held)
        if len(steps) == 1:
            return [statement]
        return [
            s_tir.SBlockRealize(
                statement.iter_values,
                statement.predicate,
                s_tir.SBlock(
                    block.iter_vars,
                    block.reads,
                    block.writes,
                    f"{block.name_hint}_{number}",
                    step,
                    alloc_buffers=block.alloc_buffers,
                    annotations=block.annotations,
                ),
            )
            for number, step in enumerate(steps)
        ]
    return [statement]


def _steps_of_store(store: Any, lane: Any, lanes: Any, held: list[Any]) -> list[Any]:
    in_branches = _calls_in_branches(store.value)
    steps: list[Any] = []

    def hold(argument: Any) -> Any:
        return keep(argument) if _has_function(argument) else argument

    def keep(argument: Any) -> Any:
        if isinstance(argument, (tirx.FloatImm, tirx.Var, tvm.ir.TensorLoad)):
            return argument
        name = f"argument{len(held)}"
        buffer = tirx.decl_buffer((lanes,), argument.ty.dtype, name)
        held.append(buffer)
        steps.append(tirx.BufferStore(buffer, argument, [lane]))
        return buffer[lane]

    def with_arguments_held(call: Any) -> Any:
        if not _is_function(call) or call in in_branches:
            return call
        if call.op.name in _STEPPED and str(call.ty.dtype) == "float32":
            stepped = _STEPPED[call.op.name](keep, *call.args)
            if stepped is not None:
                return stepped
        held_args = [hold(arg) for arg in call.args]
        return tvm.ir.Call(call.op, held_args, call.attrs, ret_ty=call.ty)

    def with_floats_held(cast: Any) -> Any:
        # TVM cannot vectorise a cast to an integer if its operand contains a variable whose value
        # was rounded. So an operand with variables is first stored in a buffer.
        has_variables = _has_function(cast.value) or _nodes(cast.value, tirx.Let)
        is_rounded = str(cast.ty.dtype).startswith(("int", "uint"))
        return tirx.Cast(cast.ty.dtype, keep(cast.value)) if is_rounded and has_variables else cast

    value = tvm_ffi.structural_map(store.value, (tvm.ir.Call, with_arguments_held))
    if not in_branches:
        value = tvm_ffi.structural_map(value, (tirx.Cast, with_floats_held))
    return [*steps, tirx.BufferStore(store.buffer, value, store.indices)] if steps else [store]


def _erf_in_steps(keep: Callable[[Any], Any], x: Any) -> Any:
    x = keep(x)
    return vector_math.erf_from_tail(x, tirx.exp(keep(vector_math.erf_tail(x))))


def _power_in_steps(keep: Callable[[Any], Any], x: Any, y: Any) -> Any:
    if vector_math.has_simple_power(y):
        return None
    x, y = keep(x), keep(y)
    exponent = keep(vector_math.power_exponent(x, y))
    size = keep(vector_math.exp2_of_float64(exponent))
    return vector_math.power_from_exponent(x, y, size)


def _sigmoid_in_steps(keep: Callable[[Any], Any], x: Any) -> Any:
    x = keep(x)
    e = keep(tirx.exp(keep(vector_math.minus_size(x))))
    return vector_math.sigmoid_from_exponential(x, e)


_STEPPED: dict[str, Callable[..., Any]] = {
    "tirx.erf": _erf_in_steps,
    "tirx.pow": _power_in_steps,
    "tirx.sigmoid": _sigmoid_in_steps,
}
"""Some TIR operators have a formula that contains functions, and are computed in steps. Maps the
name of such an operator to the code that makes its steps.

Each step computes a part of the formula.
"""


def _with_buffers(buffers: list[Any], statements: list[Any]) -> Any:
    body = in_turn(statements)
    if not buffers:
        return body
    block = s_tir.SBlock([], [], [], "arguments_first", body, alloc_buffers=buffers)
    return s_tir.SBlockRealize([], True, block)


def _stores_in_vectors(body: Any) -> set[Any]:
    found: set[Any] = set()

    def look(loop: Any) -> None:
        if loop.kind == tirx.ForKind.VECTORIZED:
            tvm_ffi.structural_walk(loop.body, (tirx.BufferStore, found.add))

    tvm_ffi.structural_walk(body, (tirx.For, look))
    return found


def _calls_in_branches(value: Any) -> set[Any]:
    found: set[Any] = set()

    def look(call: Any) -> None:
        if getattr(call.op, "name", "") == "prim.if_then_else":
            for branch in call.args[1:]:
                tvm_ffi.structural_walk(branch, (tvm.ir.Call, found.add))

    tvm_ffi.structural_walk(value, (tvm.ir.Call, look))
    return found


def _has_function(value: Any) -> bool:
    return any(map(_is_function, _nodes(value, tvm.ir.Call)))


def _nodes(value: Any, kind: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(value, (kind, found.append))
    return found


def _is_function(call: Any) -> bool:
    written_out = str(call.ty.dtype) in ("float32", "float16")
    return written_out and getattr(call.op, "name", "") in FUNCTIONS


def _written_out(call: Any) -> Any:
    if not _is_function(call) or any(_nodes(arg, tirx.Let) for arg in call.args):
        return call
    function = FUNCTIONS[call.op.name]
    if str(call.ty.dtype) == "float32":
        return function(*call.args)
    return function(*(arg.astype("float32") for arg in call.args)).astype("float16")
