"""Describes what a statement computes for one row, as a text that is equal for all batch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tvm_ffi
from tvm import ir, sym, tirx

from ..kernels.expressions import uses
from .kernel_stores import Store, UnprovenError, loop_variable, with_values


class Counter(NamedTuple):
    """A constant with whole numbers that grow by `step` from each row to the next.

    Exported models use constants that grow from row to row as indices into a flattened tensor.

    Attributes
    ----------
    least, greatest: the smallest and the largest number of the first row.
    """

    step: int
    least: int
    greatest: int


class Rows(NamedTuple):
    """Says where the rows of an input or output lie along one of its axes.

    Attributes
    ----------
    axis: the axis along which the rows lie.
    each: the number of neighbouring indices of the axis that belong to one row.
    """

    axis: int
    each: int


def place_of_rows(shape: Sequence[int], block: int, size: int) -> Rows | None:
    """Where the rows of a tensor lie along one axis; None if a reshape has divided the axis of
    rows.
    """
    inner = 1
    for axis in reversed(range(len(shape))):
        if inner <= block < inner * shape[axis]:
            each, rest = divmod(block, inner)
            fits = not rest and shape[axis] % (each * size) == 0
            return Rows(axis, each) if fits else None
        inner *= shape[axis]
    return None


class RowLoop(NamedTuple):
    """The loop of a statement that goes over rows.

    Attributes
    ----------
    position: the loop's position among the loops around the statement.
    each: the total number of steps of the loop that belong to one row.
    neighbours: the number of consecutive steps that belong to one row, before steps of the next
        row follow.
    """

    position: int
    each: int
    neighbours: int


class Buffers(NamedTuple):
    """The facts that are known about a kernel's buffers, for one size.

    Attributes
    ----------
    size: the number of rows.
    names: the names of all buffers. They are the same for all sizes.
    counters: the constants whose numbers grow from row to row.
    """

    size: int
    names: Mapping[Any, str]
    counters: Mapping[Any, Counter]


def row_form(
    store: Store, buffers: Buffers, blocks: Mapping[Any, int], loop: RowLoop | None
) -> str:
    """Describe what a statement computes for one row. The text contains neither the row nor the
    size.

    Parameters
    ----------
    blocks: the block of each buffer that has rows; see `independent_rows`.
    loop: the loop over rows; None if the statement is in no such loop.

    Raises
    ------
    UnprovenError
        The statement computes a row from another row, or treats rows differently.
    """
    return _Form(store, buffers, blocks, loop).text()


class _Form:
    def __init__(
        self, store: Store, buffers: Buffers, blocks: Mapping[Any, int], loop: RowLoop | None
    ) -> None:
        self._store, self._buffers, self._blocks, self._loop = store, buffers, blocks, loop
        self._analyzer = sym.Analyzer()
        self._row = tirx.Var("row", "int64")
        # Variables for elements that are read from a `Counter`, by the text of the element. A
        # variable stands for the element's value in the first row.
        self._bases: dict[str, Any] = {}
        self._problems: list[UnprovenError] = []
        self._values: dict[Any, Any] = {}
        self._extents: list[tuple[int, ...]] = []
        for i, (var, extent) in enumerate(store.loops):
            self._enter(i, var, extent)

    def _enter(self, position: int, var: Any, extent: int) -> None:
        """Replace the variable of a loop by an expression. For the loop over rows, the expression
        contains the index of the row.
        """
        loop, size = self._loop, self._buffers.size
        if loop is None or position != loop.position:
            self._values[var] = loop_variable(self._analyzer, f"i{position}", extent)
            self._extents.append((extent,))
            return
        apart = loop.each // loop.neighbours
        self._analyzer.bind(self._row, ir.Range(0, size))
        outer = loop_variable(self._analyzer, f"i{position}_outer", apart)
        within = loop_variable(self._analyzer, f"i{position}", loop.neighbours)
        value = (outer * size + self._row) * loop.neighbours + within
        self._values[var] = tirx.Cast(var.ty.dtype, value)
        self._extents.append((apart, loop.neighbours))

    def text(self) -> str:
        store = self._store
        parts = [self._row_free(each) for each in (store.value, *store.conditions)]
        indices = [with_values(index, self._values) for index in store.indices]
        places = self._in_one_row(store.buffer, indices)
        name = self._buffers.names[store.buffer]
        return "\n".join([str(self._extents), name, *map(str, places), *map(str, parts)])

    def _row_free(self, expression: Any) -> Any:
        """The expression for one row. UnprovenError is raised if it depends on the index of the
        row.
        """
        found = tvm_ffi.structural_map(
            with_values(expression, self._values), (ir.TensorLoad, self._load), order="post"
        )
        if self._problems:
            raise self._problems[0]
        found = self._analyzer.simplify(found)
        _check_calls(found)
        if uses(found, self._row):
            raise UnprovenError("computes something that depends on the index of the row")
        return found

    def _load(self, node: Any) -> Any:
        """A read of an element, whose indices are now counted within one row (see
        `_in_one_row`).
        """
        name = self._buffers.names.get(node.source)
        if name is None:
            self._problems.append(UnprovenError("reads a tensor that nothing wrote"))
            return node
        try:
            named = tirx.decl_buffer(node.source.shape, node.source.dtype, name)
            found = tirx.BufferLoad(named, self._in_one_row(node.source, node.indices))
        except UnprovenError as problem:
            self._problems.append(problem)  # The error is raised after `structural_map`.
            return node
        counter = self._buffers.counters.get(node.source)
        if counter is None:
            return found
        dtype = found.ty.dtype
        if str(found) not in self._bases:
            base = self._bases[str(found)] = tirx.Var(str(found), dtype)
            self._analyzer.bind(base, ir.Range(counter.least, counter.greatest + 1))
        return self._bases[str(found)] + tirx.Cast(dtype, self._row * counter.step)

    def _in_one_row(self, buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """The indices, counted within one row if the buffer has rows.

        The element must lie in the row that the current step of the loop over rows computes.
        """
        analyzer, row, size = self._analyzer, self._row, self._buffers.size
        found = [analyzer.simplify(index) for index in indices]
        if buffer in self._blocks:
            place = place_of_rows([int(dim) for dim in buffer.shape], self._blocks[buffer], size)
            if place is None:
                raise UnprovenError("reads rows after a reshape has cut their axis")
            index = found[place.axis]
            read = analyzer.simplify(index // place.each % size)
            if self._loop is None or not analyzer.can_prove_equal(read, row):
                raise UnprovenError("reads another row than the row that it writes")
            found[place.axis] = analyzer.simplify(
                index // (place.each * size) * place.each + index % place.each
            )
        if any(uses(index, row) for index in found):
            raise UnprovenError("reads an element whose index depends on the row")
        return found


def _check_calls(expression: Any) -> None:
    """Refuse pointers as arguments: a function may read more than the element that a pointer points
    at.
    """

    def check(call: Any) -> None:
        pointers.extend([call] if "handle" in str(call.ty) else [])

    pointers: list[Any] = []
    tvm_ffi.structural_walk(expression, (ir.Call, check))
    if pointers:
        raise UnprovenError("passes a pointer to a function")
