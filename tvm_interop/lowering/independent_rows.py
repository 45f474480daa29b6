"""Proves that the rows of a batch do not influence each other.

The proof examines the kernels of a lowered model, before they are scheduled. The model is lowered
for several sizes of a dimension, such as the batch. Every statement of a kernel must compute a row
of its result only from the same row of the tensors that it reads, and in the same way for all rows
and all sizes. If all statements do, each row of the model's outputs depends only on the same row of
its inputs, by induction over the statements.

For a tensor that has rows, the proof knows the block: the number of neighbouring elements that
belong to the same row. The element at position p of the flattened tensor belongs to row `p // block
% size`. A reshape does not change the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import tirx

from ..kernels.loops import ROWS
from ..program.program import Operator, Program
from ..program.row_axis import axis_of_rows
from .kernel_stores import Store, UnprovenError, stores_of
from .row_form import Buffers, Counter, RowLoop, Rows, place_of_rows, row_form

_MOST_TRIALS = 50
"""The proof gives up after it has tried this many blocks for each statement of a kernel, on
average.
"""


class RowsDependError(Exception):
    """The rows of a model cannot be proven independent.

    The text names the operator and the reason.
    """


def independent_rows(
    programs: Mapping[int, Program], inputs: Mapping[str, int]
) -> tuple[dict[str, Rows], dict[str, Rows]]:
    """Prove that the rows of a model are independent, or raise an error.

    Parameters
    ----------
    programs: the lowered model by the size of the dimension; at least two sizes, all above 1.
    inputs: the axis of the dimension, by the name of each input that has it. Neighbouring indices
        of the axis belong to one row if the axis is a multiple of the dimension.

    Returns
    -------
    Where the rows lie in each input in `inputs` and in each output, by name. An output that is the
    same for all rows and sizes is left out.

    Raises
    ------
    RowsDependError
        There is no proof, although the rows may be independent.
    """
    assert len(programs) > 1, "the proof compares programs for several sizes"
    assert min(programs) > 1, "the proof compares several rows"
    return _Proof(list(programs), list(programs.values())).run(inputs)


class _Proof:
    """The proof that the rows of one model are independent. It compares the model's programs for
    all sizes, operator by operator.

    Attributes
    ----------
    _blocks: the block (see the module's docstring) of each value that has rows. It is the same for
        all sizes. A value without rows is the same for all rows and sizes, and has no entry.
    _counters: the weights whose numbers grow evenly from row to row.
    _proven: the results of `_KernelProof`, kept because most layers of a network have the same
        kernels. The keys hold everything that a result depends on.
    """

    def __init__(self, sizes: list[int], programs: list[Program]) -> None:
        self._sizes, self._programs = sizes, programs
        self._blocks: dict[int, int] = {}
        self._counters: dict[int, Counter] = {}
        self._proven: dict[Any, dict[int, int]] = {}

    def run(self, inputs: Mapping[str, int]) -> tuple[dict[str, Rows], dict[str, Rows]]:
        first = self._programs[0]
        check_alike(self._programs, "size")
        for v in first.inputs:
            axis = inputs.get(first.values[v].name)
            if axis is not None:
                shape = first.values[v].shape
                each = shape[axis] // self._sizes[0]
                self._blocks[v] = each * math.prod(shape[axis + 1 :])
        for v in first.weights:
            self._take_weight(v)
        take_operators(self._programs, self._take_operator)
        return (
            {first.values[v].name: self._rows(v) for v in first.inputs if v in self._blocks},
            {
                first.values[v].name: self._rows(v)
                for v in first.outputs
                if first.storage_of(v) in self._blocks
            },
        )

    def _take_weight(self, v: int) -> None:
        """Check that a weight is equal for all sizes, or grows by a fixed step from row to row.

        If all rows are equal, the step is 0.
        """
        arrays = [program.weights[v] for program in self._programs]
        if all(array.shape == arrays[0].shape for array in arrays):
            if not all(same_bits(array, arrays[0]) for array in arrays[1:]):
                name = constant_in_words(self._programs[0], v)
                raise RowsDependError(f"{name} has different values for different sizes")
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
        name = constant_in_words(self._programs[0], v)
        raise RowsDependError(f"{name} is not the same for all rows")

    def _take_operator(self, ops: Sequence[Operator]) -> None:
        """Find the block (see the module's docstring) of each output of an operator.

        An output without rows has no block.
        """
        pairs = zip(self._programs, ops, strict=True)
        kernels = [program.kernels[op.kernel] for program, op in pairs]
        stored = [self._programs[0].storage_of(v) for v in ops[0].inputs]
        known = {i: self._blocks[v] for i, v in enumerate(stored) if v in self._blocks}
        counters = {i: self._counters[v] for i, v in enumerate(stored) if v in self._counters}
        key = tuple(op.kernel for op in ops), tuple(known.items()), tuple(counters.items())
        if key not in self._proven:
            proof = _KernelProof(self._sizes, kernels, len(ops[0].inputs), known, counters)
            self._proven[key] = proof.run()
        blocks = self._proven[key]
        for i, v in enumerate(ops[0].outputs, len(ops[0].inputs)):
            if i in blocks:
                self._blocks[v] = blocks[i]

    def _rows(self, v: int) -> Rows:
        """Return where the rows of an input or output lie (see `row_form.Rows`)."""
        first = self._programs[0]
        block, name = self._blocks[first.storage_of(v)], first.values[v].name
        if first.storage_of(v) in self._counters:
            raise RowsDependError(f"output `{name}` is a constant that differs from row to row")
        found = set()
        for program, size in zip(self._programs, self._sizes, strict=True):
            shape = program.values[v].shape
            place = place_of_rows(shape, block, size)
            if place is None or place.each * size != shape[place.axis]:
                raise RowsDependError(f"the rows of output `{name}` do not lie one after the other")
            found.add(place)
        if len(found) > 1:
            raise RowsDependError(
                f"the rows of output `{name}` lie at different places for different sizes"
            )
        return found.pop()


def _counter(each: Sequence[Sequence[np.ndarray]]) -> Counter | None:
    """The amount by which a constant grows from each row to the next; None if it grows unevenly.

    Parameters
    ----------
    each: for each size, the rows of the constant.
    """
    first, second = each[0][:2]
    if all(same_bits(row, first) for rows in each for row in rows):
        return Counter(0, 0, 0)
    if first.dtype.kind != "i" or not first.size:
        return None
    step = int(second.flat[0]) - int(first.flat[0])
    if not all(
        np.array_equal(row, first + i * step) for rows in each for i, row in enumerate(rows)
    ):
        return None
    return Counter(step, int(first.min()), int(first.max()))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays of the same shape have the same type and the same bits."""
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def constant_in_words(program: Program, v: int) -> str:
    """Describe a constant, by its name and the first operator that reads it."""
    name = program.values[v].name
    reads = (op.name for op in program.operators if v in map(program.storage_of, op.inputs))
    of = next(reads, None)
    return f"constant `{name}`" + (f" of operator `{of}`" if of else "")


def check_alike(programs: Sequence[Program], grows: str) -> None:
    """Check that the programs have the same operators.

    Parameters
    ----------
    programs: the model, lowered for several sizes.
    grows: the word that the error message uses for the sizes, such as `length`.

    Raises
    ------
    RowsDependError
        The programs have different operators.
    """
    first = _structure(programs[0])
    if any(_structure(program) != first for program in programs[1:]):
        raise RowsDependError(
            f"the model has different operators for different values of the {grows}"
        )


def take_operators(programs: Sequence[Program], take: Callable[[Sequence[Operator]], None]) -> None:
    """Call `take` for each operator, in order, with a list of the operator's versions in all
    programs.

    Raises
    ------
    RowsDependError
        `take` fails to prove something about an operator. The text names the operator.
    """
    for ops in zip(*(program.operators for program in programs), strict=True):
        try:
            take(ops)
        except UnprovenError as error:
            raise RowsDependError(f"operator `{ops[0].name}` {error}") from None


def _structure(program: Program) -> Any:
    """The names and connections of a program's operators. They must be equal for all sizes."""
    return (
        [(value.name, value.dtype, value.alias_of, value.offset) for value in program.values],
        [(op.name, op.inputs, op.outputs) for op in program.operators],
        program.inputs,
        program.outputs,
        list(program.weights),
    )


class _KernelProof:
    """The proof that the rows of one kernel are independent. It compares the kernel's versions for
    all sizes, statement by statement.
    """

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
        self._counters = counters
        self._buffers: list[Buffers] = []

    def run(self) -> dict[int, int]:
        """Return the block of each parameter that has rows, by the parameter's position.

        The docstring of this module says what the block of a tensor is.
        """
        if ROWS in (self._kernels[0].attrs or {}):
            return self._declared()
        each = [list(stores_of(kernel.body, [], [])) for kernel in self._kernels]
        if len({len(stores) for stores in each}) > 1:
            raise UnprovenError("has different statements for different sizes")
        self._buffers = [
            self._named(*one) for one in zip(self._sizes, self._kernels, each, strict=True)
        ]
        begin = [
            {kernel.params[i]: block for i, block in self._known.items()}
            for kernel in self._kernels
        ]
        found = self._solved(list(zip(*each, strict=True)), 0, begin)[0]
        return {i: found[p] for i, p in enumerate(self._kernels[0].params) if p in found}

    def _named(self, size: int, kernel: tirx.PrimFunc, stores: Sequence[Store]) -> Buffers:
        """Name the buffers of a kernel by their order.

        The buffers' own names may differ between sizes. For example, two operators may have equal
        kernels for only one size. For this size they share one kernel, which has the names of one
        of the operators.
        """
        names = {param: f"parameter{i}" for i, param in enumerate(kernel.params)}
        for store in stores:
            names.setdefault(store.buffer, f"buffer{len(names)}")
        counters = {kernel.params[i]: counter for i, counter in self._counters.items()}
        return Buffers(size, names, counters)

    def _declared(self) -> dict[int, int]:
        """The block of each parameter, for a kernel whose attribute `ROWS` lists the parameters'
        axes of rows.

        The docstring of this module says what the block of a tensor is.
        """
        kernel, size = self._kernels[0], self._sizes[0]
        shapes = [[int(dim) for dim in param.shape] for param in kernel.params]
        axes = [int(axis) for axis in kernel.attrs[ROWS]]
        each: set[int | None] = set()
        for i in range(self._num_inputs):
            place = place_of_rows(shapes[i], self._known[i], size) if i in self._known else None
            if i in self._known and (place is None or place.axis != axes[i]):
                raise UnprovenError("has its rows along an axis other than the batch")
            if axes[i] >= 0:
                each.add(place.each if place is not None else None)
        if len(each) != 1 or self._counters:
            raise UnprovenError("reads several tensors whose rows do not match")
        found = each.pop()
        if found is None:
            return {}
        outputs = range(self._num_inputs, len(shapes))
        return {i: found * math.prod(shapes[i][axes[i] + 1 :]) for i in outputs}

    def _solved(
        self, statements: Sequence[Sequence[Store]], i: int, blocks: list[dict[Any, int]]
    ) -> list[dict[Any, int]]:
        """Find the blocks of the buffers that are written by the statements from index `i` on.

        A block is the number of neighbouring elements that belong to the same row.

        The result has a dictionary for the kernel of each size, with the block of each buffer.
        `blocks` holds the blocks that follow from earlier statements. If a statement writes a
        buffer for the first time, several blocks may be possible for the buffer. If a block does
        not fit the later statements, the next block is tried.
        """
        if i == len(statements):
            return blocks
        why = UnprovenError("writes something that does not grow with the size")
        stores = statements[i]
        is_new = not any(each[0].buffer.same_as(stores[0].buffer) for each in statements[:i])
        for block in self._possible_blocks(stores, blocks, is_new):
            self._trials += 1
            if self._trials > _MOST_TRIALS * len(statements):
                raise UnprovenError("has more possible arrangements of its rows than are tried")
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
        """The possible blocks (see the module's docstring) of the buffer that a statement writes.

        None stands for a buffer without rows.
        """
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
        """Check that a statement computes all rows in the same way, and each only from the same
        row.
        """
        if len({len(store.loops) for store in stores}) > 1:
            raise UnprovenError("has different loops for different sizes")
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
                self._check_forms(stores, blocks, RowLoop(growing[0], each, inner))
                return
            except UnprovenError as error:
                why = why or error
        assert why is not None
        raise why

    def _check_forms(
        self,
        stores: Sequence[Store],
        blocks: Sequence[Mapping[Any, int]],
        loop: RowLoop | None,
    ) -> None:
        each = zip(stores, self._buffers, blocks, strict=True)
        if len({row_form(*one, loop) for one in each}) > 1:
            raise UnprovenError("computes something else for one size than for another")


def _divisors(number: int) -> list[int]:
    """The divisors of a number, the largest first."""
    return [d for d in range(number, 0, -1) if number % d == 0]
