"""Converts the `Resize` nodes that TVM's converter gets wrong.

TVM's kernels do not support antialiasing, and they resize only the last dimensions. They compute
the scale as the new size divided by the old size. This is wrong if the new size was rounded to a
whole number.

Resizing one dimension is a linear map, so it is a product with a matrix. Resizing the identity
matrix gives this matrix. This module computes the matrix without ONNX's reference implementation,
which uses the weights of the wrong element at a position just above a whole number. In the mode
`nearest`, each column of the matrix has a single 1, so elements are copied in place of a product. A
product would turn infinity and NaN in one element into NaN in many.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax, te

from ..errors import UnsupportedModelError
from ..lowering.static_shape import static_shape
from .constants import constant_array, text_of

SHRINKING = "nearest_mode_of_smaller"
"""The name of an attribute that holds the `nearest_mode` for axes that get smaller.

ONNX does not define this attribute. `old_operators` sets it on nodes of opset 10, where positions
on axes that get smaller are rounded differently.
"""
_OLD_MODE = "tf_half_pixel_for_nn"
_TVM_MODES = (
    "align_corners",
    "asymmetric",
    "half_pixel",
    "pytorch_half_pixel",
    "tf_crop_and_resize",
)


def import_resize(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> relax.Expr | None:
    """Return the result of a `Resize`, or None if TVM's converter is right for this node.

    Raises
    ------
    UnsupportedModelError
        Neither TVM's kernels nor products with matrices can compute the result.
    """
    x, roi, scales, sizes = (*inputs, None, None, None)[:4]
    shape, mode = static_shape(x.ty), _text(attrs, "coordinate_transformation_mode", "half_pixel")
    given = [None if v is None else constant_array(v) for v in (scales, sizes)]
    if shape is None or all(v is None or v.size == 0 for v in given):
        return None  # TVM's converter is used, because its error says what is missing.
    axes = [int(axis) % len(shape) for axis in attrs.get("axes", range(len(shape)))]
    factors, new_sizes = _factors(shape, axes, attrs, *given)
    is_nearest = _text(attrs, "mode", "nearest") == "nearest"
    if mode == _OLD_MODE and not is_nearest:
        raise UnsupportedModelError(
            f"its mode of coordinates `{_OLD_MODE}` is defined only for the mode `nearest`: use "
            "`half_pixel`"
        )
    exact = all(factors[a] * shape[a] == new_sizes[a] for a in axes)
    if (
        exact
        and "axes" not in attrs
        and not attrs.get("antialias", 0)
        and _text(attrs, "keep_aspect_ratio_policy", "stretch") == "stretch"
        and mode in _TVM_MODES
        and list(shape[:2]) == [new_sizes[0], new_sizes[1]]
        and len(shape) in (3, 4, 5)
        and not (mode == "align_corners" and 1 in new_sizes.values())
        # TVM divides by the new size minus 1. So it divides by 0 for a new size of 1.
        and not (mode.startswith("tf_crop") and (len(shape) == 5 or 1 in _of_image(new_sizes)))
        and not (SHRINKING in attrs and min(factors.values()) < 1)
        and (not is_nearest or _has_no_ties(factors.values(), attrs, mode))
    ):
        return None
    regions = _regions(roi, axes) if mode.startswith("tf_crop") else {}
    dtype = str(x.ty.dtype)
    if "float" not in dtype and not is_nearest:
        # The new elements are means, truncated to integers. So a tiny rounding error of a mean
        # could change an element by 1.
        raise UnsupportedModelError(
            f"means of {dtype} are supported only for whole factors of the last dimensions, "
            "without antialiasing: cast the input to floats, resize it, and cast the result"
        )
    if 0 in new_sizes.values():
        empty = [new_sizes.get(axis, size) for axis, size in enumerate(shape)]
        return relax.const(np.zeros(empty, dtype), dtype)
    matrices = {}
    for axis in sorted(axes):
        if axis in regions or new_sizes[axis] != shape[axis] or factors[axis] != 1:
            one = _Axis(shape[axis], factors[axis], new_sizes[axis], regions.get(axis))
            matrices[axis] = one.matrix(attrs)
    # If the position of a new element is outside of the image, the element depends on no old
    # element. So its column of the matrix is 0.
    inside = np.ones(1, bool)
    for axis, matrix in matrices.items():
        others = [1] * len(shape)
        others[axis] = -1
        inside = inside & (np.abs(matrix.sum(axis=0)) > 0.5).reshape(others)
    if is_nearest:
        x = _taken(bb, x, {axis: matrix.argmax(axis=0) for axis, matrix in matrices.items()})
    else:
        for axis, matrix in matrices.items():
            x = _multiplied(bb, x, relax.const(matrix.astype(dtype), dtype), axis)
    if inside.all():
        return x
    outside = relax.const(float(attrs.get("extrapolation_value", 0.0)), dtype)
    return relax.op.where(relax.const(inside, "bool"), x, outside)


def _of_image(sizes: Mapping[int, int]) -> list[int]:
    return [size for axis, size in sizes.items() if axis > 1]


def _has_no_ties(factors: Iterable[float], attrs: Mapping[str, Any], coordinates: str) -> bool:
    """Whether TVM's kernel, which computes positions in float32, rounds all positions correctly."""
    between = coordinates.endswith("half_pixel") and _text(
        attrs, "nearest_mode", "round_prefer_floor"
    ).startswith("round")
    return all(math.frexp(f)[0] == 0.5 or (between and f.is_integer()) for f in factors)


