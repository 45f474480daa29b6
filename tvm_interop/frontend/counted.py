"""Counted tensors: their size along an axis is computed by the model, such as a number of boxes.

A schedule is made for fixed shapes. So a counted tensor is stored with the largest size that it can
have. Its true size, the count, is computed as a separate tensor. Elements beyond the count have no
meaning, and no result may depend on them. Some operators compute each row of their result from the
same row of the input. Such an operator runs on the whole tensor, and its result has the same count.
`counted_rules` lists the supported operators. All others are refused.

If a counted tensor is an output of the model, its count becomes a further output of `main`. After a
run, the output is cut to this count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .bounds import within_bounds
from .constants import number_like
from .positions import true_positions

Compute = Callable[[Any], Any]
"""A function that computes a node of the model for the inputs that it is given, in place of the
node's own inputs.
"""


@dataclass(frozen=True)
class Counted:
    """A tensor whose size along an axis is computed when the model runs.

    Attributes
    ----------
    whole: the tensor, stored with the largest size that it can have along the axis.
    axis: the axis whose size is computed.
    count: the size along the axis, int64 of shape (1,). It is at most the largest size.
    origin: a description of the node that the count comes from.
    """

    whole: relax.Var
    axis: int
    count: relax.Var
    origin: str

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `whole`, with the largest size along the axis."""
        shape = static_shape(self.whole.ty)
        assert shape is not None, "only tensors of static shape can have a count"
        return shape

    @property
    def most(self) -> int:
        """The largest size along the axis."""
        return self.shape[self.axis]

    def inside(self, bb: relax.BlockBuilder) -> relax.Var:
        """Return which indices of the axis are below the count: booleans of shape (most,)."""
        index = relax.const(np.arange(self.most), "int64")
        return bb.emit(relax.op.less(index, self.count))

    def inside_whole(self, bb: relax.BlockBuilder) -> relax.Var:
        """Return the booleans of `inside` with as many axes as `whole`; added axes have size 1."""
        sizes = [1] * len(self.shape)
        sizes[self.axis] = self.most
        return bb.emit(relax.op.reshape(self.inside(bb), sizes))


