"""Fuses operators into units, and names each unit after one of the bindings that it computes.

TVM's pass `FuseOps` makes a function of each group of fused operators. It gives these functions new
names, and equal groups share one function. TVM does not record which bindings became a group, so
this module finds them by matching. It goes through the function of each group with the arguments of
the group's call. For each call in the function, it looks for a call before fusion with the same
kernel and the same arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .groups import DESCRIPTION, REFUSED, calls_kernel, pattern_of
from .names import UniqueNames, bindings_of, is_meaningful, rename_bindings

LIBRARY_OPS = "tvm_interop.library_ops"
"""The attribute of `main` that holds, as JSON, the `LibraryOp` of each unit for libraries."""

_HEAVIEST_PATTERN = 4
"""TVM's `kOutEWiseFusable`, the `op_pattern` of convolutions and matrix products.

A larger `op_pattern` means that a kernel cannot be fused into other kernels. It does not mean that
the kernel does more work.
"""


@module_pass(opt_level=0, name="FuseAndName")
class FuseAndName:
    """Run `FuseOps`, and name each unit of `main` by the rule in the docstring of
    `LowerToUnits`.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Fuse the operators of `mod`; called by TVM's pass machinery."""
        fused = _fused(mod, ctx)
        main = fused["main"]
        refused = (main.attrs or {}).get(REFUSED, {})
        matcher = _Matcher(mod["main"], fused)
        unique = UniqueNames({param.name for param in main.params})
        names = {}
        described = {}
        refused_units = {}
        for binding in bindings_of(main):
            members = matcher.members(binding)
            kernel = _callee(binding)
            if kernel is not None:
                names[binding.var] = unique.take(_unit_name(fused, kernel, members))
                attrs = fused[kernel].attrs
                if attrs and DESCRIPTION in attrs:
                    described[names[binding.var]] = str(attrs[DESCRIPTION])
                of_members = [refused[var.name] for var, _ in members if var.name in refused]
                if of_members:
                    refused_units[names[binding.var]] = str(of_members[0])
        renamed = rename_bindings(main, names)
        if described:
            renamed = renamed.with_attr(LIBRARY_OPS, described)
        if refused:
            renamed = renamed.with_attr(REFUSED, refused_units)
        fused.update_func(fused.get_global_var("main"), renamed)
        return fused


_DEPTH = "relax.FuseOps.max_depth"
_MOST_FUSED = 64
"""The largest number of operators in a unit.

Each operator may add a tensor to the kernel. LLVM's time to compile a kernel grows with the square
of the number of tensors: 2 s for 65 tensors, 16 s for TVM's own limit of 256 operators.
"""


def _fused(mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
    """`mod` with its operators fused into groups of at most `_MOST_FUSED`.

    A limit in the configuration of `ctx` is used in place of `_MOST_FUSED`, if there is one.
    """
    config = {_DEPTH: _MOST_FUSED, **ctx.config}
    # The new context has no instruments. An instrument would treat the end of this context as the
    # end of all passes.
    with PassContext(
        ctx.opt_level, list(ctx.required_pass), list(ctx.disabled_pass), config=config
    ):
        return relax.transform.FuseOps()(mod)


_Member = tuple[relax.Var, relax.Expr]


class _Matcher:
    """Finds the bindings before fusion that each binding of the fused `main` computes.

    `before` is the function `main` before fusion.
    """

    def __init__(self, before: relax.Function, fused: tvm.IRModule) -> None:
        self._fused = fused
        self._before: dict[Hashable, list[_Member]] = defaultdict(list)
        self._numbers: dict[Hashable, Hashable] = {}
        # For each variable of the fused `main`, a key of its value that is made of variables of
        # `before`.
        self._held: dict[relax.Var, Hashable] = {}
        held: dict[relax.Var, Hashable] = {}
        for binding in bindings_of(before):
            key = self._key(binding.value, held)
            if isinstance(binding.value, relax.Call):
                self._before[key].append((binding.var, binding.value))
                key = self._number(key)
            held[binding.var] = key
        for old, new in zip(before.params, fused["main"].params, strict=True):
            self._held[new] = old

    def members(self, binding: relax.Binding) -> list[_Member]:
        """The bindings before fusion that `binding` computes, in order.

        Call this method once for each binding of the fused `main`, in order.
        """
        members: list[_Member] = []
        self._held[binding.var] = self._play(binding.value, self._held, members)
        return members

    def _play(
        self, value: relax.Expr, held: dict[relax.Var, Hashable], members: list[_Member]
    ) -> Hashable:
        """Return the key of `value`, which is made of variables of `before`.

        The bindings of `before` that `value` computes are added to `members`.
        """
        if not isinstance(value, relax.Call):
            return self._key(value, held)
        key = self._key(value, held)
        if self._before[key]:
            members.append(self._before[key].pop(0))
            return self._number(key)
        if not isinstance(value.op, tvm.ir.GlobalVar):
            return self._number(key)
        group = self._fused[value.op]
        keys = [self._key(arg, held) for arg in value.args]
        inner = dict(zip(group.params, keys, strict=True))
        for binding in bindings_of(group):
            inner[binding.var] = self._play(binding.value, inner, members)
        return self._key(group.body.body, inner)

    def _number(self, key: Hashable) -> Hashable:
        """A short key for the result of a call whose full key is `key`.

        Equal calls have the same short key. Without short keys, the key of a call would contain the
        full keys of its arguments, and would grow with every path through the model.
        """
        return self._numbers.setdefault(key, ("call", len(self._numbers)))

    def _key(self, expr: relax.Expr, held: dict[relax.Var, Hashable]) -> Hashable:
        """A key that is equal for expressions of equal value, even if their variables differ."""
        if isinstance(expr, relax.Var):
            known: Hashable = held.get(expr, expr)
            return known
        if isinstance(expr, relax.Tuple):
            return ("tuple", *(self._key(field, held) for field in expr.fields[:]))
        if isinstance(expr, relax.TupleGetItem):
            source = self._key(expr.tuple_value, held)
            if isinstance(source, tuple) and source[0] == "tuple":
                item: Hashable = source[1 + expr.index]
                return item
            return ("item", expr.index, source)
        if isinstance(expr, relax.Call):
            return (self._key(expr.op, held), *(self._key(arg, held) for arg in expr.args[:]))
        if isinstance(expr, tvm.ir.GenericConst):
            content: Hashable = expr.value
            return content
        if isinstance(expr, tvm.ir.Op):
            operator: Hashable = expr
            return operator
        if isinstance(expr, tvm.ir.GlobalVar):
            return ("kernel", str(expr.name_hint))
        return str(expr)


def _callee(binding: relax.Binding) -> tvm.ir.GlobalVar | None:
    """The fused group or the kernel that `binding` calls; None if it calls neither."""
    call = binding.value
    if isinstance(call, relax.Call):
        if isinstance(call.op, tvm.ir.GlobalVar):
            return call.op
        if call.op == tvm.ir.Op.get("relax.call_tir"):
            return call.args[0]
    return None


def _unit_name(mod: tvm.IRModule, kernel: tvm.ir.GlobalVar, members: list[_Member]) -> str:
    named = [member for member in members if is_meaningful(member[0].name)]
    if not named:
        return str(kernel.name_hint)
    return str(max(named, key=lambda member: _weight(mod, member[1]))[0].name)


def _weight(mod: tvm.IRModule, value: relax.Expr) -> int:
    """The `op_pattern` that TVM gives the kernel of `value`: a rank that estimates its work."""
    pattern = pattern_of(mod[value.args[0]]) if calls_kernel(value) else -1
    return min(pattern, _HEAVIEST_PATTERN)
