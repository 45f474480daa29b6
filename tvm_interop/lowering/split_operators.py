"""Divides large operators into parts, which are operators too.

Since parts are operators, the scheduler decides both how cores share a large operator and which
operators run in parallel. Operators that read the result wait for the parts by the executor's
events, as for any operator. A barrier for a team of threads would cost more, and would be very slow
if another program used one of the cores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from ..kernels.build import divisible_kernels
from ..program.cuts import Cut
from ..program.library_op import LibraryOp
from ..program.program import Operator, Program, Value
from ..program.storage import ALIGNMENT, stored_nbytes


def split_operators(program: Program, parts: int) -> Program:
    """Divide each large operator of `program` into up to `parts` parts, and return the new program.

    A library operator is divided along one of these axes of its result:

    - the batch, if the operator works on several images;
    - the channels, in blocks of 16, if the operator is a convolution or a pooling of one image;
    - the groups of channels, if the operator is a convolution with groups;
    - the rows of the image, if the operator's result has only one block of channels;
    - the rows, or the axes before them, if the operator is a matrix product;
    - the columns, if the operator is a matrix product with a few rows.

    Each part has its own description, and reads and writes aliases of the operator's tensors. If
    the numbers of a part are not contiguous in a tensor, such as columns of a matrix, the part is
    given the whole tensor. Its description then says which numbers it reads (`LibraryOp.cut`).

    A TVM kernel, if it is divisible (see `divisible_kernels`), is called several times. Each call
    runs one share: some steps of the kernel's outermost loop. Some library kernels have shares too
    (`LibraryOp.has_shares`). A share is given the whole tensors, and computes a part of the result.
    Which operators are divided depends only on the kernels and shapes.

    A part has a name such as `conv1[1/2]`. Its field `whole` holds the name of the divided
    operator, `conv1`.

    Parameters
    ----------
    parts: the largest number of parts of an operator. With 1, no operator is divided.
    """
    if parts == 1:
        return program
    divisible = divisible_kernels(program.kernels) if program.kernels is not None else set()
    splitter = _Splitter(list(program.values), set(program.weights))
    operators = []
    for op in program.operators:
        if op.library is not None:
            operators += splitter.library_parts(op, parts)
        elif op.kernel in divisible:
            operators += _shares_of(op, parts)
        else:
            operators.append(op)
    return replace(program, values=splitter.values, operators=operators)


def parts_in(names: Iterable[str]) -> int:
    """The largest number of parts that an operator has, found from the names; 1 if there are no
    parts.
    """
    found = (_PART_NAME.search(name) for name in names)
    return max((int(match[1]) for match in found if match), default=1)


_PART_NAME = re.compile(r"\[\d+/(\d+)\]$")


@dataclass
class _Splitter:
    values: list[Value]
    weights: set[int]

    def library_parts(self, op: Operator, parts: int) -> list[Operator]:
        """The parts of `op`; `[op]` if `op` is too small or cannot be divided."""
        assert op.description is not None
        if op.description.has_shares:
            return _shares_of(op, min(parts, op.description.most_parts))
        if op.description.row_axis is not None:
            return self._parts_by_rows(op, parts, op.description.row_axis)
        cuts = op.description.cuts()
        if cuts is None:
            return [op]
        shapes = op.description.shapes
        steps = {
            -(-shape[cut.axis] // cut.step)
            for shape, cut in zip(shapes, cuts, strict=True)
            if cut.axis is not None
        }
        (steps_in_all,) = steps
        least = steps_in_all - op.description.ends_too_narrow(cuts[0])
        count = min(parts, least, op.description.most_parts)
        if count < 2:
            return [op]
        bounds = [*(least * i // count for i in range(count)), steps_in_all]
        if not self._begin_aligned(op, cuts, bounds):
            return [op]
        return [self._part(op, cuts, i, bounds) for i in range(count)]

    def _part(self, op: Operator, cuts: Sequence[Cut], i: int, bounds: list[int]) -> Operator:
        args = [
            v
            if cut.axis is None or cut.lies_apart
            else self._slice(v, shape, cut, bounds[i], bounds[i + 1])
            for v, shape, cut in zip((*op.inputs, *op.outputs), _shapes(op), cuts, strict=True)
        ]
        shapes = tuple(
            shape if cut.axis is None else _cut_shape(shape, cut, bounds[i], bounds[i + 1])
            for shape, cut in zip(_shapes(op), cuts, strict=True)
        )
        assert op.description is not None
        apart = next((a for a, cut in enumerate(cuts) if cut.lies_apart), None)
        described = op.description.part(
            shapes,
            () if apart is None else _cut_of(op.description, apart, cuts[apart], bounds[i]),
        )
        inputs, outputs = tuple(args[: len(op.inputs)]), tuple(args[len(op.inputs) :])
        part = _named(op, i, len(bounds) - 1)
        return replace(part, inputs=inputs, outputs=outputs, description=described)

    def _parts_by_rows(self, op: Operator, parts: int, axis: int) -> list[Operator]:
        """The parts of `op`, each of which computes some rows of the result.

        The windows of a convolution or pooling overlap, so neighbouring parts read some of the same
        input rows.

        Parameters
        ----------
        axis: the axis of an image's rows.
        """
        described = op.description
        assert described is not None
        shapes = described.shapes
        cuts = described.row_cuts(min(parts, described.most_parts))
        if len(cuts) < 2:
            return [op]
        is_cut = described.reads_rows_of_whole
        images = {len(shapes) - 1, *([len(shapes) - 2] if described.has_sum else [])}
        result = []
        for i, cut in enumerate(cuts):
            rows = {0: cut.read, **dict.fromkeys(images, cut.made)}
            args = [
                self._slice(v, shapes[a], Cut(axis), *rows[a])
                if a in rows and not (a == 0 and is_cut)
                else v
                for a, v in enumerate((*op.inputs, *op.outputs))
            ]
            part = described.part_by_rows(
                cut,
                tuple(
                    _cut_shape(shape, Cut(axis), *rows[a]) if a in rows else shape
                    for a, shape in enumerate(shapes)
                ),
                _cut_of(described, 0, Cut(axis), cut.read[0]) if is_cut else (),
            )
            inputs, outputs = tuple(args[: len(op.inputs)]), tuple(args[len(op.inputs) :])
            named = _named(op, i, len(cuts))
            result.append(replace(named, inputs=inputs, outputs=outputs, description=part))
        return result

    def _slice(self, v: int, shape: tuple[int, ...], cut: Cut, begin: int, end: int) -> int:
        """Add an alias for a slice of value `v`.

        Parameters
        ----------
        begin, end: the bounds of the slice along `cut.axis`, in steps of `cut.step` elements.

        Returns
        -------
        The index of the alias.
        """
        value = self.values[v]
        alias = Value(
            f"{value.name}[{begin * cut.step}:{end * cut.step}]",
            _cut_shape(shape, cut, begin, end),
            value.dtype,
            v if value.alias_of is None else value.alias_of,
            value.offset + self._offset(v, shape, cut, begin),
            value.layout,
        )
        self.values.append(alias)
        return len(self.values) - 1

    def _offset(self, v: int, shape: tuple[int, ...], cut: Cut, begin: int) -> int:
        before = _cut_shape(shape, cut, 0, begin)
        value = self.values[v]
        return stored_nbytes(before, value.dtype, value.layout) if begin else 0

    def _begin_aligned(self, op: Operator, cuts: Sequence[Cut], bounds: list[int]) -> bool:
        return all(
            cut.axis is None
            or cut.lies_apart
            or (
                prod(shape[: cut.axis]) == 1
                and all(self._offset(v, shape, cut, b) % ALIGNMENT == 0 for b in bounds[:-1])
            )
            for v, shape, cut in zip((*op.inputs, *op.outputs), _shapes(op), cuts, strict=True)
        )


def _shapes(op: Operator) -> tuple[tuple[int, ...], ...]:
    assert op.description is not None
    return op.description.shapes


def _shares_of(op: Operator, count: int) -> list[Operator]:
    """The shares of `op`; `[op]` if there is only one share."""
    if count < 2:
        return [op]
    return [replace(_named(op, i, count), share=(i, count)) for i in range(count)]


def _named(op: Operator, i: int, count: int) -> Operator:
    return replace(op, name=f"{op.name}[{i + 1}/{count}]", whole=op.name)


def _cut_shape(shape: tuple[int, ...], cut: Cut, begin: int, end: int) -> tuple[int, ...]:
    assert cut.axis is not None
    size = min(end * cut.step, shape[cut.axis]) - begin * cut.step
    return (*shape[: cut.axis], size, *shape[cut.axis + 1 :])


def _cut_of(op: LibraryOp, argument: int, cut: Cut, begin: int) -> tuple[int, ...]:
    """The field `LibraryOp.cut` of a part that begins at element `begin * cut.step`."""
    assert cut.axis is not None
    return (argument, cut.axis, begin * cut.step, op.shapes[argument][cut.axis])