class CountedTensors:
    """The counted tensors among the tensors of a model that is being imported."""

    def __init__(self) -> None:
        self._counted: dict[relax.Var, Counted] = {}
        self._counts: dict[tuple[Any, ...], relax.Var] = {}
        self._positions: dict[relax.Var, tuple[relax.Var, relax.Var]] = {}
        self._most: dict[relax.Var, int] = {}
        self._true: dict[relax.Var, relax.Var] = {}

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, relax.Var) and value in self._counted

    def of(self, value: Any) -> Counted | None:
        """Return the counted tensor that a variable represents; None for other variables."""
        return self._counted[value] if value in self else None

    def check(self, values: Sequence[Any]) -> None:
        """Refuse counted tensors as inputs or results of subgraphs."""
        for value in values:
            counted = self.of(value)
            if counted is not None:
                raise UnsupportedModelError(why_not(counted))

    def standing(
        self, bb: relax.BlockBuilder, whole: Any, axis: int, count: relax.Var, origin: str
    ) -> relax.Var:
        """Return a new variable that represents a counted tensor."""
        tensor = bb.emit(bb.normalize(within_bounds(whole)))
        variable = bb.emit(tensor)
        counted = self._counted[variable] = Counted(tensor, axis, count, origin)
        self._most[count] = min(counted.most, self._most.get(count, counted.most))
        return variable

    def most(self, count: relax.Var) -> int:
        """Return the largest value that a count can have."""
        return self._most[count]

    def is_at_most(self, count: relax.Var, other: relax.Var) -> bool:
        """Whether `count` is the count `other`, or the minimum of `other` and an integer."""
        if count.same_as(other):
            return True
        known = [key for key, found in self._counts.items() if found.same_as(count)]
        return any(key[0] == "at most" and key[1].same_as(other) for key in known)

    def at_most(self, bb: relax.BlockBuilder, count: relax.Var, most: int) -> relax.Var:
        """Return the minimum of a count and an integer."""
        if most >= self._most[count]:
            return count
        least = self.derived(bb, "at most", relax.op.minimum, count, most)
        self._most[least] = most
        return least

    def total(self, bb: relax.BlockBuilder, *counts: Any) -> Any:
        """Return the sum of counts and integers. For the same counts, return the same variable
        again.
        """
        number = sum(each for each in counts if isinstance(each, int))
        total, most = None, 0
        for count in (*(each for each in counts if not isinstance(each, int)), number):
            if isinstance(count, int) and (count == 0 or total is None):
                total = count if total is None else total
                continue
            most += count if isinstance(count, int) else self._most[count]
            if total is not None:
                count = self.derived(bb, "sum", relax.op.add, total, count)
            total = count
        if not isinstance(total, int):
            self._most[total] = min(most, self._most.get(total, most))
        return total

    def positions_of(self, bb: relax.BlockBuilder, mask: Any) -> tuple[relax.Var, relax.Var]:
        """Return the positions where a mask is true, and their number, as `true_positions` computes
        them.

        For the same mask, the same variables are returned again.
        """
        if mask not in self._positions:
            self._positions[mask] = true_positions(bb, mask)
        return self._positions[mask]

    def derived(
        self, bb: relax.BlockBuilder, kind: str, make: Callable[..., Any], *given: Any
    ) -> relax.Var:
        """Return a count that is computed from other counts, or from counts and integers.

        Calls with equal arguments return the same variable. So two tensors have the same size if
        their counts are the same variable.

        Parameters
        ----------
        kind: a name for the computation.
        make: a function that computes the count. Its arguments are those in `given`, with integers
            as constants.
        """
        key = (kind, *given)
        if key not in self._counts:
            terms = [
                relax.const(np.array([value]), "int64") if isinstance(value, int) else value
                for value in given
            ]
            self._counts[key] = bb.emit(make(*terms))
        return self._counts[key]

    def true_count(self, mask: Any) -> relax.Var | None:
        """Return how many elements of a mask are true, if a `NonZero` of it was imported."""
        return self._true.get(mask) if isinstance(mask, relax.Var) else None

    def places(self, bb: relax.BlockBuilder, x: Any, origin: str) -> relax.Var:
        """Return the result of a `NonZero` of `x`: the positions of the elements that are not 0.

        The result has a row for each dimension of `x`, and a column for each element that is not 0.
        """
        counted = self.of(x)
        whole = x if counted is None else counted.whole
        shape = static_shape(getattr(whole, "ty", None))
        if not shape or 0 in shape:
            raise UnsupportedModelError("its input must have dimensions of known sizes above 0")
        mask = whole
        if counted is not None or str(whole.ty.dtype) != "bool":
            mask = self._mask(bb, x, whole, counted)
        found, count = self.positions_of(bb, mask)
        if str(whole.ty.dtype) == "bool" and isinstance(x, relax.Var):
            self._true[x] = count
        strides = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape))]
        rows: list[relax.Var] = []
        for stride, size in zip(strides, shape, strict=True):
            row = found
            if stride > 1:
                row = bb.emit(relax.op.floor_divide(row, number_like(row, stride)))
            if len(rows) > 0:
                row = bb.emit(relax.op.floor_mod(row, number_like(row, size)))
            rows.append(bb.emit(relax.op.reshape(row, (1, int(np.prod(shape))))))
        columns = rows[0] if len(rows) == 1 else bb.emit(relax.op.concat(rows, 0))
        return self.standing(bb, columns, 1, count, origin)

    def _mask(self, bb: relax.BlockBuilder, x: Any, whole: Any, counted: Counted | None) -> Any:
        """Return where a tensor is not 0. For the same tensor, return the same variable again."""
        key = ("mask", x)
        if key not in self._counts:
            is_bool = str(whole.ty.dtype) == "bool"
            mask = whole if is_bool else bb.emit(relax.op.not_equal(whole, number_like(whole, 0)))
            if counted is not None:
                mask = bb.emit(relax.op.logical_and(mask, counted.inside_whole(bb)))
            self._counts[key] = mask
        return self._counts[key]

    def outputs(self, values: Sequence[Any]) -> tuple[list[relax.Var], list[tuple[int, int, int]]]:
        """Return the counts of the model's outputs `values`. They become further outputs of `main`.

        Returns
        -------
        The counts, without repetition; and three numbers for each counted output: its position
        among the outputs of `main`, its counted axis, and the position of its count. The outputs of
        `main` are `values`, followed by the counts.
        """
        counts: list[relax.Var] = []
        triples = []
        for i, value in enumerate(values):
            counted = self.of(value)
            if counted is None:
                continue
            if not any(count.same_as(counted.count) for count in counts):
                counts.append(counted.count)
            place = next(k for k, count in enumerate(counts) if count.same_as(counted.count))
            triples.append((i, counted.axis, len(values) + place))
        return counts, triples


class ImportedNode(NamedTuple):
    """A node of the model that is being imported.

    Attributes
    ----------
    name: a description of the node for messages.
    op_type: the name of its operator.
    inputs: its inputs.
    attrs: its attributes.
    compute: a function that computes the node for the inputs that it is given, in place of
        `inputs`.
    """

    name: str
    op_type: str
    inputs: Any
    attrs: Mapping[str, Any]
    compute: Compute


@dataclass(frozen=True)
class Node:
    """A node that reads counted tensors.

    Attributes
    ----------
    name, op_type, inputs, attrs, compute: as in `ImportedNode`.
    found: for each input, the counted tensor, or None.
    """

    name: str
    op_type: str
    inputs: Any
    attrs: Mapping[str, Any]
    compute: Compute
    found: tuple[Counted | None, ...]

    @property
    def first(self) -> Counted:
        """The first counted tensor among the inputs."""
        return next(each for each in self.found if each is not None)

    def whole(self) -> Any:
        """Compute the node for its inputs at their largest sizes, elements beyond the counts
        included.
        """
        given = [
            value if each is None else each.whole
            for value, each in zip(self.inputs, self.found, strict=True)
        ]
        return self.compute(type(self.inputs)(given))

    def refused(self) -> UnsupportedModelError:
        """Return the error for this node, if it cannot read its counted tensors."""
        return UnsupportedModelError(why_not(self.first))

    def only_first(self) -> Counted:
        """Return the first input, which must be the only counted tensor among the inputs."""
        first = self.found[0]
        if first is None or any(each is not None for each in self.found[1:]):
            raise self.refused()
        return first


def shape_of(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a value if it is a tensor of static shape."""
    return static_shape(getattr(value, "ty", None))


def why_not(counted: Counted) -> str:
    """Say why a node cannot read a counted tensor."""
    return (
        f"the size of its input along axis {counted.axis} depends on the numbers in the inputs of "
        f"node {counted.origin}, and a schedule is made for fixed shapes. Leave it out of the "
        "model, and compute it from the model's outputs"
    )
