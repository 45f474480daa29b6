"""Converts ensembles of decision trees, which scikit-learn, XGBoost and LightGBM export.

Source: the definitions of `TreeEnsembleClassifier`, `TreeEnsembleRegressor` and `TreeEnsemble` in
the ONNX specification. The specification does not fully define the results for two classes. For
these, the source is onnxruntime's kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from ..lowering.static_shape import known_shape
from .class_scores import Scores, check_transform_of_one, labels_of, transform_of, transformed
from .constants import number_like, text_of
from .forest import Forest, Numbers, forest_of_branches, forest_of_lists, numbers_of

_COMPARED = {
    "BRANCH_LEQ": operator.le,
    "BRANCH_LT": operator.lt,
    "BRANCH_GTE": operator.ge,
    "BRANCH_GT": operator.gt,
    "BRANCH_EQ": operator.eq,
    "BRANCH_NEQ": operator.ne,
}
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""The ways to combine the numbers of all trees. The attribute `aggregate_function` of a
`TreeEnsemble` is an index into this list.
"""
_TRANSFORMS = {0: "NONE", 3: "SOFTMAX_ZERO"}
"""The transforms of a `TreeEnsemble` whose code numbers mean the same in ONNX and onnxruntime."""
_JOINED: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "AVERAGE": (operator.add, 0.0),
    "SUM": (operator.add, 0.0),
    "MIN": (tirx.min, np.inf),
    "MAX": (tirx.max, -np.inf),
}
"""For each value of `aggregate_function`: a function that combines two numbers, and its neutral
number.
"""


