"""Stores tensors between operators as bfloat16, and rounds the factors of products to bfloat16.

A bfloat16 number has the exponent of float32 and 8 of its 24 significant bits. It takes half the
bytes, and CPUs with AVX512-BF16 multiply twice as many numbers at once. Only two kinds of numbers
are rounded: the results that an operator passes to other operators, and the factors of convolutions
and matrix products, including weights. All other numbers stay float32: sums of products, norms,
softmax, activations, and the model's inputs, outputs and stored weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import tvm
from tvm import relax, te, tirx
from tvm.ir.transform import PassContext, module_pass

from ..kernels.bfloat16_words import widened
from ..program.library_op import LibraryOp
from .fuse_and_name import LIBRARY_OPS
from .groups import ELEMENTWISE, PATTERN, calls_kernel
from .names import bindings_of
from .static_shape import static_shape

NARROW = "tvm_interop.bfloat16"
"""The attribute of `main` that has the names of the units whose results are bfloat16.

In Relax, these results have the type uint16, because TVM does not fully support bfloat16.
"""

_WIDE = "float32"
_WORD = "uint16"


@module_pass(opt_level=0, name="NarrowStorage")
class NarrowStorage:
    """Store the results of a fused module's units as bfloat16.

    Run this pass between `FuseAndName` and `FuseTIR`. A tensor is called narrow if it is stored as
    bfloat16. A unit with narrow tensors becomes a group that converts its inputs to float32,
    computes, and rounds its result. `FuseTIR` makes one kernel of this group. Inputs, outputs and
    weights of the model stay float32. A tensor also stays float32 if anything other than a unit or
    a reshape defines or reads it. The descriptions for kernel libraries say how each tensor is
    stored.

    Parameters
    ----------
    keep
        Patterns of units that stay in float32, with `*` and `?` as in file names. They match the
        units' names or the kinds of their descriptions (`conv2d`, `matmul`, `softmax`, ...). The
        factors of these units are not rounded, and their results are not narrow.
    """

    def __init__(self, keep: Sequence[str] = ()) -> None:
        self._keep = tuple(keep)

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Store tensors of `mod` as bfloat16; called by TVM's pass machinery."""
        main = mod["main"]
        described = {
            str(unit): LibraryOp.from_json(str(text))
            for unit, text in (main.attrs or {}).get(LIBRARY_OPS, {}).items()
        }
        narrow = _narrowed(mod, described, self._keep)
        rewriter = _Rewriter(mod, narrow)
        blocks = [
            type(block)([rewriter.rebound(binding) for binding in block.bindings])
            for block in main.body.blocks
        ]
        body = relax.SeqExpr(blocks, main.body.body)
        function = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
        # Take the names from `types`, which has only units. A reshape of a bfloat16 tensor may have
        # the same name as a unit, but is not a unit.
        units = [unit for unit, types in rewriter.types.items() if types[-1] != _WIDE]
        function = function.with_attr(NARROW, units)
        if described:
            texts = {
                unit: _typed(
                    op,
                    rewriter.types.get(unit, (_WIDE,) * len(op.shapes)),
                    kept=is_kept(unit, op.op, self._keep),
                ).to_json()
                for unit, op in described.items()
            }
            function = function.with_attr(LIBRARY_OPS, texts)
        narrowed = rewriter.builder.get()
        narrowed.update_func(narrowed.get_global_var("main"), function)
        return narrowed


def is_kept(unit: str, kind: str | None, keep: Sequence[str]) -> bool:
    """Whether a unit with this name and kind of description stays in float32."""
    names = [name for name in (unit, kind) if name is not None]
    return any(fnmatchcase(name, pattern) for name in names for pattern in keep)


def _typed(op: LibraryOp, stored: Sequence[str], kept: bool) -> LibraryOp:
    """The description of a unit, changed for tensors that are stored with the types `stored`."""
    if op.dtype != _WIDE:
        return op
    dtype: Literal["float32", "bfloat16"] = "bfloat16" if op.multiplies and not kept else "float32"
    if dtype == _WIDE and all(each == _WIDE for each in stored):
        return op
    return op.with_fields(dtype=dtype, stored=tuple(stored))


