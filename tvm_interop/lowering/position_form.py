"""Describes what a statement of a kernel computes at one position of a sequence, for any length.

A tensor may have several axes of positions. For example, scores of attention have an axis for
queries and an axis for keys. The layout of a tensor lists the numbers of elements before, between
and after these axes. A tensor with the layout `(a, b, c)` is a reshaped tensor of shape `(a,
length, b, length, c)`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import tvm_ffi
from tvm import ir, sym, tirx

from ..kernels.expressions import uses
from .bfloat16_ports import conversion_of
from .kernel_stores import Store, UnprovenError, loop_variable, with_values

Layout: TypeAlias = "tuple[int, ...]"
Tree: TypeAlias = "tuple[Any, ...]"
"""An expression: its kind, its operands and its dtype. It contains neither the length of the
sequence nor the buffers of one kernel. A load is `("load", buffer, positions, other indices,
dtype)`.
"""
Position: TypeAlias = "str | int | tuple[str, str, str]"
"""A position that a statement reads: the name of a loop over positions, or a fixed number.

A causal convolution also reads positions before the loop's position. These are written as
`("earlier", loop, distance)`.
"""


class PositionLoop(NamedTuple):
    """A loop of `outer * length * inner` steps, which goes over all positions `outer` times.

    `inner` consecutive steps of the loop belong to each position.
    """

    outer: int
    inner: int


class Known(NamedTuple):
    """The facts that are known about a kernel's buffers, for one length.

    Attributes
    ----------
    length: the length of the sequence, including padding.
    least: the smallest length of the range. Positions below it are never padded.
    names: the names of all buffers. They are the same for all lengths.
    layouts: the layout of each buffer that has positions.
    numbers: the value of each constant that consists of a single integer.
    places: for each constant with indices into a flattened tensor, the largest `m` in it. Each
        index is a position plus `m` times the length. Exported models read masks by such indices.
    is_padded: whether the kernel reads a padded tensor; see `padded_tensors`.
    """

    length: int
    least: int
    names: Mapping[Any, str]
    layouts: Mapping[Any, Layout]
    numbers: Mapping[Any, int]
    places: Mapping[Any, int]
    is_padded: bool = False


class Form(NamedTuple):
    """A statement, in a form that is the same for all lengths.

    Attributes
    ----------
    buffer: the name of the buffer that is written.
    positions: the loops over positions that determine which element is written.
    mixed: all other loops over positions. The statement combines the results of their steps.
    loops: for each loop around the statement, a `PositionLoop` if it is a loop over positions, else
        its length.
    places: the indices of the written element, apart from the positions.
    conditions: the conditions under which the statement runs. All of them must be true.
    """

    buffer: str
    positions: tuple[Position, ...]
    mixed: tuple[str, ...]
    loops: tuple[Any, ...]
    places: tuple[Any, ...]
    value: Tree
    conditions: tuple[Tree, ...]


def axes_of_layout(shape: Sequence[int], layout: Layout, length: int) -> list[int | None]:
    """For each axis, the number of consecutive indices that belong to one position; None for an
    axis without positions.

    Raises
    ------
    UnprovenError
        A reshape has divided an axis of positions, or merged two of them into one axis.
    """
    found: list[int | None] = []
    axes = [int(size) for size in reversed(shape)]
    # The entries of `layout` that no axis has used yet, innermost first.
    rest = list(reversed(layout))
    for size in axes:
        if rest[0] % size == 0:
            rest[0] //= size
            found.append(None)
            continue
        inner = rest[0]
        outer, remainder = divmod(size, inner * length)
        if remainder or len(rest) < 2 or not outer or rest[1] % outer:
            raise UnprovenError("reads positions after a reshape has cut or merged them")
        found.append(inner)
        rest = [rest[1] // outer, *rest[2:]]
    if rest != [1]:
        raise UnprovenError("reads positions after a reshape has cut or merged them")
    return found[::-1]


def layout_of(shape: Sequence[int], inner: Sequence[int | None], length: int) -> Layout:
    """The layout of a tensor, computed from the result `inner` of `axes_of_layout`."""
    layout = [1]
    for size, each in zip(shape, inner, strict=True):
        if each is None:
            layout[-1] *= size
        else:
            layout[-1] *= size // (each * length)
            layout.append(each)
    return tuple(layout)


def one_axis(shape: Sequence[int], axis: int, length: int) -> Layout:
    """The layout of a tensor that has positions only along the axis `axis`."""
    inner = shape[axis] // length
    return math.prod(shape[:axis]), inner * math.prod(shape[axis + 1 :])


def form_of(store: Store, known: Known, loops: Mapping[int, PositionLoop]) -> Form:
    """The form of a statement.

    Parameters
    ----------
    loops: the loops over positions, by their indices among all loops around the statement.

    Raises
    ------
    UnprovenError
        The statement uses positions in a way that the proof does not cover.
    """
    return _Reader(store, known, loops).form()


_BINARY = {
    tirx.Add: "add", tirx.Sub: "sub", tirx.Mul: "mul", tirx.Div: "div", tirx.Max: "max",
    tirx.Min: "min", tirx.EQ: "eq", tirx.NE: "ne", tirx.LT: "lt", tirx.LE: "le", tirx.GT: "gt",
    tirx.GE: "ge", tirx.And: "and", tirx.Or: "or", tirx.FloorDiv: "floordiv",
    tirx.FloorMod: "floormod", tirx.Mod: "mod",
}  # fmt: skip
_PURE = frozenset(
    (
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "bitwise_and",
        "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "cos", "cosh", "erf", "exp", "exp10",
        "exp2", "fabs", "floor", "fmod", "hypot", "if_then_else", "isfinite", "isinf", "isnan",
        "log", "log10", "log1p", "log2", "nearbyint", "pow", "power", "round", "rsqrt",
        "shift_left", "shift_right", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    )
)  # fmt: skip
"""Functions whose result depends only on their arguments."""


class _Reader:
    def __init__(self, store: Store, known: Known, loops: Mapping[int, PositionLoop]) -> None:
        self._store, self._known = store, known
        self._analyzer = sym.Analyzer()
        self._positions: dict[str, Any] = {}
        # An index that is read from `places` (see `Known`) is a position plus `m` times the length.
        # This dictionary has a variable for each such `m`.
        self._sequences: dict[str, Any] = {}
        self._problems: list[UnprovenError] = []
        self._values: dict[Any, Any] = {}
        self._extents: list[Any] = []
        for i, (var, extent) in enumerate(store.loops):
            loop = loops.get(i)
            if loop is None:
                value = loop_variable(self._analyzer, f"i{i}", extent)
                self._extents.append(extent)
            else:
                position = loop_variable(self._analyzer, f"p{i}", known.length)
                self._positions[f"p{i}"] = position
                outer = loop_variable(self._analyzer, f"o{i}", loop.outer)
                within = loop_variable(self._analyzer, f"i{i}", loop.inner)
                value = (outer * known.length + position) * loop.inner + within
                self._extents.append(loop)
            self._values[var] = tirx.Cast(var.ty.dtype, value)

    def form(self) -> Form:
        store = self._store
        positions, places = self._place(store.buffer, store.indices)
        if len(set(positions)) < len(positions) or not all(isinstance(p, str) for p in positions):
            raise UnprovenError("writes some positions alone")
        return Form(
            self._known.names[store.buffer],
            positions,
            tuple(name for name in self._positions if name not in positions),
            tuple(self._extents),
            places,
            self._tree(store.value),
            tuple(self._tree(each) for each in store.conditions),
        )

    def _tree(self, node: Any) -> Tree:
        dtype = str(node.ty.dtype) if hasattr(node.ty, "dtype") else str(node.ty)
        if isinstance(node, (tirx.IntImm, tirx.FloatImm)):
            return ("const", _number(node), dtype)
        if isinstance(node, ir.TensorLoad):
            if node.source in self._known.numbers:
                return ("const", self._known.numbers[node.source], dtype)
            name = self._known.names.get(node.source)
            if name is None:
                raise UnprovenError("reads a tensor that nothing wrote")
            if self._known.places.get(node.source, 0):
                raise UnprovenError("computes with indices that grow with the length")
            return ("load", name, *self._place(node.source, node.indices), dtype)
        converted = conversion_of(node)
        if converted is not None:
            tree = self._tree(converted.operand)
            for target in converted.types:
                tree = ("cast", tree, target)
            return tree
        if isinstance(node, tirx.Select):
            return self._select(node.condition, node.true_value, node.false_value, dtype)
        if isinstance(node, tirx.Cast):
            return ("cast", self._tree(node.value), dtype)
        if isinstance(node, tirx.Not):
            return ("not", self._tree(node.a), dtype)
        if isinstance(node, tirx.Var):
            return ("index", str(self._simple(node)), dtype)
        kind = next((name for each, name in _BINARY.items() if isinstance(node, each)), None)
        if kind is not None:
            if kind in ("lt", "le", "gt", "ge") and self._always_holds(node):
                return ("const", 1, dtype)
            return (kind, self._tree(node.a), self._tree(node.b), dtype)
        if isinstance(node, ir.Call) and isinstance(node.op, ir.Op):
            name = node.op.name.split(".")[-1]
            if name in _PURE and "handle" not in str(node.ty):
                if name == "if_then_else":
                    condition, one, other = node.args
                    return self._select(condition, one, other, dtype)
                return (f"call {name}", *map(self._tree, node.args), dtype)
            raise UnprovenError(f"calls `{name}`, which the proof does not cover")
        raise UnprovenError(f"has an expression of kind {type(node).__name__}")

    def _select(self, condition: Any, one: Any, other: Any, dtype: str) -> Tree:
        known = self._tree(condition)
        if self._known.is_padded and not _has_loads(condition, {}):
            with self._analyzer.constraint_scope(self._simple(condition)):
                return ("select", known, self._tree(one), self._tree(other), dtype)
        return ("select", known, self._tree(one), self._tree(other), dtype)

    def _always_holds(self, node: Any) -> bool:
        """Whether a comparison is true for all indices, such as a check for the end of a padded
        tensor.

        A form leaves such a comparison out, because the comparison contains the length, and forms
        must be the same for all lengths.
        """
        if not self._known.is_padded or _has_loads(node, {}):
            return False
        return bool(self._analyzer.can_prove(self._simple(node)))

    def _simple(self, expression: Any) -> Any:
        """An index, written with the variables of the form, and with numbers in place of
        constants."""
        found = with_values(expression, self._values)
        if self._known.numbers or self._known.places:
            found = tvm_ffi.structural_map(found, (ir.TensorLoad, self._whole_number), order="post")
        if self._problems:
            raise self._problems[0]
        return self._analyzer.simplify(found)

    def _whole_number(self, node: Any) -> Any:
        """The value that `node` reads, if it reads a constant in `numbers` or `places` (see
        `Known`).
        """
        dtype = str(node.ty.dtype)
        if node.source in self._known.numbers:
            return tirx.const(self._known.numbers[node.source], dtype)
        if node.source not in self._known.places:
            return node
        try:
            (position,), places = self._place(node.source, node.indices)
        except UnprovenError as problem:
            self._problems.append(problem)  # The error is raised after `structural_map`.
            return node
        if isinstance(position, tuple):
            self._problems.append(UnprovenError("computes with places of earlier positions"))
            return node
        found = self._positions[position] if isinstance(position, str) else position
        most = self._known.places[node.source]
        if most:
            name = f"{self._known.names[node.source]}{places}"
            if name not in self._sequences:
                self._sequences[name] = loop_variable(self._analyzer, name, most + 1)
            found = self._sequences[name] * self._known.length + found
        return tirx.Cast(dtype, found) if dtype != "int64" else found

    def _place(
        self, buffer: Any, indices: Sequence[Any]
    ) -> tuple[tuple[Position, ...], tuple[Any, ...]]:
        """Return the positions of an element that is read or written, and its other indices."""
        layout, length = self._known.layouts.get(buffer), self._known.length
        inner: list[int | None] = [None] * len(indices)
        if layout is not None:
            inner = axes_of_layout([int(size) for size in buffer.shape], layout, length)
        positions: list[Position] = []
        places: list[Any] = []
        for index, each, size in zip(indices, inner, buffer.shape, strict=True):
            if each is None:
                places.append(self._index(index))
                continue
            simple = self._simple(index)
            earlier = self._earlier(simple) if each == 1 and int(size) == length else None
            if earlier is not None:
                positions.append(earlier)
                places += ["0", "0"]
                continue
            positions.append(self._position(simple // each % length))
            for part in (simple // (each * length), simple % each):
                found = self._analyzer.simplify(part)
                if any(uses(found, p) for p in self._positions.values()):
                    raise UnprovenError("reads an element whose index depends on the position")
                places.append(str(found))
        return tuple(positions), tuple(places)

    def _earlier(self, index: Any) -> Position | None:
        """The position `index`, if it is at least 0 and less than a loop's position; else None."""
        if not self._known.is_padded:
            return None
        for name, position in self._positions.items():
            distance = self._analyzer.simplify(position - index)
            if any(uses(distance, p) for p in self._positions.values()):
                continue
            if _has_loads(distance, {}):
                continue
            if isinstance(distance, tirx.IntImm) and int(distance.value) == 0:
                return None  # The position equals the loop's position, so it is not earlier.
            if self._analyzer.const_int_bound(distance).min_value >= 0 and (
                self._analyzer.can_prove(index >= 0)
            ):
                return "earlier", name, str(distance)
        return None

    def _index(self, index: Any) -> Any:
        """The form of an index that is not a position: a text, or a `Tree` if the index reads a
        tensor.
        """
        if _has_loads(index, {**self._known.numbers, **self._known.places}):
            return self._tree(index)
        return str(self._simple(index))

    def _position(self, digit: Any) -> Position:
        found = self._analyzer.simplify(digit)
        for name, position in self._positions.items():
            if self._analyzer.can_prove_equal(found, position):
                return name
        if isinstance(found, tirx.IntImm):
            if int(found.value) < self._known.least:
                return int(found.value)
            raise UnprovenError(
                f"reads position {int(found.value)}, which may be a padded position"
            )
        if self._known.is_padded:
            raise UnprovenError(
                "reads positions after or beside the position that it writes, as a non-causal "
                "convolution does"
            )
        raise UnprovenError("reads another position than the position that it writes")


def _number(node: Any) -> float | int:
    return int(node.value) if isinstance(node, tirx.IntImm) else float(node.value)


def _has_loads(expression: Any, known: Mapping[Any, int]) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        expression,
        (ir.TensorLoad, lambda node: found.append(node) if node.source not in known else None),
    )
    return bool(found)


def splits(count: int) -> list[PositionLoop]:
    """The possible loops over positions with `count` steps for each position."""
    return [
        PositionLoop(count // inner, inner) for inner in range(1, count + 1) if count % inner == 0
    ]
