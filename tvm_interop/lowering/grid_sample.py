"""Makes kernels that sample images at given coordinates, for `relax.image.grid_sample`.

TVM uses one kernel, whose expressions grow with each tap (element that is read) of a cubic
interpolation. LLVM takes most of a minute to compile it. TVM also rounds coordinates differently
from PyTorch and onnxruntime. Here, separate kernels compute the coordinates, then the elements that
each sample reads and their weights, and then the samples.

Source: the definition of `GridSample` in the ONNX specification.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relax, te, tirx

from ..kernels import loops
from .static_shape import static_shape

_CUBIC = -0.75
"""The coefficient of the cubic interpolation, as in PyTorch."""
_FAR = 2.0**23
"""The largest distance of a sampled place from an image, in elements. Places farther away are moved
to this distance.
"""
_TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
"""The number of elements that a sample reads along each axis."""


class _Settings(NamedTuple):
    """The attributes of a `relax.image.grid_sample`.

    Attributes
    ----------
    method: a key of `_TAPS`.
    padding: which numbers are read outside of an image: `zeros`, the nearest element of the
        `border`, or the `reflection` of the image.
    corners: whether the coordinates -1 and 1 are the middles of the outer elements. Otherwise they
        are the outer edges of these elements.
    """

    method: str
    padding: str
    corners: bool


def legalize_grid_sample(bb: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Make the kernels of a `relax.image.grid_sample` of floats with static shapes.

    The grid has the shape (images, coordinates, places along each axis of the result). The first
    coordinate of a place is along the last axis of an image.
    """
    data, grid = call.args
    dtypes = {str(x.ty.dtype) for x in (data, grid)}
    if None in (static_shape(data.ty), static_shape(grid.ty)) or not dtypes <= _FLOATS:
        return tvm.ir.Op.get("relax.image.grid_sample").get_attr("FLegalize")(bb, call)
    attrs = call.attrs
    settings = _Settings(str(attrs.method), str(attrs.padding_mode), bool(attrs.align_corners))
    sizes = [int(size) for size in data.ty.shape][2:]
    # Each step of the sampling has its own kernel. In a single kernel, the expressions of all steps
    # would be nested, and their lengths would multiply.
    places = bb.emit(_opaque(bb, lambda x: _places(settings, sizes, x), grid, "grid_places"))
    taps = bb.emit(_opaque(bb, lambda x: _taps(settings, sizes, x), places, "grid_taps"))
    indices, weights = (bb.emit(relax.TupleGetItem(taps, i)) for i in (0, 1))
    return bb.call_te(_sampled, data, indices, weights, primfunc_name_hint="grid_sample")


def _opaque(bb: relax.BlockBuilder, kernel: Any, x: Any, name: str) -> relax.Call:
    attrs = {"op_pattern": loops.OPAQUE}
    return bb.call_te(kernel, x, primfunc_name_hint=name, primfunc_attrs=attrs)


_FLOATS = {"float16", "float32", "float64"}


def _places(settings: _Settings, sizes: Sequence[int], grid: Any) -> Any:
    """Return the places of samples, in elements from the start of each axis.

    The shape is (images, axes, places along each axis).
    """
    rank = len(sizes)
    dtype = "float64" if grid.dtype == "float64" else "float32"

    def place(image: Any, axis: Any, *at: Any) -> Any:
        given = tirx.Cast(dtype, grid(image, rank - 1 - axis, *at))
        return _chosen(axis, [_place(settings, given, size, dtype) for size in sizes])

    return te.compute((grid.shape[0], rank, *grid.shape[2:]), place)


def _taps(settings: _Settings, sizes: Sequence[int], places: Any) -> list[Any]:
    """Return, for each sample and axis, the indices of the elements that it reads, and their
    weights.

    Indices and weights have the shape (images, axes, taps, places along each axis of the result).
    The index is -1 for an element outside of the image that is taken to be 0.
    """
    rank, number, dtype = len(sizes), _TAPS[settings.method], str(places.dtype)

    def index(image: Any, axis: Any, tap: Any, *at: Any) -> Any:
        place = places(image, axis, *at)
        return _chosen(axis, [_index(settings, place, tap, size, dtype) for size in sizes])

    def weight(image: Any, axis: Any, tap: Any, *at: Any) -> Any:
        return _weight(settings.method, places(image, axis, *at), tap, dtype)

    shape = (places.shape[0], rank, number, *places.shape[2:])
    return [te.compute(shape, index), te.compute(shape, weight)]


def _chosen(index: Any, values: Sequence[Any]) -> Any:
    """Return the element of `values` at `index`, a TIR expression."""
    result = values[-1]
    for i in reversed(range(len(values) - 1)):
        result = tirx.Select(index == i, values[i], result)
    return result