def _narrowed(
    mod: tvm.IRModule, described: dict[str, LibraryOp], keep: Sequence[str]
) -> set[relax.Var]:
    """The variables of `main` whose tensors will be stored as bfloat16.

    A reshape and its input are either both narrow (bfloat16) or both float32.
    """
    main = mod["main"]
    bindings = list(bindings_of(main))
    narrow = set()
    for binding in bindings:
        op = described.get(binding.var.name)
        kept = is_kept(binding.var.name, op.op if op else None, keep)
        kept = kept or (op is not None and op.is_quantised)
        value = getattr(binding, "value", None)
        if _is_wide_tensor(binding.var) and (
            (_is_unit(mod, value) and not kept) or _is_reshape(value)
        ):
            narrow.add(binding.var)
    wide = set(_variables(main.body.body))
    for binding in bindings:
        value = getattr(binding, "value", None)
        if not _is_unit(mod, value) and not _is_reshape(value):
            wide |= set(_variables(value)) if value is not None else set()
    narrow -= wide
    views = [(b.var, b.value.args[0]) for b in bindings if _is_reshape(getattr(b, "value", None))]
    while mixed := {v for pair in views if set(pair) & narrow and set(pair) - narrow for v in pair}:
        if not mixed & narrow:
            break
        narrow -= mixed
    return narrow


class _Rewriter:
    """Rewrites each binding of `main` for narrow (bfloat16) tensors.

    Attributes
    ----------
    builder: holds the functions of the module, and the new groups and casts.
    types: for each unit, by its name: the types in which its arguments are stored, and last the
        type of its result.
    """

    def __init__(self, mod: tvm.IRModule, narrow: set[relax.Var]) -> None:
        self.builder = relax.BlockBuilder(mod)
        self.types: dict[str, tuple[str, ...]] = {}
        self._mod = mod
        self._narrow = narrow
        self._new: dict[relax.Var, relax.Var] = {}

    def rebound(self, binding: relax.Binding) -> relax.Binding:
        """`binding`, rewritten if it reads or defines a bfloat16 tensor."""
        value = getattr(binding, "value", None)
        if value is not None and _is_reshape(value) and binding.var in self._narrow:
            made = relax.op.reshape(self._new[value.args[0]], value.args[1])
            return relax.VarBinding(self._renewed(binding.var), self.builder.normalize(made))
        if not _is_unit(self._mod, value):
            return binding
        args = _arguments(value)
        flags = [arg in self._narrow for arg in args]
        self.types[binding.var.name] = tuple(
            "bfloat16" if flag else _WIDE for flag in (*flags, binding.var in self._narrow)
        )
        if not any(flags) and binding.var not in self._narrow:
            return binding
        group = self._group(binding.var, value, flags)
        new_args = [self._new.get(arg, arg) for arg in args]
        call = self.builder.normalize(relax.Call(group, new_args))
        return relax.VarBinding(self._renewed(binding.var), call)

    def _renewed(self, var: relax.Var) -> relax.Var:
        if var in self._narrow:
            self._new[var] = type(var)(var.name, _as(var.ty, _WORD))
        return self._new.get(var, var)

    def _group(self, var: relax.Var, value: relax.Call, flags: Sequence[bool]) -> Any:
        """Return a function that widens a unit's bfloat16 arguments to float32 and runs the unit.

        If `var` is narrow (stored as bfloat16), the function also rounds the result.

        Parameters
        ----------
        flags: whether each argument is narrow.
        """
        args = _arguments(value)
        params = [
            relax.Var(f"p{i}", _as(arg.ty, _WORD) if flag else arg.ty)
            for i, (arg, flag) in enumerate(zip(args, flags, strict=True))
        ]
        inner = relax.BlockBuilder()
        with inner.function("group", params, private=True):
            with inner.dataflow():
                wide = [
                    inner.emit(self._converted(param, widened, _WIDE)) if flag else param
                    for param, flag in zip(params, flags, strict=True)
                ]
                result = self._body(inner, value, wide)
                if var in self._narrow:
                    result = inner.emit_output(self._converted(result, _rounded, _WORD))
                else:
                    result = inner.emit_output(result)
            inner.emit_func_output(result)
        function = inner.finalize()["group"].with_attr("Primitive", True)
        return self.builder.add_func(function, f"{_callee(value).name_hint}_bf16")

    def _body(self, inner: relax.BlockBuilder, value: relax.Call, args: list[relax.Var]) -> Any:
        """The unit's computation, applied to `args`."""
        if not isinstance(value.op, tvm.ir.GlobalVar):
            return inner.emit(relax.call_tir(value.args[0], args, value.ty_args[0]))
        function = self._mod[value.op]
        known: dict[Any, Any] = dict(zip(function.params, args, strict=True))
        for binding in bindings_of(function):
            call = binding.value
            new = [_renamed(arg, known) for arg in call.args]
            known[binding.var] = inner.emit(relax.Call(call.op, new, call.attrs, call.ty_args))
        return known[function.body.body]

    def _converted(self, expr: relax.Var, convert: Callable[[Any], Any], dtype: str) -> relax.Call:
        shape = static_shape(expr.ty)
        assert shape is not None
        # The kernel's sizes must have the type of the sizes in Relax, int64.
        dims = [tirx.IntImm("int64", dim) for dim in shape]
        data = te.placeholder(dims, str(expr.ty.dtype))
        result = te.compute(dims, lambda *i: convert(data(*i)), name=convert.__name__.strip("_"))
        kernel = te.create_prim_func([data, result])
        kernel = kernel.with_attr(PATTERN, ELEMENTWISE)
        return relax.call_tir(
            self.builder.add_func(kernel, result.op.name), [expr], _as(expr.ty, dtype)
        )


