"""Replaces ONNX's control flow, `If`, `Loop` and `Scan`, by plain operators during import.

A schedule is fixed before a model runs, so it cannot contain run-time decisions. If the condition
of an `If` is constant, only the chosen branch is imported. Otherwise both branches are computed,
and the condition selects between their results. A branch whose operators cannot be computed for the
given input shapes is left out, with a warning. Loops are unrolled.

Source: the operators' definitions in the ONNX specification.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import constant_array
from .empty import empty_constant, is_empty
from .independent_scans import all_turns_at_once
from .misfit import MisfitError

_LOG = logging.getLogger("tvm_interop")

CONTROL_FLOW = ("If", "Loop", "Scan")
"""The operators that `import_control_flow` replaces."""

MOST_OPERATORS = 4096
"""The largest number of operators that an unrolled loop may have."""

_UNLIMITED = 2**31 - 1
"""The maximum number of iterations from which on a loop is taken to have no limit. Exporters write
the largest integer if a loop has none.
"""

Body = Callable[[onnx.GraphProto, Mapping[str, Any]], list[Any]]
"""A function that imports a subgraph of ONNX. It takes the subgraph and its inputs by name, and
returns the outputs as relax expressions."""
Select = Callable[[relax.BlockBuilder, Any, Any, Any], Any]
"""A function that selects a result of an `If`. It takes the condition and the results of both
branches.

