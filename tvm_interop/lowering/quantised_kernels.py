"""TVM's kernels of quantised operators: exact, for where a library's are missing at run time.

A library's result may differ by one step from these, as it may add the bias in one rounding.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from ..program.library_op import LibraryOp


def quantised_kernel(op: LibraryOp) -> tirx.PrimFunc:
    """A kernel that computes what `op` describes, which is quantised and on plain tensors."""
    placeholders = [
        te.placeholder(_dims(shape), dtype, name=f"p{i}")
        for i, (shape, dtype) in enumerate(zip(op.shapes[:-1], op.stored, strict=False))
    ]
    if op.op == "quantised_max_pool2d":
        result = _max_pool2d(op, placeholders[0])
    elif op.op == "quantised_avg_pool2d":
        result = _finished(op, _means(op, placeholders[0]), None)
    else:
        total = _CONTRACTIONS[op.op](op, *placeholders[:2])
        result = _scaled(op, total, *placeholders[2:])
    return te.create_prim_func([*placeholders, result])


def _conv2d(op: LibraryOp, data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """Sums of products of an image with its channels last, less the zero points."""
    top, left, bottom, right = op.padding
    batch, height, width, channels = op.shapes[0]
    padded = te.compute(
        _dims((batch, height + top + bottom, width + left + right, channels)),
        lambda n, y, x, c: tirx.if_then_else(
            tirx.all(y >= top, y < top + height, x >= left, x < left + width),
            data[n, y - top, x - left, c].astype("int32") - op.data_zero,
            tirx.const(0, "int32"),
        ),
        name="padded",
    )
    made, each = op.shapes[1][0] // op.groups, op.shapes[1][1]
    k, dy, dx = (te.reduce_axis((0, size)) for size in op.shapes[1][1:])
    (sy, sx), (ey, ex) = op.strides, op.dilation
    return te.compute(
        _dims(op.shapes[-1]),
        lambda n, y, x, o: te.sum(
            padded[n, y * sy + dy * ey, x * sx + dx * ex, o // made * each + k]
            * (weight[o, k, dy, dx].astype("int32") - op.weight_zero),
            axis=[dy, dx, k],
        ),
        name="total",
    )


def _matmul(op: LibraryOp, left: te.Tensor, right: te.Tensor) -> te.Tensor:
    k = te.reduce_axis((0, op.shapes[0][-1]))
    many = len(op.shapes[1]) > 2
    return te.compute(
        _dims(op.shapes[-1]),
        lambda *i: te.sum(
            (left(*i[:-1], k).astype("int32") - op.data_zero)
            * (right(*(i[:-2] if many else ()), k, i[-1]).astype("int32") - op.weight_zero),
            axis=k,
        ),
        name="total",
    )


def _max_pool2d(op: LibraryOp, data: te.Tensor) -> te.Tensor:
    height, width = op.shapes[0][1:3]
    least = tirx.min_value(op.stored[0])
    dy, dx = (te.reduce_axis((0, size)) for size in op.window)

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        at_y = y * op.strides[0] + dy * op.dilation[0] - op.padding[0]
        at_x = x * op.strides[1] + dx * op.dilation[1] - op.padding[1]
        inside = tirx.all(at_y >= 0, at_y < height, at_x >= 0, at_x < width)
        return te.max(tirx.if_then_else(inside, data[n, at_y, at_x, c], least), axis=[dy, dx])

    return te.compute(_dims(op.shapes[-1]), element, name="pooled")


def _means(op: LibraryOp, data: te.Tensor) -> Any:
    """The means of the integers in each window."""
    height, width = op.shapes[0][1:3]
    dy, dx = (te.reduce_axis((0, size)) for size in op.window)

    def inside(y: Any, x: Any, dy: Any, dx: Any) -> tuple[Any, Any, Any]:
        at_y = y * op.strides[0] + dy * op.dilation[0] - op.padding[0]
        at_x = x * op.strides[1] + dx * op.dilation[1] - op.padding[1]
        return at_y, at_x, tirx.all(at_y >= 0, at_y < height, at_x >= 0, at_x < width)

    def element(n: Any, y: Any, x: Any, c: Any) -> Any:
        at_y, at_x, is_inside = inside(y, x, dy, dx)
        read = tirx.if_then_else(is_inside, data[n, at_y, at_x, c].astype("int32"), 0)
        return te.sum(read, axis=[dy, dx])

    total = te.compute(_dims(op.shapes[-1]), element, name="total")
    ky, kx = (te.reduce_axis((0, size)) for size in op.window)

    def counted(y: Any, x: Any) -> Any:
        is_inside = inside(y, x, ky, kx)[2]
        return te.sum(
            tirx.if_then_else(is_inside, tirx.const(1, "int32"), tirx.const(0, "int32")),
            axis=[ky, kx],
        )

    stays_inside = not any(op.padding) and all(
        (op.shapes[-1][1 + a] - 1) * op.strides[a] + (op.window[a] - 1) * op.dilation[a]
        < op.shapes[0][1 + a]
        for a in (0, 1)
    )
    if op.counts_padding or stays_inside:
        size = tirx.const(float(op.window[0] * op.window[1]), "float32")
        return te.compute(total.shape, lambda *i: total[i].astype("float32") / size, name="mean")
    count = te.compute(_dims(op.shapes[-1][1:3]), counted, name="count")
    return te.compute(
        total.shape,
        lambda *i: total[i].astype("float32") / count[i[1], i[2]].astype("float32"),
        name="mean",
    )


def _scaled(op: LibraryOp, total: te.Tensor, scale: te.Tensor, *more: te.Tensor) -> te.Tensor:
    def element(*i: Any) -> Any:
        x = total[i].astype("float32") * scale[i[-1]]
        return x + more[0][i[-1]] if op.has_bias else x

    summed = te.compute(total.shape, element, name="summed")
    return _finished(op, summed, more[-1] if op.has_sum else None)


def _finished(op: LibraryOp, data: te.Tensor, addend: te.Tensor | None) -> te.Tensor:
    """The steps, the activation and the rounding."""
    dtype = op.stored[-1]

    def element(*i: Any) -> Any:
        x = data[i]
        for kind, first, second in op.steps:
            a, b = (tirx.const(number, "float32") for number in (first, second))
            if kind == "clip":
                x = te.min(te.max(x, a), b)
            elif kind == "round":
                x = tirx.nearbyint(x)
            elif kind == "linear":
                x = x * a + b
            elif addend is not None:
                x = x + addend[i].astype("float32")
        if op.activation == "relu":
            x = te.max(x, tirx.const(0, "float32"))
        if op.activation == "clip":
            low, high = (tirx.const(b, "float32") for b in (op.clip_low, op.clip_high))
            x = te.min(te.max(x, low), high)
        if dtype == "float32":
            return x
        least, most = (bound(dtype).astype("float32") for bound in (tirx.min_value, tirx.max_value))
        return te.min(te.max(tirx.nearbyint(x), least), most).astype(dtype)

    return te.compute(data.shape, element, name="scaled")


_CONTRACTIONS = {"quantised_conv2d": _conv2d, "quantised_matmul": _matmul}


def rounded_to_steps(data: te.Tensor, scale: Any, zero: Any, axis: int, dtype: str) -> te.Tensor:
    """ONNX's `QuantizeLinear`: halves go to the even number, what is out of range to the nearest.

    Parameters
    ----------
    scale, zero: a number, or one for each index of `axis`.
    """

    def element(*i: Any) -> Any:
        by, at = (_at(each, i, axis) for each in (scale, zero))
        x = tirx.nearbyint(data[i] / by) + at.astype("float32")
        least, most = (bound(dtype).astype("float32") for bound in (tirx.min_value, tirx.max_value))
        return te.min(te.max(x, least), most).astype(dtype)

    return te.compute(data.shape, element, name="quantised")


def _at(numbers: Any, i: tuple[Any, ...], axis: int) -> Any:
    if not isinstance(numbers, te.Tensor):
        return numbers
    single = all(int(dim) == 1 for dim in numbers.shape)
    return numbers[(0,) * len(numbers.shape)] if single else numbers[i[axis]]


def _dims(shape: tuple[int, ...]) -> list[Any]:
    return [tirx.IntImm("int64", dim) for dim in shape]  # As Relax has them.
