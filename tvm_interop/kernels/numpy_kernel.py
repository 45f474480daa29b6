"""Evaluates kernels by NumPy without compiling them, as references to check compiled kernels.

The evaluation by NumPy shares no code with LLVM, TVM's passes or the schedules, so it does not
share their faults. It handles the kernels that TVM makes of tensor expressions. Such a kernel is a
sequence of blocks. A block has one loop for each of its axes. Each iteration stores a value in one
element. In a reduction, it combines a value with the element instead. Sums are computed in double
precision.

In this module, a place is one combination of the indices of a block's axes: one iteration.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import tvm_ffi
from tvm import ir, s_tir, tirx

from .numpy_values import Array, Axis, Places, UndefinedError, dtype_of, is_known, linear

_TOGETHER = 1 << 20
"""The number of loop iterations (places) that are evaluated at once. It is so small that their data
mostly stays in caches."""
_FACTORS_TOGETHER = 1 << 21
"""In a sum of products, at most this many elements of a factor are converted to doubles at once.

These doubles take 16 MiB. For arrays of 32 MiB or more, the C library asks the system for new
memory each time. The system needs longer for this than NumPy needs to convert and to multiply the
elements.
"""
_LEAST_OF_GROUP = 1 << 16
"""The groups of a grouped convolution are evaluated one by one if a group has at least this many
products."""
_MOST = 1 << 27
"""The largest number of places of a reduction that is not a sum of products.

With more places, a compiled reference is faster, even with the time to compile it.
"""
_MOST_SUMMED = 1 << 24
"""The largest number of numbers that a reduction combines into one result.

All of these numbers are in memory at once. Sums of products have no such limit.
"""


class _Step(NamedTuple):
    """A block of a kernel.

    Attributes
    ----------
    buffer, indices, value: the block stores `value` in `buffer` at `indices`. If the block is a
        reduction, it combines `value` with the element at `indices`.
    sizes: the sizes of the axes, by their variables.
    summed: the variables of the axes that are reduced.
    combined: the function that combines two values in a reduction; None if the block is not a
        reduction.
    first: the reduction's initial value.
    """

    buffer: Any
    indices: Sequence[Any]
    value: Any
    sizes: dict[Any, int]
    summed: frozenset[Any]
    combined: np.ufunc | None
    first: Any


@dataclass(frozen=True)
class NumpyKernel:
    """A kernel that NumPy evaluates; call it with the inputs and with arrays for the outputs."""

    function: tirx.PrimFunc
    steps: Sequence[_Step]

    def __call__(self, tensors: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute the outputs for the inputs `tensors`, and write them to `results`.

        Raises
        ------
        UndefinedError
            The kernel does not define its result for the numbers in `tensors`.
        """
        buffers = dict(zip(self.function.params, (*tensors, *results), strict=True))
        for step in self.steps:
            if step.buffer not in buffers:
                shape = [int(size) for size in step.buffer.shape]
                buffers[step.buffer] = np.zeros(shape, dtype_of(step.buffer))
            for axes in _parts(step):
                _evaluate(step, Places(axes, buffers, {}))


def numpy_kernel(function: tirx.PrimFunc) -> NumpyKernel | None:
    """The kernel for NumPy; None if it contains something that this module cannot evaluate."""
    try:
        return NumpyKernel(function, list(_steps(function)))
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """A kernel contains something that this module cannot evaluate."""


def _require(is_known_here: bool) -> None:
    if not is_known_here:
        raise _UnknownError


def _steps(function: tirx.PrimFunc) -> Iterator[_Step]:
    root = function.body
    _require(isinstance(root, s_tir.SBlockRealize))
    inside = root.block.body
    buffers = (*function.params, *root.block.alloc_buffers)
    _require(all(isinstance(size, tirx.IntImm) for each in buffers for size in each.shape))
    for nest in inside.seq if isinstance(inside, tirx.SeqStmt) else [inside]:
        yield _step(nest)


