"""Converts to ONNX the PyTorch operators that PyTorch's exporter lacks or gets wrong."""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, numpy_helper
from onnxscript import opset18 as op

from ..errors import UnsupportedModelError
from . import (
    torch_algebra,
    torch_arithmetic,
    torch_attention,
    torch_bags,
    torch_counts,
    torch_experts,
    torch_floats,
    torch_logarithms,
    torch_maps,
    torch_orders,
    torch_places,
    torch_quantised,
    torch_reductions,
    torch_resizing,
    torch_scatters,
    torch_special,
)
from .torch_booleans import as_given, as_numbers
from .torch_shapes import fixed_sizes, ints

_EUCLID_STEPS = {8: 12, 16: 23, 32: 46, 64: 92}
"""The largest number of steps of Euclid's algorithm, by the number of bits of an integer.
Neighbouring Fibonacci numbers take the most steps.
"""


def translations() -> Mapping[Any, Callable[..., Any]]:
    """Return the exporter's `custom_translation_table`: the conversion of each operator."""
    aten = torch.ops.aten
    return {
        **_windows(),
        **_primitives(),
        **_clamps_and_sums(),
        **_logarithms(),
        **torch_arithmetic.conversions(),
        **torch_places.conversions(),
        **torch_quantised.conversions(),
        **torch_reductions.conversions(),
        **torch_resizing.conversions(),
        **torch_bags.conversions(),
        **torch_counts.conversions(),
        **torch_maps.conversions(),
        torch_experts.define(): torch_experts.grouped_product,
        aten._grouped_mm.default: torch_experts.product_of_groups,
        aten._adaptive_avg_pool3d.default: partial(_in_cells, op.ReduceMean),
        aten._cdist_forward.default: _cdist,
        aten._is_all_true.default: partial(_whether, op.ReduceMin),
        aten._is_any_true.default: partial(_whether, op.ReduceMax),
        aten._linalg_slogdet.default: torch_algebra.sign_and_log_of_determinant,
        aten._linalg_solve_ex.default: torch_algebra.solve,
        aten._neg_view.default: lambda x: op.Neg(x),
        aten._pdist_forward.default: _pdist,
        aten.add.Scalar: _add,
        aten.add.Tensor: _add,
        aten.adaptive_max_pool2d.default: _adaptive_max_pool,
        aten.adaptive_max_pool3d.default: _adaptive_max_pool,
        aten.amax.default: partial(_extreme, op.ReduceMax),
        aten.amin.default: partial(_extreme, op.ReduceMin),
        aten.bucketize.Scalar: torch_orders.bucketize,
        aten.bucketize.Tensor: torch_orders.bucketize,
        aten.cholesky.default: torch_algebra.lower_or_upper_factor,
        aten.cholesky_inverse.default: torch_algebra.inverse_of_decomposed,
        aten.cholesky_solve.default: torch_algebra.solve_decomposed,
        aten.copy.default: _copied,
        aten.cummax.default: partial(torch_orders.cumulative_extreme, op.GreaterOrEqual),
        aten.cummin.default: partial(torch_orders.cumulative_extreme, op.LessOrEqual),
        aten.cumprod.default: _cumprod,
        aten.index_reduce.default: torch_scatters.index_reduced,
        aten.kthvalue.default: torch_orders.kth_value,
        aten.linalg_cholesky_ex.default: torch_algebra.cholesky,
        aten.linalg_inv_ex.default: torch_algebra.inverse,
        aten.linalg_matrix_exp.default: torch_algebra.exponential,
        aten.linalg_qr.default: torch_algebra.orthogonal_and_upper,
        aten.linalg_solve_triangular.default: torch_algebra.solve_triangular,
        aten.logdet.default: torch_algebra.log_of_determinant,
        aten.masked_select.default: _masked_select,
        aten.median.default: torch_orders.median,
        aten.median.dim: torch_orders.median_along,
        aten.mode.default: torch_orders.mode,
        aten.nanmedian.default: torch_orders.nan_median,
        aten.nanmedian.dim: torch_orders.nan_median_along,
        aten.polygamma.default: torch_special.polygamma,
        aten.put.default: torch_scatters.put,
        aten.scatter.reduce: torch_scatters.scatter_with,
        aten.scatter.src: torch_scatters.scatter,
        aten.scatter.value: torch_scatters.scatter,
        aten.scatter.value_reduce: torch_scatters.scatter_with,
        aten.scatter_add.default: torch_scatters.scatter_add,
        aten.scatter_reduce.two: torch_scatters.scatter_reduced,
        aten.scaled_dot_product_attention.default: torch_attention.attention,
        aten.searchsorted.Scalar: torch_orders.search_sorted,
        aten.searchsorted.Tensor: torch_orders.search_sorted,
        aten.sign.default: _sign,
        aten.sort.stable: torch_orders.sort,
        aten.squeeze.dim: _squeezed,
        aten.squeeze.dims: _squeezed,
        aten.topk.default: torch_orders.top_k,
    }


