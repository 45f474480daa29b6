"""Merges convolutions or matrix products that read the same tensor into one wider operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..errors import ScheduleError
from .chains import Chain
from .fold_affine import FoldAffine
from .mergeable import find_chains, why_not_merged
from .names import bindings_of, rename_bindings, replace_bindings, values_of

_CONCAT = tvm.ir.Op.get("relax.concat")
_NAMELESS = "lv"
"""The name of the slices of a merged operator's output. No unit gets this name.

A slice may be fused with the operator that reads it. Their unit is then named after this operator.
"""


def fold_for_merging() -> tvm.transform.Sequential:
    """The passes to run before `MergeConvs`. They fold constants and batch norms."""
    passes = relax.transform
    return tvm.transform.Sequential(
        [FoldAffine(), passes.DeadCodeElimination(), passes.FoldConstant()], name="FoldForMerging"
    )


def merged_name(names: Sequence[str]) -> str:
    """The name of the operator that replaces the operators `names`, which may be in any order."""
    return "+".join(sorted(names))


@module_pass(opt_level=0, name="MergeConvs")
class MergeConvs:
    """Replace each group of convolutions, or of matrix products, by one wider operator.

    The method is that of Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys
    2021, section 3. The weights and biases of convolutions are stacked along the output channels,
    and smaller kernels are padded with zeros. The weights of matrix products, such as those for
    queries, keys and values, are stacked along the columns. The output of each operator is then a
    slice of the wider output. If a concat along the channels or columns reads all of these outputs
    side by side, the weights are stacked in the concat's order. The wider output then replaces the
    concat without a copy.

    A wider operator may add its terms in another order. So its results are close to those of the
    group, but their bits may differ.

    Parameters
    ----------
    groups: names of operators, two or more in each group. Run `fold_for_merging` first.

    Raises
    ------
    ScheduleError: a group cannot be merged. The message says which operator does not fit, and why.
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self._groups = [tuple(group) for group in groups]

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Merge the operators of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        for name, times in Counter(name for group in self._groups for name in group).items():
            if times > 1:
                raise ScheduleError(f"`{name}` cannot be merged twice; put it into one group")
        merges = _merges(main, self._groups)
        merged = mod.clone()
        merged.update_func(merged.get_global_var("main"), _rewritten(main, merges))
        return merged


def merged_alone(
    mod: tvm.IRModule, groups: Sequence[Sequence[str]]
) -> tuple[tvm.IRModule, list[int]]:
    """Return a module with only the merged operators of `mod`, to measure their latencies.

    For each group, in order, `main` returns the outputs of the group's operators, as slices of the
    merged operator's output. If the only reader of these slices is a concat that joins them again,
    `main` returns the merged operator's output undivided. Groups may have operators in common.

    Returns
    -------
    The module, and the number of outputs of each group.

    Raises
    ------
    ScheduleError: a group cannot be merged, as in `MergeConvs`.
    """
    main = mod["main"]
    merges = _merges(main, groups)
    inputs = {merge.chains[0].data: merge.chains[0].data.ty for merge in merges}
    params = {data: relax.Var(f"x{i}", ty) for i, (data, ty) in enumerate(inputs.items())}
    builder = relax.BlockBuilder()
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            outputs, counts = [], []
            for merge in merges:
                whole = merge.whole(params[merge.chains[0].data], builder.emit)
                parts = [whole] if _is_read_whole(main, merge) else merge.parts(whole)
                outputs += [builder.emit_output(part) for part in parts]
                counts.append(len(parts))
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get(), counts


