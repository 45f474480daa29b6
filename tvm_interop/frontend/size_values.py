"""Checks the numbers that an ONNX model computes from its input shapes, for all sizes of a range.

A model may behave differently for a single size, for example by an `If` that tests whether the
batch is 7. Such a model computes a number from a shape. For this single size, the number does not
follow from the numbers for other sizes. So this module computes the numbers that depend only on
shapes and constants, for all sizes. It uses ONNX's reference implementation. If a node uses such a
number together with data, the number must grow evenly: by the same amount whenever the size of the
input grows by 1.

If a tensor has more elements for larger sizes, such as positions or a causal mask, each of its
elements must grow evenly.

A size of 1 is examined separately, since a single row is compiled separately. The result says if
the model treats a single row differently from several rows. If it does, a server must not run
single rows of different requests as one batch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import onnx
import onnx.inliner
from onnx.reference import ReferenceEvaluator

from ..models.external_weights import is_outside
from .even_growth import Growth, Law, Sizes, corners_of, laws_of, ones_of
from .expand import inner_graphs
from .onnx_importer import RANDOM, node_name
from .size_steps import UNSURE, computed
from .sizes_hidden import (
    OF_SEQUENCES,
    OF_SHAPE,
    HiddenSizes,
    Seen,
    UnevenSizesError,
    of_shape,
    reads_sizes,
)
from .sizes_inside import (
    CONSTANT,
    Origin,
    Unfollowed,
    captured_by,
    has_own_names,
    names_defined,
)
from .usual_form import with_dense_weights, with_nodes_in_order, with_usual_domain

_MOST_ELEMENTS = 1 << 16
"""A constant with more elements than this is taken to be a weight. It is read only if a node
combines it with sizes. A tensor that is computed only from constants is not tracked if it has more
elements than this.
"""
_NO_STEPS = frozenset((*RANDOM, *OF_SEQUENCES)) | UNSURE
"""Operators that are not computed here."""
_SMALL = 4096
"""Tensors with at most this many elements are computed for all sizes."""
_MOST_WORK = 1 << 29
"""Tensors with more than `_SMALL` elements are computed only for some of the sizes, so that about
this many elements are computed in total.
"""
_Values = dict[str, np.ndarray]
Read = Callable[[onnx.TensorProto], np.ndarray]


def follow_sizes(
    model: onnx.ModelProto,
    dimensions: Sequence[str],
    sizes: Sequence[Sizes],
    seen: Seen,
    read: Read | None = None,
) -> dict[int, str]:
    """Check that all numbers that a model computes from sizes grow evenly with the sizes.

    Parameters
    ----------
    dimensions: the names of the dimensions with a range.
    sizes: the sizes that a run may have, one for each dimension.
    seen: the shapes of the model's tensors for some sizes, including the largest. If the shapes
        grow evenly over these sizes, they are assumed to grow evenly for the sizes between them
        too.
    read: returns the values of a weight that is in another file.

    Returns
    -------
    A text for each dimension whose size of 1 the model treats differently from larger sizes. The
    text says how. The key is the index of the dimension.

    Raises
    ------
    UnevenSizesError
        A number does not grow evenly, or cannot be computed for all sizes.
    """
    model = with_usual_domain(model)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    model = with_dense_weights(with_nodes_in_order(model))
    follower = _Follower(model, sizes, seen, read)
    follower.take(model.graph)
    follower.use([value.name for value in model.graph.output], None)
    found = follower.found()
    try:
        return found.special()
    except _Uneven as error:
        one, other = (
            " and ".join(f"{d} {n}" for d, n in zip(dimensions, each, strict=True))
            for each in error.sizes
        )
        raise UnevenSizesError(
            f"node `{error.node}` uses the numbers of `{error.value}`, which are computed from the "
            f"size of an input and do not grow evenly with it: compare {one} with {other}"
        ) from None


class _Uneven(Exception):
    def __init__(self, value: str, node: str, sizes: tuple[Sizes, Sizes]) -> None:
        super().__init__(value)
        self.value, self.node, self.sizes = value, node, sizes


class _Follower:
    """Finds the nodes of a model that depend only on shapes and constants.

    Attributes
    ----------
    steps: the nodes that compute numbers from sizes, each with its evaluator, in order and without
        duplicates. `Shape` and `Size` nodes are not among them.
    sources: the `Shape` and `Size` nodes, by the names of their outputs.
    uses: the values that nodes use together with data, each with the name of the first such node.
    unfollowed: the nodes that compute further numbers from values, which this module cannot
        compute.
    untaken: conditions of `If` nodes, each with the name of the node. Another branch of the node,
        which is not taken for the largest sizes, may compute numbers from sizes.
    most: the constants, and all computed values, for the largest sizes. After `found`, a large
        value that is not a constant has the right shape only.
    """

    def __init__(
        self, model: onnx.ModelProto, sizes: Sequence[Sizes], seen: Seen, read: Read | None
    ) -> None:
        self._opsets = {each.domain: each.version for each in model.opset_import}
        self._sizes = sorted(set(sizes), key=math.prod)
        self._seen = seen
        self.steps: list[tuple[onnx.NodeProto, ReferenceEvaluator]] = []
        self.sources: dict[str, onnx.NodeProto] = {}
        self.uses: dict[str, str] = {}
        self.unfollowed = Unfollowed(self._origin, self._value_of)
        self.most: _Values = {}
        self._constants: set[str] = set()
        self._read = read
        # Large constants are read only if a node needs them.
        self._weights: dict[str, onnx.TensorProto] = {}
        # Maps the name of each value to the name of the first value that is computed in the same
        # way.
        self._same: dict[str, str] = {}
        self._first: dict[str, onnx.NodeProto] = {}
        # The names of all tensors of the graph, and of the branches that are followed.
        self._defined: set[str] = set()
        self._hidden = HiddenSizes(model.graph, seen)
        self.untaken: dict[str, str] = {}

    def found(self) -> _Numbers:
        # From here on, only the sizes of large tensors that are not constants are needed.
        for name in self.most.keys() - self._constants:
            if self.most[name].size > _SMALL:
                self.most[name] = np.broadcast_to(self.most[name].flat[0], self.most[name].shape)
        return _Numbers(self, self._sizes, self._seen)

    def take(self, graph: onnx.GraphProto) -> None:
        self._defined.update(names_defined(graph))
        for tensor in graph.initializer:
            if is_outside(tensor) or math.prod(tensor.dims) > _MOST_ELEMENTS:
                self._weights[tensor.name] = tensor
                continue
            self.most[tensor.name] = onnx.numpy_helper.to_array(tensor)
            self._constants.add(tensor.name)
        for node in graph.node:
            names = [self._same.get(name, name) for name in node.input]
            if node.op_type in OF_SHAPE and names[0] not in self.most:
                self._take_source(node)
            elif node.op_type == "If" and names[0] in self.most:
                self._take_branch(node, names[0])
            elif node.op_type == "If" and self._may_be_followed(node):
                self._take_both_branches(node)
            elif not self._is_step(node, names) or not self._take_step(node, names):
                self.use([*node.input, *captured_by(node)], node_name(node))
                self._hidden.check(node)
                self._hidden.check_inside(node)
                self.unfollowed.take(node, node_name(node))

    def use(self, names: Sequence[str], node: str | None) -> None:
        for name in (self._same.get(name, name) for name in names):
            if name in self.most and name not in self._constants:
                self.uses.setdefault(name, node or f"output {name}")

    def _origin(self, name: str) -> Origin | None:
        """Where a value comes from that depends only on sizes and constants; None for others."""
        name = self._same.get(name, name)
        if name in self._constants or name in self._weights:
            return CONSTANT
        if name in self.most:
            return Origin(frozenset([name]), is_followed=True)
        return self.unfollowed.origin_of(name)

    def _value_of(self, name: str) -> np.ndarray | None:
        """The elements of a small constant; None for other values."""
        name = self._same.get(name, name)
        return self.most[name] if name in self._constants else None

    def _take_source(self, node: onnx.NodeProto) -> None:
        shape = self._seen[self._sizes[-1]].get(node.input[0])
        if shape is None:
            raise UnevenSizesError(
                f"node `{node_name(node)}` uses the shape of `{node.input[0]}`, which is not known "
                "when the model is compiled"
            )
        key = "\0".join([node.op_type, node.input[0], *map(str, node.attribute)])
        first = self._first.setdefault(key, node).output[0]
        self._same[node.output[0]] = first
        self.sources[first] = self._first[key]
        self.most[first] = of_shape(node, shape)

    def _take_branch(self, node: onnx.NodeProto, condition: str) -> None:
        self.use([condition], node_name(node))
        wanted = "then_branch" if self.most[condition].all() else "else_branch"
        branch = next(a.g for a in node.attribute if a.name == wanted)
        sized = {n for n in (*self.most, *self._same) if self._same.get(n, n) in self.most}
        others = (a.g for a in node.attribute if a.HasField("g") and a.name != wanted)
        if any(reads_sizes(other, sized - self._constants) for other in others):
            self.untaken.setdefault(condition, node_name(node))
        self.take(branch)
        self._hidden.leave(node)
        for name, value in zip(node.output, branch.output, strict=False):
            self._same[name] = self._same.get(value.name, value.name)

    def _may_be_followed(self, node: onnx.NodeProto) -> bool:
        """Whether the condition of an `If` is data, and its tensors have names of their own."""
        is_data = self._origin(node.input[0]) is None
        return is_data and has_own_names(node, self._defined)

    def _take_both_branches(self, node: onnx.NodeProto) -> None:
        """Follow the numbers in both branches of an `If`, as its condition is data."""
        self.use(node.input, node_name(node))
        for branch in inner_graphs(node):
            self.take(branch)
            self.use([value.name for value in branch.output], node_name(node))
        self._hidden.leave(node)

    def _is_step(self, node: onnx.NodeProto, names: Sequence[str]) -> bool:
        if node.domain not in ("", "ai.onnx") or node.op_type in _NO_STEPS:
            return False
        if any(a.HasField("g") or a.graphs for a in node.attribute):
            return False
        given = {name for name in names if name}
        weights = given & self._weights.keys() - self.most.keys()
        if not given - weights <= self.most.keys():
            return False
        if weights and not given - weights - self._constants:
            return False  # The node depends only on weights.
        # The node combines sizes with weights, so the weights are read now. For example, a `Gather`
        # takes a row of a weight at an index that is a size.
        for name in weights:
            tensor = self._weights[name]
            read = self._read if is_outside(tensor) else onnx.numpy_helper.to_array
            if read is None:
                return False
            self.most[name] = read(tensor)
            self._constants.add(name)
        return True

    def _take_step(self, node: onnx.NodeProto, names: Sequence[str]) -> bool:
        """Compute a node for the largest sizes. Return False if its results cannot be tracked."""
        key = "\0".join([node.op_type, *names, *map(str, node.attribute)])
        first = self._first.setdefault(key, node)
        self._same.update(zip(node.output, first.output, strict=False))
        if first is not node:
            return True
        named = onnx.NodeProto()
        named.CopyFrom(node)
        named.input[:] = names
        try:
            evaluator = ReferenceEvaluator(named, opsets=self._opsets)
            self.most.update(computed(named, evaluator, self.most))
        except Exception:  # ONNX's reference may fail on a node that the importer supports.
            return False
        if all(name in self._constants for name in names if name):
            if any(self.most[name].size > _MOST_ELEMENTS for name in node.output if name):
                for name in node.output:
                    del self.most[name]
                return False
            self._constants.update(node.output)
        else:
            self.steps.append((named, evaluator))
        return True


class _Numbers:
    """Computes, for all sizes, the values of a model that depend only on sizes and constants."""

    def __init__(self, follower: _Follower, sizes: Sequence[Sizes], seen: Seen) -> None:
        self._steps, self._uses, self._most = follower.steps, follower.uses, follower.most
        self._unfollowed, self._untaken = follower.unfollowed, follower.untaken
        self._sources, self._sizes, self._seen = follower.sources, sizes, seen
        self._shapes: dict[str, Growth] = {}
        self._laws: dict[str, dict[tuple[bool, ...], Law]] = {}
        self._needed = self._needed_values()
        self._from_sizes = {name for node, _ in self._steps for name in node.output}
        self._from_sizes.update(self._sources)

    def special(self) -> dict[int, str]:
        """Return how the model treats a size of 1 differently from larger sizes, by dimension.

        `_Uneven` is raised if a number of the model does not grow evenly with the sizes.
        """
        for name, node in self._sources.items():
            if name in self._needed:
                self._shapes[node.input[0]] = self._growth_of_shape(node.input[0], node)
        found, series = {}, self._series()
        self._check_untaken(series)
        for name, each in series.items():
            growth = Growth(each)
            uneven = growth.uneven()
            if uneven is not None:
                raise _Uneven(name, self._uses[name], uneven)
            for number in growth.differs_at_1():
                found[number] = f"node `{self._uses[name]}` uses other numbers of `{name}`"
        return {**self._other_shapes(), **found}

    def _check_untaken(self, series: Mapping[str, Mapping[Sizes, np.ndarray]]) -> None:
        """Raise UnevenSizesError if an `If` takes another branch where a dimension has size 1, and
        the numbers that this branch computes from the other dimension are not followed.
        """
        if len(self._sizes[0]) < 2:
            return
        for condition, node in self._untaken.items():
            values = list(series.get(condition, {}).values())
            most = self._most[condition]
            if condition in series and (
                len(values) < len(self._sizes)
                or any(each.shape != most.shape or (each != most).any() for each in values)
            ):
                raise UnevenSizesError(
                    f"node `{node}` takes another branch where a dimension has size 1, and the "
                    "numbers that this branch computes from sizes are not followed"
                )

    def _needed_values(self) -> set[str]:
        needed = set(self._uses)
        for node, _ in reversed(self._steps):
            if needed.intersection(node.output):
                needed.update(node.input)
        return needed

    def _growth_of_shape(self, name: str, node: onnx.NodeProto) -> Growth:
        shapes = {n: np.array(known[name]) for n, known in self._seen.items() if name in known}
        rank = shapes[self._sizes[-1]].shape
        # A tensor may have fewer axes where a dimension has size 1, as after a `Squeeze`. If the
        # other dimension has several sizes there, its sizes are followed too.
        several = {ones for ones, count in Counter(map(ones_of, self._sizes)).items() if count > 1}
        shapes = {n: s for n, s in shapes.items() if s.shape == rank or ones_of(n) in several}
        ranks: dict[tuple[bool, ...], tuple[Sizes, int]] = {}
        for n, shape in shapes.items():
            other, size = ranks.setdefault(ones_of(n), (n, shape.size))
            if size != shape.size:
                raise _Uneven(name, node_name(node), (n, other))
        growth = Growth(shapes)
        uneven = growth.uneven()
        if uneven is not None:
            raise _Uneven(name, node_name(node), uneven)
        return growth

    def _series(self) -> dict[str, dict[Sizes, np.ndarray]]:
        """The numbers that must grow evenly: for each value in `uses`, the numbers for each
        combination of sizes.

        For a small value whose shape is the same for all sizes, the numbers are the value's
        elements. For any other value, they are the numbers that `_distance` returns.
        """
        steps = [(node, run) for node, run in self._steps if self._needed.intersection(node.output)]
        left_out = self._left_out(steps)
        work = sum(self._most[name].size for name in left_out)
        every = math.ceil(work * len(self._sizes) / _MOST_WORK) if work else 1
        corners = corners_of(self._sizes)
        laws = [self._values(steps, sizes, frozenset()) for sizes in corners]
        self._unfollowed.check(dict(zip(corners, laws, strict=True)))
        raw: dict[str, dict[Sizes, np.ndarray]] = {name: {} for name in self._uses}
        grown: dict[str, dict[Sizes, np.ndarray]] = {}
        for i, sizes in enumerate(self._sizes):
            values = self._values(steps, sizes, left_out if i % every else frozenset())
            for name in self._uses.keys() & values.keys():
                array = values[name]
                if array.shape == self._most[name].shape and array.size <= _SMALL:
                    raw[name][sizes] = array
                    continue
                if name not in grown:
                    grown[name] = {}
                    pairs = zip(corners, laws, strict=True)
                    self._laws[name] = laws_of({n: made[name] for n, made in pairs if name in made})
                grown[name][sizes] = self._distance(name, array, sizes)
        for name, each in grown.items():
            others = raw.pop(name).items()
            each.update((n, self._distance(name, array, n)) for n, array in others)
        return raw | grown

    def _left_out(self, steps: Sequence[tuple[onnx.NodeProto, ReferenceEvaluator]]) -> Set[str]:
        """The names of the large values that are computed only for some of the sizes.

        There are none if computing all values for all sizes is little enough work. A large value
        from which a small one is computed is always computed, so it is not among the names. The
        method also adds the values from which the named values are computed to the values that must
        grow evenly.
        """
        large = {name for node, _ in steps for name in node.output if name}
        large = {name for name in large if self._most[name].size > _SMALL}
        work = sum(self._most[name].size for name in large)
        if work * len(self._sizes) <= _MOST_WORK:
            return frozenset()
        needed: set[str] = set()
        for node, _ in reversed(steps):
            if not large.intersection(node.output) or needed.intersection(node.output):
                needed.update(node.input)
        for node, _ in steps:
            if large.intersection(node.output) - needed:
                own = self._from_sizes.intersection(node.input) - (large - needed)
                self._uses.update(dict.fromkeys(own - self._uses.keys(), node_name(node)))
        return large - needed

    def _values(
        self,
        steps: Sequence[tuple[onnx.NodeProto, ReferenceEvaluator]],
        sizes: Sizes,
        left_out: Set[str],
    ) -> _Values:
        """Return the values that nodes use, if they can be computed for the sizes `sizes`.

        All other values, which may be large, are not kept. The values in `left_out` are not
        computed.
        """
        own: _Values = {}
        for name, node in self._sources.items():
            growth = self._shapes.get(node.input[0])
            shape = None if growth is None else growth.at(sizes)
            if shape is not None:
                own[name] = of_shape(node, tuple(round(size) for size in shape))
        for node, evaluator in steps:
            names = [name for name in node.input if name]
            if not left_out.isdisjoint(node.output):
                continue
            if any(name in self._from_sizes and name not in own for name in names):
                continue
            given = {name: own.get(name, self._most[name]) for name in names}
            try:
                own.update(computed(node, evaluator, given))
            except Exception as error:
                raise UnevenSizesError(
                    f"node `{node_name(node)}` cannot be computed for the sizes {sizes}: {error}"
                ) from error
        fixed = self._unfollowed.alike.keys() | self._unfollowed.equal.keys()
        wanted = self._uses.keys() | fixed
        return {name: own[name] for name in wanted & own.keys()}

    def _distance(self, name: str, array: np.ndarray, sizes: Sizes) -> np.ndarray:
        """Return the shape of a value, followed by 0 or 1.

        The last number is 0 if the elements of the value grow with the sizes as they do for the
        largest sizes. It is 1 if they grow in another way.

        A `Law` states how the elements of a value grow with the sizes. There is one `Law` for each
        set of dimensions that may have size 1 (see `even_growth.laws_of`). `_Uneven` is raised if
        the value does not fit the `Law` for `sizes`.
        """
        laws, ones = self._laws[name], ones_of(sizes)
        if ones not in laws or not laws[ones].fits(sizes, array):
            raise _Uneven(name, self._uses[name], (sizes, self._sizes[-1]))
        usual = laws.get(ones_of(self._sizes[-1]))
        is_usual = usual is None or usual.fits(sizes, array)
        return np.array([*array.shape, int(not is_usual)])

    def _other_shapes(self) -> dict[int, str]:
        """Find the dimensions for which a tensor's shape at size 1 does not follow from its shapes
        at larger sizes, as after a `Squeeze`.

        Return a text for each of these dimensions.
        """
        found: dict[int, str] = {}
        for name, most in self._seen[self._sizes[-1]].items():
            shapes = {n: np.array(known[name]) for n, known in self._seen.items() if name in known}
            told = f"tensor `{name}` has another shape"
            for sizes, shape in shapes.items():
                if shape.size != len(most):
                    found.update({i: told for i, size in enumerate(sizes) if size == 1})
            alike = Growth({n: shape for n, shape in shapes.items() if shape.size == len(most)})
            if alike.uneven() is None:
                found.update(dict.fromkeys(alike.differs_at_1(), told))
        return found
