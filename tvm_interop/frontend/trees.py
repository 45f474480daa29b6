"""Converts ensembles of decision trees, which scikit-learn, XGBoost and LightGBM export.

Source: the definitions of `TreeEnsembleClassifier` and `TreeEnsembleRegressor` in the ONNX
specification, and onnxruntime's kernels where the specification leaves the results of two classes
open.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx

from ..errors import UnsupportedModelError
from ..kernels import loops
from ..lowering.static_shape import known_shape
from .class_scores import Scores, labels_of, transformed
from .constants import text_of

_COMPARED = {
    "BRANCH_LEQ": operator.le,
    "BRANCH_LT": operator.lt,
    "BRANCH_GTE": operator.ge,
    "BRANCH_GT": operator.gt,
    "BRANCH_EQ": operator.eq,
    "BRANCH_NEQ": operator.ne,
}
_LEAF = "LEAF"

Numbers = npt.NDArray[Any]


class _Forest(NamedTuple):
    """Trees, whose nodes are numbered over all trees.

    Attributes
    ----------
    roots: the root of each tree.
    features: the input that each branch compares.
    thresholds: the number that each branch compares with.
    yes, no: the next node if the comparison holds, and if not. At a leaf, the leaf itself.
    modes: for each branch, the index of its comparison in `kinds`.
    missing: whether a branch treats NaN as if the comparison holds.
    weights: what a leaf adds to each output, shape (nodes, outputs).
    is_complete: whether each row gets a number for each output. It does if one of the trees has a
        number for the output in all of its leaves.
    kinds: the comparisons that the trees use, keys of `_COMPARED`.
    """

    roots: Numbers
    features: Numbers
    thresholds: Numbers
    yes: Numbers
    no: Numbers
    modes: Numbers
    missing: Numbers
    weights: Numbers
    is_complete: bool
    kinds: tuple[str, ...]


def import_regressor(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the sums or means that the trees give, shape (rows, targets).

    Raises
    ------
    UnsupportedModelError
        The node takes maxima or minima of trees, or its trees are damaged.
    """
    number = int(attrs.get("n_targets", 1))
    forest = _forest(attrs, "target", number)
    kind = text_of(attrs.get("aggregate_function", b"SUM"))
    if kind not in ("SUM", "AVERAGE"):
        raise UnsupportedModelError(
            f"its `aggregate_function` is {kind}: only SUM and AVERAGE are supported"
        )
    total = _summed(bb, inputs[0], forest)
    if kind == "AVERAGE":
        count = relax.const(float(len(forest.roots)), str(total.ty.dtype))
        total = bb.emit(relax.op.divide(total, count))
    if number > 1 and not forest.is_complete and len(attrs.get("base_values", ())):
        raise _incomplete()
    total = _with_base(bb, total, attrs)
    transform = text_of(attrs.get("post_transform", b"NONE"))
    scores = bb.emit(transformed(bb, total, transform))
    return relax.op.astype(scores, "float32")