def merged_beside_apart(
    mod: tvm.IRModule, groups: Sequence[Sequence[str]]
) -> tuple[tvm.IRModule, list[int]]:
    """Return a module with the separate and the merged operators of each group, to compare them.

    For each group, in order, `main` returns the results of the separate operators, and then the
    same results as slices of the merged operator's output. The separate operators have the names
    that they have in `mod`, and the merged operators have the names that `MergeConvs` gives them.
    No operator may be in two groups.

    Returns
    -------
    The module, and the number of operators of each group.

    Raises
    ------
    ScheduleError: a group cannot be merged, as in `MergeConvs`.
    """
    main = mod["main"]
    merges = _merges(main, groups)
    params = {
        merge.chains[0].data: relax.Var(f"x{i}", merge.chains[0].data.ty)
        for i, merge in enumerate(merges)
    }
    values = values_of(main)
    builder = relax.BlockBuilder()
    with builder.function("main", list(params.values())):
        with builder.dataflow():
            outputs: list[relax.Expr] = []
            for merge in merges:
                data = params[merge.chains[0].data]
                apart = [_apart(chain, values, data, builder) for chain in merge.chains]
                name = merged_name([chain.name for chain in merge.chains])
                whole = merge.whole(data, _named(builder, name))
                outputs += [builder.emit_output(var) for var in (*apart, *merge.parts(whole))]
        builder.emit_func_output(relax.Tuple(outputs))
    return builder.get(), [len(merge.chains) for merge in merges]


def _named(builder: relax.BlockBuilder, name: str) -> Callable[[relax.Call], relax.Var]:
    """A function that binds each call to a new variable with the name `name`."""

    def bind(call: relax.Call) -> relax.Var:
        value = builder.normalize(call)
        var = relax.DataflowVar(name, value.ty)
        builder.emit_normalized(relax.VarBinding(var, value))
        return var

    return bind


def _apart(
    chain: Chain,
    values: Mapping[relax.Var, relax.Expr],
    data: relax.Var,
    builder: relax.BlockBuilder,
) -> relax.Var:
    """Bind copies of a chain's calls, with `data` as the input, and return the last variable.

    Parameters
    ----------
    values: the expression that each variable of the model is bound to.
    """
    bind = _named(builder, chain.name)
    renamed = {chain.data: data}
    for var in chain.vars:
        call = values[var]
        args = [renamed.get(arg, arg) for arg in call.args]
        renamed[var] = bind(relax.Call(call.op, args, call.attrs))
    return renamed[chain.result]


def _merges(main: relax.Function, groups: Sequence[Sequence[str]]) -> list[_Merge]:
    """The merged operator for each group; ScheduleError is raised if a group cannot be merged."""
    chains = find_chains(main)
    return [_Merge(_ordered(main, pick_chains(chains, group))) for group in groups]


def pick_chains(chains: dict[str, Chain], names: Sequence[str]) -> list[Chain]:
    """The chains of operators whose names are `names`.

    Raises
    ------
    ScheduleError: a name is not the name of a mergeable operator, or the chains do not fit
        together.
    """
    for name in names:
        if name not in chains:
            raise ScheduleError(
                f"`{name}` cannot be merged: it is neither a convolution with constant weights, "
                "one group and no dilation, nor a product by a constant matrix"
            )
    found = [chains[name] for name in names]
    reason = why_not_merged(found)
    if reason is not None:
        what = _list(names) or "a merged stage without operators"
        raise ScheduleError(f"{what} cannot be merged: {reason}")
    return found


class _Merge:
    """The wider operator that replaces a group of operators."""

    def __init__(self, chains: Sequence[Chain]) -> None:
        self.chains = chains
        self.axis = chains[0].axis

    def whole(self, data: relax.Expr, bind: Callable[[relax.Call], relax.Var]) -> relax.Var:
        """The wider operator on `data` with its bias and activation.

        Parameters
        ----------
        bind: a function that binds each operator to a new variable.
        """
        return self.chains[0].whole(self.chains, data, bind)

    def parts(self, whole: relax.Var) -> list[relax.Call]:
        """The outputs of the single operators, as slices of the wider output."""
        parts, begin, axes = [], 0, [self.axis]
        for chain in self.chains:
            end = begin + chain.outputs
            parts.append(relax.op.strided_slice(whole, axes=axes, begin=[begin], end=[end]))
            begin = end
        return parts

    def bindings(self) -> tuple[list[relax.Binding], relax.Var]:
        """The bindings that replace the single operators, and the wider output's variable."""
        builder = relax.BlockBuilder()
        name = merged_name([chain.name for chain in self.chains])
        bindings: list[relax.Binding] = []

        def bind(call: relax.Call) -> relax.Var:
            value = builder.normalize(call)
            bindings.append(relax.VarBinding(relax.DataflowVar(name, value.ty), value))
            return bindings[-1].var

        whole = self.whole(self.chains[0].data, bind)
        for chain, part in zip(self.chains, self.parts(whole), strict=True):
            bindings.append(relax.VarBinding(chain.result, builder.normalize(part)))
        return bindings, whole


