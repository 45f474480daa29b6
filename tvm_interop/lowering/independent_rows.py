"""Proves that the rows of a batch do not influence each other.

The proof works on the kernels of a lowered model, before they are scheduled. The model is lowered
for several sizes of a dimension, such as the batch. In each kernel, every statement must compute
one row of its result from the same row of what it reads, and in the same way for all rows and all
sizes. By induction over the statements, the model then computes each row of its outputs from the
same row of its inputs alone.

A tensor that has rows is described by the number of elements that lie together in one row, its
block: the element at position p of the flat tensor belongs to row `p // block % size`. A reshape
does not change this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi
from tvm import ir, sym, tirx

from ..kernels.loops import ROWS
from ..program.program import Operator, Program
from ..program.row_axis import axis_of_rows
from .kernel_stores import Store, UnprovenError, stores_of, with_values

_MOST_TRIALS = 50
"""How many blocks are tried for each statement of a kernel, on average, before giving up."""


class RowsDependError(Exception):
    """It cannot be proven that rows are independent. The text names the operator and the reason."""


class Counter(NamedTuple):
    """A constant of whole numbers that grow by `step` from row to row.

    Exporters make such constants to read elements of a flat tensor by their places.

    Attributes
    ----------
    least, greatest: the least and the greatest number of the first row.
    """

    step: int
    least: int
    greatest: int


class Rows(NamedTuple):
    """How the rows lie in one axis of an input or output.

    Attributes
    ----------
    axis: the axis.
    each: how many neighbouring indices of the axis belong to one row.
    """

    axis: int
    each: int


def independent_rows(
    programs: Mapping[int, Program], inputs: Mapping[str, int]
) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Prove that the rows of a model are independent, or raise an error.

    Parameters
    ----------
    programs: the lowered model by the size of the dimension; at least two sizes, all above 1.
    inputs: the axis of the dimension, by the name of each input that has it.

    Returns
    -------
    Where the rows lie in these inputs and in all outputs, by name.

    Raises
    ------
    RowsDependError
        There is no proof. This does not say that the rows do depend on each other.
    """
    assert len(programs) > 1, "one size alone does not say what grows with it"
    assert min(programs) > 1, "a single row has no neighbours"
    return _Proof(list(programs), list(programs.values())).run(inputs)


class _Proof:
    """The proof for one model, whose programs for all sizes are compared step by step.

    Attributes
    ----------
    _blocks: the block of each value that has rows, the same for all sizes. A value without rows is
        the same for all rows and sizes, and is not in it.
    _counters: the weights whose numbers grow with the row.
    """

    def __init__(self, sizes: list[int], programs: list[Program]) -> None:
        self._sizes, self._programs = sizes, programs
        self._blocks: dict[int, int] = {}
        self._counters: dict[int, Counter] = {}

    def run(self, inputs: Mapping[str, int]) -> tuple[dict[str, Rows], dict[str, Rows]]:
        first = self._programs[0]
        for what in (_structure(program) for program in self._programs[1:]):
            if what != _structure(first):
                raise RowsDependError("the model has other operators for another size")
        for v in first.inputs:
            self._take_input(v, inputs.get(first.values[v].name))
        for v in first.weights:
            self._take_weight(v)
        for ops in zip(*(program.operators for program in self._programs), strict=True):
            try:
                self._take_operator(ops)
            except UnprovenError as error:
                raise RowsDependError(f"operator `{ops[0].name}` {error}") from None
        return (
            {first.values[v].name: self._rows(v) for v in first.inputs if v in self._blocks},
            {first.values[v].name: self._rows(v) for v in first.outputs},
        )

    def _take_input(self, v: int, axis: int | None) -> None:
        shapes = [program.values[v].shape for program in self._programs]
        if axis is not None:
            self._blocks[v] = math.prod(shapes[0][axis + 1 :])

    def _take_weight(self, v: int) -> None:
        """A weight is the same for all sizes, or has rows that are alike; see `_counter`."""
        arrays = [program.weights[v] for program in self._programs]
        name = self._programs[0].values[v].name
        if all(array.shape == arrays[0].shape for array in arrays):
            if not all(_same(array, arrays[0]) for array in arrays[1:]):
                raise RowsDependError(f"constant `{name}` has other numbers for another size")
            return
        axis = axis_of_rows([array.shape for array in arrays], self._sizes)
        if axis is not None:
            each = arrays[0].shape[axis] // self._sizes[0]
            rows = [
                np.split(array, size, axis) for array, size in zip(arrays, self._sizes, strict=True)
            ]
            counter = _counter(rows)
            if counter is not None:
                self._blocks[v] = each * math.prod(arrays[0].shape[axis + 1 :])
                if counter.step:
                    self._counters[v] = counter
                return
        raise RowsDependError(f"constant `{name}` is not the same for all rows")

    def _take_operator(self, ops: Sequence[Operator]) -> None:
        """Find the blocks of an operator's outputs."""
        kernels = [_kernel_of(program, op) for program, op in zip(self._programs, ops, strict=True)]
        stored = [self._programs[0].storage_of(v) for v in ops[0].inputs]
        known = {i: self._blocks[v] for i, v in enumerate(stored) if v in self._blocks}
        counters = {i: self._counters[v] for i, v in enumerate(stored) if v in self._counters}
        blocks = _KernelProof(self._sizes, kernels, len(ops[0].inputs), known, counters).run()
        for i, v in enumerate(ops[0].outputs, len(ops[0].inputs)):
            if i in blocks:
                self._blocks[v] = blocks[i]

    def _rows(self, v: int) -> Rows:
        """Where the rows of an input or output lie."""
        first = self._programs[0]
        block = self._blocks.get(first.storage_of(v))
        name = first.values[v].name
        if block is None:
            raise RowsDependError(f"output `{name}` has no rows: it is the same for every batch")
        found = set()
        for program, size in zip(self._programs, self._sizes, strict=True):
            shape = program.values[v].shape
            place = _place(shape, block, size)
            if place is None or place.each * size != shape[place.axis]:
                raise RowsDependError(f"the rows of output `{name}` do not lie one after the other")
            found.add(place)
        if len(found) > 1:
            raise RowsDependError(f"the rows of output `{name}` lie elsewhere for another size")
        return found.pop()


