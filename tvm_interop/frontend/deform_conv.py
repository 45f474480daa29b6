"""Converts ONNX's `DeformConv`, a convolution that reads its images at computed places.

The images are sampled at these places first. The convolution is then a product of the samples and
the weights, which is a convolution with a kernel of size 1.

Source: the definition of `DeformConv` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from tvm import relax, te, tirx

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
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

    A place outside of the image counts as 0, so offsets may have any value.

    Raises
    ------
    UnsupportedModelError
        The images have another rank, or the shapes of the inputs do not fit together.
    """
    x, weight, offset, bias, mask = (*inputs, None, None)[:5]
    dtype = str(x.ty.dtype)
    if dtype == "float16":  # It has too few digits for places.
        x, weight, offset, bias, mask = (
            None if value is None else bb.emit(relax.op.astype(value, "float32"))
            for value in (x, weight, offset, bias, mask)
        )
    shape, kernel = static_shape(x.ty), static_shape(weight.ty)
    assert shape is not None  # Models are imported with static shapes.
    assert kernel is not None
    groups = int(attrs.get("offset_group", 1))
    sampling = _sampling(shape, kernel, groups, attrs)
    points = prod(kernel[2:])
    _check_shape("offset", offset, (shape[0], groups * points * 2, *sampling.steps))
    given = [x, offset]
    if mask is not None:
        _check_shape("mask", mask, (shape[0], groups * points, *sampling.steps))
        given.append(mask)
    samples = bb.emit(
        bb.call_te(
            lambda *tensors: _sampled(sampling, *tensors), *given, primfunc_name_hint="sampled"
        )
    )
    flat = bb.emit(relax.op.reshape(weight, (kernel[0], kernel[1] * points, 1, 1)))
    result = bb.emit(relax.op.nn.conv2d(samples, flat, groups=int(attrs.get("group", 1))))
    if bias is not None:
        result = bb.emit(relax.op.add(result, bb.emit(relax.op.reshape(bias, (1, -1, 1, 1)))))
    return relax.op.astype(result, dtype) if dtype == "float16" else result


def _sampling(
    shape: tuple[int, ...], kernel: tuple[int, ...], groups: int, attrs: Mapping[str, Any]
) -> _Sampling:
    if len(shape) != 4:
        raise UnsupportedModelError(
            f"its input has the shape {shape}: only images are supported, with the axes batch, "
            "channel, height and width"
        )
    if shape[1] != kernel[1] * int(attrs.get("group", 1)) or shape[1] % groups:
        raise UnsupportedModelError(
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
        raise UnsupportedModelError(f"its input `{name}` has the shape {found}, not {wanted}")


def _sampled(sampling: _Sampling, images: Any, offset: Any, mask: Any = None) -> Any:
    """Return the samples. The points of a window follow one another within a channel."""
    points, width = prod(w.size for w in sampling.windows), sampling.windows[1].size

    def sample(image: Any, place: Any, row: Any, column: Any) -> Any:
        channel, point = tirx.indexdiv(place, points), tirx.indexmod(place, points)
        which = tirx.indexdiv(channel, sampling.group_size) * points + point
        moves = (offset[image, which * 2 + axis, row, column] for axis in (0, 1))
        steps = (
            (row, tirx.indexdiv(point, width)),
            (column, tirx.indexmod(point, width)),
        )
        at = [
            tirx.Cast(str(offset.dtype), step * window.stride - window.before + i * window.dilation)
            + move
            for (step, i), window, move in zip(steps, sampling.windows, moves, strict=True)
        ]
        value = _interpolated(
            lambda y, x: images[image, channel, y, x], at, sampling.sizes, str(images.dtype)
        )
        return value if mask is None else value * mask[image, which, row, column]

    shape = (images.shape[0], images.shape[1] * points, *sampling.steps)
    return te.compute(shape, sample)


def _interpolated(read: Any, at: Sequence[Any], sizes: Sequence[int], dtype: str) -> Any:
    """Return the linear interpolation of the four elements around a place.

    Elements outside of the image are 0. They are never read.
    """
    corners = []
    for place, size in zip(at, sizes, strict=True):
        # Limit the place before it becomes an integer. NaN fails each comparison.
        low, high = (tirx.const(limit, dtype) for limit in (-2, size + 1))
        limited = tirx.Select(place > low, place, low)
        limited = tirx.Select(limited < high, limited, high)
        before = tirx.floor(limited)
        after = limited - before
        index = tirx.Cast("int64", before)
        one = tirx.const(1, dtype)
        corners.append([(index, one - after), (index + 1, after)])
    total: Any = tirx.const(0, dtype)
    for y, weight_y in corners[0]:
        for x, weight_x in corners[1]:
            inside = tirx.all(y >= 0, y < sizes[0], x >= 0, x < sizes[1])
            # Both values of a choice may be computed, so the indices must always be valid.
            indices = (
                tirx.max(tirx.min(i, size - 1), 0) for i, size in zip((y, x), sizes, strict=True)
            )
            value = tirx.Select(inside, read(*indices), tirx.const(0, dtype))
            total = total + value * (weight_y * weight_x)
    return total