def _taken(bb: relax.BlockBuilder, x: Any, places: Mapping[int, np.ndarray[Any, Any]]) -> Any:
    """Return the elements of `x` at the positions that `places` lists for each resized axis."""
    shape = [len(places[a]) if a in places else int(n) for a, n in enumerate(x.ty.shape)]

    def kernel(x: te.Tensor, *rows: te.Tensor) -> te.Tensor:
        of_axis = dict(zip(places, rows, strict=True))
        return te.compute(
            shape, lambda *at: x(*(of_axis[a](i) if a in of_axis else i for a, i in enumerate(at)))
        )

    constants = [relax.const(indices, "int64") for indices in places.values()]
    return bb.emit(bb.call_te(kernel, x, *constants, primfunc_name_hint="resize_nearest"))


def _regions(roi: Any, axes: Sequence[int]) -> dict[int, tuple[float, float]]:
    """Return the start and the end, on each axis, of the region that is resized (the input `roi`),
    as fractions of the axis's size.
    """
    known = None if roi is None else constant_array(roi)
    if known is None:
        raise UnsupportedModelError(
            "its region is computed as the model runs: make its input `roi` a constant"
        )
    starts, ends = known.reshape(2, -1).astype(float).tolist()
    return {axis: (start, end) for axis, start, end in zip(axes, starts, ends, strict=True)}


