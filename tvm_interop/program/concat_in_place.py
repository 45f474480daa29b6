"""Removes concatenations: operators write a concatenation's inputs directly into its result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from .kinds.concat import Concat
from .program import Operator, Program, Value
from .storage import ALIGNMENT


def can_be_in_place(part_nbytes: Sequence[int], alignment: int = ALIGNMENT) -> bool:
    """Whether each tensor begins at an aligned address.

    Tensors of these sizes are stored one after another, and the first begins at an aligned address.
    """
    return all(nbytes % alignment == 0 for nbytes in part_nbytes[:-1])


def concat_in_place(program: Program, alignment: int = ALIGNMENT) -> Program:
    """Return `program` without the concatenations whose inputs can be written into the result.

    Each input becomes an alias of a part of the result, and an operator that reads the result
    depends on the writers of all parts. Two conditions must hold. First, the inputs lie one after
    the other in the result: all have the same type, and the joined axis is the outermost axis with
    more than one element. Second, an operator writes each input into its own storage: the input is
    not an input of the model, a weight or a reshape, and is not already a part of another result.
    Other concatenations remain as operators whose kernels copy.

    In networks such as DenseNet, each concatenation joins all inputs of an earlier concatenation
    and further tensors. Here only the inputs of the longest concatenation are written into place.
    The result of each shorter concatenation is then the beginning of the longest result.

    Parameters
    ----------
    alignment: each tensor's address must be a multiple of this many bytes.
    """
    values = list(program.values)
    written = {v for op in program.operators for v in op.outputs}
    concats = [op for op in program.operators if is_concat(op)]
    placed: set[str] = set()
    for op in concats:
        longest = _longest_beginning_with(op, concats)
        if longest.name not in placed and _parts_are_free(
            longest, values, written, program, alignment
        ):
            _place_parts(longest, values)
            placed.add(longest.name)
        if longest is not op and longest.name in placed and _same_type(op, longest, values):
            make_alias(values, op.outputs[0], longest.outputs[0], 0)
            placed.add(op.name)
        elif longest is not op and _parts_are_free(op, values, written, program, alignment):
            _place_parts(op, values)
            placed.add(op.name)
    return without_operators(program, placed, values)


def without_operators(program: Program, names: Collection[str], values: list[Value]) -> Program:
    """`program` with `values`, without the operators `names` and the kernels that only they call.

    If `names` is empty, the result is `program` itself.
    """
    if not names:
        return program
    kept = [op for op in program.operators if op.name not in names]
    return replace(program, values=values, operators=kept, kernels=_called(program, kept))


def is_concat(op: Operator) -> bool:
    """Whether `op` concatenates images along their channels."""
    return isinstance(op.description, Concat)


def _longest_beginning_with(op: Operator, concats: Sequence[Operator]) -> Operator:
    """The longest concatenation that begins with all inputs of `op`; on a tie, the first one.

    A concatenation that also reads the result of `op` does not count, because this result would
    have to lie at two places in it.
    """
    growing = [
        other
        for other in concats
        if other.inputs[: len(op.inputs)] == op.inputs and op.outputs[0] not in other.inputs
    ]
    return max(growing, key=lambda other: len(other.inputs))


def _same_type(op: Operator, other: Operator, values: list[Value]) -> bool:
    return values[op.outputs[0]].dtype == values[other.outputs[0]].dtype


def _parts_are_free(
    op: Operator, values: list[Value], written: set[int], program: Program, alignment: int
) -> bool:
    parts = [values[v] for v in op.inputs]
    return (
        {part.dtype for part in parts} == {values[op.outputs[0]].dtype}
        and can_be_in_place([part.nbytes for part in parts], alignment)
        and len(set(op.inputs)) == len(op.inputs)
        and all(part.alias_of is None for part in parts)
        and all(v in written and v not in program.weights for v in op.inputs)
    )


def _place_parts(op: Operator, values: list[Value]) -> None:
    (result,) = op.outputs
    begin = 0
    for part in op.inputs:
        make_alias(values, part, result, begin)
        begin += values[part].nbytes


def make_alias(values: list[Value], part: int, result: int, begin: int) -> None:
    """Make `part` an alias of the bytes of `result` from byte `begin` on.

    Aliases of `part` become aliases of `result` too.
    """
    within = values[result].alias_of
    if within is not None:
        result, begin = within, begin + values[result].offset
    for v, value in enumerate(values):
        if v == part or value.alias_of == part:
            values[v] = replace(value, alias_of=result, offset=value.offset + begin)


def _called(program: Program, operators: list[Operator]) -> object:
    """The kernels that `operators` call."""
    if program.kernels is None:
        return None
    import tvm

    names = {op.kernel for op in operators}
    functions = program.kernels.functions_items()
    return tvm.IRModule({var: func for var, func in functions if var.name_hint in names})