def _primitives() -> dict[Any, Callable[..., Any]]:
    """Return conversions of operators that occur when PyTorch decomposes other operators."""
    prims = torch.ops.prims
    return {
        prims.bessel_i0.default: partial(torch_special.bessel, 0, False),
        prims.bessel_i0e.default: partial(torch_special.bessel, 0, True),
        prims.bessel_i1.default: partial(torch_special.bessel, 1, False),
        prims.bessel_i1e.default: partial(torch_special.bessel, 1, True),
        prims.digamma.default: torch_special.digamma,
        prims.erf_inv.default: torch_special.erf_inverse,
        prims.fmax.default: partial(_of_numbers, op.Max),
        prims.fmin.default: partial(_of_numbers, op.Min),
        prims.frexp.default: torch_floats.fraction_and_exponent,
        prims.gcd.default: _gcd,
        prims.hypot.default: _hypot,
        prims.lgamma.default: torch_special.log_gamma,
        prims.ndtri.default: torch_special.normal_quantile,
        prims.nextafter.default: torch_floats.next_after,
        prims.signbit.default: _sign_bit,
    }


def _clamps_and_sums() -> dict[Any, Callable[..., Any]]:
    """Return the conversions of `clamp`, and of sums with a product."""
    aten = torch.ops.aten
    return {
        aten.addbmm.default: partial(torch_algebra.added_product, True),
        aten.addmv.default: partial(torch_algebra.added_product, False),
        aten.baddbmm.default: partial(torch_algebra.added_product, False),
        aten.clamp.default: torch_floats.clamped,
        aten.clamp_max.default: torch_floats.clamped_above,
        aten.clamp_max.Tensor: torch_floats.clamped_above,
        aten.clamp_min.default: torch_floats.clamped,
        aten.clamp_min.Tensor: torch_floats.clamped,
    }


def _logarithms() -> dict[Any, Callable[..., Any]]:
    """Return the conversions of logarithms, and of other functions with exponentials."""
    aten = torch.ops.aten
    return {
        aten.erfc.default: torch_logarithms.complement,
        aten.expm1.default: _expm1,
        aten.log1p.default: _log1p,
        aten.log_sigmoid.default: torch_logarithms.log_sigmoid,
        aten.logaddexp.default: torch_logarithms.log_of_sum,
        aten.logaddexp2.default: torch_logarithms.log2_of_sum,
        aten.logcumsumexp.default: torch_logarithms.log_of_cumulative_sum,
        aten.logit.default: torch_logarithms.log_of_odds,
        aten.special_erfcx.default: torch_logarithms.scaled_complement,
    }


def _windows() -> dict[Any, Callable[..., Any]]:
    """Return the conversions of window functions, such as `hann_window`."""
    return {
        getattr(packet, kind): partial(_window, getattr(torch, name))
        for name in (
            f"{kind}_window" for kind in ("bartlett", "blackman", "hamming", "hann", "kaiser")
        )
        for packet in [getattr(torch.ops.aten, name)]
        for kind in packet.overloads()
        if not kind.endswith("out")
    }


def check_program(program: Any, origin: str) -> None:
    """Refuse a program that PyTorch's exporter would convert wrongly, without an error.

    Raises
    ------
    UnsupportedModelError
        The program returns something that is not a tensor, or the exporter would convert a node
        wrongly. The message names the node.
    """
    for output in program.graph_signature.user_outputs:
        if output is not None and not isinstance(output, str):
            raise UnsupportedModelError(
                f"{origin} returns `{output}`, which is not a tensor: return tensors only"
            )
    _check_types(program, origin)
    graphs = (module for module in program.graph_module.modules() if hasattr(module, "graph"))
    for node in (node for module in graphs for node in module.graph.nodes):
        found = _fault(node) if node.op == "call_function" else None
        if found is not None:
            raise UnsupportedModelError(f"{origin}: node `{node.name}` {found}")


