"""Converts ONNX's `RoiAlign`, for cases that TVM's converter gets wrong.

Source: the definition of `RoiAlign` in the ONNX specification, and its reference implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tvm import relax, te, tirx


def import_roi_align(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the pooled regions of a `RoiAlign`; return None if TVM's converter is right.

    TVM differs from ONNX in three cases. It defines the largest sample of a region differently. It
    subtracts half a pixel before it scales the coordinates, while ONNX subtracts it afterwards. And
    it divides by 0 in an empty region.
    """
    regions = _Regions(
        size=(int(attrs.get("output_height", 1)), int(attrs.get("output_width", 1))),
        scale=float(attrs.get("spatial_scale", 1.0)),
        ratio=int(attrs.get("sampling_ratio", 0)),
        # In opset 16 and later, `half_pixel` is the default of this attribute, and earlier opsets
        # lack the attribute.
        is_half=attrs.get("coordinate_transformation_mode") == b"half_pixel",
        is_max=attrs.get("mode", b"avg") == b"max",
    )
    if not regions.is_max and not regions.is_half:
        return None
    x, rois, batches = inputs
    return bb.call_te(
        lambda *tensors: _pooled(regions, *tensors),
        *(x, rois, batches),
        primfunc_name_hint="roi_align",
    )


class _Regions(NamedTuple):
    """The attributes of a `RoiAlign`.

    Attributes
    ----------
    size: the height and the width of a pooled region.
    scale: the factor by which coordinates are multiplied.
    ratio: the number of samples for one pooled element along each axis. If it is 0, the number of
        samples is the size of the pooled element in pixels, rounded up.
    is_half: whether coordinates are shifted by half a pixel. Without this shift, a region is at
        least one pixel long along each axis.
    is_max: whether to take the largest sample of an element, and not their mean.
    """

    size: tuple[int, int]
    scale: float
    ratio: int
    is_half: bool
    is_max: bool

    def along(self, rois: Any, region: Any, axis: int) -> tuple[Any, Any, Any]:
        """Return the start of a region along an axis, the size of a pooled element, and the number
        of samples in it.

        Axis 0 is the height, and axis 1 the width.
        """
        dtype = str(rois.dtype)
        scale, shift = (tirx.const(v, dtype) for v in (self.scale, 0.5 if self.is_half else 0.0))
        begin, end = (rois[region, place] * scale - shift for place in (1 - axis, 3 - axis))
        length = end - begin if self.is_half else te.max(end - begin, tirx.const(1, dtype))
        step = length / tirx.const(self.size[axis], dtype)
        if self.ratio > 0:
            return begin, step, tirx.const(self.ratio, "int32")
        return begin, step, tirx.Cast("int32", te.ceil(step))


def _pooled(regions: _Regions, data: Any, rois: Any, batches: Any) -> Any:
    """Return the largest sample of each element of a pooled region, or the mean of its samples.

    For the mean, a sample is a linear interpolation: the sum of the four elements around it, each
    multiplied by a weight. If the largest sample is wanted, a sample is the largest of these four
    products. A pooled element without samples is 0.
    """
    dtype, kind = str(data.dtype), str(rois.dtype)
    zero = tirx.const(0, dtype)
    sizes = [int(size) for size in data.shape[2:]]

    def around(place: Any, size: int) -> list[tuple[Any, Any]]:
        """Return the indices and the weights of the elements before and after a coordinate."""
        ends = tirx.const(0, kind), tirx.const(size - 1, kind)
        inside = te.min(te.max(place, ends[0]), ends[1])
        before = tirx.Cast("int32", te.floor(inside))
        part = tirx.Cast(dtype, inside - te.floor(inside))
        after = te.min(before + 1, tirx.const(size - 1, "int32"))
        return [(before, tirx.const(1, dtype) - part), (after, part)]

    def sample(region: Any, channel: Any, at: Sequence[Any], samples: Sequence[Any]) -> Any:
        places = []
        for axis in (0, 1):
            begin, step, count = regions.along(rois, region, axis)
            middle = tirx.Cast(kind, samples[axis]) + tirx.const(0.5, kind)
            start = begin + tirx.Cast(kind, at[axis]) * step
            places.append(start + middle * step / tirx.Cast(kind, count))
        image = tirx.Cast("int32", batches[region])
        value = None
        for y, weight_y in around(places[0], sizes[0]):
            for x, weight_x in around(places[1], sizes[1]):
                corner = data[image, channel, y, x] * (weight_y * weight_x)
                if value is None:
                    value = corner
                else:
                    value = te.max(value, corner) if regions.is_max else value + corner
        outside = tirx.any(
            *(place < tirx.const(-1, kind) for place in places),
            *(place > tirx.const(size, kind) for place, size in zip(places, sizes, strict=True)),
        )
        return tirx.if_then_else(outside, zero, value)

    def found(region: Any, channel: Any, *at: Any) -> Any:
        counts = [regions.along(rois, region, axis)[2] for axis in (0, 1)]
        samples = [te.reduce_axis((0, count), name=f"s{i}") for i, count in enumerate(counts)]
        value = sample(region, channel, at, samples)
        return (te.max if regions.is_max else te.sum)(value, axis=samples)

    shape = (rois.shape[0], data.shape[1], *regions.size)
    reduced = te.compute(shape, found, name="reduced")

    def of_any(region: Any, channel: Any, *at: Any) -> Any:
        counts = [regions.along(rois, region, axis)[2] for axis in (0, 1)]
        has_samples = tirx.all(*(count > 0 for count in counts))
        value = reduced(region, channel, *at)
        if not regions.is_max:
            value = value / tirx.Cast(dtype, te.max(counts[0] * counts[1], 1))
        return tirx.if_then_else(has_samples, value, zero)

    return te.compute(shape, of_any)
