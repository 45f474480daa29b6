"""Converts ONNX's operators on sequences, in cases that TVM's converters refuse or get wrong.

During import, a sequence is a tuple of tensors. So the number of its tensors and the position of
each are known.

Source: the operators' definitions in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import constant_array
from .pieces import check_lengths, parts_of


def import_split_to_sequence(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Split a tensor into a sequence.

    The second input is a list of sizes, or one size for all parts. With one size for all, the last
    part may be smaller. Without this input, each part has size 1, and the axis is removed if
    `keepdims` is 0. TVM would make the parts equal: with size 4, it splits 6 elements into 3 and 3.
    Return None if the shape is unknown.

    Raises
    ------
    UnsupportedModelError
        The sizes of the parts do not add up to the size of the axis.
    """
    x = inputs[0]
    shape = static_shape(x.ty)
    if shape is None:
        return None
    axis = int(attrs.get("axis", 0)) % len(shape)
    size = shape[axis]
    has_sizes = len(inputs) > 1 and inputs[1] is not None
    given = constant_array(inputs[1]) if has_sizes else None
    if given is not None and given.ndim:
        lengths = [int(length) for length in given.ravel()]
    else:
        each = 1 if given is None else int(given)
        if each < 1:
            raise UnsupportedModelError(
                f"its input `split` is {each}: the size of the parts must be at least 1"
            )
        lengths = [min(each, size - begin) for begin in range(0, size, each)]
    if lengths or size:  # A tensor without rows may be split into 0 parts.
        check_lengths(lengths, size, axis)
    parts = parts_of(bb, x, axis, lengths)
    if not has_sizes and not attrs.get("keepdims", 1):
        parts = [bb.emit(relax.op.squeeze(part, [axis])) for part in parts]
    return relax.Tuple(parts)


def import_sequence_at(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the tensor at a constant position; a negative position counts from the end.

    Raises
    ------
    UnsupportedModelError
        The position is computed at run time, or the sequence has no such position.
    """
    sequence, known = inputs[0], constant_array(inputs[1])
    if known is None:
        raise UnsupportedModelError(
            "its input `position` is computed as the model runs, and a schedule is made for fixed "
            "shapes: make it a constant"
        )
    position, number = int(known.item()), len(sequence)
    if not -number <= position < number:
        raise UnsupportedModelError(
            f"its position {position} is out of range: the sequence has {number} tensors"
        )
    return sequence[position % number]


def import_sequence_insert(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Insert a tensor at a negative position. Return None for any other position.

    TVM's converter inserts the tensor one position off if the position is negative.
    """
    known = constant_array(inputs[2]) if len(inputs) > 2 else None
    position = 0 if known is None else int(known.item())
    if position >= 0 or position < -len(inputs[0]):
        return None
    tensors = list(inputs[0])
    tensors.insert(position, inputs[1])
    return relax.Tuple(tensors)


def import_optional_has_element(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the constant false for an `OptionalHasElement` node without an input.

    Return None for a node with an input, which TVM's converter handles.
    """
    return None if inputs else relax.const(False, "bool")


def not_taken_apart(op_name: str, result: Any) -> Any:
    """Return the result of a node in a form of which TVM's importer keeps a whole sequence.

    TVM's importer takes a tuple for the outputs of a node, except for operators that it knows to
    give a sequence. So it would take the first tensor of an `Identity` of a sequence.
    """
    is_sequence = op_name == "Identity" and isinstance(result, relax.Tuple)
    return relax.Tuple([result, result]) if is_sequence else result


def tensors_of_outputs(outputs: list[onnx.ValueInfoProto], values: dict[str, Any]) -> None:
    """Replace each output that is a sequence by outputs for its tensors, such as `parts[0]`.

    Parameters
    ----------
    outputs: the outputs of the model, which this function changes.
    values: the expression of each tensor and sequence by name, which gets the new outputs.

    Raises
    ------
    UnsupportedModelError
        The model has a tensor with the name of a new output, or computes no tensor at all.
    """
    found: list[onnx.ValueInfoProto] = []
    for output in outputs:
        if not output.type.HasField("sequence_type"):
            found.append(output)
            continue
        for i, tensor in enumerate(values[output.name].fields):
            name = f"{output.name}[{i}]"
            if name in values:
                raise UnsupportedModelError(
                    f"output `{output.name}` is a sequence, whose tensors are called `{name}` and "
                    "so on, and the model has another tensor of this name: rename the output"
                )
            values[name] = tensor
            found.append(onnx.ValueInfoProto(name=name))
    if not found:
        raise UnsupportedModelError(
            "all outputs of the model are sequences without tensors: there is nothing to compute"
        )
    outputs[:] = found