def _counter(each: Sequence[Sequence[np.ndarray]]) -> Counter | None:
    """By how much a constant grows from row to row, the same for all sizes; None if unevenly.

    Parameters
    ----------
    each: the constant's rows for each size.
    """
    first, second = each[0][:2]
    if all(_same(row, first) for rows in each for row in rows):
        return Counter(0, 0, 0)
    if first.dtype.kind != "i" or not first.size:
        return None
    step = int(second.flat[0]) - int(first.flat[0])
    if not all(
        np.array_equal(row, first + i * step) for rows in each for i, row in enumerate(rows)
    ):
        return None
    return Counter(step, int(first.min()), int(first.max()))


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _structure(program: Program) -> Any:
    """What must be equal for all sizes: names, and how operators are connected."""
    return (
        [(value.name, value.dtype, value.alias_of, value.offset) for value in program.values],
        [(op.name, op.inputs, op.outputs) for op in program.operators],
        program.inputs,
        program.outputs,
        list(program.weights),
    )


def _kernel_of(program: Program, op: Operator) -> tirx.PrimFunc:
    return program.kernels[op.kernel]


def _place(shape: Sequence[int], block: int, size: int) -> Rows | None:
    """The axis that holds the rows of a tensor; None if a reshape has cut the rows' axis."""
    inner = 1
    for axis in reversed(range(len(shape))):
        if inner <= block < inner * shape[axis]:
            each, rest = divmod(block, inner)
            fits = not rest and shape[axis] % (each * size) == 0
            return Rows(axis, each) if fits else None
        inner *= shape[axis]
    return None


