"""Large operators, each divided into parts that are operators like any other.

With that, sharing one operator between cores and running several side by side are one problem, the
scheduler's. Parts wait for each other by the executor's events, as all operators do, and not in
the barriers of a team of threads, which cost more and collapse where another program takes a core.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm, prod

import msgspec
import numpy as np

from ..kernels.build import divisible_kernels
from ..program.library_op import LibraryOp
from ..program.program import Operator, Program, Value
from ..program.storage import ALIGNMENT, BLOCK, stored_nbytes
from .row_cuts import aligned_steps, lies_apart, reads_cut, row_cuts

_FLOPS_A_PART = 1_000_000
"""Floating-point operations a part has at least: five to ten microseconds on a core of today."""
_READS_A_PART = 1 << 15
"""Numbers that a part of a pooling or a depthwise convolution reads at least, or of a weight that
is divided: some microseconds."""


def split_operators(program: Program, parts: int) -> Program:
    """`program` with each operator that is large enough in up to `parts` parts.

    What a library does to several images is divided by images. Of a single image, a convolution or
    pooling is divided by channels, in whole blocks of 16, a convolution of groups by groups, and
    one whose result has a single block by rows. A matrix product is divided by rows or by matrices,
    and that of a single row by columns. Each part has a description of its own, on aliases of the
    tensors. Where a part's numbers lie apart in a tensor, as columns of a matrix do,
    it takes the whole tensor, and its description says which it reads (`LibraryOp.cut`). TVM's
    kernel, where its outermost loop allows, is called once for each share of it. Which operators
    are divided depends on their kernels and shapes alone.

    A part is named `conv1[1/2]`, and its `whole` is `conv1`.
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
            operators += [replace(_named(op, i, parts), share=(i, parts)) for i in range(parts)]
        else:
            operators.append(op)
    return replace(program, values=splitter.values, operators=operators)


def parts_in(names: Iterable[str]) -> int:
    """Into how many parts operators of these names are divided at most."""
    found = (_PART_NAME.search(name) for name in names)
    return max((int(match[1]) for match in found if match), default=1)


_PART_NAME = re.compile(r"\[\d+/(\d+)\]$")


@dataclass(frozen=True)
class _Cut:
    """How one argument is divided: along `axis`, in steps of `step` elements; whole for None.

    A part that `lies_apart` is no slice of memory: the operator takes the whole tensor.
    """

    axis: int | None
    step: int = 1
    lies_apart: bool = False


