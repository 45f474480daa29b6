"""Removes slices of channels: operators read the channels where they lie in the whole image."""

from __future__ import annotations

from .concat_in_place import is_concat, make_alias, without_operators
from .kinds.part import Part
from .program import Program
from .storage import ALIGNMENT, span


def parts_in_place(program: Program, alignment: int = ALIGNMENT) -> Program:
    """`program` without the slices whose results can be read in place.

    The result of a slice becomes an alias of a range of the image. So an operator that reads the
    result depends on the operators that write this range. An operator must write the image, and the
    image must not use the storage of an input, an output or a weight of the model. The slice's
    result must not be an output of the model, must have the image's type, and must begin at an
    aligned address. No concatenation may read the result: `concat_in_place` needs tensors with
    storage of their own. Other slices stay in the program as operators whose kernels copy.

    Parameters
    ----------
    alignment: each tensor's address must be a multiple of this many bytes.
    """
    values = list(program.values)
    fixed = {program.storage_of(v) for v in (*program.inputs, *program.outputs)}
    fixed.update(program.weights)
    written = {program.storage_of(v) for op in program.operators for v in op.outputs}
    joined = {v for op in program.operators if is_concat(op) for v in op.inputs}
    placed: set[str] = set()
    for op in program.operators:
        if not isinstance(op.description, Part):
            continue
        (data,), (result,) = op.inputs, op.outputs
        root, begin, _ = span(values, data)
        begin += op.description.begin * (values[data].nbytes // values[data].shape[1])
        has_one_type = values[data].dtype == values[result].dtype
        is_free = root in written and not fixed & {root, result} and result not in joined
        if has_one_type and is_free and begin % alignment == 0:
            make_alias(values, result, root, begin)
            placed.add(op.name)
    return without_operators(program, placed, values)