def _step(nest: Any) -> _Step:
    loops = {}
    while isinstance(nest, tirx.For):
        _require(nest.kind == tirx.ForKind.SERIAL and _is(nest.min, 0))
        _require(isinstance(nest.extent, tirx.IntImm))
        loops[nest.loop_var] = int(nest.extent.value)
        nest = nest.body
    _require(isinstance(nest, s_tir.SBlockRealize) and _is(nest.predicate, 1))
    block = nest.block
    _require(not block.alloc_buffers and not block.match_buffers)
    _require(isinstance(block.body, tirx.BufferStore))
    sizes, summed = {}, set()
    for axis, value in zip(block.iter_vars, nest.iter_values, strict=True):
        _require(_is(axis.dom.min, 0) and axis.iter_type in (_SPATIAL, _SUMMED))
        _require(_is(value, 0) or value in loops)
        size = 1 if _is(value, 0) else loops.pop(value)
        _require(size > 0 and _is(axis.dom.extent, size))
        sizes[axis.var] = size
        if axis.iter_type == _SUMMED:
            summed.add(axis.var)
    _require(not loops)
    store = block.body
    combined, value, first = None, store.value, None
    if block.init is not None:
        _require(isinstance(block.init, tirx.BufferStore) and isinstance(value, _COMBINED_KEYS))
        combined, first = _COMBINED[type(value)], block.init.value
        before, value = value.a, value.b
        _require(isinstance(before, ir.TensorLoad) and before.source.same_as(store.buffer))
        _require(all(map(tvm_ffi.structural_equal, before.indices, store.indices)))
        _require(is_known(first) and not _reads(first, store.buffer))
        _require(_product(value) is not None or math.prod(sizes.values()) <= _MOST)
        whole = [size for axis, size in sizes.items() if axis in summed]
        _require(_product(value) is not None or math.prod(whole) <= _MOST_SUMMED)
    _require((combined is not None) or not summed)
    _require(all(map(is_known, (value, *store.indices))) and not _reads(value, store.buffer))
    _require(store.predicate is None if hasattr(store, "predicate") else True)
    return _Step(store.buffer, store.indices, value, sizes, frozenset(summed), combined, first)


_SPATIAL, _SUMMED = 0, 2
"""TVM's values of `IterVar.iter_type` for spatial axes and for axes that are reduced."""
_COMBINED: dict[type, np.ufunc] = {
    tirx.Add: np.add,
    tirx.Mul: np.multiply,
    tirx.Max: np.maximum,
    tirx.Min: np.minimum,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}
_COMBINED_KEYS = tuple(_COMBINED)


def _is(node: Any, value: int) -> bool:
    return isinstance(node, tirx.IntImm) and int(node.value) == value


def _reads(expression: Any, buffer: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        expression,
        (ir.TensorLoad, lambda load: found.extend([load] if load.source.same_as(buffer) else [])),
    )
    return bool(found)


def _parts(step: _Step) -> Iterator[dict[Any, Axis]]:
    """Divide the places of a block (combinations of indices) into parts, one per evaluation."""
    whole = {v: Axis(number, 0, size) for number, (v, size) in enumerate(step.sizes.items())}
    factors = _product(step.value) if step.combined is np.add else None
    if factors is None:
        yield from _cut(step, whole, math.prod(step.sizes.values()), _TOGETHER, list(step.sizes))
        return
    for axes in _groups(step, whole):
        of_factors = [[v for v in step.sizes if _varies(f, v, axes)] for f in factors]
        counts = [math.prod(axes[v].size for v in some) for some in of_factors]
        most = counts.index(max(counts))
        yield from _cut(step, axes, counts[most], _FACTORS_TOGETHER, of_factors[most])


def _groups(step: _Step, whole: dict[Any, Axis]) -> Iterator[dict[Any, Axis]]:
    """Divide the iterations of a sum of products by the groups of a grouped convolution.

    In a grouped convolution, the input's channels depend on `channel // size`, the quotient of the
    output's channel and the size of a group. Within one group this quotient is constant, so the
    factors are views of their buffers, and the sum of their products is a product of matrices.
    Small groups are not evaluated separately, because each part costs additional time.
    """
    quotients: list[tuple[Any, int]] = []
    tvm_ffi.structural_walk(
        step.value,
        (tirx.FloorDiv, lambda node: quotients.extend(_axis_and_divisor(step, node))),
    )
    if not quotients:
        yield whole
        return
    axis, length = quotients[0]
    size = step.sizes[axis]
    if math.prod(step.sizes.values()) // size * length < _LEAST_OF_GROUP:
        yield whole
        return
    for start in range(0, size, length):
        yield whole | {axis: whole[axis]._replace(start=start, size=min(length, size - start))}