class _KernelProof:
    """The proof for one kernel, whose forms for all sizes are compared statement by statement."""

    def __init__(
        self,
        sizes: Sequence[int],
        kernels: Sequence[tirx.PrimFunc],
        num_inputs: int,
        known: Mapping[int, int],
        counters: Mapping[int, Counter],
    ) -> None:
        self._sizes, self._kernels = sizes, kernels
        self._num_inputs, self._known = num_inputs, known
        self._trials = 0
        self._counters = [
            {kernel.params[i]: counter for i, counter in counters.items()} for kernel in kernels
        ]
        # Kernels that are equal for one size are one kernel there, so the names of buffers differ.
        self._names = [
            {param: f"parameter{i}" for i, param in enumerate(kernel.params)} for kernel in kernels
        ]

    def run(self) -> dict[int, int]:
        """Return the blocks of the kernel's parameters that have rows, by their positions."""
        if ROWS in (self._kernels[0].attrs or {}):
            return self._declared()
        each = [list(stores_of(kernel.body, [], [])) for kernel in self._kernels]
        if len({len(stores) for stores in each}) > 1:
            raise UnprovenError("has other statements for another size")
        for stores, names in zip(each, self._names, strict=True):
            for store in stores:
                names.setdefault(store.buffer, f"buffer{len(names)}")
        begin = [
            {kernel.params[i]: block for i, block in self._known.items()}
            for kernel in self._kernels
        ]
        found = self._solved(list(zip(*each, strict=True)), 0, begin)[0]
        return {i: found[p] for i, p in enumerate(self._kernels[0].params) if p in found}

    def _declared(self) -> dict[int, int]:
        """The blocks of a kernel that says itself along which axes its rows lie."""
        kernel, size = self._kernels[0], self._sizes[0]
        shapes = [[int(dim) for dim in param.shape] for param in kernel.params]
        axes = [int(axis) for axis in kernel.attrs[ROWS]]
        each: set[int | None] = set()
        for i in range(self._num_inputs):
            place = _place(shapes[i], self._known[i], size) if i in self._known else None
            if i in self._known and (place is None or place.axis != axes[i]):
                raise UnprovenError("has its rows along another axis than the batch")
            if axes[i] >= 0:
                each.add(place.each if place is not None else None)
        if len(each) != 1:
            raise UnprovenError("reads rows of different kinds")
        found = each.pop()
        if found is None:
            return {}
        outputs = range(self._num_inputs, len(shapes))
        return {i: found * math.prod(shapes[i][axes[i] + 1 :]) for i in outputs}

    def _solved(
        self, statements: Sequence[Sequence[Store]], i: int, blocks: list[dict[Any, int]]
    ) -> list[dict[Any, int]]:
        """The blocks after all statements from number `i` on, by the buffers of each size's kernel.

        A statement that writes a buffer for the first time may allow several blocks for it. If one
        of them does not fit the later statements, the next one is tried.
        """
        if i == len(statements):
            return blocks
        why = UnprovenError("writes something that does not grow with the size")
        stores = statements[i]
        is_new = not any(each[0].buffer.same_as(stores[0].buffer) for each in statements[:i])
        for block in self._possible_blocks(stores, blocks, is_new):
            self._trials += 1
            if self._trials > _MOST_TRIALS * len(statements):
                raise UnprovenError("has too many forms to try")
            trial = blocks
            if block is not None:
                trial = [
                    {**known, store.buffer: block}
                    for known, store in zip(blocks, stores, strict=True)
                ]
            try:
                self._check(stores, trial)
                return self._solved(statements, i + 1, trial)
            except UnprovenError as error:
                why = error
        raise why

    def _possible_blocks(
        self, stores: Sequence[Store], blocks: Sequence[Mapping[Any, int]], is_new: bool
    ) -> list[int | None]:
        """The blocks that the buffer of a statement may have; None if it has no rows."""
        if not is_new:
            return [blocks[0].get(stores[0].buffer)]
        shapes = [[int(size) for size in store.buffer.shape] for store in stores]
        if all(shape == shapes[0] for shape in shapes):
            return [None]
        axis = axis_of_rows(shapes, self._sizes)
        if axis is None:
            return []
        inner = math.prod(shapes[0][axis + 1 :])
        return [each * inner for each in _divisors(shapes[0][axis] // self._sizes[0])]

    def _check(self, stores: Sequence[Store], blocks: Sequence[Mapping[Any, int]]) -> None:
        """Check that a statement computes each row from the same row, in the same way."""
        if len({len(store.loops) for store in stores}) > 1:
            raise UnprovenError("has other loops for another size")
        extents = list(zip(*([extent for _, extent in s.loops] for s in stores), strict=True))
        growing = [i for i, each in enumerate(extents) if len(set(each)) > 1]
        has_rows = stores[0].buffer in blocks[0]
        if not has_rows and not growing:
            self._check_forms(stores, blocks, None)
            return
        if len(growing) != 1 or not has_rows:
            raise UnprovenError("combines rows")
        if axis_of_rows([[extent] for extent in extents[growing[0]]], self._sizes) is None:
            raise UnprovenError("has a loop that does not run over whole rows")
        each = extents[growing[0]][0] // self._sizes[0]
        why = None
        for inner in _divisors(each):
            try:
                self._check_forms(stores, blocks, (growing[0], each, inner))
                return
            except UnprovenError as error:
                why = why or error
        assert why is not None
        raise why

    def _check_forms(
        self,
        stores: Sequence[Store],
        blocks: Sequence[Mapping[Any, int]],
        rows: tuple[int, int, int] | None,
    ) -> None:
        each = zip(stores, blocks, self._sizes, self._names, self._counters, strict=True)
        if len({_form(*one, rows) for one in each}) > 1:
            raise UnprovenError("computes something else for another size")


def _divisors(number: int) -> list[int]:
    """The divisors of a number, the greatest first."""
    return [d for d in range(number, 0, -1) if number % d == 0]


def _form(
    store: Store,
    blocks: Mapping[Any, int],
    size: int,
    names: Mapping[Any, str],
    counters: Mapping[Any, Counter],
    rows: tuple[int, int, int] | None,
) -> str:
    """What a store computes for one row, as a text that does not name the row or the size.

    Parameters
    ----------
    names: the names of the kernel's buffers in the text.
    counters: the constants among the buffers whose numbers grow with the row.
    rows: position of the loop over rows, how many of its steps belong to one row, and how many
        neighbouring steps do; None if there is no such loop.
    """
    analyzer = sym.Analyzer()
    row = tirx.Var("row", "int64")
    values: dict[Any, Any] = {}
    extents: list[tuple[int, ...]] = []
    for i, (var, extent) in enumerate(store.loops):
        if rows is not None and i == rows[0]:
            _, each, inner = rows
            analyzer.bind(row, ir.Range(0, size))
            outer = _variable(f"i{i}_outer", each // inner, analyzer)
            within = _variable(f"i{i}", inner, analyzer)
            value = (outer * size + row) * inner + within
            values[var] = tirx.Cast(var.ty.dtype if hasattr(var.ty, "dtype") else "int64", value)
            extents.append((each // inner, inner))
        else:
            values[var] = _variable(f"i{i}", extent, analyzer)
            extents.append((extent,))

    def in_one_row(buffer: Any, indices: Sequence[Any]) -> list[Any]:
        """The indices within one row, if the tensor has rows; it must be the row of the loop."""
        found = [analyzer.simplify(index) for index in indices]
        if buffer in blocks:
            place = _place([int(dim) for dim in buffer.shape], blocks[buffer], size)
            if place is None:
                raise UnprovenError("reads rows through another shape")
            index = found[place.axis]
            read = analyzer.simplify(index // place.each % size)
            if rows is None or not analyzer.can_prove_equal(read, row):
                raise UnprovenError("reads another row than it writes")
            found[place.axis] = analyzer.simplify(
                index // (place.each * size) * place.each + index % place.each
            )
        if any(_uses(index, row) for index in found):
            raise UnprovenError("reads a place that depends on the row")
        return found

    problems: list[UnprovenError] = []
    bases: dict[str, Any] = {}

    def load(node: Any) -> Any:
        if node.source not in names:
            problems.append(UnprovenError("reads a tensor that nothing wrote"))
            return node
        try:
            named = tirx.decl_buffer(node.source.shape, node.source.dtype, names[node.source])
            found = tirx.BufferLoad(named, in_one_row(node.source, node.indices))
        except UnprovenError as problem:
            problems.append(problem)  # An exception could not pass through `structural_map`.
            return node
        steps = counters.get(node.source)
        if steps is None:
            return found
        # A place: the row's number times a step, and a number that is the same for all rows.
        base = bases.setdefault(str(found), tirx.Var(str(found), found.ty.dtype))
        analyzer.bind(base, ir.Range(steps.least, steps.greatest + 1), allow_override=True)
        return base + tirx.Cast(found.ty.dtype, row * steps.step)

    def row_free(expression: Any) -> Any:
        found = tvm_ffi.structural_map(
            with_values(expression, values), (ir.TensorLoad, load), order="post"
        )
        if problems:
            raise problems[0]
        found = analyzer.simplify(found)
        _check_calls(found)
        if _uses(found, row):
            raise UnprovenError("computes something that depends on the row's number")
        return found

    parts = [row_free(store.value), *map(row_free, store.conditions)]
    places = in_one_row(store.buffer, [with_values(index, values) for index in store.indices])
    return "\n".join([str(extents), names[store.buffer], *map(str, places), *map(str, parts)])


def _variable(name: str, extent: int, analyzer: Any) -> Any:
    if extent == 1:
        return tirx.const(0, "int64")
    var = tirx.Var(name, "int64")
    analyzer.bind(var, ir.Range(0, extent))
    return var


def _uses(expression: Any, var: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        expression, (tirx.Var, lambda each: found.extend([each] if each.same_as(var) else []))
    )
    return bool(found)


def _check_calls(expression: Any) -> None:
    """Refuse pointers: a function that gets one may read more than the element it points at."""

    def check(call: Any) -> None:
        pointers.extend([call] if "handle" in str(call.ty) else [])

    pointers: list[Any] = []
    tvm_ffi.structural_walk(expression, (ir.Call, check))
    if pointers:
        raise UnprovenError("passes a pointer to a function")