def import_classifier(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the label of each row, and the scores of its classes.

    Raises
    ------
    UnsupportedModelError
        The labels are strings, or the trees are damaged.
    """
    labels = labels_of(attrs)
    classes = np.asarray(attrs.get("class_ids", ()), int)
    used = np.unique(classes)
    forest = _forest(attrs, "class", max(len(labels), int(used.max(initial=0)) + 1))
    weights = np.asarray(attrs.get("class_weights", ()), np.float32)
    total = _summed(bb, inputs[0], forest)
    if len(used) > 1 and not forest.is_complete:
        raise _incomplete()
    if len(labels) == 2 and len(used) == 1:
        if used[0] != 0:
            raise UnsupportedModelError(
                "its leaves give scores of the second of two classes alone: export the trees with "
                "scores of the first class, or of both"
            )
        total = bb.emit(relax.op.strided_slice(total, [1], [0], [1]))
    base = np.asarray(attrs.get("base_values", ()), np.float32)
    if len(base) == 2 and len(used) == 1:
        base = base[1:]
    total = _with_base(bb, total, {"base_values": base})
    transform = text_of(attrs.get("post_transform", b"NONE"))
    return Scores(labels, transform, bool((weights >= 0).all())).of_trees(bb, total)


def _with_base(bb: relax.BlockBuilder, total: Any, attrs: Mapping[str, Any]) -> Any:
    base = np.asarray(attrs.get("base_values", ()), np.float32)
    if not len(base):
        return total
    if len(base) not in (1, int(total.ty.shape[1])):
        raise UnsupportedModelError(
            f"it has {len(base)} base values for {total.ty.shape[1]} outputs: export it again"
        )
    return bb.emit(relax.op.add(total, relax.const(base, str(total.ty.dtype))))


def _forest(attrs: Mapping[str, Any], output: str, number: int) -> _Forest:
    """Return the trees of a node.

    Parameters
    ----------
    output: the beginning of the names of the attributes that describe leaves.
    number: the number of outputs.
    """
    trees = [int(i) for i in attrs["nodes_treeids"]]
    keys = list(zip(trees, map(int, attrs["nodes_nodeids"]), strict=True))
    places = {key: i for i, key in enumerate(keys)}
    modes = [text_of(mode) for mode in attrs["nodes_modes"]]
    unknown = sorted(set(modes) - {*_COMPARED, _LEAF})
    if unknown or len(places) != len(keys):
        raise _damaged(f"its nodes have the mode `{unknown[0]}`" if unknown else "a node is twice")
    own = np.arange(len(keys))
    children = {}
    for name in ("true", "false"):
        wanted = zip(trees, map(int, attrs[f"nodes_{name}nodeids"]), strict=True)
        try:
            children[name] = np.array(
                [i if modes[i] == _LEAF else places[key] for i, key in enumerate(wanted)]
            )
        except KeyError as error:
            raise _damaged(f"the node {error} is missing") from error
    yes, no = children["true"], children["false"]
    features = np.where(own == yes, 0, np.asarray(attrs["nodes_featureids"], int))
    missing = attrs.get("nodes_missing_value_tracks_true", ()) or [0] * len(keys)
    weights = np.zeros((len(keys), number), np.float32)
    given = np.zeros(weights.shape, bool)
    parts = (attrs.get(f"{output}_{name}", ()) for name in ("treeids", "nodeids", "ids", "weights"))
    for tree, node, index, weight in zip(*parts, strict=True):
        place = places.get((int(tree), int(node)))
        if place is None or not 0 <= int(index) < number:
            raise _damaged(f"the leaf {node} of the tree {tree} has no node or no output")
        weights[place, int(index)] += np.float32(weight)
        given[place, int(index)] = True
    kinds = tuple(sorted({mode for mode in modes if mode != _LEAF}))
    return _Forest(
        roots=_roots(trees, yes, no),
        features=features.astype("int32"),
        thresholds=np.asarray(attrs["nodes_values"], np.float32),
        yes=yes.astype("int32"),
        no=no.astype("int32"),
        modes=np.array([kinds.index(m) if m != _LEAF else 0 for m in modes], "int32"),
        missing=np.asarray(missing, "int32"),
        weights=weights,
        is_complete=_is_complete(np.array(trees), given, own == yes),
        kinds=kinds or ("BRANCH_LEQ",),
    )


def _is_complete(trees: Numbers, given: Numbers, is_leaf: Numbers) -> bool:
    lacking = np.zeros((trees.max() + 1, given.shape[1]), bool)
    for output in range(given.shape[1]):
        lacking[trees[is_leaf & ~given[:, output]], output] = True
    return bool((~lacking[np.unique(trees)]).any(axis=0).all())


def _incomplete() -> UnsupportedModelError:
    return UnsupportedModelError(
        "some of its leaves give no number for an output, which ONNX does not define: export the "
        "trees with a number for each class in each leaf"
    )


def _damaged(why: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"its trees are damaged: {why}; export the model again")


def _roots(trees: Sequence[int], yes: Numbers, no: Numbers) -> Numbers:
    """Return the root of each tree, in order; refuse nodes that form a circle.

    A kernel would go around a circle for ever.
    """
    own = np.arange(len(trees))
    branches = yes != own
    roots = np.setdiff1d(own, np.concatenate([yes[branches], no[branches]]))
    level, depth = roots, 0
    while len(level):
        inner = level[branches[level]]
        level, depth = np.unique(np.concatenate([yes[inner], no[inner]])), depth + 1
        if depth > len(own):
            raise _damaged("some nodes of the trees form a circle")
    if len(roots) != len(set(trees)):
        raise _damaged(f"{len(set(trees))} trees have {len(roots)} roots")
    return roots.astype("int32")


def _summed(bb: relax.BlockBuilder, x: Any, forest: _Forest) -> Any:
    """Return the sum of the leaves that each row of `x` reaches, shape (rows, outputs)."""
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
    tables = [
        *(forest.roots, forest.features, forest.thresholds.astype(dtype), forest.yes, forest.no),
        *(forest.modes, forest.missing, forest.weights.astype(dtype)),
    ]
    kernel = bb.add_func(forest_kernel(shape, forest, dtype), "trees")
    result = relax.TensorType((shape[0], forest.weights.shape[1]), dtype)
    constants = [relax.const(table, str(table.dtype)) for table in tables]
    return bb.emit(relax.call_tir(kernel, [x, *constants], result))


def forest_kernel(shape: tuple[int, ...], forest: _Forest, dtype: str) -> tirx.PrimFunc:
    """Return a kernel that adds up the leaves of all trees, whose loops are written by hand."""
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
            total = result[row, output] + weights[here[0], output]
            return tirx.BufferStore(result, total, [row, output])

        begin = tirx.BufferStore(here, roots[tree], [0])
        down = tirx.While(yes[here[0]] != here[0], descend(row))
        return loops.in_turn([begin, down, loops.loop(outputs, each)])

    def each(row: Any) -> tirx.Stmt:
        zero = tirx.const(0, dtype)
        begin = loops.loop(outputs, lambda o: tirx.BufferStore(result, zero, [row, o]))
        return loops.in_turn([begin, loops.loop(len(forest.roots), lambda tree: add(row, tree))])

    parameters = [data, roots, features, thresholds, yes, no, modes, missing, weights, result]
    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, *[-1] * 8, 0]}
    return loops.kernel(parameters, loops.loop(rows, each), [here], **attrs)
