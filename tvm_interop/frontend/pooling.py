"""Converts ONNX's poolings, for which TVM's converter is wrong in several cases.

TVM's converter rounds the size of a result down if `auto_pad` is `SAME_LOWER`, and it ignores
dilations in that case. It makes the norm of `LpPool` too large if a window extends past the end. It
does not return the positions of the largest elements.

Source: the definitions of `MaxPool`, `AveragePool` and `LpPool` in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from tvm import relax

from ..lowering.static_shape import static_shape
from .pool_places import pool_with_places
from .pool_windows import Window, windows_of
from .powers import power

POOLS = ("AveragePool", "LpPool", "MaxPool")
"""The operators that `import_pool` converts."""


def import_pool(
    bb: relax.BlockBuilder, op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the result of a pooling; for a `MaxPool` with two outputs, also the positions of the
    largest elements.

    Return None unless the shape of the input is static and has 3 to 5 dimensions.
    """
    x = inputs[0]
    shape = static_shape(x.ty)
    if shape is None or not 3 <= len(shape) <= 5:
        # TVM's converter is used, because its error says which shapes it supports.
        return None
    windows, is_ceiled = windows_of(shape[2:], attrs)
    if op_type == "LpPool":
        return _norms(bb, x, shape, windows, is_ceiled, int(attrs.get("p", 2)))
    if op_type == "MaxPool" and attrs["tvm_custom"]["num_outputs"] > 1:
        by_columns = bool(attrs.get("storage_order", 0))
        return pool_with_places(bb, x, windows, is_ceiled, by_columns)
    kind = "max" if op_type == "MaxPool" else "avg"
    with_padding = bool(attrs.get("count_include_pad", 0))
    return _pooled(kind, x, windows, is_ceiled, with_padding)


def _pooled(
    kind: str, x: Any, windows: Sequence[Window], is_ceiled: bool, with_padding: bool
) -> relax.Expr:
    pool = getattr(relax.op.nn, f"{kind}_pool{len(windows)}d")
    return pool(
        x,
        [window.size for window in windows],
        [window.stride for window in windows],
        [*(window.before for window in windows), *(window.after for window in windows)],
        [window.dilation for window in windows],
        is_ceiled,
        with_padding,
    )


def _norms(
    bb: relax.BlockBuilder,
    x: Any,
    shape: Sequence[int],
    windows: Sequence[Window],
    is_ceiled: bool,
    p: int,
) -> Any:
    """Return the `p`-norm of each window, computed from the mean of powers.

    The sum of powers is their mean times the number of elements in a window. The input is padded
    with zeros, so that all windows have the same number of elements.
    """
    dtype = str(x.ty.dtype)
    powers = bb.emit(relax.op.abs(x))
    if p == 2:
        powers = bb.emit(relax.op.multiply(x, x))
    elif p != 1:
        powers = power(bb, powers, relax.const(float(p), dtype))
    widths, whole = [0, 0, 0, 0], []
    for window, length in zip(windows, shape[2:], strict=True):
        steps = window.steps(length, is_ceiled)
        needed = (steps - 1) * window.stride + window.extent - length - window.before
        widths += [window.before, max(needed, window.after)]
        whole.append(window._replace(before=0, after=0))
    if any(widths):
        powers = bb.emit(relax.op.nn.pad(powers, widths, "constant", 0.0))
    mean = bb.emit(_pooled("avg", powers, whole, False, True))
    count = relax.const(float(prod(window.size for window in windows)), dtype)
    total = bb.emit(relax.op.multiply(mean, count))
    if p == 1:
        return total
    if p == 2:
        return relax.op.sqrt(total)
    return relax.op.power(total, relax.const(1.0 / p, dtype))
