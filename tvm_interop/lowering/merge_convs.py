"""Merges convolutions of the same tensor into one wider convolution (IOS, operator merge)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..errors import ScheduleError
from .conv_chains import ConvChain, find_conv_chains, merged_window, offsets, why_not_merged
from .fold_affine import FoldAffine
from .names import bindings_of, rename_bindings, replace_bindings

_CONCAT = tvm.ir.Op.get("relax.concat")
_NAMELESS = "lv"
"""The name of the parts of a merged convolution; no unit is named after it.

A part may be fused with the operator that reads it. Their unit is named after that operator.
"""


def fold_for_merging() -> tvm.transform.Sequential:
    """The passes to run before `MergeConvs`: they fold constants and batch norms."""
    passes = relax.transform
    return tvm.transform.Sequential(
        [FoldAffine(), passes.DeadCodeElimination(), passes.FoldConstant()], name="FoldForMerging"
    )


def merged_name(names: Sequence[str]) -> str:
    """The name of the convolution that replaces `names`, which may be in any order."""
    return "+".join(sorted(names))


@module_pass(opt_level=0, name="MergeConvs")
class MergeConvs:
    """Replace each group of convolutions by one wider convolution.

    The method is that of Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys
    2021, section 3. The weights and biases of a group are stacked along the output channels;
    smaller kernels are padded with zeros. The output of each convolution is then a slice of the
    wider output. If a concat along channels reads all of these outputs side by side, it is replaced
    by the wider output itself, without a copy; the weights are then stacked in the concat's order.

    A wider convolution adds its terms in another order. Its results are therefore close to the
    group's results, but not equal bit by bit.

    Parameters
    ----------
    groups: names of convolutions, two or more in each group. Run `fold_for_merging` first.

    Raises
    ------
    ScheduleError: a group cannot be merged. The message says which convolution does not fit, and
        why.
    """

    def __init__(self, groups: Sequence[Sequence[str]]) -> None:
        self._groups = [tuple(group) for group in groups]

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Merge the convolutions of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        chains = find_conv_chains(main)
        for name, times in Counter(name for group in self._groups for name in group).items():
            if times > 1:
                raise ScheduleError(f"`{name}` cannot be merged twice; put it into one group")
        merges = [_Merge(_ordered(main, pick_chains(chains, group))) for group in self._groups]
        merged = mod.clone()
        merged.update_func(merged.get_global_var("main"), _rewritten(main, merges))
        return merged


def merged_alone(
    mod: tvm.IRModule, groups: Sequence[Sequence[str]]
) -> tuple[tvm.IRModule, list[int]]:
    """A module of only the merged convolutions of `mod`, to measure their latencies.

    For each group in turn, `main` returns the parts that are cut out of the wider output. If only a
    concat reads them, side by side, `main` returns the wider output itself. Groups may have
    convolutions in common.

    Returns
    -------
    The module, and the number of outputs of each group.

    Raises
    ------
    ScheduleError: a group cannot be merged, as in `MergeConvs`.
    """
    main = mod["main"]
    chains = find_conv_chains(main)
    merges = [_Merge(_ordered(main, pick_chains(chains, group))) for group in groups]
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


def pick_chains(chains: dict[str, ConvChain], names: Sequence[str]) -> list[ConvChain]:
    """The chains with these names.

    Raises
    ------
    ScheduleError: no suitable convolution has one of the names, or the chains cannot be merged.
    """
    for name in names:
        if name not in chains:
            raise ScheduleError(
                f"`{name}` cannot be merged: it is no convolution with constant weights, one group "
                "and no dilation"
            )
    found = [chains[name] for name in names]
    reason = why_not_merged(found)
    if reason is not None:
        raise ScheduleError(f"{_list(names)} cannot be merged: {reason}")
    return found


class _Merge:
    """The wider convolution that replaces a group of convolutions."""

    def __init__(self, chains: Sequence[ConvChain]) -> None:
        self.chains = chains
        self.kernel, self.padding = merged_window(chains)

    def whole(self, data: relax.Expr, bind: Callable[[relax.Call], relax.Var]) -> relax.Var:
        """The wider convolution of `data` with its bias and activation.

        Parameters
        ----------
        bind: binds each operator to a new variable.
        """
        first = self.chains[0]
        weight = np.concatenate([self._padded(chain) for chain in self.chains])
        result = bind(
            relax.op.nn.conv2d(
                data,
                relax.const(weight, str(weight.dtype)),
                strides=list(first.strides),
                padding=list(self.padding),
            )
        )
        if any(chain.bias is not None for chain in self.chains):
            biases = [_bias_of(chain) for chain in self.chains]
            bias = np.concatenate(biases).reshape(1, -1, 1, 1)
            result = bind(relax.op.add(result, relax.const(bias, str(bias.dtype))))
        if first.activation is not None:
            args = [result, *first.activation.args[1:]]
            result = bind(relax.Call(first.activation.op, args, first.activation.attrs))
        return result

    def parts(self, whole: relax.Var) -> list[relax.Call]:
        """The outputs of the single convolutions, as slices of the wider output."""
        parts, begin = [], 0
        for chain in self.chains:
            end = begin + chain.output_shape[1]
            parts.append(relax.op.strided_slice(whole, axes=[1], begin=[begin], end=[end]))
            begin = end
        return parts

    def bindings(self) -> tuple[list[relax.Binding], relax.Var]:
        """The bindings that replace the single convolutions, and the wider output's variable."""
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

    def _padded(self, chain: ConvChain) -> np.ndarray:
        top, left = offsets(chain, self.padding)
        bottom = self.kernel[0] - chain.kernel[0] - top
        right = self.kernel[1] - chain.kernel[1] - left
        return np.pad(chain.weight, ((0, 0), (0, 0), (top, bottom), (left, right)))


