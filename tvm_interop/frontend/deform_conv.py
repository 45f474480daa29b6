"""Converts ONNX's `DeformConv`, a convolution that reads its images at computed coordinates.

First, the images are sampled at the computed coordinates. The samples are then multiplied by the
weights, by a convolution with a kernel of size 1.

Source: the definition of `DeformConv` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tvm import relax, te, tirx

from ..kernels import loops
from ..lowering.static_shape import known_shape, static_shape
from .misfit import MisfitError
from .pool_windows import Window, given_windows


class _Sampling(NamedTuple):
    """Where a deformable convolution reads its images.

    Attributes
    ----------
    windows: the windows along the two axes of an image.
    steps: the number of windows along each axis.
    sizes: the height and the width of an image.
    group_size: the number of channels that are read at the same places.
    """

    windows: tuple[Window, Window]
    steps: tuple[int, int]
    sizes: tuple[int, int]
    group_size: int


def import_deform_conv(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a `DeformConv` of images with two spatial axes.

    The image is taken to be 0 outside of its borders, so offsets may have any value.

    Raises
    ------
    UnsupportedModelError
        The images do not have two spatial axes, or the shapes of the inputs do not fit together.
    """
    x, weight, offset, bias, mask = (*inputs, None, None)[:5]
    shape, kernel = known_shape(x), known_shape(weight)
    groups = int(attrs.get("offset_group", 1))
    sampling = _sampling(shape, kernel, groups, attrs)
    points = prod(kernel[2:])
    _check_shape("offset", offset, (shape[0], groups * points * 2, *sampling.steps))
    given = [offset]
    if mask is not None:
        _check_shape("mask", mask, (shape[0], groups * points, *sampling.steps))
        given.append(mask)
    # All channels of an offset group are read at the same places, so a separate kernel computes the
    # places once for each offset group.
    corners = bb.emit(
        bb.call_te(
            lambda *tensors: _corners(sampling, *tensors),
            *given,
            primfunc_name_hint="corners",
            primfunc_attrs={"op_pattern": loops.OPAQUE},
        )
    )
    places, weights = (bb.emit(relax.TupleGetItem(corners, i)) for i in (0, 1))
    images = bb.emit(relax.op.reshape(x, (*shape[:2], prod(shape[2:]))))
    samples = bb.emit(
        bb.call_te(
            lambda *tensors: _sampled(sampling, *tensors),
            *(images, places, weights),
            primfunc_name_hint="sampled",
        )
    )
    flat = bb.emit(relax.op.reshape(weight, (kernel[0], kernel[1] * points, 1, 1)))
    result = bb.emit(relax.op.nn.conv2d(samples, flat, groups=int(attrs.get("group", 1))))
    if bias is None:
        return result
    return relax.op.add(result, bb.emit(relax.op.reshape(bias, (1, -1, 1, 1))))


def _sampling(
    shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, attrs: Mapping[str, Any]
) -> _Sampling:
    if len(shape) != 4:
        raise MisfitError(
            f"its input has the shape {shape}: only images are supported, with the axes batch, "
            "channel, height and width"
        )
    if shape[1] != kernel[1] * int(attrs.get("group", 1)) or shape[1] % groups:
        raise MisfitError(
            f"its input has {shape[1]} channels: that does not fit weights of shape {kernel}, "
            f"group {attrs.get('group', 1)} and offset_group {groups}"
        )
    rows, columns = given_windows(kernel[2:], attrs)
    sizes = shape[2], shape[3]
    steps = rows.steps(sizes[0], False), columns.steps(sizes[1], False)
    return _Sampling((rows, columns), steps, sizes, shape[1] // groups)


def _check_shape(name: str, value: Any, wanted: tuple[int, ...]) -> None:
    found = static_shape(value.ty)
    if found != wanted:
        raise MisfitError(f"its input `{name}` has the shape {found}, not {wanted}")


def _corners(sampling: _Sampling, offset: Any, mask: Any = None) -> list[Any]:
    """Return the four elements around each place: their positions in an image, and their weights.

    Each weight is the weight of the element in a linear interpolation, multiplied by the mask. The
    position of an element outside of the image is -1. Positions and weights have the shape (images,
    window points of all groups, 4, rows, columns).
    """
    (height, width), dtype = sampling.sizes, str(offset.dtype)
    columns = sampling.windows[1].size
    points = sampling.windows[0].size * columns

    def around(image: Any, which: Any, corner: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the position and the weight of one of the four elements around a place."""
        point = tirx.indexmod(which, points)
        elements = tirx.indexdiv(point, columns), tirx.indexmod(point, columns)
        corners = tirx.indexdiv(corner, 2), tirx.indexmod(corner, 2)
        found, weight = [], tirx.const(1, dtype)
        for axis, window in enumerate(sampling.windows):
            start = at[axis] * window.stride - window.before + elements[axis] * window.dilation
            place = tirx.Cast(dtype, start) + offset[image, which * 2 + axis, at[0], at[1]]
            before, part = _split(place, sampling.sizes[axis], dtype)
            found.append(before + tirx.Cast("int32", corners[axis]))
            weight = weight * tirx.Select(corners[axis] == 0, tirx.const(1, dtype) - part, part)
        y, x = found
        inside = tirx.all(y >= 0, y < height, x >= 0, x < width)
        return tirx.Select(inside, y * width + x, tirx.const(-1, "int32")), weight

    def weighted(image: Any, which: Any, corner: Any, *at: Any) -> Any:
        weight = around(image, which, corner, at)[1]
        return weight if mask is None else weight * mask[image, which, at[0], at[1]]

    shape = (offset.shape[0], offset.shape[1] // 2, 4, *sampling.steps)
    return [
        te.compute(shape, lambda image, which, corner, *at: around(image, which, corner, at)[0]),
        te.compute(shape, weighted),
    ]


def _split(place: Any, size: int, dtype: str) -> tuple[Any, Any]:
    """Return a place rounded down to an integer, and the fraction that was cut off.

    A place far outside of the image is replaced by a nearer place outside of it. NaN is treated as
    a place outside of the image.
    """
    low, high = (tirx.const(limit, dtype) for limit in (-2, size + 1))
    limited = tirx.Select(place > low, place, low)
    limited = tirx.Select(limited < high, limited, high)
    below = tirx.floor(limited)
    return tirx.Cast("int32", below), limited - below


def _sampled(sampling: _Sampling, images: Any, places: Any, weights: Any) -> Any:
    """Return the sampled images, with one channel for each image channel and window point."""
    points = prod(window.size for window in sampling.windows)
    zero, last = tirx.const(0, images.dtype), prod(sampling.sizes) - 1

    def sample(image: Any, number: Any, row: Any, column: Any) -> Any:
        channel, point = tirx.indexdiv(number, points), tirx.indexmod(number, points)
        which = tirx.indexdiv(channel, sampling.group_size) * points + point
        total: Any = zero
        for corner in range(4):
            at = (image, which, corner, row, column)
            # A `Select` may compute both of its values, so the position must always be valid.
            safe = tirx.max(tirx.min(places[at], last), 0)
            element = tirx.Select(places[at] >= 0, images[image, channel, safe], zero)
            total = total + element * weights[at]
        return total

    return te.compute((images.shape[0], images.shape[1] * points, *sampling.steps), sample)