def import_regressor(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the sums, means, minima or maxima of the trees' numbers, shape (rows, targets).

    Raises
    ------
    UnsupportedModelError
        The trees are damaged, or the node has a transform that onnxruntime does not apply.
    """
    forest = forest_of_lists(attrs, "target", int(attrs.get("n_targets", 1)))
    aggregate = text_of(attrs.get("aggregate_function", b"SUM"))
    transform = transform_of(attrs)
    scores = _regression(bb, inputs[0], forest, aggregate, numbers_of(attrs, "base_values"))
    return relax.op.astype(_finished(bb, scores, transform), "float32")


def import_ensemble(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the results of a `TreeEnsemble`, shape (rows, targets), in the type of its input.

    Raises
    ------
    UnsupportedModelError
        The same cases as for `import_regressor`.
    """
    forest = forest_of_branches(attrs, int(attrs.get("n_targets", 1)))
    code = int(attrs.get("post_transform", 0))
    if code not in _TRANSFORMS:
        raise UnsupportedModelError(
            f"its `post_transform` is {code}, which means one transform in ONNX and another in "
            "onnxruntime: set it to 0, and put an operator such as Softmax or Sigmoid after it"
        )
    aggregate = dict(enumerate(_AGGREGATES)).get(int(attrs.get("aggregate_function", 1)), "unknown")
    x = inputs[0]
    scores = _regression(bb, x, forest, aggregate, np.zeros(0))
    return relax.op.astype(_finished(bb, scores, _TRANSFORMS[code]), str(x.ty.dtype))


def import_classifier(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the label of each row, and the scores of its classes.

    Raises
    ------
    UnsupportedModelError
        The labels are strings, the trees are damaged, or onnxruntime adds the base values to other
        scores than ONNX defines.
    """
    labels = labels_of(attrs)
    number, used = len(labels), np.unique(np.asarray(attrs.get("class_ids", ()), int))
    forest = forest_of_lists(attrs, "class", number)
    transform = transform_of(attrs)
    is_positive = bool((numbers_of(attrs, "class_weights") >= 0).all())
    base = numbers_of(attrs, "base_values")
    is_single = number == 2 and used.tolist() == [0]
    if number == 2 and len(base) and (len(base) != 1 or not is_single):
        raise UnsupportedModelError(
            f"it has two classes and {len(base)} base values, which onnxruntime does not add as "
            "ONNX defines: add the base values to the leaves of one tree, and leave out "
            "`base_values`"
        )
    if number == 2 and len(used) == 2 and not forest.is_complete:
        raise _incomplete()
    if number == 2:
        total = _joined(bb, inputs[0], forest, "SUM")
        if is_single:
            total = bb.emit(relax.op.strided_slice(total, [1], [0], [1]))
        # As in onnxruntime, scores are treated as probabilities if none of them can be negative.
        is_share = is_positive and len(used) == 1
        scores = Scores(labels, transform, 0.5 if is_share else 0.0, adds_to_one=is_share)
        return scores.of_two(bb, _with_base(bb, total, base))
    scores = Scores(labels, transform)
    if forest.is_complete or len(base):
        total = _joined(bb, inputs[0], forest, "SUM")
        return scores.of_largest(bb, _with_base(bb, total, base))
    return scores.of_largest(bb, *_with_counts(bb, inputs[0], forest))


def _incomplete() -> UnsupportedModelError:
    return UnsupportedModelError(
        "some of its leaves give no number for an output, which ONNX does not define: export the "
        "trees with a number for each class or target in each leaf"
    )


def _with_counts(bb: relax.BlockBuilder, x: Any, forest: Forest) -> tuple[Any, Any]:
    """Return the sums of the trees' numbers, and for each sum whether a leaf gave a number for
    it.
    """
    number = forest.weights.shape[1]
    counted = np.concatenate([forest.weights, forest.given.astype(forest.weights.dtype)], 1)
    both = _joined(bb, x, forest._replace(weights=counted), "SUM")
    total, count = (
        bb.emit(relax.op.strided_slice(both, [1], [begin], [begin + number]))
        for begin in (0, number)
    )
    return total, bb.emit(relax.op.greater(count, number_like(count, 0.0)))


def _regression(
    bb: relax.BlockBuilder, x: Any, forest: Forest, aggregate: str, base: Numbers
) -> Any:
    """Return the combined numbers of all trees, shape (rows, targets), in the type of the trees."""
    if aggregate not in _JOINED:
        raise UnsupportedModelError(
            f"its `aggregate_function` is {aggregate}: only {', '.join(_JOINED)} are defined"
        )
    if len(base) > 1 and not forest.is_complete:
        raise _incomplete()
    total = _joined(bb, x, forest, aggregate)
    if aggregate == "AVERAGE":
        total = bb.emit(relax.op.divide(total, number_like(total, float(len(forest.roots)))))
    return _with_base(bb, total, base)


def _with_base(bb: relax.BlockBuilder, total: Any, base: Numbers) -> Any:
    if not len(base):
        return total
    if len(base) != int(total.ty.shape[1]):
        raise UnsupportedModelError(
            f"it has {len(base)} base values for {total.ty.shape[1]} outputs: export it again"
        )
    dtype = str(total.ty.dtype)
    return bb.emit(relax.op.add(total, relax.const(base.astype(dtype), dtype)))


def _finished(bb: relax.BlockBuilder, total: Any, transform: str) -> Any:
    if int(total.ty.shape[1]) == 1:
        check_transform_of_one(transform)
        return total
    return bb.emit(transformed(bb, total, transform))


def _joined(bb: relax.BlockBuilder, x: Any, forest: Forest, aggregate: str) -> Any:
    """Return the combined numbers of the leaves that each row of `x` reaches, shape (rows,
    outputs).

    If none of the leaves that a row reaches has a number for an output, the output is 0.
    """
    shape = known_shape(x)
    if len(shape) == 1:
        shape = (1, *shape)
        x = bb.emit(relax.op.reshape(x, shape))
    if len(shape) != 2 or not (forest.features >= 0).all() & (forest.features < shape[-1]).all():
        raise UnsupportedModelError(
            f"its input has the shape {shape}, and its trees compare the features "
            f"{forest.features.min()} to {forest.features.max()}: give rows with all features"
        )
    dtype = "float64" if str(x.ty.dtype) == "float64" else "float32"
    if str(x.ty.dtype) != dtype:
        x = bb.emit(relax.op.astype(x, dtype))
    weights = forest.weights.astype(dtype)
    neutral = _JOINED[aggregate][1]
    if neutral:
        weights = np.where(forest.given, weights, np.asarray(neutral, dtype))
    tables = [
        *(forest.roots, forest.features, forest.thresholds.astype(dtype), forest.yes, forest.no),
        *(forest.modes, forest.missing, weights),
    ]
    kernel = bb.add_func(forest_kernel(shape, forest, dtype, aggregate), "trees")
    result = relax.TensorType((shape[0], weights.shape[1]), dtype)
    constants = [relax.const(table, str(table.dtype)) for table in tables]
    total = bb.emit(relax.call_tir(kernel, [x, *constants], result))
    if not neutral or forest.is_complete:
        return total
    is_empty = bb.emit(relax.op.equal(total, number_like(total, neutral)))
    return bb.emit(relax.op.where(is_empty, number_like(total, 0.0), total))


def forest_kernel(
    shape: tuple[int, ...], forest: Forest, dtype: str, aggregate: str
) -> tirx.PrimFunc:
    """Return a kernel, with loops written by hand, that combines the leaves of all trees."""
    rows, outputs = shape[0], forest.weights.shape[1]
    data = tirx.decl_buffer(shape, dtype, "data")
    nodes = (len(forest.features),)
    roots = tirx.decl_buffer(forest.roots.shape, "int32", "roots")
    features = tirx.decl_buffer(nodes, "int32", "features")
    thresholds = tirx.decl_buffer(nodes, dtype, "thresholds")
    yes, no, modes, missing = (
        tirx.decl_buffer(nodes, "int32", name) for name in ("yes", "no", "modes", "missing")
    )
    weights = tirx.decl_buffer(forest.weights.shape, dtype, "weights")
    result = tirx.decl_buffer((rows, outputs), dtype, "result")
    here = tirx.decl_buffer((1,), "int32", "here")

    join, neutral = _JOINED[aggregate]

    def descend(row: Any) -> tirx.Stmt:
        at = here[0]
        value = data[row, features[at]]
        holds = _COMPARED[forest.kinds[-1]](value, thresholds[at])
        for i, kind in enumerate(forest.kinds[:-1]):
            compared = _COMPARED[kind](value, thresholds[at])
            holds = tirx.any(tirx.all(modes[at] == i, compared), tirx.all(modes[at] != i, holds))
        if forest.missing.any():
            holds = tirx.any(holds, tirx.all(missing[at] != 0, tirx.isnan(value)))
        return tirx.BufferStore(here, tirx.Select(holds, yes[at], no[at]), [0])

    def add(row: Any, tree: Any) -> tirx.Stmt:
        def each(output: Any) -> tirx.Stmt:
            total = join(result[row, output], weights[here[0], output])
            return tirx.BufferStore(result, total, [row, output])

        begin = tirx.BufferStore(here, roots[tree], [0])
        down = tirx.While(yes[here[0]] != here[0], descend(row))
        return loops.in_turn([begin, down, loops.loop(outputs, each)])

    def each(row: Any) -> tirx.Stmt:
        none = tirx.const(neutral, dtype)
        begin = loops.loop(outputs, lambda o: tirx.BufferStore(result, none, [row, o]))
        return loops.in_turn([begin, loops.loop(len(forest.roots), lambda tree: add(row, tree))])

    parameters = [data, roots, features, thresholds, yes, no, modes, missing, weights, result]
    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, *[-1] * 8, 0]}
    return loops.kernel(parameters, loops.loop(rows, each), [here], **attrs)