def _check_types(program: Any, origin: str) -> None:
    """Refuse a program that takes or returns complex numbers, which ONNX has only as pairs."""
    signature = program.graph_signature
    names = {"takes": signature.user_inputs, "returns": signature.user_outputs}
    functions = {"takes": "view_as_complex", "returns": "view_as_real"}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    for verb, each in ((verb, each) for verb, given in names.items() for each in given):
        value = values.get(each) if isinstance(each, str) else None
        if isinstance(value, torch.Tensor) and value.is_complex():
            raise UnsupportedModelError(
                f"{origin} {verb} complex numbers, `{each}`: use `torch.{functions[verb]}` in the "
                "module, so that the numbers are pairs of floats outside of it"
            )


def _fault(node: Any) -> str | None:
    """Say why a node would be converted wrongly; return None if it would be converted correctly."""
    aten = torch.ops.aten
    name = str(node.target)
    given = dict(enumerate(node.args))
    if node.target in (aten.avg_pool2d.default, aten.avg_pool3d.default):
        if node.kwargs.get("divisor_override", given.get(6)) is not None:
            return (
                "has `divisor_override`, which PyTorch's exporter to ONNX ignores: pool without "
                "it, and scale the result"
            )
    elif name.startswith("aten.adaptive_max_pool"):
        parts = [user for user in node.users if user.target is operator.getitem and user.users]
        if any(part.args[1] == 1 for part in parts):
            return (
                "returns the positions of maxima, which are not converted: return only the maxima"
            )
    elif name.endswith("2d_aa.vec"):
        if given.get(2):
            return (
                "resizes with both `antialias` and `align_corners`, which ONNX does not have in "
                "PyTorch's form: leave one of the two out"
            )
    elif node.target is aten.as_strided.default:
        if _reads_beyond(*node.args, **node.kwargs):
            return (
                "reads the memory of a tensor that is a part or a view of another one, which "
                "ONNX does not have: call `.contiguous()` before `as_strided`, or use `unfold`"
            )
    elif name.startswith("aten.multilabel_margin_loss"):
        return (
            "is a `multilabel_margin_loss`, which PyTorch's exporter to ONNX gets wrong: compute "
            "the loss outside of the model"
        )
    elif "batch_norm" in name and given.get(3) is not None and given.get(5) is True:
        return (
            "normalises with the statistics of the batch, and PyTorch's exporter to ONNX takes the "
            "running ones instead: export the module after `.eval()`"
        )
    return None


def _reads_beyond(x: Any, size: Any, stride: Any, storage_offset: Any = None) -> bool:
    """Whether `as_strided` reads `x` in another order than its own, or beyond its elements."""
    value = x.meta["val"]
    # Without an offset, PyTorch begins at the first element of `x`.
    if not value.is_contiguous() or (storage_offset is not None and value.storage_offset() != 0):
        return True
    ends = (storage_offset or 0, *(step * (n - 1) for step, n in zip(stride, size, strict=True)))
    known = all(isinstance(each, int) for each in (*ends, value.numel()))
    return known and sum(ends) >= value.numel()


def _add(x: Any, y: Any, alpha: Any = 1) -> Any:
    """Convert `add`. PyTorch's own exporter adds booleans, which ONNX does not."""
    if x.dtype == TensorProto.BOOL:
        return op.Identity(x) if not alpha else op.Or(x, op.CastLike(y, x))
    other = y if hasattr(y, "shape") else op.CastLike(y, x)
    return op.Add(x, other if alpha == 1 else op.Mul(other, op.CastLike(alpha, x)))


def _copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
    """Convert `copy`. The exporter's own conversion does not broadcast `source` to the shape of
    `x`.
    """
    del non_blocking
    result = op.CastLike(source, x)
    is_same = tuple(source.shape) == tuple(x.shape)
    return result if is_same else op.Expand(result, op.Shape(x))


def _squeezed(x: Any, dims: int | Sequence[int]) -> Any:
    """Convert `squeeze`. PyTorch does not change dimensions whose size is not 1."""
    given = [dims] if isinstance(dims, int) else list(dims)
    axes = [axis for axis in given if len(x.shape) and x.shape[axis] == 1]
    return op.Squeeze(x, ints(*axes)) if axes else op.Identity(x)


