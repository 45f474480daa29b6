"""Reads ensembles of decision trees from the attributes of ONNX's operators.

Source: the definitions of `TreeEnsembleClassifier`, `TreeEnsembleRegressor` and `TreeEnsemble` in
the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx

from ..errors import UnsupportedModelError
from .constants import text_of

LEAF = "LEAF"
_COMPARISONS = (
    "BRANCH_LEQ",
    "BRANCH_LT",
    "BRANCH_GTE",
    "BRANCH_GT",
    "BRANCH_EQ",
    "BRANCH_NEQ",
)
_MEMBER = "BRANCH_MEMBER"
_MODES = (*_COMPARISONS, _MEMBER)
"""The modes of branches. The attribute `nodes_modes` of a `TreeEnsemble` holds indices into them.
"""

Numbers = npt.NDArray[Any]


class Forest(NamedTuple):
    """An ensemble of decision trees. The nodes of all trees are numbered together.

    Attributes
    ----------
    roots: the root of each tree.
    features: the index of the input feature that each branch compares.
    thresholds: the number that each branch compares its feature with.
    yes, no: the next node if the comparison of a branch is true (`yes`) or false (`no`). For a
        leaf, both are the leaf itself.
    modes: for each branch, the index of its comparison in `kinds`.
    missing: whether a branch treats NaN as if the comparison were true.
    weights: the number that a leaf contributes to each output, shape (nodes, outputs).
    given: whether a leaf contributes a number to each output, shape (nodes, outputs).
    is_complete: whether each output gets a number for every row of the input. It does if, for each
        output, all leaves of some tree have a number.
    kinds: the comparisons that the trees use.
    """

    roots: Numbers
    features: Numbers
    thresholds: Numbers
    yes: Numbers
    no: Numbers
    modes: Numbers
    missing: Numbers
    weights: Numbers
    given: Numbers
    is_complete: bool
    kinds: tuple[str, ...]


def damaged(why: str) -> UnsupportedModelError:
    """Return the error for trees that are not valid."""
    return UnsupportedModelError(f"its trees are damaged: {why}; export the model again")


def numbers_of(attrs: Mapping[str, Any], name: str) -> Numbers:
    """Return the numbers of an attribute, which is a list of floats or a tensor of float32 or
    float64.

    The attribute is called `name`. If its value is a tensor, it may also be called `name` followed
    by `_as_tensor`.
    """
    value = attrs.get(f"{name}_as_tensor", attrs.get(name, ()))
    if isinstance(value, onnx.TensorProto):
        return np.asarray(onnx.numpy_helper.to_array(value)).ravel()
    return np.asarray(value, np.float32)


def forest_of_lists(attrs: Mapping[str, Any], output: str, number: int) -> Forest:
    """Return the trees of a node that has its branches and leaves in the same lists.

    Parameters
    ----------
    output: the prefix of the names of the attributes that describe leaves.
    number: the number of outputs.

    Raises
    ------
    UnsupportedModelError
        The trees are damaged.
    """
    trees = [int(i) for i in attrs["nodes_treeids"]]
    keys = list(zip(trees, map(int, attrs["nodes_nodeids"]), strict=True))
    places = {key: i for i, key in enumerate(keys)}
    modes = [text_of(mode) for mode in attrs["nodes_modes"]]
    unknown = sorted(set(modes) - {*_COMPARISONS, LEAF})
    if unknown or len(places) != len(keys):
        raise damaged(f"its nodes have the mode `{unknown[0]}`" if unknown else "a node is twice")
    children = {}
    for name in ("true", "false"):
        wanted = zip(trees, map(int, attrs[f"nodes_{name}nodeids"]), strict=True)
        try:
            children[name] = np.array(
                [i if modes[i] == LEAF else places[key] for i, key in enumerate(wanted)]
            )
        except KeyError as error:
            raise damaged(f"the node {error} is missing") from error
    yes, no = children["true"], children["false"]
    votes = numbers_of(attrs, f"{output}_weights")
    weights = np.zeros((len(keys), number), votes.dtype)
    given = np.zeros(weights.shape, bool)
    parts = (attrs.get(f"{output}_{name}", ()) for name in ("treeids", "nodeids", "ids"))
    for tree, node, index, weight in zip(*parts, votes, strict=True):
        place = places.get((int(tree), int(node)))
        if place is None or not 0 <= int(index) < number:
            raise damaged(
                f"the leaf {node} of the tree {tree} names a node or an output that does not exist"
            )
        # If a leaf has several numbers for a single output, onnxruntime uses the first.
        if number > 1 or not given[place, 0]:
            weights[place, int(index)] += weight
        given[place, int(index)] = True
    own = np.arange(len(keys))
    roots = np.setdiff1d(own, np.concatenate([yes[yes != own], no[yes != own]]))
    if len(roots) != len(set(trees)):
        raise damaged(f"{len(set(trees))} trees have {len(roots)} roots")
    return _forest(
        modes,
        roots=roots,
        features=np.where(own == yes, 0, np.asarray(attrs["nodes_featureids"], int)),
        thresholds=numbers_of(attrs, "nodes_values"),
        yes=yes,
        no=no,
        missing=attrs.get("nodes_missing_value_tracks_true", ()),
        weights=weights,
        given=given,
    )


def forest_of_branches(attrs: Mapping[str, Any], number: int) -> Forest:
    """Return the trees of a `TreeEnsemble`, whose attributes list branches and leaves in separate
    lists.

    A branch can test whether a number is a member of a set. Such a branch is replaced by one branch
    for each member of the set.

    Parameters
    ----------
    number: the number of outputs.

    Raises
    ------
    UnsupportedModelError
        The trees are damaged.
    """
    codes = numbers_of(attrs, "nodes_modes").astype(int).tolist()
    votes = numbers_of(attrs, "leaf_weights")
    targets = np.asarray(attrs["leaf_targetids"], int)
    branches, leaves = len(codes), len(votes)
    if not set(codes) <= set(range(len(_MODES))) or len(targets) != leaves:
        raise damaged("a branch has an unknown mode, or a leaf has no output")
    if not ((targets >= 0) & (targets < number)).all():
        raise damaged(f"a leaf has an output outside of 0 to {number - 1}")
    own = branches + np.arange(leaves)
    ends = {}
    for name in ("true", "false"):
        ids = np.asarray(attrs[f"nodes_{name}nodeids"], int)
        is_leaf = np.asarray(attrs[f"nodes_{name}leafs"], bool)
        if not ((ids >= 0) & (ids < np.where(is_leaf, leaves, branches))).all():
            raise damaged("a branch leads to a node that is missing")
        ends[name] = np.concatenate([np.where(is_leaf, ids + branches, ids), own])
    roots = np.asarray(attrs["tree_roots"], int)
    if not ((roots >= 0) & (roots < branches)).all():
        raise damaged("the root of a tree is missing")
    modes = [_MODES[code] for code in codes] + [LEAF] * leaves
    table = _Branches(
        modes,
        _padded(attrs["nodes_featureids"], leaves),
        _padded(numbers_of(attrs, "nodes_splits"), leaves),
        ends["true"].tolist(),
        ends["false"].tolist(),
        _padded(attrs.get("nodes_missing_value_tracks_true", ()) or [0] * branches, leaves),
    )
    table.write_out(_sets(numbers_of(attrs, "membership_values")))
    weights = np.zeros((len(modes), number), votes.dtype)
    given = np.zeros(weights.shape, bool)
    weights[own, targets] = votes
    given[own, targets] = True
    return _forest(
        modes,
        roots=roots,
        features=np.asarray(table.features, int),
        thresholds=np.asarray(table.thresholds, numbers_of(attrs, "nodes_splits").dtype),
        yes=np.asarray(table.yes, int),
        no=np.asarray(table.no, int),
        missing=table.missing,
        weights=weights,
        given=given,
    )


class _Branches(NamedTuple):
    """The properties of all nodes, leaves included, in one list for each property."""

    modes: list[str]
    features: list[Any]
    thresholds: list[Any]
    yes: list[int]
    no: list[int]
    missing: list[Any]

    def write_out(self, sets: Sequence[Numbers]) -> None:
        """Replace each branch that tests membership of a set by one branch for each member."""
        members = [i for i, mode in enumerate(self.modes) if mode == _MEMBER]
        if len(sets) < len(members):
            raise damaged(f"{len(members)} branches have {len(sets)} sets of members")
        for node, values in zip(members, sets, strict=False):
            self.modes[node] = "BRANCH_EQ"
            otherwise = self.no[node]
            # For an empty set, compare with NaN. The comparison is never true, because no number
            # equals NaN.
            self.thresholds[node] = values[0] if len(values) else np.nan
            here = node
            for value in values[1:]:
                self.no[here] = here = len(self.modes)
                added = ("BRANCH_EQ", self.features[node], value, self.yes[node], otherwise, 0)
                lists: tuple[list[Any], ...] = self
                for each, new in zip(lists, added, strict=True):
                    each.append(new)


def _padded(values: Any, leaves: int) -> list[Any]:
    """Return the values of the branches, followed by zeros for the leaves."""
    return [*np.asarray(values).tolist(), *[0] * leaves]


def _sets(values: Numbers) -> list[Numbers]:
    """Return the sets of members. In `values`, a NaN ends each set."""
    parts = np.split(values, np.flatnonzero(np.isnan(values)))
    return [part[~np.isnan(part)] for part in parts]


def _forest(
    modes: Sequence[str],
    *,
    roots: Numbers,
    features: Numbers,
    thresholds: Numbers,
    yes: Numbers,
    no: Numbers,
    missing: Any,
    weights: Numbers,
    given: Numbers,
) -> Forest:
    kinds = tuple(sorted({mode for mode in modes if mode != LEAF}))
    own = np.arange(len(modes))
    is_leaf = np.array([mode == LEAF for mode in modes])
    if (((yes == own) | (no == own)) & ~is_leaf).any():
        raise damaged("a branch leads to itself")
    return Forest(
        roots=roots.astype("int32"),
        features=features.astype("int32"),
        thresholds=thresholds,
        yes=yes.astype("int32"),
        no=no.astype("int32"),
        modes=np.array([kinds.index(m) if m != LEAF else 0 for m in modes], "int32"),
        missing=np.asarray(missing if len(missing) else [0] * len(modes), "int32"),
        weights=weights,
        given=given,
        is_complete=_is_complete(roots, yes, no, given | (own != yes)[:, None]),
        kinds=kinds or ("BRANCH_LEQ",),
    )


def _is_complete(roots: Numbers, yes: Numbers, no: Numbers, given: Numbers) -> bool:
    """Return `Forest.is_complete`; refuse trees whose nodes form a circle.

    A kernel would never end if the nodes formed a circle.
    """
    branches = yes != np.arange(len(yes))
    found = np.zeros(given.shape[1], bool)
    for root in roots:
        has_all = np.ones(given.shape[1], bool)
        level, depth = np.array([root]), 0
        while len(level):
            has_all &= given[level].all(axis=0)
            inner = level[branches[level]]
            level, depth = np.unique(np.concatenate([yes[inner], no[inner]])), depth + 1
            if depth > len(yes):
                raise damaged("some nodes of the trees form a circle")
        found |= has_all
    return bool(found.all())