def _rounded(x: Any) -> Any:
    """The bits of the bfloat16 number nearest to `x`; ties go to even, and NaN stays NaN."""
    bits = tirx.reinterpret("uint32", x)
    sixteen = tirx.const(16, "uint32")
    is_odd = (bits >> sixteen) & tirx.const(1, "uint32")
    nearest = (bits + tirx.const(0x7FFF, "uint32") + is_odd) >> sixteen
    return tirx.Select(x == x, nearest.astype(_WORD), tirx.const(0x7FC0, _WORD))


def _is_unit(mod: tvm.IRModule, value: Any) -> bool:
    """Whether `value` calls a kernel, or a group of kernels, with one result.

    The kernels must be of a kind that `FuseTIR` can join with other kernels.
    """
    if not isinstance(value, relax.Call) or not isinstance(value.ty, relax.TensorType):
        return False
    if not isinstance(value.op, tvm.ir.GlobalVar):
        return calls_kernel(value) and len(value.args) == 2 and _may_be_joined(mod, value)
    function = mod[value.op]
    return (
        isinstance(function, relax.Function)
        and isinstance(function.body.body, relax.Var)
        and all(
            isinstance(call := getattr(b, "value", None), relax.Call)
            and calls_kernel(call)
            and _may_be_joined(mod, call)
            for b in bindings_of(function)
        )
    )


def _may_be_joined(mod: tvm.IRModule, call: relax.Call) -> bool:
    """Whether `FuseTIR` can join a kernel with the kernels that widen and round its tensors.

    The kernels that widen and round use sizes of 64 bits, and their tensors begin at the start of
    their memory. Two kinds of kernels cannot be joined with them. The first kind uses sizes of 32
    bits, such as running sums. The second kind supports tensors that begin at an offset in their
    memory, such as TVM's `scatter_elements`.
    """
    buffers = [param.ty for param in mod[call.args[0]].params]
    return all(
        isinstance(buffer.elem_offset, tirx.IntImm)
        and all(str(size.ty.dtype) == "int64" for size in buffer.shape)
        for buffer in buffers
        if isinstance(buffer, tirx.BufferType)
    )


def _is_reshape(value: Any) -> bool:
    return isinstance(value, relax.Call) and bool(value.op == tvm.ir.Op.get("relax.reshape"))


def _callee(value: relax.Call) -> tvm.ir.GlobalVar:
    return value.op if isinstance(value.op, tvm.ir.GlobalVar) else value.args[0]


def _arguments(value: relax.Call) -> list[relax.Expr]:
    """The tensors that the unit's kernel reads."""
    of_group = isinstance(value.op, tvm.ir.GlobalVar)
    return list(value.args if of_group else value.args[1].fields)


def _variables(expr: relax.Expr) -> list[relax.Var]:
    return [expr] if isinstance(expr, relax.Var) else list(relax.analysis.free_vars(expr))


def _is_wide_tensor(var: relax.Var) -> bool:
    return static_shape(var.ty) is not None and str(var.ty.dtype) == _WIDE


def _as(ty: relax.TensorType, dtype: str) -> relax.TensorType:
    return relax.TensorType(ty.shape, dtype)


def _renamed(expr: relax.Expr, known: dict[Any, Any]) -> relax.Expr:
    if isinstance(expr, relax.Tuple):
        return relax.Tuple([_renamed(field, known) for field in expr.fields])
    return known.get(expr, expr) if isinstance(expr, relax.Var) else expr
