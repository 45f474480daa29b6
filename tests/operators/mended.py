"""Cases that were once wrong or refused without need. All of them run every time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import ml_dtypes
import numpy as np

from .case import Case, edges, numbers

_NAN, _INF = np.nan, np.inf


def mended() -> Iterator[Case]:
    """All cases of this module."""
    yield from _poolings()
    yield from _resized()
    yield from _activations()
    yield from _halves()
    yield from _new()
    yield from _odd_inputs()
    yield from _others()


def _poolings() -> Iterator[Case]:
    x = numbers("float32", 1, 2, 7, 9)
    lower = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"}
    yield Case("MaxPool", [x], lower)
    yield Case("MaxPool", [np.full((1, 1, 3, 3), -_INF, "float32")], {"kernel_shape": [2, 2]})
    hanging = {"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}
    yield Case("LpPool", [x], hanging, sums=True)
    for order in (0, 1):
        named = {"kernel_shape": [2, 3], "strides": [2, 2], "storage_order": order}
        yield Case("MaxPool", [x], named | {"pads": [1, 0, 0, 1], "dilations": [1, 2]}, outputs=2)
    yield Case("MaxPool", [np.zeros((1, 1, 4, 4), "float32")], {"kernel_shape": [2, 2]}, outputs=2)
    elements = np.array([[[[1, 2], [3, 4]]]], "float32")
    given = [elements, np.array([[[[5, 7], [13, 15]]]]), np.array([1, 1, 5, 5])]
    doubled = {"kernel_shape": [2, 2], "strides": [2, 2]}
    yield Case("MaxUnpool", given[:2], doubled)
    yield Case("MaxUnpool", given, doubled, fixed=(2,))
    rois, batches = np.array([[1, 2, 5, 4]], "float32"), np.array([1])
    named = {"output_height": 3, "output_width": 2, "spatial_scale": 0.7, "sampling_ratio": 2}
    images = numbers("float32", 2, 3, 8, 8)
    yield Case("RoiAlign", [images, rois, batches], named, sums=True)
    corners = [[1, 2, 5, 4], [0, 0, 7, 7], [3, 3, 3, 3], [-9, -9, 20, 20], [6, 6, 2, 2]]
    given = [images, np.array(corners, "float32"), np.array([1, 0, 1, 0, 0])]
    for ratio, mode in itertools.product((0, 2), ("half_pixel", "output_half_pixel")):
        more = {"mode": "max", "sampling_ratio": ratio, "coordinate_transformation_mode": mode}
        yield Case("RoiAlign", given, named | more, sums=True)


def _resized() -> Iterator[Case]:
    x = numbers("float32", 1, 2, 5, 4)
    for scales in ([1, 1, 0.6, 0.5], [1, 1, 1.5, 0.5]):
        yield Case("Resize", [x, np.array(scales, "float32")], {}, (1,), opset=10, sums=True)
    region = np.array([0, 0, 0.1, -0.2, 0.3, 1, 1, 1.2, 0.8, 0.9], "float32")
    volume, whole = numbers("float32", 1, 1, 4, 3, 5), np.array([1, 1, 6, 2, 9])
    for mode in ("nearest", "linear"):
        named = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": mode}
        for value in (0.0, 7.0):
            more = named | {"extrapolation_value": value}
            yield Case("Resize", [volume, region, None, whole], more, (1, 3), sums=True)
    image, one = numbers("float32", 1, 2, 6, 5), np.array([1, 2, 1, 4])
    given = [image, np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 1.2], "float32"), None, one]
    for mode in ("nearest", "linear"):
        named = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": mode}
        yield Case("Resize", given, named, (1, 3), sums=True)
    square = np.array([[[[1, np.inf], [np.nan, 4]]]], "float32")
    for sizes in ([1, 1, 7, 8], [1, 1, 6, 3]):
        yield Case("Resize", [square, None, None, np.array(sizes)], {}, (3,))
    for policy in ("not_larger", "not_smaller"):
        named = {"axes": [2, 3], "keep_aspect_ratio_policy": policy, "mode": "linear"}
        given = [numbers("float32", 1, 2, 6, 5), None, None, np.array([9, 4])]
        yield Case("Resize", given, named, (3,), sums=True)
    yield from _sampled()
    for dtype in ("uint8", "int32"):
        given = [numbers(dtype, 1, 2, 4, 4), None, np.array([1, 1, 1.7, 0.6], "float32")]
        yield Case("Resize", given, {"mode": "nearest"}, (2,))


def _sampled() -> Iterator[Case]:
    """Samples at the position NaN, far outside of the image, and midway between two elements."""
    image = numbers("float32", 1, 2, 5, 6)
    between = np.stack(np.meshgrid((2 * np.arange(-4, 12) + 1) / 6 - 1, [0.2, _NAN]), -1)
    far = np.array([[[7.3, -5.2], [-21, 40.5], [1e9, 0], [0.1, -3e8]]])
    for mode, padding in itertools.product(("linear", "nearest"), ("zeros", "border")):
        named = {"mode": mode, "padding_mode": padding}
        yield Case("GridSample", [image, between[None].astype("float32")], named, sums=True)
    for padding in ("zeros", "border", "reflection"):
        named = {"mode": "cubic", "padding_mode": padding}
        yield Case("GridSample", [image, far[None].astype("float32")[:, :, :2]], named, sums=True)


def _activations() -> Iterator[Case]:
    for dtype in ("float32", "float16"):
        yield Case("LeakyRelu", [edges(dtype)], {"alpha": 0.0})
        for bounds in ((_NAN, 1), (-1, _NAN), (_NAN, _NAN)):
            yield Case("Clip", [edges(dtype), *(np.array(b, dtype) for b in bounds)])
        yield Case("Clip", [edges(dtype), np.array(0, dtype)], opset=13)
    yield Case("Clip", [edges("float32")], {"min": 0.0}, opset=7)
    rows = np.array([[1, _NAN, -_INF, _INF, 3], [_NAN, _NAN, 1, 0, -0.0]], "float32")
    for largest in (0, 1):
        yield Case("TopK", [rows, np.array([1])], {"largest": largest}, fixed=(1,), outputs=2)


def _halves() -> Iterator[Case]:
    x = np.array([-9, -7, -5, -2.5, -1, -0.01, 0, 0.01, 1, 7], "float16")
    for op in ("Softplus", "Mish", "Elu", "Celu", "Selu", "Acosh", "Asinh", "Atan", "Cosh", "Tan"):
        yield Case(op, [abs(x) + np.float16(1) if op == "Acosh" else x])
    yield Case("Gelu", [x], {"approximate": "tanh"}, tolerance=6e-3)
    yield Case("LRN", [numbers("float16", 1, 4, 3, 3)], {"size": 3}, sums=True)

    halves = np.array([*np.arange(-9, 9) / 4, _INF, -_INF, 60000, -60000], "float16")
    for dtype in ("int16", "uint16"):
        yield Case(
            "QuantizeLinear", [halves, np.array(0.5, "float16"), np.array(3, dtype)], opset=21
        )


def _new() -> Iterator[Case]:
    """Operators for which TVM has no converter."""
    for time in (0, 1):
        given = [numbers("float32", 4, 4, 2), np.array([1, 2, 3, 4])]
        yield Case("ReverseSequence", given, {"batch_axis": 1 - time, "time_axis": time})
    cache, update = numbers("float32", 2, 3, 6, 4), numbers("float32", 2, 3, 2, 4, seed=1)
    for mode in ("linear", "circular"):
        for begins in ([1, 4], [0, 5]) if mode == "circular" else ([1, 4],):
            yield Case("TensorScatter", [cache, update, np.array(begins)], {"mode": mode})
    yield Case("TensorScatter", [cache, update])
    given = [numbers("float32", 2, 10, 12), np.array([4, 5]), np.array([1, 5])]
    named = {"dilations": [1, 1], "pads": [0, 1, 0, 1], "strides": [1, 1]}
    yield Case("Col2Im", given, named, fixed=(1, 2), sums=True)
    for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
        named = {"exclusive": exclusive, "reverse": reverse}
        given = [numbers("float32", 3, 4), np.array(-1)]
        yield Case("CumProd", given, named, fixed=(1,), sums=True, opset=26)
    weights, steps = numbers("uint8", 4, 6), abs(numbers("float32", 4, 3)) + np.float32(0.1)
    named = {"axis": 1, "block_size": 2}
    for zero in ([], [numbers("uint8", 4, 3, seed=1)]):
        yield Case("DequantizeLinear", [weights, steps, *zero], named, opset=21)
    x, steps = 3 * numbers("float32", 4, 8), abs(numbers("float32", 4, 3)) + np.float32(0.1)
    for zero in ([], [numbers("int8", 4, 3)], [numbers("uint16", 4, 3)]):
        named = {"axis": 1, "block_size": 3}
        yield Case("QuantizeLinear", [x, steps, *zero], named, opset=21)
    few = np.array([[-8, 7, 3], [0, -1, 5]]).astype(ml_dtypes.int4)
    yield Case("DequantizeLinear", [few, np.array(0.5, "float32")], fixed=(0,), opset=21)
    yield Case("BitCast", [edges("float32")], {"to": 6}, opset=26)
    yield Case("PRelu", [numbers("float32", 2, 3, 4), numbers("float32", 3)], opset=6)
    yield Case("PRelu", [np.array(-2, "float32"), np.array(0.25, "float32")])


def _odd_inputs() -> Iterator[Case]:
    for dtype in ("int32", "int64"):
        least = np.array(np.iinfo(dtype).min, dtype)
        x = np.array([least, least + 1, -7, 0, 7, np.iinfo(dtype).max], dtype)
        for op in ("Mul", "Mod", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"):
            yield Case(op, [x, least], fixed=(1,))
    not_read = np.full((2, 3), _NAN, "float32")
    given = [numbers("float32", 2, 4), numbers("float32", 4, 3), not_read]
    yield Case("Gemm", given, {"beta": 0.0}, sums=True)
    whole = [numbers("int64", 3, 2), numbers("int64", 3, 4, seed=1), numbers("int64", 4, seed=2)]
    for named in ({"alpha": 0.5}, {"alpha": -2.0, "beta": 1.25}):
        yield Case("Gemm", whole, named | {"transA": 1})


def _others() -> Iterator[Case]:
    for values in (np.zeros(3), np.array([-np.inf, 1, -2])):
        given = [values.astype("float32")]
        yield Case("DynamicQuantizeLinear", given, opset=11, outputs=3)
    x, w = numbers("float32", 1, 4, 5, 6), numbers("float32", 4, 2, 3, 2, seed=1)
    for size in ([10, 18], [11, 19], [8, 13]):
        for auto_pad in ("NOTSET", "SAME_UPPER"):
            named = {"strides": [2, 3], "output_shape": size, "auto_pad": auto_pad, "group": 2}
            yield Case("ConvTranspose", [x, w, numbers("float32", 4)], named, sums=True)
    cut = np.array([0, -1, 1, 2])
    yield Case("Pad", [numbers("float32", 3, 4), cut], {"mode": "wrap"}, fixed=(1,))
    yield Case("EyeLike", [numbers("float32", 3, 4)], {"k": 1, "dtype": 6})
    yield Case("Sign", [edges("uint8")])
    yield Case("Pow", [np.array([-100, 7], "int16"), np.array([3, 2], "int16")])
    yield Case("GatherND", [numbers("float32", 4, 5), np.array([0, 1])])
    yield Case("Split", [numbers("float32", 6, 5)], {"num_outputs": 4}, outputs=4)
    for p in (1, 2):
        yield Case("LpNormalization", [numbers("float32", 2, 3)], {"p": p, "axis": 0}, sums=True)
    named = {"axis": 1, "epsilon": 1e-3}
    scale = numbers("float64", 4, 3)
    for outputs in (1, 3):
        given = [numbers("float64", 2, 4, 3), scale]
        yield Case("LayerNormalization", given, named, outputs=outputs, sums=True)
    given = [numbers("float32", 2, 4, 3), numbers("float32", 4), numbers("float32", 4, seed=1)]
    yield Case("GroupNormalization", given, {"num_groups": 2}, sums=True)
    for dtype, count in (("float16", 2), ("float64", 4)):
        given = [numbers(dtype, 2, 4, 3), numbers(dtype, count), numbers(dtype, count, seed=1)]
        yield Case("GroupNormalization", given, {"num_groups": count}, opset=18, sums=True)
    for reduction, dtype in (("none", "bool"), ("add", "float32"), ("max", "int64")):
        # Indices that are shorter than the data along several axes.
        for axis, shape in ((0, (2, 2, 3)), (2, (2, 2, 3)), (-1, (3, 2, 5)), (1, (2, 1, 3))):
            places = np.arange(shape[axis]).reshape([-1 if a == axis % 3 else 1 for a in range(3)])
            whole = np.broadcast_to(places - (axis == 0), shape).astype("int32")
            given = [numbers(dtype, 3, 4, 5), whole, numbers(dtype, *shape, seed=1)]
            yield Case("ScatterElements", given, {"axis": axis, "reduction": reduction})
    for dtype, outputs in (("float16", 1), ("float32", 1), ("float32", 3)):
        rest = (abs(numbers(dtype, 4, seed=s)) for s in range(4))
        given = [numbers(dtype, 2, 4, 3), *rest]
        named = {} if dtype == "float16" else {"training_mode": 1, "momentum": 0.7}
        yield Case("BatchNormalization", given, named, outputs=outputs, sums=True)
    yield Case("Cast", [np.array([0, 1, 2.5, 100, 60000], "float16")], {"to": 4})