def _rewritten(main: relax.Function, merges: Sequence[_Merge]) -> relax.Function:
    starting = {_first_var(main, merge): merge for merge in merges}
    gone = {var for merge in merges for chain in merge.chains for var in chain.vars}
    wholes: list[tuple[_Merge, relax.Var]] = []

    def merged(binding: relax.Binding) -> Sequence[relax.Binding]:
        merge = starting.get(binding.var)
        if merge is not None:
            made, whole = merge.bindings()
            wholes.append((merge, whole))
            return made
        return [] if binding.var in gone else [_reading_whole(binding, wholes)]

    function = replace_bindings(main, merged)
    results = [chain.result for merge in merges for chain in merge.chains]
    return rename_bindings(function, dict.fromkeys(results, _NAMELESS))


def _first_var(main: relax.Function, merge: _Merge) -> relax.Var:
    """The variable of the merged operator that comes first in `main`.

    The tensor that all merged operators read is defined before this variable.
    """
    begins = {chain.vars[0] for chain in merge.chains}
    return next(binding.var for binding in bindings_of(main) if binding.var in begins)


def _reading_whole(
    binding: relax.Binding, wholes: Sequence[tuple[_Merge, relax.Var]]
) -> relax.Binding:
    """In a concat, replace the separate outputs of merged operators by the wider output.

    The concat must read all outputs of the merged operators in order. Any other binding is returned
    unchanged.
    """
    for merge, whole in wholes:
        parts = [chain.result for chain in merge.chains]
        fields = _concatenated(binding, merge.axis)
        at = _place_of(parts, fields)
        if at is not None:
            fields[at : at + len(parts)] = [whole]
            joined = relax.op.concat(fields, axis=merge.axis) if len(fields) > 1 else whole
            binding = relax.VarBinding(binding.var, relax.BlockBuilder().normalize(joined))
    return binding


def _ordered(main: relax.Function, chains: list[Chain]) -> list[Chain]:
    """The chains in the order in which a concat reads their outputs side by side.

    If no concat reads the outputs side by side, the chains stay in the given order.
    """
    by_result = {chain.result: chain for chain in chains}
    for binding in bindings_of(main):
        fields = _concatenated(binding, chains[0].axis)
        for i in range(len(fields) - len(chains) + 1):
            window = fields[i : i + len(chains)]
            if all(isinstance(field, relax.Var) for field in window) and set(window) == set(
                by_result
            ):
                return [by_result[field] for field in window]
    return chains


def _is_read_whole(main: relax.Function, merge: _Merge) -> bool:
    """Whether only a concat reads the outputs of the merged operators, each once and in order."""
    results = [chain.result for chain in merge.chains]
    readers = [b for b in bindings_of(main) if _reads(b.value, results)]
    if len(readers) != 1 or _reads(main.body.body, results):
        return False
    fields = _concatenated(readers[0], merge.axis)
    times_read = sum(field.same_as(result) for field in fields for result in results)
    return _place_of(results, fields) is not None and times_read == len(results)


def _place_of(parts: Sequence[relax.Var], fields: Sequence[relax.Expr]) -> int | None:
    """The index in `fields` from which on `parts` follow in order; None if there is none."""
    for i in range(len(fields) - len(parts) + 1):
        if all(a.same_as(b) for a, b in zip(fields[i:], parts, strict=False)):
            return i
    return None


def _reads(expr: relax.Expr, variables: Sequence[relax.Var]) -> bool:
    used = relax.analysis.free_vars(expr)
    return any(var.same_as(other) for var in used for other in variables)


def _concatenated(binding: relax.Binding, along: int) -> list[relax.Expr]:
    """The inputs of a concat along the axis `along`; empty for any other binding."""
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, relax.Call) or value.op != _CONCAT:
        return []
    axis = value.attrs.axis
    is_along = axis is not None and int(axis) % len(binding.var.ty.shape) == along
    fields = value.args[0]
    return list(fields.fields) if is_along and isinstance(fields, relax.Tuple) else []


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