def _factors(
    shape: Sequence[int],
    axes: Sequence[int],
    attrs: Mapping[str, Any],
    scales: np.ndarray[Any, Any] | None,
    sizes: np.ndarray[Any, Any] | None,
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the scale and the new size of each axis that is resized."""
    if scales is not None and scales.size:
        factors = {axis: float(scale) for axis, scale in zip(axes, scales, strict=True)}
        return factors, {axis: int(_scaled(shape[axis], scale)) for axis, scale in factors.items()}
    assert sizes is not None
    new_sizes = {axis: int(size) for axis, size in zip(axes, sizes, strict=True)}
    policy = _text(attrs, "keep_aspect_ratio_policy", "stretch")
    factors = {axis: size / shape[axis] for axis, size in new_sizes.items()}
    if policy != "stretch":
        one = (min if policy == "not_larger" else max)(factors.values())
        return dict.fromkeys(axes, one), {a: int(one * shape[a] + 0.5) for a in axes}
    return factors, new_sizes


def _scaled(size: int, scale: float) -> float:
    """Return a size times a scale, rounded to float32 as onnxruntime rounds it.

    Exporters divide the new size by the old size and round the result: 9/5 becomes 1.7999999. Then
    5 times 1.7999999 is 9 only if the product is rounded too.
    """
    return float(np.float32(size) * np.float32(scale))


class _Axis(NamedTuple):
    """How one axis is resized.

    Attributes
    ----------
    old, new: the number of elements along the axis, before and after resizing.
    factor: the scale.
    region: the start and the end of the region of `tf_crop_and_resize`, as fractions of the size;
        None in other modes.
    """

    old: int
    factor: float
    new: int
    region: tuple[float, float] | None

    def matrix(self, attrs: Mapping[str, Any]) -> np.ndarray[Any, Any]:
        """Return the identity matrix resized along this axis, shape (old, new).

        The column of a new element is 0 if its position is outside of the image.

        Parameters
        ----------
        attrs: the node's attributes.
        """
        places = self._places(_text(attrs, "coordinate_transformation_mode", "half_pixel"))
        if _text(attrs, "mode", "nearest") == "nearest":
            weights = self._nearest(places, attrs)
        else:
            weights = self._weights(places, attrs)
        if self.region is not None:
            weights[:, (places < 0) | (places > self.old - 1)] = 0
        return weights

    def _places(self, mode: str) -> np.ndarray[Any, Any]:
        """Return the position in the image of each new element, in float32 as in onnxruntime.

        The rounding to float32 matters: if a position lies halfway between two old elements, the
        rounding decides which of them is the nearest.
        """
        at = np.arange(self.new, dtype=np.float32)
        one, half = np.float32(1), np.float32(0.5)
        old, new, factor = np.float32(self.old), np.float32(self.new), np.float32(self.factor)
        # ONNX computes the positions from the scaled size before rounding, which may be fractional.
        width = new if _scaled(self.old, self.factor) == self.new else factor * old
        places: np.ndarray[Any, Any] = (at + half) / factor - half
        if mode == "asymmetric":
            places = at / factor
        elif mode == "align_corners":
            places = at * (old - one) / (width - one) if self.new > 1 else at
        elif mode == "tf_crop_and_resize":
            start, end = np.array(self.region, np.float32)
            if self.new == 1:
                places = at + half * (start + end) * (old - one)
            else:
                places = start * (old - one) + at * (end - start) * (old - one) / (width - one)
        elif mode == _OLD_MODE:
            places = (at + half) / factor
        elif mode == "pytorch_half_pixel" and self.new == 1:
            places = at
        elif mode == "half_pixel_symmetric":
            places = places + old / 2 * (one - new / width)
        return places

    def _nearest(
        self, places: np.ndarray[Any, Any], attrs: Mapping[str, Any]
    ) -> np.ndarray[Any, Any]:
        rounding = _text(attrs, "nearest_mode", "round_prefer_floor")
        if self.factor < 1 and SHRINKING in attrs:
            rounding = _text(attrs, SHRINKING, rounding)
        if rounding.startswith("round"):
            # As in onnxruntime, a position that is halfway between two elements, up to a rounding
            # error, is treated as exactly halfway.
            half = np.round(places * 2) / 2
            places = np.where(np.abs(places - half) <= 4 * np.spacing(np.abs(places)), half, places)
        whole = {
            "floor": np.floor(places),
            "ceil": np.ceil(places),
            "round_prefer_floor": np.ceil(places - 0.5),
            "round_prefer_ceil": np.floor(places + 0.5),
        }[rounding]
        return np.eye(self.old, dtype=np.float32)[:, np.clip(whole, 0, self.old - 1).astype(int)]

    def _weights(
        self, places: np.ndarray[Any, Any], attrs: Mapping[str, Any]
    ) -> np.ndarray[Any, Any]:
        """Return the weight of each old element in the mean that gives each new element, shape
        (old, new).
        """
        is_cubic = _text(attrs, "mode", "nearest") == "cubic"
        # With antialiasing, the weights of a new element are spread over all old elements that it
        # covers.
        stretch = min(self.factor, 1.0) if attrs.get("antialias", 0) else 1.0
        beyond = math.ceil((2 if is_cubic else 1) / stretch) + 1
        places = np.clip(places, -1, self.old)
        elements = np.arange(-beyond, self.old + beyond, dtype=np.float32)[:, None]
        far = np.abs(places - elements) * stretch
        weights = np.maximum(1 - far, 0)
        if is_cubic:
            weights = _cubic(far, float(attrs.get("cubic_coeff_a", -0.75)))
        if attrs.get("exclude_outside", 0):
            weights[:beyond] = weights[-beyond:] = 0
        weights /= weights.sum(axis=0)
        # Beyond its borders, the image repeats its border elements. So the weights of positions
        # beyond the borders are added to the weights of the border elements.
        inside = weights[beyond:-beyond]
        inside[0] += weights[:beyond].sum(axis=0)
        inside[-1] += weights[-beyond:].sum(axis=0)
        return inside


def _cubic(far: np.ndarray[Any, Any], a: float) -> np.ndarray[Any, Any]:
    """Return the weight of an element in a cubic interpolation, given its distance."""
    near = ((a + 2) * far - (a + 3)) * far**2 + 1
    return np.where(far <= 1, near, np.where(far < 2, a * (((far - 5) * far + 8) * far - 4), 0))


def _multiplied(bb: relax.BlockBuilder, x: Any, matrix: relax.Expr, axis: int) -> relax.Expr:
    rank = x.ty.ndim
    order = [a for a in range(rank) if a != axis] + [axis]
    back = [order.index(a) for a in range(rank)]
    moved = bb.emit(relax.op.permute_dims(x, order)) if axis != rank - 1 else x
    product = bb.emit(relax.op.matmul(moved, matrix))
    return bb.emit(relax.op.permute_dims(product, back)) if axis != rank - 1 else product


def _text(attrs: Mapping[str, Any], name: str, default: str) -> str:
    return text_of(attrs.get(name, default))