@dataclass
class _Splitter:
    values: list[Value]
    weights: set[int]

    def library_parts(self, op: Operator, parts: int) -> list[Operator]:
        """`op` in parts; `op` itself where it is too small or cannot be divided."""
        assert op.description is not None
        if _has_images(op.description):
            cuts: list[_Cut] | None = _by_images(op.description)
        elif _is_divided_by_rows(op.description):
            return self._parts_by_rows(op, parts, 1 if op.description.is_quantised else 2)
        else:
            found = _CUTS.get(op.description.op)
            cuts = found(op.description) if found is not None else None
        if cuts is None:
            return [op]
        shapes = op.description.shapes
        steps = {
            -(-shape[cut.axis] // cut.step)
            for shape, cut in zip(shapes, cuts, strict=True)
            if cut.axis is not None
        }
        (steps_in_all,) = steps
        least = steps_in_all - _ends_too_narrow(op.description, cuts[0])
        count = min(parts, least, _most_parts(op.description))
        if count < 2:
            return [op]
        bounds = [*(least * i // count for i in range(count)), steps_in_all]
        if not self._begin_aligned(op, cuts, bounds):
            return [op]
        return [self._part(op, cuts, i, bounds) for i in range(count)]

    def _part(self, op: Operator, cuts: Sequence[_Cut], i: int, bounds: list[int]) -> Operator:
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
        described = msgspec.structs.replace(
            op.description,
            shapes=shapes,
            groups=_groups(op.description, shapes),
            cut=() if apart is None else _cut_of(op.description, apart, cuts[apart], bounds[i]),
        )
        inputs, outputs = tuple(args[: len(op.inputs)]), tuple(args[len(op.inputs) :])
        part = _named(op, i, len(bounds) - 1)
        return replace(part, inputs=inputs, outputs=outputs, description=described)

    def _parts_by_rows(self, op: Operator, parts: int, axis: int) -> list[Operator]:
        """`op` in parts that make some rows each, of images whose rows go along `axis`.

        Parts read the rows that their windows reach, so neighbours read some of the same.
        """
        described = op.description
        assert described is not None
        shapes = described.shapes
        cuts = row_cuts(described, min(parts, _most_parts(described)), axis)
        if len(cuts) < 2:
            return [op]
        is_cut = reads_cut(described, axis)
        images = {len(shapes) - 1, *([len(shapes) - 2] if described.has_sum else [])}
        result = []
        for i, cut in enumerate(cuts):
            rows = {0: cut.read, **dict.fromkeys(images, cut.made)}
            args = [
                self._slice(v, shapes[a], _Cut(axis), *rows[a])
                if a in rows and not (a == 0 and is_cut)
                else v
                for a, v in enumerate((*op.inputs, *op.outputs))
            ]
            left, right = described.padding[1], described.padding[3]
            part = msgspec.structs.replace(
                described,
                shapes=tuple(
                    _cut_shape(shape, _Cut(axis), *rows[a]) if a in rows else shape
                    for a, shape in enumerate(shapes)
                ),
                padding=(cut.top, left, cut.bottom, right),
                cut=_cut_of(described, 0, _Cut(axis), cut.read[0]) if is_cut else (),
            )
            inputs, outputs = tuple(args[: len(op.inputs)]), tuple(args[len(op.inputs) :])
            named = _named(op, i, len(cuts))
            result.append(replace(named, inputs=inputs, outputs=outputs, description=part))
        return result

    def _slice(self, v: int, shape: tuple[int, ...], cut: _Cut, begin: int, end: int) -> int:
        """The value that is this part of value `v`."""
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

    def _offset(self, v: int, shape: tuple[int, ...], cut: _Cut, begin: int) -> int:
        before = _cut_shape(shape, cut, 0, begin)
        value = self.values[v]
        return stored_nbytes(before, value.dtype, value.layout) if begin else 0

    def _begin_aligned(self, op: Operator, cuts: Sequence[_Cut], bounds: list[int]) -> bool:
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


def _named(op: Operator, i: int, count: int) -> Operator:
    return replace(op, name=f"{op.name}[{i + 1}/{count}]", whole=op.name)


def _cut_shape(shape: tuple[int, ...], cut: _Cut, begin: int, end: int) -> tuple[int, ...]:
    assert cut.axis is not None
    size = min(end * cut.step, shape[cut.axis]) - begin * cut.step
    return (*shape[: cut.axis], size, *shape[cut.axis + 1 :])


def _cut_of(op: LibraryOp, argument: int, cut: _Cut, begin: int) -> tuple[int, ...]:
    """`LibraryOp.cut` of a part that begins after `begin` steps."""
    assert cut.axis is not None
    return (argument, cut.axis, begin * cut.step, op.shapes[argument][cut.axis])


def _most_parts(op: LibraryOp) -> int:
    """The parts of which each is worth being one.

    A product takes as long as its operations do, or reading its weight if that is longer: at few
    pixels, or a single row. Parts that share the weight each read all of it.
    """
    if op.flops and not _is_depthwise(op):
        shares_weight = _has_rows(op) or _has_images(op) or _is_divided_by_rows(op)
        read = 0 if shares_weight else prod(op.shapes[1])
        return max(op.flops // _FLOPS_A_PART, read // _READS_A_PART)
    return prod(op.shapes[-1]) * prod(op.window) // _READS_A_PART


def _groups(op: LibraryOp, shapes: tuple[tuple[int, ...], ...]) -> int:
    """Groups of a convolution's part: as many as it has channels in each."""
    return shapes[0][1] // shapes[1][1] if op.op == "conv2d" else op.groups


def _is_depthwise(op: LibraryOp) -> bool:
    return op.op == "conv2d" and op.groups == op.shapes[0][1] == op.shapes[-1][1]


def _ends_too_narrow(op: LibraryOp, cut: _Cut) -> bool:
    """Whether its last step is no part by itself: too few channels for a vector kernel.

    oneDNN has none for a depthwise convolution in bfloat16 of less than a block: 8 channels of
    56x56 took 3.3 ms.
    """
    if not _is_depthwise(op) or op.dtype != "bfloat16" or cut.axis != 1:
        return False
    return 0 < op.shapes[0][1] % cut.step < BLOCK


def _itemsize(op: LibraryOp) -> int:
    """Bytes of a number in the tensor with the smallest ones."""
    return min(np.dtype(dtype).itemsize for dtype in op.stored_types)


def _has_images(op: LibraryOp) -> bool:
    """Whether it goes over several images."""
    return op.op in _OF_IMAGES and op.shapes[0][0] > 1


_OF_IMAGES = frozenset(
    (
        "conv2d",
        "max_pool2d",
        "avg_pool2d",
        "lrn",
        "scale",
        "quantised_conv2d",
        "quantised_max_pool2d",
        "quantised_avg_pool2d",
    )
)


def _by_images(op: LibraryOp) -> list[_Cut]:
    """Each part takes some of the images, and all of a weight."""
    last = len(op.shapes) - 1
    divided = [0, last, *[last - 1] * op.has_sum]
    if op.op == "scale" and op.shapes[1][0] > 1:
        divided.append(1)  # Each image has factors of its own.
    by_image = _Cut(0, lcm(*(aligned_steps(op, a, 0) for a in divided)))
    return [by_image if a in divided else _Cut(None) for a in range(last + 1)]


def _channels(op: LibraryOp) -> int:
    """The fewest channels, in whole blocks, after which each image is aligned again."""
    images = (op.shapes[0], op.shapes[-1])
    return max(BLOCK, *(_aligned_step(op, [image[1:]], 0) for image in images))


def _conv2d(op: LibraryOp) -> list[_Cut] | None:
    step = _channels(op)
    by_block = _Cut(1, step)
    more = [_Cut(0, step)] * op.has_bias + [by_block] * op.has_sum
    if op.groups == 1:
        return [_Cut(None), _Cut(0, step), *more, by_block]
    if _is_depthwise(op):
        return [by_block, _Cut(0, step), *more, by_block]
    return _by_groups(op)


def _by_groups(op: LibraryOp) -> list[_Cut] | None:
    read, made = (op.shapes[i][1] // op.groups for i in (0, -1))
    if "blocked16" in op.layouts and (read % BLOCK or made % BLOCK):
        return None  # A group would begin within a block.
    by_group = _Cut(1, made)
    more = [_Cut(0, made)] * op.has_bias + [by_group] * op.has_sum
    return [_Cut(1, read), _Cut(0, made), *more, by_group]


def _pool(op: LibraryOp) -> list[_Cut] | None:
    return [_Cut(1, _channels(op)), _Cut(1, _channels(op))]


def _scale(op: LibraryOp) -> list[_Cut] | None:
    # The factor has one number a channel, and is to be aligned too.
    step = max(_channels(op), _aligned_step(op, [op.shapes[1][1:]], 0))
    by_block = _Cut(1, step)
    return [by_block, by_block, *[_Cut(0, step)] * op.has_bias, by_block]


def _rows(op: LibraryOp) -> list[_Cut] | None:
    """What goes along the last axis, by the first that has more than one element."""
    data = op.shapes[0]
    axis = next((a for a, dim in enumerate(data[:-1]) if dim > 1), None)
    if axis is None:
        return None
    by_axis = _Cut(axis, _aligned_step(op, [data], axis))
    return [by_axis, *[_Cut(None)] * (len(op.shapes) - 2), by_axis]


def _aligned_step(op: LibraryOp, shapes: Sequence[tuple[int, ...]], axis: int) -> int:
    """The fewest elements of `axis` after which each tensor is aligned again."""
    inner = (_itemsize(op) * prod(shape[axis + 1 :]) for shape in shapes)
    return lcm(*(ALIGNMENT // gcd(ALIGNMENT, nbytes) for nbytes in inner))


def _matmul(op: LibraryOp) -> list[_Cut] | None:
    """By the first axis of more than one element: of matrices, or of the rows of a single one."""
    left, right = op.shapes[0], op.shapes[1]
    axis = next((a for a, dim in enumerate(left[:-1]) if dim > 1), None)
    if axis is None:
        # oneDNN cannot pack some columns of a matrix of integers.
        return None if op.is_quantised else _columns(op)
    cut = [left, op.shapes[-1], *([right] if len(right) > 2 and axis < len(left) - 2 else [])]
    by_axis = _Cut(axis, _aligned_step(op, cut, axis))
    of_right = by_axis if len(right) > 2 and axis < len(left) - 2 else _Cut(None)
    more = [_Cut(None)] * op.has_bias + [by_axis] * op.has_sum
    scale = [_Cut(None)] * op.is_quantised
    return [by_axis, of_right, *scale, *more, by_axis]


def _columns(op: LibraryOp) -> list[_Cut]:
    """What makes a single row: each part takes some columns of the right side."""
    made = len(op.shapes[-1]) - 1
    step = _aligned_step(op, [op.shapes[-1]], made)
    by_column = _Cut(made, step)
    of_right = _Cut(len(op.shapes[1]) - 1, step, lies_apart=True)
    return [
        _Cut(None),
        of_right,
        *[_Cut(0, step)] * op.has_bias,
        *[by_column] * op.has_sum,
        by_column,
    ]


def _has_rows(op: LibraryOp) -> bool:
    """Whether it is a matrix product of several rows or matrices."""
    return op.op in ("matmul", "quantised_matmul") and prod(op.shapes[0][:-1]) > 1


def _is_divided_by_rows(op: LibraryOp) -> bool:
    """Whether rows of its result lie together: the channels are last, or one block, or one."""
    if op.op in ("quantised_conv2d", "quantised_max_pool2d", "quantised_avg_pool2d"):
        return True
    return op.op == "conv2d" and not lies_apart(op, -1, 2)


_CUTS: dict[str, Callable[[LibraryOp], list[_Cut] | None]] = {
    "conv2d": _conv2d,
    "matmul": _matmul,
    "quantised_matmul": _matmul,
    "max_pool2d": _pool,
    "avg_pool2d": _pool,
    "scale": _scale,
    "softmax": _rows,
    "layer_norm": _rows,
}
"""By kind of operator: how each of its arguments is divided; None where it is not."""