def _axis_and_divisor(step: _Step, quotient: Any) -> list[tuple[Any, int]]:
    """The axis and the constant divisor of a quotient such as `channel // 8`.

    The result is empty if the quotient has another form, or if the block reduces the axis.
    """
    axis, divisor = quotient.a, quotient.b
    is_axis = isinstance(axis, tirx.Var) and axis in step.sizes and axis not in step.summed
    if not is_axis or not isinstance(divisor, tirx.IntImm) or int(divisor.value) < 1:
        return []
    return [(axis, int(divisor.value))]


def _cut(
    step: _Step, whole: dict[Any, Axis], places: int, together: int, along: Sequence[Any]
) -> Iterator[dict[Any, Axis]]:
    """Divide places along one axis into parts that are evaluated at once.

    Parameters
    ----------
    places: the number of places, or the number of elements of the largest factor.
    together: the largest number of places, or of elements, in a part.
    along: the variables of the axes to choose from. An axis that is reduced is never divided.
    """
    free = [v for v in along if v not in step.summed]
    if places <= together or not free:
        yield whole
        return
    # Divide the outermost axis that is long enough to give parts of `together` places. An outer
    # axis is best, because its parts are contiguous. If no axis is long enough, divide the longest
    # axis.
    enough = (v for v in free if whole[v].size * together >= places)
    chosen = next(enough, max(free, key=lambda v: whole[v].size))
    number, start, size = whole[chosen]
    length = max(1, size * together // places)
    for begin in range(0, size, length):
        yield whole | {chosen: Axis(number, start + begin, min(length, size - begin))}


def _varies(factor: Any, variable: Any, axes: dict[Any, Axis]) -> bool:
    """Whether a factor of a sum of products may depend on a variable."""
    lines = [linear(index, axes) for index in _load_in(factor).indices]
    return any(line is None or variable in line.factors for line in lines) and _has(
        factor, variable
    )


def _has(expression: Any, variable: Any) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(
        expression, (tirx.Var, lambda v: found.extend([v] if v.same_as(variable) else []))
    )
    return bool(found)


def _evaluate(step: _Step, places: Places) -> None:
    summed = tuple(places.axes[v].number for v in step.sizes if v in step.summed)
    target = places.buffers[step.buffer]
    if step.combined is None:
        values = np.broadcast_to(places.value(step.value), places.shape)
    else:
        values = _combined(step, places, summed)
        if target.dtype.kind in "iu" and values.dtype.kind == "f":
            # The values become int64 first. The cast to a smaller type below keeps the low bits of
            # an int64, but not of a float.
            values = values.astype(np.int64)
        values = values.astype(target.dtype)
        first = places.value(step.first).astype(target.dtype)
        values = step.combined(first, values)
    kept = [axis for v, axis in places.axes.items() if v not in step.summed]
    free = {v: axis for v, axis in places.axes.items() if v not in step.summed}
    if len(free) == len(step.indices) and all(map(_are_one, free, step.indices)):
        target[tuple(slice(axis.start, axis.start + axis.size) for axis in kept)] = values
        return
    spots = Places(
        {v: axis._replace(number=i) for i, (v, axis) in enumerate(free.items())},
        places.buffers,
        {},
    )
    indices = [spots.value(index) for index in step.indices]
    for index, size in zip(indices, target.shape, strict=True):
        spots.require((index >= 0) & (index < size))
    if not indices:  # The buffer has no axes, so `values` has a single element.
        target[...] = values.reshape(target.shape)
        return
    target[tuple(np.broadcast_to(index, values.shape) for index in indices)] = values


def _are_one(variable: Any, index: Any) -> bool:
    return bool(variable.same_as(index))


def _combined(step: _Step, places: Places, summed: tuple[int, ...]) -> Array:
    """The block's values reduced over the axes `summed`, without the initial value."""
    assert step.combined is not None
    factors = _product(step.value) if step.combined is np.add else None
    if factors is not None:
        a, b = (places.view(_load_in(factor)) for factor in factors)
        if a is not None and b is not None:
            found = _sum_of_products(a, b, places.shape, summed)
            if found is not None:
                return found
    is_extreme = step.combined in (np.maximum, np.minimum)
    as_doubles = dtype_of(step.value).kind == "f" and not is_extreme
    windows = [places.axes[v] for v in step.sizes if v in step.summed]
    if math.prod(axis.size for axis in windows) <= _FEW:
        found = functools.reduce(step.combined, _each(step, places, as_doubles))
        found = found.squeeze(summed)
    else:
        values = np.broadcast_to(places.value(step.value), places.shape)
        values = values.astype(np.float64, copy=False) if as_doubles else values
        found = np.asarray(step.combined.reduce(values, axis=summed))
    if is_extreme and np.isnan(found).any():
        # Whether TVM's own maximum keeps NaN depends on the operands' order.
        raise UndefinedError
    return found


_FEW = 64
"""The largest window, in elements, whose elements are combined one after the other.

For each element of the window NumPy combines whole tensors, which is faster than many short sums.
"""


def _each(step: _Step, places: Places, as_doubles: bool) -> Iterator[Array]:
    """The values to combine: one tensor for each combination of the reduced axes' indices."""
    windows = [v for v in step.sizes if v in step.summed]
    shape = [1 if v in step.summed else axis.size for v, axis in places.axes.items()]
    for at in np.ndindex(*(step.sizes[v] for v in windows)):
        fixed = {
            v: places.axes[v]._replace(start=i, size=1) for v, i in zip(windows, at, strict=True)
        }
        one = replace(places, axes={**places.axes, **fixed})
        values = np.broadcast_to(one.value(step.value), shape)
        yield values.astype(np.float64, copy=False) if as_doubles else values


def _product(value: Any) -> tuple[Any, Any] | None:
    """The two factors of `value`, if it is a product of two elements that doubles represent
    exactly.
    """
    if not isinstance(value, tirx.Mul):
        return None
    if not all(isinstance(_load_in(factor), ir.TensorLoad) for factor in (value.a, value.b)):
        return None
    is_exact = dtype_of(value).kind == "f" or dtype_of(value).itemsize >= 4
    return (value.a, value.b) if is_exact and all(map(_is_exact, (value.a, value.b))) else None


def _load_in(factor: Any) -> Any:
    """The load inside `factor`, without the casts around it."""
    return _load_in(factor.value) if isinstance(factor, tirx.Cast) else factor


def _is_exact(factor: Any) -> bool:
    """Whether doubles represent the values of `factor` exactly.

    Integers may have at most 16 bits, so that sums of their products are exact too.
    """
    if isinstance(factor, tirx.Cast):
        return np.can_cast(dtype_of(factor.value), dtype_of(factor)) and _is_exact(factor.value)
    dtype = dtype_of(factor)
    return dtype.kind == "f" or dtype.itemsize <= 2


def _sum_of_products(
    a: Array, b: Array, shape: Sequence[int], summed: Sequence[int]
) -> Array | None:
    """The sum of products of `a` and `b`, computed as a product of matrices.

    Parameters
    ----------
    a, b: the factors, broadcast to `shape`.
    shape: the sizes of all axes.
    summed: the axes that are summed over.

    Returns
    -------
    The sums. None if only one factor depends on a summed axis, or if no factor depends on another
    axis.
    """
    in_a, in_b = ([size > 1 for size in factor.shape] for factor in (a, b))
    long = [axis for axis, size in enumerate(shape) if size > 1]
    inner = [axis for axis in long if axis in summed]
    if not all(in_a[axis] and in_b[axis] for axis in inner):
        return None
    outer = [axis for axis in long if axis not in summed]
    if not all(in_a[axis] or in_b[axis] for axis in outer):
        return None
    both = [axis for axis in outer if in_a[axis] and in_b[axis]]
    rows = [axis for axis in outer if not in_b[axis]]
    columns = [axis for axis in outer if not in_a[axis]]

    def size(axes: Sequence[int]) -> int:
        return math.prod(shape[axis] for axis in axes)

    left = _laid_out(a, [*both, *rows, *inner]).reshape(size(both), size(rows), size(inner))
    right = _laid_out(b, [*both, *inner, *columns]).reshape(size(both), size(inner), size(columns))
    order = [*both, *rows, *columns]
    found = (left @ right).reshape([shape[axis] for axis in order])
    found = found.transpose([order.index(axis) for axis in outer])
    return np.asarray(found).reshape(
        [size for axis, size in enumerate(shape) if axis not in summed]
    )


def _laid_out(factor: Array, axes: Sequence[int]) -> Array:
    """`factor` as a contiguous array of doubles with only `axes`, in this order.

    `factor` must have one element along each other axis.
    """
    others = tuple(axis for axis in range(factor.ndim) if axis not in axes)
    kept = sorted(axes)
    turned = factor.squeeze(others).transpose([kept.index(axis) for axis in axes])
    return np.ascontiguousarray(turned, np.float64)