def _sign(x: Any) -> Any:
    """Convert `sign`, which is 0 for NaN in PyTorch."""
    if x.dtype == TensorProto.BOOL:
        return op.Identity(x)
    if not x.dtype.is_floating_point():
        return op.Sign(x)
    return op.Where(op.IsNaN(x), op.CastLike(op.Constant(value_float=0.0), x), op.Sign(x))


def _hypot(x: Any, y: Any) -> Any:
    """Convert `hypot`. The larger number is taken out of the root, so that no square overflows."""
    sides = op.Abs(x), op.Abs(y)
    larger, smaller = op.Max(*sides), op.Min(*sides)
    one = op.CastLike(op.Constant(value_float=1.0), x)
    is_zero_or_infinite = op.Or(op.Equal(larger, op.Add(larger, larger)), op.IsNaN(smaller))
    ratio = op.Div(smaller, op.Where(is_zero_or_infinite, one, larger))
    length = op.Mul(larger, op.Sqrt(op.Add(op.Mul(ratio, ratio), one)))
    return op.Where(is_zero_or_infinite, op.Add(larger, smaller), length)


def _whether(reduce: Any, x: Any) -> Any:
    """Convert the test of `torch._check_tensor_all`: whether all booleans are true, or any."""
    return as_given(reduce(as_numbers(x, x.dtype), keepdims=0), x.dtype)


