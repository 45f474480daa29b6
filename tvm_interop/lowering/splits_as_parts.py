"""Replaces a split of an image's channels by slices, which may cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..program.concat_in_place import can_be_in_place
from .groups import Dataflow, image_shape, is_operator
from .names import is_meaningful, rename_bindings, replace_bindings


@module_pass(opt_level=0, name="SplitsAsParts")
class SplitsAsParts:
    """Replace splits of channels by slices, and a concatenation of all slices by the image itself.

    A split is a kernel that copies all its results. A slice of channels is read where it lies in
    the image, if the batch has one image and an operator computes the image (see
    `recognise/part.py`).

    Blocks of YOLO and CSP networks split an image, apply operators to some slices, and concatenate
    the results with all slices of the image. This pass concatenates the image itself in place of
    all its slices.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `main`; called by TVM's pass machinery."""
        main = mod["main"]
        graph = Dataflow(main)
        splits = {var for var in graph.values if _can_be_parts(var, graph)}
        if not splits:
            return mod
        parts = _Parts(graph, splits)
        rewritten = mod.clone()
        rewritten.update_func(
            rewritten.get_global_var("main"),
            rename_bindings(replace_bindings(main, parts.replaced), parts.names),
        )
        return relax.transform.DeadCodeElimination()(rewritten)


class _Parts:
    """Rewrites the bindings of splits, and those of the operators that read the parts of a split.

    Attributes
    ----------
    names: the new names of slices, whose variables have names that Relax made up.
    """

    def __init__(self, graph: Dataflow, splits: set[relax.Var]) -> None:
        self._graph = graph
        self._builder = relax.BlockBuilder()
        self._of: dict[relax.Var, tuple[relax.Var, int]] = {}
        self.names: dict[relax.Var, str] = {}
        for var, value in graph.values.items():
            if isinstance(value, relax.TupleGetItem) and value.tuple_value in splits:
                split, index = value.tuple_value, int(value.index)
                self._of[var] = split, index
                if not is_meaningful(var.name) and is_meaningful(split.name):
                    self.names[var] = f"{split.name}_{index}"

    def replaced(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that take the place of `binding`."""
        var = binding.var
        value: Any = getattr(binding, "value", None)
        if var in self._of:
            split, index = self._of[var]
            channels = _channels(split)
            begin = sum(channels[:index])
            data = self._graph.values[split].args[0]
            cut = relax.op.strided_slice(data, [1], [begin], [begin + channels[index]])
            return [relax.VarBinding(var, self._builder.normalize(cut))]
        if is_operator(value) and value.op.name == "relax.concat" and int(value.attrs.axis) == 1:
            fields = list(value.args[0].fields) if isinstance(value.args[0], relax.Tuple) else []
            joined = self._joined(fields)
            if len(joined) < len(fields):
                made = relax.op.concat(joined, 1) if len(joined) > 1 else joined[0]
                return [relax.VarBinding(var, self._builder.normalize(made))]
        return [binding]

    def _joined(self, fields: Sequence[relax.Expr]) -> list[relax.Expr]:
        """`fields` with all parts of a split, in their order, replaced by the split's image."""
        joined: list[relax.Expr] = []
        i = 0
        while i < len(fields):
            split, index = self._of.get(fields[i], (None, 0))
            count = len(_channels(split)) if split is not None and index == 0 else 0
            of = [self._of.get(field) for field in fields[i : i + count]]
            if count and of == [(split, k) for k in range(count)]:
                joined.append(self._graph.values[split].args[0])
                i += count
            else:
                joined.append(fields[i])
                i += 1
        return joined


def _can_be_parts(var: relax.Var, graph: Dataflow) -> bool:
    """Whether `var` is a split of channels whose parts may be read in place."""
    value: Any = graph.values[var]
    if not is_operator(value) or value.op.name != "relax.split" or int(value.attrs.axis) != 1:
        return False
    data = value.args[0]
    shape = image_shape(data)
    # A split into a single part gives a tensor, not a tuple.
    is_single = not isinstance(var.ty, relax.TupleType)
    if is_single or shape is None or data not in graph.values:
        return False
    channels = _channels(var)
    if not can_be_in_place([4 * count * prod(shape[2:]) for count in channels]):
        return False
    readers = graph.users.get(var, ())
    apart = [isinstance(graph.values[reader], relax.TupleGetItem) for reader in readers]
    return all(apart) and graph.uses[var] == len(apart) > 1


def _channels(split: relax.Var) -> list[int]:
    """The number of channels in each part of a split."""
    return [int(field.shape.values[1]) for field in split.ty.fields]