def _rewritten(main: relax.Function, merges: Sequence[_Merge]) -> relax.Function:
    starting = {_first_var(main, merge): merge for merge in merges}
    gone = {var for merge in merges for chain in merge.chains for var in chain.vars}
    wholes: list[tuple[list[relax.Var], relax.Var]] = []

    def merged(binding: relax.Binding) -> Sequence[relax.Binding]:
        merge = starting.get(binding.var)
        if merge is not None:
            made, whole = merge.bindings()
            wholes.append(([chain.result for chain in merge.chains], whole))
            return made
        return [] if binding.var in gone else [_reading_whole(binding, wholes)]

    function = replace_bindings(main, merged)
    results = [chain.result for merge in merges for chain in merge.chains]
    return rename_bindings(function, dict.fromkeys(results, _NAMELESS))


def _first_var(main: relax.Function, merge: _Merge) -> relax.Var:
    """The variable of a merge's first convolution.

    The tensor that the merge reads is defined before this variable.
    """
    begins = {chain.vars[0] for chain in merge.chains}
    return next(binding.var for binding in bindings_of(main) if binding.var in begins)


def _reading_whole(
    binding: relax.Binding, wholes: Sequence[tuple[list[relax.Var], relax.Var]]
) -> relax.Binding:
    """Replace the parts by the wider output in a concat that reads all of them in order.

    Any other binding is returned unchanged.
    """
    for parts, whole in wholes:
        fields = _concatenated(binding)
        at = _place_of(parts, fields)
        if at is not None:
            fields[at : at + len(parts)] = [whole]
            joined = relax.op.concat(fields, axis=1) if len(fields) > 1 else whole
            binding = relax.VarBinding(binding.var, relax.BlockBuilder().normalize(joined))
    return binding


def _ordered(main: relax.Function, chains: list[ConvChain]) -> list[ConvChain]:
    """The chains in the order in which a concat reads them side by side, if there is such a concat.

    Otherwise the chains are in the given order.
    """
    by_result = {chain.result: chain for chain in chains}
    for binding in bindings_of(main):
        fields = _concatenated(binding)
        for i in range(len(fields) - len(chains) + 1):
            window = fields[i : i + len(chains)]
            if all(isinstance(field, relax.Var) for field in window) and set(window) == set(
                by_result
            ):
                return [by_result[field] for field in window]
    return chains


def _is_read_whole(main: relax.Function, merge: _Merge) -> bool:
    """Whether the only reader of the parts is a concat that reads all of them once, in order."""
    results = [chain.result for chain in merge.chains]
    readers = [b for b in bindings_of(main) if _reads(b.value, results)]
    if len(readers) != 1 or _reads(main.body.body, results):
        return False
    fields = _concatenated(readers[0])
    times_read = sum(field.same_as(result) for field in fields for result in results)
    return _place_of(results, fields) is not None and times_read == len(results)


def _place_of(parts: Sequence[relax.Var], fields: Sequence[relax.Expr]) -> int | None:
    """The first index in `fields` from which all `parts` follow each other in order, or None."""
    for i in range(len(fields) - len(parts) + 1):
        if all(a.same_as(b) for a, b in zip(fields[i:], parts, strict=False)):
            return i
    return None


def _reads(expr: relax.Expr, variables: Sequence[relax.Var]) -> bool:
    used = relax.analysis.free_vars(expr)
    return any(var.same_as(other) for var in used for other in variables)


def _concatenated(binding: relax.Binding) -> list[relax.Expr]:
    """The inputs of a concat along channels of images; empty for anything else."""
    value = binding.value if isinstance(binding, relax.VarBinding) else None
    if not isinstance(value, relax.Call) or value.op != _CONCAT:
        return []
    axis = value.attrs.axis
    is_by_channel = axis is not None and int(axis) == 1 and len(binding.var.ty.shape) == 4
    fields = value.args[0]
    return list(fields.fields) if is_by_channel and isinstance(fields, relax.Tuple) else []


def _bias_of(chain: ConvChain) -> np.ndarray:
    if chain.bias is None:
        return np.zeros(chain.weight.shape[0], chain.weight.dtype)
    return np.asarray(chain.bias)


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