It returns None if the sizes of all results are fixed.
"""


def import_control_flow(
    bb: relax.BlockBuilder,
    node: onnx.NodeProto,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any],
    body: Body,
    select: Select,
) -> list[Any]:
    """Return the outputs of `node`, whose type is one of `CONTROL_FLOW`.

    Parameters
    ----------
    bb: the block builder that emits the operators.
    inputs: relax expressions; None for an optional input that is left out.
    attrs: the node's attributes, with subgraphs as ONNX graphs.
    body: a function that imports one of the subgraphs in `attrs`.
    select: a function for an `If` with results whose size depends on computed values. It selects
        the result of one branch (see `Select`).

    Raises
    ------
    UnsupportedModelError
        The number of iterations or the shape of a result depends on values computed at run time, or
        the unrolled loop has more than `MOST_OPERATORS` operators.
    """
    if node.op_type == "If":
        return _if(bb, inputs, attrs, body, select)
    writers = {"Loop": _loop, "Scan": _scan}
    return writers[node.op_type](bb, inputs, attrs, body)


def _if(
    bb: relax.BlockBuilder,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any],
    body: Body,
    select: Select,
) -> list[Any]:
    condition = _constant(inputs[0])
    if condition is not None:
        return body(attrs["then_branch" if condition else "else_branch"], {})
    branches: list[list[Any]] = []
    failed: list[MisfitError] = []
    for name in ("then_branch", "else_branch"):
        try:
            branches.append(body(attrs[name], {}))
        except MisfitError as error:
            failed.append(error)
            branches.append([])
    if len(failed) == 2:
        raise failed[0]
    # Make the condition a scalar, because an axis of the condition would become an axis of the
    # results.
    scalar = bb.emit(relax.op.reshape(inputs[0], ()))
    if failed:
        for value in branches[0] or branches[1]:
            select(bb, scalar, value, None)  # `select` refuses results of computed size.
        return _only_branch(bb, scalar, branches, failed[0])
    results = []
    for pair in zip(*branches, strict=True):
        chosen = select(bb, scalar, *pair)
        results.append(_selected(bb, scalar, *pair) if chosen is None else chosen)
    return results


def _only_branch(
    bb: relax.BlockBuilder, condition: Any, branches: list[list[Any]], error: UnsupportedModelError
) -> list[Any]:
    """Return the results of an `If` of which only one branch could be imported.

    TVM cannot compile the other branch for inputs of these shapes. If the condition chooses this
    branch at run time, the results are NaN, so that nobody mistakes them for an answer. If a branch
    has an operator that this package does not support, the model is refused.
    """
    is_then = bool(branches[0])
    results = branches[0] or branches[1]
    dtypes = [str(getattr(value.ty, "dtype", "")) for value in results]
    if not all("float" in dtype for dtype in dtypes):
        raise error
    _LOG.warning(
        "an `If` is compiled without its %s branch, which cannot be compiled for inputs of these "
        "shapes: whenever the condition chooses this branch, the results are NaN. If that happens, "
        "export the model with only the branch that you need (%s)",
        "else" if is_then else "then",
        error,
    )
    nothing = [relax.const(math.nan, dtype) for dtype in dtypes]
    return [
        bb.emit(relax.op.where(condition, *((value, nan) if is_then else (nan, value))))
        for value, nan in zip(results, nothing, strict=True)
    ]


def _selected(bb: relax.BlockBuilder, condition: Any, then: Any, otherwise: Any) -> Any:
    if isinstance(then, relax.Tuple) and isinstance(otherwise, relax.Tuple):
        return _selected_sequence(bb, condition, list(then.fields), list(otherwise.fields))
    kinds = [(static_shape(x.ty), str(getattr(x.ty, "dtype", ""))) for x in (then, otherwise)]
    if kinds[0] != kinds[1] or kinds[0][0] is None:
        shown = " and ".join(f"{dtype} of shape {shape}" for shape, dtype in kinds)
        raise UnsupportedModelError(
            f"its branches give {shown}, and its condition is computed when the model runs: export "
            "the model with only the branch that you need"
        )
    if is_empty(then):
        return then
    return bb.emit(relax.op.where(condition, then, otherwise))


def _selected_sequence(
    bb: relax.BlockBuilder, condition: Any, then: list[Any], otherwise: list[Any]
) -> Any:
    if len(then) != len(otherwise):
        raise UnsupportedModelError(
            f"its branches give sequences of {len(then)} and {len(otherwise)} tensors, and its "
            "condition is computed when the model runs: export the model with only the branch that "
            "you need"
        )
    pairs = zip(then, otherwise, strict=True)
    return relax.Tuple([_selected(bb, condition, *pair) for pair in pairs])


def _loop(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], body: Body
) -> list[Any]:
    graph = attrs["body"]
    most, goes_on, *states = inputs
    turns = _UNLIMITED if most is None else _known(most, "number of iterations")
    going: Any = relax.const(True, "bool") if goes_on is None else goes_on
    collected: list[list[Any]] = [[] for _ in range(len(graph.output) - 1 - len(states))]
    turn = 0
    while turn < turns and _constant(going) != 0:
        _check_size(graph, turn + 1)
        values = [*_turn_of(graph, turn), *states]
        names = [value.name for value in graph.input]
        going_on, *results = body(graph, dict(zip(names, values, strict=True)))
        if _constant(going) is None:
            if turns >= _UNLIMITED:
                raise UnsupportedModelError(
                    "its condition is computed as the model runs, and it has no largest number of "
                    "iterations: give it one, such as `maximum_iterations` of `tf.while_loop`"
                )
            _check_size(graph, turns)
            going_on, *results = _if_it_goes_on(bb, going, going_on, states, results)
        going, states = going_on, results[: len(states)]
        for parts, part in zip(collected, results[len(states) :], strict=True):
            parts.append(part)
        turn += 1
    if turn == 0 and collected:
        return [*states, *_nothing_collected(graph, states, body)]
    return [*states, *(_stacked(bb, parts, 0) for parts in collected)]


def _turn_of(graph: onnx.GraphProto, turn: int) -> list[relax.Expr]:
    """Return the first two inputs of the body of a loop: the iteration's number, and True.

    They are scalars, or vectors of one element if the body declares them so, as in onnxruntime.
    """
    numbers = (np.array(turn, np.int64), np.array(True))
    ranks = [len(value.type.tensor_type.shape.dim) for value in graph.input[:2]]
    return [
        relax.const(number.reshape([1] * rank), str(number.dtype))
        for number, rank in zip(numbers, ranks, strict=True)
    ]


def _if_it_goes_on(
    bb: relax.BlockBuilder, going: Any, going_on: Any, states: Sequence[Any], results: Sequence[Any]
) -> list[Any]:
    """Return the condition and the states after an iteration.

    An unrolled iteration is always computed, even if the loop has ended before it, because the
    condition `going` is known only at run time. If `going` is false, the loop has ended before this
    iteration. The condition then stays false, and the states do not change.
    """
    if len(results) > len(states):
        raise UnsupportedModelError(
            "its condition is computed as the model runs, and it collects a tensor of each "
            "iteration, whose size would depend on the condition: export the model with a constant "
            "condition"
        )
    for old, new in zip(states, results, strict=True):
        if static_shape(old.ty) != static_shape(new.ty):
            raise UnsupportedModelError(
                f"its condition is computed as the model runs, and a state grows from "
                f"{static_shape(old.ty)} to {static_shape(new.ty)}: export the model with a "
                "constant condition"
            )
    scalar = bb.emit(relax.op.reshape(going, ()))
    after = bb.emit(relax.op.reshape(going_on, ()))
    kept = (_selected(bb, scalar, new, old) for new, old in zip(results, states, strict=True))
    return [bb.emit(relax.op.logical_and(scalar, after)), *kept]


def _nothing_collected(graph: onnx.GraphProto, states: Sequence[Any], body: Body) -> list[Any]:
    """Return the empty tensors that a loop of 0 iterations collects.

    The first size of each collected tensor is 0. Its other sizes are those of a tensor that one
    iteration collects. To find these sizes, the operators of one iteration are imported. These
    operators are removed later, since nothing reads their results.
    """
    values = [*_turn_of(graph, 0), *states]
    names = [value.name for value in graph.input]
    _, *results = body(graph, dict(zip(names, values, strict=True)))
    parts = results[len(states) :]
    shapes = [static_shape(part.ty) for part in parts]
    if any(shape is None for shape in shapes):
        raise UnsupportedModelError(
            "it runs 0 iterations, and the shape of a tensor that it collects is unknown: remove "
            "it from the model"
        )
    return [
        empty_constant((0, *(shape or ())), str(part.ty.dtype))
        for shape, part in zip(shapes, parts, strict=True)
    ]


def _scan(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], body: Body
) -> list[Any]:
    graph, number = attrs["body"], int(attrs["num_scan_inputs"])
    if len(inputs) != len(graph.input):
        return _scan_of_batch(bb, inputs, attrs, body)
    states, sequences = list(inputs[:-number]), list(inputs[-number:])
    outputs = len(graph.output) - len(states)
    axes = list(attrs.get("scan_input_axes", [0] * number))
    backward = list(attrs.get("scan_input_directions", [0] * number))
    out_axes = list(attrs.get("scan_output_axes", [0] * outputs))
    out_backward = list(attrs.get("scan_output_directions", [0] * outputs))
    if not any((*backward, *out_backward)):
        together = all_turns_at_once(bb, graph, states, sequences, axes, body)
        if together is not None:
            moved = zip(together, out_axes, strict=True)
            return [*states, *(_with_turns_at(bb, part, int(axis)) for part, axis in moved)]
    turns = int(sequences[0].ty.shape[axes[0]])
    _check_size(graph, turns)
    collected: list[list[Any]] = [[] for _ in range(outputs)]
    for turn in range(turns):
        elements = [
            _element(bb, sequence, int(axis), turns - 1 - turn if back else turn)
            for sequence, axis, back in zip(sequences, axes, backward, strict=True)
        ]
        names = [value.name for value in graph.input]
        results = body(graph, dict(zip(names, [*states, *elements], strict=True)))
        states = results[: len(states)]
        for parts, part in zip(collected, results[len(states) :], strict=True):
            parts.append(part)
    ordered = (
        parts[::-1] if back else parts for parts, back in zip(collected, out_backward, strict=True)
    )
    return [
        *states,
        *(_stacked(bb, parts, int(axis)) for parts, axis in zip(ordered, out_axes, strict=True)),
    ]


def _scan_of_batch(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any], body: Body
) -> list[Any]:
    """Return the outputs of a `Scan` of opset 8, which works on each element of a batch alone.

    The batch is the first axis of all inputs, except of the first input, the lengths of sequences.
    """
    lengths, *others = inputs
    size = int(others[-1].ty.shape[1])
    known = None if lengths is None else constant_array(lengths)
    if lengths is not None and (known is None or (known != size).any()):
        raise UnsupportedModelError(
            "its sequences have lengths of their own: export the model with opset 9 or later"
        )
    of_one = {name: attrs[name] for name in ("body", "num_scan_inputs")}
    if "directions" in attrs:
        of_one["scan_input_directions"] = attrs["directions"]
    results = [
        _scan(bb, [_element(bb, value, 0, i) for value in others], of_one, body)
        for i in range(int(others[-1].ty.shape[0]))
    ]
    return [_stacked(bb, parts, 0) for parts in zip(*results, strict=True)]


def _with_turns_at(bb: relax.BlockBuilder, part: Any, axis: int) -> Any:
    """Move the first axis of a tensor to the position `axis`."""
    rank = int(part.ty.ndim)
    order = [*range(1, rank)]
    order.insert(axis % rank, 0)
    return part if order[0] == 0 else bb.emit(relax.op.permute_dims(part, order))


def _element(bb: relax.BlockBuilder, sequence: Any, axis: int, index: int) -> Any:
    part = bb.emit(relax.op.strided_slice(sequence, [axis], [index], [index + 1]))
    return bb.emit(relax.op.squeeze(part, [axis]))


def _stacked(bb: relax.BlockBuilder, parts: Sequence[Any], axis: int) -> Any:
    if not parts:
        raise UnsupportedModelError(
            "it runs 0 iterations, so a tensor that it collects would be empty: remove it from the "
            "model"
        )
    return bb.emit(relax.op.stack(list(parts), axis))


def _check_size(graph: onnx.GraphProto, turns: int) -> None:
    if turns * max(len(graph.node), 1) > MOST_OPERATORS:
        raise UnsupportedModelError(
            f"unrolled, its {turns} or more iterations of {len(graph.node)} operators are more "
            f"than {MOST_OPERATORS} operators: use a shorter sequence; if the loop is a "
            "recurrent layer, use the operator LSTM, GRU or RNN"
        )


def _known(value: Any, what: str) -> int:
    found = _constant(value)
    if found is None:
        raise UnsupportedModelError(
            f"its {what} is computed as the model runs, and a schedule is fixed before the model "
            f"runs: export the model with a constant {what}"
        )
    return found


def _constant(value: Any) -> int | None:
    """Return the first element of a constant as an integer, or None if `value` is not a
    constant."""
    if not isinstance(value, tvm.ir.GenericConst):
        return None
    return int(value.value.numpy().reshape(-1)[0])