def _extreme(reduce: Any, x: Any, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    if not len(x.shape):
        return op.Identity(x)
    axes = ints(*(dim or range(len(x.shape))))
    return as_given(reduce(as_numbers(x, x.dtype), axes, keepdims=int(keepdim)), x.dtype)


def _log1p(x: Any) -> Any:
    """Convert `log1p`. The exporter's own formula rounds `1 + x` and gives 0 for a small x.

    A quotient corrects the rounding error of `1 + x` (Higham, "Accuracy and Stability of Numerical
    Algorithms", 2nd edition, problem 1.5).
    """
    one = op.CastLike(op.Constant(value_float=1.0), x)
    sum_ = op.Add(x, one)
    rounded = op.Sub(sum_, one)
    corrected = op.Mul(op.Log(sum_), op.Div(x, rounded))
    exact = op.Where(op.Equal(rounded, x), op.Log(sum_), corrected)
    return op.Where(op.Equal(sum_, one), x, exact)


def _expm1(x: Any) -> Any:
    """Convert `expm1`. The exporter's own formula gives 0 for a small x.

    A quotient corrects the rounding error of the exponential (section 1.14.1 of Higham's book, see
    `_log1p`).
    """
    one = op.CastLike(op.Constant(value_float=1.0), x)
    power = op.Exp(x)
    difference = op.Sub(power, one)
    corrected = op.Mul(difference, op.Div(x, op.Log(power)))
    is_exact = op.Or(op.Equal(difference, power), op.Equal(difference, op.Neg(one)))
    return op.Where(op.Equal(power, one), x, op.Where(is_exact, difference, corrected))


def _masked_select(x: Any, mask: Any) -> Any:
    wide = op.Expand(x, op.Shape(mask)) if len(mask.shape) > len(x.shape) else x
    numbers = [op.Cast(each, to=TensorProto.FLOAT) for each in (wide, mask)]
    shape = op.Shape(op.Add(*numbers))
    places = op.NonZero(op.Expand(mask, shape))
    return op.GatherND(op.Expand(x, shape), op.Transpose(places))


def _cdist(x: Any, y: Any, p: float, mode: int | None = None) -> Any:
    """Convert `cdist`: the p-norm of the difference of each row of `x` and each row of `y`."""
    del mode
    return _norms(op.Sub(op.Unsqueeze(x, ints(-2)), op.Unsqueeze(y, ints(-3))), p)


def _pdist(x: Any, p: float = 2.0) -> Any:
    """Convert `pdist`: the p-norm of the difference of each pair of rows of `x`."""
    (count,) = fixed_sizes(x.shape, [0])
    pairs = np.triu_indices(count, 1)
    first, second = (op.Gather(x, op.Constant(value_ints=each.tolist())) for each in pairs)
    return _norms(op.Sub(first, second), p)


def _norms(differences: Any, p: float) -> Any:
    """Return the p-norm of each row."""
    differences = op.Abs(differences)
    last = ints(-1)
    if p == 0:
        marks = op.Cast(op.Greater(differences, op.Constant(value_float=0.0)), to=TensorProto.FLOAT)
        return op.ReduceSum(marks, last, keepdims=0)
    if p == 1:
        return op.ReduceSum(differences, last, keepdims=0)
    if p == 2:
        return op.ReduceL2(differences, last, keepdims=0)
    if math.isinf(p):
        return op.ReduceMax(differences, last, keepdims=0)
    powers = op.Pow(differences, op.Constant(value_float=p))
    sums = op.ReduceSum(powers, last, keepdims=0)
    return op.Pow(sums, op.Constant(value_float=1 / p))


def _gcd(x: Any, y: Any) -> Any:
    """Convert `gcd` by Euclid's algorithm.

    The number of steps is enough for all integers of the type.
    """
    zero, one = (op.CastLike(op.Constant(value_int=value), x) for value in (0, 1))
    zeros = op.Mul(op.Add(x, y), zero)
    larger, smaller = op.Add(op.Abs(x), zeros), op.Add(op.Abs(y), zeros)
    for _ in range(_EUCLID_STEPS[8 * x.dtype.itemsize]):
        is_done = op.Equal(smaller, zero)
        rest = op.Mod(larger, op.Where(is_done, one, smaller))
        larger = op.Where(is_done, larger, smaller)
        smaller = op.Where(is_done, zero, rest)
    return larger


def _sign_bit(x: Any) -> Any:
    """Convert `signbit`, which is true for negative zero too."""
    wide = op.Cast(x, to=TensorProto.FLOAT)
    zero = op.Constant(value_float=0.0)
    is_negative_zero = op.And(op.Equal(wide, zero), op.Less(op.Reciprocal(wide), zero))
    return op.Or(op.Less(wide, zero), is_negative_zero)


def _of_numbers(compare: Any, x: Any, y: Any) -> Any:
    """Return `compare(x, y)`, such as the maximum. Where one of the two numbers is NaN, return the
    other one.
    """
    if not x.dtype.is_floating_point():
        return compare(x, y)
    return op.Where(op.IsNaN(x), y, op.Where(op.IsNaN(y), x, compare(x, y)))


def _window(window: Callable[..., torch.Tensor], *given: Any, dtype: int = -1, **_: Any) -> Any:
    """Convert a window function to a constant. ONNX lacks some of PyTorch's window functions, and
    computes others with another coefficient.
    """
    numbers = op.Constant(value=numpy_helper.from_array(window(*given).numpy()))
    return numbers if dtype == -1 else op.Cast(numbers, to=dtype)


def _in_cells(reduce: Any, x: Any, output_size: Sequence[int]) -> Any:
    """Divide the last dimensions into a grid of cells, and reduce each cell, one dimension at a
    time.
    """
    shape = x.shape
    for axis, count in zip(range(-len(output_size), 0), output_size, strict=True):
        if count == 1:
            x = reduce(x, ints(axis), keepdims=1)
            continue
        (size,) = fixed_sizes(shape, [axis])
        ends = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        parts = [op.Slice(x, ints(a), ints(b), ints(axis)) for a, b in ends]
        x = op.Concat(*(reduce(part, ints(axis), keepdims=1) for part in parts), axis=axis)
    return x


def _adaptive_max_pool(x: Any, output_size: Sequence[int]) -> Any:
    """Convert the maxima of an adaptive pooling. `check_program` refuses a program that uses the
    positions of the maxima.
    """
    return _in_cells(op.ReduceMax, x, output_size), op.Constant(value_int=0)


def _cumprod(x: Any, dim: int, dtype: int = -1) -> Any:
    """Convert `cumprod`. Each step multiplies neighbouring products, so that every product covers
    twice as many elements as before.
    """
    rank = len(x.shape)
    size = fixed_sizes(x.shape, [dim])[0] if rank else 1
    pads = [0] * (2 * rank)
    if dtype != -1:
        x = op.Cast(x, to=dtype)
    elif not x.dtype.is_floating_point():
        x = op.Cast(x, to=TensorProto.INT64)
    one = op.CastLike(op.Constant(value_int=1), x)
    for step in itertools.takewhile(lambda n: n < size, (1 << i for i in itertools.count())):
        pads[dim % rank] = step
        earlier = op.Slice(op.Pad(x, ints(*pads), one), ints(0), ints(size), ints(dim))
        x = op.Mul(x, earlier)
    return op.Identity(x)