def _place(settings: _Settings, place: Any, size: int, dtype: str) -> Any:
    """Convert a coordinate from -1 to 1 into a place in elements, counted from 0.

    NaN and infinity are treated as -1, as in onnxruntime. A place far outside of the image is
    replaced by a nearer place outside of it, so that its index fits into 32 bits.
    """
    infinity, minus = (tirx.const(value, dtype) for value in (math.inf, -1.0))
    place = tirx.Select(tirx.abs(place) < infinity, place, minus)
    one, two = tirx.const(1, dtype), tirx.const(2, dtype)
    if settings.corners:
        place = (place + one) / two * tirx.const(size - 1, dtype)
    else:
        place = ((place + one) * tirx.const(size, dtype) - one) / two
    far = tirx.const(_FAR, dtype)
    place = tirx.max(tirx.min(place, far), -far)
    if settings.method == "nearest":
        place = tirx.nearbyint(place)
    elif settings.method == "bilinear" and settings.padding == "reflection":
        place = _reflected(place, size, settings.corners, dtype)
    return place


def _index(settings: _Settings, place: Any, tap: Any, size: int, dtype: str) -> Any:
    """Return the index of an element that a sample reads along an axis."""
    first = -1 if settings.method == "bicubic" else 0
    index = tirx.floor(place) + tirx.Cast(dtype, tap + first)
    # For a linear interpolation, `_place` has reflected the place already. The index is then at
    # most one element outside of the image, and the lines below limit it to the image.
    if settings.padding == "reflection" and settings.method != "bilinear":
        index = _reflected(index, size, settings.corners, dtype)
    whole = tirx.Cast("int32", index)
    last = tirx.const(size - 1, "int32")
    if settings.padding != "zeros":
        return tirx.max(tirx.min(whole, last), 0)
    return tirx.Select(tirx.all(whole >= 0, whole <= last), whole, tirx.const(-1, "int32"))


def _reflected(place: Any, size: int, corners: bool, dtype: str) -> Any:
    """Reflect a place at the ends of the image until it is inside of the image."""
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    if low == high:
        return tirx.const(low, dtype)
    start, end, length = (tirx.const(number, dtype) for number in (low, high, high - low))
    beyond = tirx.Select(place < start, start - place, place - end)
    times = tirx.floor(beyond / length)
    rest = beyond - times * length
    half, two = tirx.const(0.5, dtype), tirx.const(2, dtype)
    is_even = times == tirx.floor(times * half) * two
    from_low, from_high = start + rest, end - rest
    below = tirx.Select(is_even, from_low, from_high)
    above = tirx.Select(is_even, from_high, from_low)
    return tirx.Select(place < start, below, tirx.Select(place > end, above, place))


def _weight(method: str, place: Any, tap: Any, dtype: str) -> Any:
    """Return the weight of an element that a sample reads along an axis."""
    one = tirx.const(1, dtype)
    part = place - tirx.floor(place)
    if method == "nearest":
        return one
    if method == "bilinear":
        return tirx.Select(tap == 0, one - part, part)

    def number(value: float) -> Any:
        return tirx.const(value, dtype)

    def near(x: Any) -> Any:
        return (number(_CUBIC + 2) * x - number(_CUBIC + 3)) * x * x + one

    def far(x: Any) -> Any:
        inner = (number(_CUBIC) * x - number(5 * _CUBIC)) * x + number(8 * _CUBIC)
        return inner * x - number(4 * _CUBIC)

    weights = [far(part + one), near(part), near(one - part), far(tirx.const(2, dtype) - part)]
    return _chosen(tap, weights)


def _sampled(data: Any, indices: Any, weights: Any) -> Any:
    """Return the samples: each is the weighted sum of the elements that it reads."""
    rank, taps = int(indices.shape[1]), int(indices.shape[2])
    zero = tirx.const(0, data.dtype)

    def sample(image: Any, channel: Any, *at: Any) -> Any:
        def of_axis(axis: int, before: list[Any]) -> Any:
            if axis == rank:
                # A `Select` may compute both of its values, so the indices must always be valid.
                safe = [tirx.max(index, 0) for index in before]
                inside = tirx.all(*(index >= 0 for index in before))
                return tirx.Select(inside, data(image, channel, *safe), zero)
            terms = [
                of_axis(axis + 1, [*before, indices(image, axis, tap, *at)])
                * tirx.Cast(data.dtype, weights(image, axis, tap, *at))
                for tap in range(taps)
            ]
            return functools.reduce(operator.add, terms)

        return of_axis(0, [])

    return te.compute((data.shape[0], data.shape[1], *indices.shape[3:]), sample)
