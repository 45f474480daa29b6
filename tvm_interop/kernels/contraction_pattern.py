"""Recognises a convolution or a matrix product in a kernel, with its padding and its epilogue.

Convolutions and matrix products are both called contractions here. The epilogue of a contraction
consists of the element-wise operators that follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .bfloat16_words import widened
from .expressions import only_block
from .loops import unravelled

_SPATIAL, _SUMMED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


@dataclass(frozen=True)
class Contraction:
    """A convolution in NCHW, or a matrix product described as a convolution.

    The product of an M x K and a K x N matrix is described as a 1x1 convolution with M output
    channels. The input is an image with K channels and a single row of N pixels.

    Attributes
    ----------
    in_channels, out_channels: the number of channels in each group.
    padding: the number of padding rows above the image and of padding columns to its left. The
        padding below and to the right follows from `in_size` and `out_size`.
    data_at: the expression for the input at (image, channel, row, column), where row 0 and column 0
        are the first row and column that are not padding. The expression has one load. It may
        convert the loaded number from bfloat16.
    weight_at: the same for the weight at (image, output channel, input channel, kernel row, kernel
        column).
    product: a function that multiplies an input and a weight, in the kernel's order of operands.
    """

    dtype: str
    batch: int
    groups: int
    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int]
    padding_value: tirx.Expr
    has_padding: bool
    data_at: Callable[[Any, Any, Any, Any], tirx.Expr]
    weight_at: Callable[[Any, Any, Any, Any, Any], tirx.Expr]
    product: Callable[[Any, Any], tirx.Expr]


@dataclass(frozen=True)
class Epilogue:
    """Element-wise operators on a contraction's result, as one store statement.

    Attributes
    ----------
    source: the buffer of the contraction's result, which `value` reads at `indices`.
    output: the buffer that the epilogue writes at `indices`.
    value: the expression that the epilogue stores.
    indices_at: a function of an image, a channel, a row and a column that gives the indices of this
        element in `source` and in `output`.
    """

    source: Any
    output: Any
    indices: tuple[tirx.Var, ...]
    value: tirx.Expr
    indices_at: Callable[[Any, Any, Any, Any], list[Any]]

    def store(self, position: list[Any], result: tirx.Expr) -> tirx.Stmt:
        """The statement that stores the value at an image, channel, row and column.

        Parameters
        ----------
        position: the image, channel, row and column.
        result: the contraction's result at this position.
        """
        where = self.indices_at(*position)

        def replace_load(load: Any) -> tirx.Expr:
            return result if load.source.same_as(self.source) else load

        def replace_var(var: tirx.Var) -> tirx.Expr:
            found = [e for v, e in zip(self.indices, where, strict=True) if v.same_as(var)]
            return found[0] if found else var

        value = tvm_ffi.structural_map(
            self.value, [(tvm.ir.TensorLoad, replace_load), (tirx.Var, replace_var)], order="pre"
        )
        return tirx.BufferStore(self.output, value, where)


def find_contraction(func: tirx.PrimFunc) -> tuple[Contraction, Epilogue] | None:
    """The contraction and the epilogue that `func` consists of.

    Parameters
    ----------
    func: a kernel whose element-wise blocks after the contraction are inlined into one block.

    Returns
    -------
    The contraction and its epilogue; None if the kernel has another form or contains more blocks.
    """
    root = func.body.block
    nests = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    blocks = [only_block(nest) for nest in nests]
    summed = [i for i, block in enumerate(blocks) if block is not None and block.init is not None]
    if None in blocks or len(summed) != 1 or len(blocks) - summed[0] > 2:
        return None
    matcher = _Matcher()
    block: Any = blocks[summed[0]]
    before, after = blocks[: summed[0]], blocks[summed[0] + 1 :]
    terms = matcher.terms(block)
    if terms is None:
        return None
    if len(terms.summed) == 3:
        op, indices_at = matcher.convolution(terms, before), lambda n, c, y, x: [n, c, y, x]
    else:
        op, indices_at = matcher.product(terms, before), matcher.matrix_indices(terms)
    epilogue = matcher.epilogue(block.body.buffer, after, indices_at)
    return None if op is None or epilogue is None else (op, epilogue)


@dataclass(frozen=True)
class _Factor:
    """One of two numbers that are multiplied.

    Attributes
    ----------
    load: the expression that loads the number.
    convert: a function that converts the loaded number to the type of the product.
    """

    load: Any
    convert: Callable[[tirx.Expr], tirx.Expr] | None = None

    def at(self, indices: list[Any]) -> tirx.Expr:
        """The number at other indices than those of `load`."""
        loaded = tirx.BufferLoad(self.load.source, indices)
        return loaded if self.convert is None else self.convert(loaded)


@dataclass(frozen=True)
class _Terms:
    """A block that adds up `data * weight`.

    Attributes
    ----------
    spatial, summed: the variables of the spatial axes and of the axes that are summed over.
    extents: the sizes of all axes, spatial axes first.
    """

    spatial: list[tirx.Var]
    summed: list[tirx.Var]
    extents: list[int]
    dtype: str
    data: _Factor
    weight: _Factor


class _Matcher:
    def __init__(self) -> None:
        self._analyzer = tvm.sym.Analyzer()

    def terms(self, block: s_tir.SBlock) -> _Terms | None:
        """The products whose sum `block` computes; None if it computes anything else."""
        axes = [var.var for var in block.iter_vars]
        kinds = [var.iter_type for var in block.iter_vars]
        outer = len([kind for kind in kinds if kind == _SPATIAL])
        store = block.body
        if kinds != [_SPATIAL] * outer + [_SUMMED] * (len(kinds) - outer):
            return None
        if not isinstance(store, tirx.BufferStore) or not _is_zero(block.init):
            return None
        dtype = str(store.buffer.dtype)
        value = store.value
        is_sum = isinstance(value, tirx.Add) and isinstance(value.b, tirx.Mul)
        if dtype not in ("float32", "float64") or not is_sum:
            return None
        total, data, weight = value.a, _factor(value.b.a), _factor(value.b.b)
        if not isinstance(total, tvm.ir.TensorLoad) or data is None or weight is None:
            return None
        is_plain = self._same(store.indices, axes[:outer]) and self._same(
            total.indices, axes[:outer]
        )
        if not is_plain or not total.source.same_as(store.buffer):
            return None
        extents = [int(var.dom.extent) for var in block.iter_vars]
        return _Terms(axes[:outer], axes[outer:], extents, dtype, data, weight)

    def convolution(self, terms: _Terms, before: list[s_tir.SBlock]) -> Contraction | None:
        data, weight = terms.data.load, terms.weight.load
        if terms.data.convert or terms.weight.convert or len(before) > 1:
            return None
        if len(terms.spatial) != 4 or len(data.indices) != 4:
            return None
        (n, f, y, x), (c, ky, kx) = terms.spatial, terms.summed
        batch, all_out, out_h, out_w, in_channels, kh, kw = terms.extents
        channels = int(data.source.ty.shape[1])
        if channels % in_channels or all_out % (channels // in_channels):
            return None
        groups = channels // in_channels
        out_channels = all_out // groups
        rows = self._stride_and_dilation(data.indices[2], y, ky, kh)
        columns = self._stride_and_dilation(data.indices[3], x, kx, kw)
        channel = tirx.floordiv(f, out_channels) * in_channels + c if groups > 1 else c
        self._bind(terms.spatial + terms.summed, terms.extents)
        if rows is None or columns is None:
            return None
        if not self._same(data.indices[:2], [n, channel]):
            return None
        if not self._same(weight.indices, [f, c, ky, kx]):
            return None
        padded: _Padding | None = _no_padding(data.source, terms.dtype)
        if before:
            padded = self._padding(before[0], data.source)
        if padded is None:
            return None
        image, kernels = padded.image, weight.source
        return Contraction(
            dtype=terms.dtype,
            batch=batch,
            groups=groups,
            in_channels=in_channels,
            out_channels=out_channels,
            in_size=(int(image.ty.shape[2]), int(image.ty.shape[3])),
            out_size=(out_h, out_w),
            kernel=(kh, kw),
            stride=(rows[0], columns[0]),
            dilation=(rows[1], columns[1]),
            padding=padded.before,
            padding_value=padded.value,
            has_padding=bool(before),
            data_at=lambda n, c, y, x: tirx.BufferLoad(image, [n, c, y, x]),
            weight_at=lambda n, f, c, y, x: tirx.BufferLoad(kernels, [f, c, y, x]),
            product=lambda a, b: a * b,
        )

    def product(self, terms: _Terms, before: list[s_tir.SBlock]) -> Contraction | None:
        """The matrix product, or the batch of matrix products, that `terms` describes.

        Return None if `terms` describes another computation than a matrix product. `before` has the
        blocks before the product. They may only convert the factors of a matrix and a vector from
        bfloat16. The product then converts each number whenever it loads the number.
        """
        if len(terms.summed) != 1 or len(terms.spatial) < 2:
            return None
        *batch, i, j = terms.spatial
        (k,) = terms.summed
        *batch_extents, m, n, depth = terms.extents
        left, right = terms.data, terms.weight
        if not (
            self._is_matrix(left.load, batch, [i, k]) and self._is_matrix(right.load, batch, [k, j])
        ):
            return None
        if before and min(m, n) > 1:
            return None
        for block in before:
            whole = [self._widened(factor, block) for factor in (left, right)]
            if whole == [None, None]:
                return None
            left, right = whole[0] or left, whole[1] or right

        def at(factor: _Factor, image: Any, row: Any, column: Any) -> tirx.Expr:
            where = unravelled(image, batch_extents)
            indices = [
                next((e for v, e in zip(batch, where, strict=True) if v.same_as(index)), index)
                for index in factor.load.indices[:-2]
            ]
            return factor.at([*indices, row, column])

        return Contraction(
            dtype=terms.dtype,
            batch=prod(batch_extents),
            groups=1,
            in_channels=depth,
            out_channels=m,
            in_size=(1, n),
            out_size=(1, n),
            kernel=(1, 1),
            stride=(1, 1),
            dilation=(1, 1),
            padding=(0, 0),
            padding_value=tirx.const(0, terms.dtype),
            has_padding=False,
            data_at=lambda image, c, y, x: at(right, image, c, x),
            weight_at=lambda image, f, c, y, x: at(left, image, f, c),
            product=lambda data, weight: weight * data,
        )

    def _widened(self, factor: _Factor, block: s_tir.SBlock) -> _Factor | None:
        """`factor`, read from the tensor that `block` converts; None if `block` does not make it.

        `block` must do nothing but convert each number of the tensor from bfloat16.
        """
        store = block.body
        if not isinstance(store, tirx.BufferStore) or block.init is not None or factor.convert:
            return None
        inner, axes = _factor(store.value), [var.var for var in block.iter_vars]
        if inner is None or inner.convert is None or not store.buffer.same_as(factor.load.source):
            return None
        self._bind(axes, [int(var.dom.extent) for var in block.iter_vars])
        if not (self._same(store.indices, axes) and self._same(inner.load.indices, axes)):
            return None
        return _Factor(tirx.BufferLoad(inner.load.source, factor.load.indices), inner.convert)

    def matrix_indices(self, terms: _Terms) -> Callable[[Any, Any, Any, Any], list[Any]]:
        batch = terms.extents[: len(terms.spatial) - 2]
        return lambda n, c, y, x: [*unravelled(n, batch), c, x]

    def epilogue(
        self, result: Any, after: list[s_tir.SBlock], indices_at: Callable[..., list[Any]]
    ) -> Epilogue | None:
        shape = [int(size) for size in result.ty.shape]
        if not after:
            own = tuple(tirx.Var(f"i{d}", "int64") for d in range(len(shape)))
            return Epilogue(result, result, own, tirx.BufferLoad(result, own), indices_at)
        block = after[0]
        axes = [var.var for var in block.iter_vars]
        store = block.body
        if not isinstance(store, tirx.BufferStore) or block.init is not None:
            return None
        if any(var.iter_type != _SPATIAL for var in block.iter_vars):
            return None
        if [int(var.dom.extent) for var in block.iter_vars] != shape:
            return None
        self._bind(axes, shape)
        loads: list[Any] = []
        tvm_ffi.structural_walk(store.value, (tvm.ir.TensorLoad, loads.append))
        of_result = [load for load in loads if load.source.same_as(result)]
        others = [load for load in loads if load.source.same_as(store.buffer)]
        is_plain = self._same(store.indices, axes) and not others and bool(of_result)
        if not is_plain or not all(self._same(load.indices, axes) for load in of_result):
            return None
        return Epilogue(result, store.buffer, tuple(axes), store.value, indices_at)

    def _stride_and_dilation(
        self, index: tirx.Expr, pixel: tirx.Var, element: tirx.Var, elements: int
    ) -> tuple[int, int] | None:
        """The stride and dilation for which `index` is `pixel * stride + element * dilation`.

        The result is None if `index` has another form. The dilation is 1 if the kernel has only one
        element along this axis.
        """
        linear = tvm.sym.detect_linear_equation(index, [pixel, element])
        if len(linear) != 3 or not all(isinstance(factor, tirx.IntImm) for factor in linear):
            return None
        stride, dilation, offset = (int(factor) for factor in linear)
        if elements == 1:
            dilation = 1
        return (stride, dilation) if min(stride, dilation) > 0 and offset == 0 else None

    def _is_matrix(self, load: Any, batch: list[tirx.Var], last: list[tirx.Var]) -> bool:
        """Whether `load` reads a matrix or one matrix of a batch.

        The last two indices of `load` must be `last`. Each other index must be a batch axis or a
        constant.
        """
        return self._same(load.indices[-2:], last) and all(
            isinstance(index, tirx.IntImm) or any(v.same_as(index) for v in batch)
            for index in load.indices[:-2]
        )

    def _padding(self, block: s_tir.SBlock, padded: Any) -> _Padding | None:
        """The padding that `block` adds to an image to make `padded`; None if there is none."""
        store = block.body
        if not isinstance(store, tirx.BufferStore) or not store.buffer.same_as(padded):
            return None
        axes = [var.var for var in block.iter_vars]
        choice = store.value
        is_choice = isinstance(choice, tvm.ir.Call) and choice.op.name == "prim.if_then_else"
        if not is_choice or len(axes) != 4 or not self._same(store.indices, axes):
            return None
        inside, load, value = choice.args
        if not isinstance(load, tvm.ir.TensorLoad) or not isinstance(value, tirx.FloatImm):
            return None
        before = [self._analyzer.simplify(a - i) for a, i in zip(axes, load.indices, strict=True)]
        if not all(isinstance(offset, tirx.IntImm) for offset in before):
            return None
        n, c, top, left = (int(offset) for offset in before)
        shape = [int(size) for size in load.source.ty.shape]
        extents = [int(var.dom.extent) for var in block.iter_vars]
        if (n, c) != (0, 0) or extents[:2] != shape[:2] or min(top, left) < 0:
            return None
        self._bind(axes, extents)
        y, x = axes[2:]
        within = tirx.all(y >= top, y < top + shape[2], x >= left, x < left + shape[3])
        simplify = self._analyzer.simplify
        if not tvm_ffi.structural_equal(simplify(inside), simplify(within)):
            return None
        return _Padding(load.source, (top, left), value)

    def _bind(self, axes: list[tirx.Var], extents: list[int]) -> None:
        for axis, extent in zip(axes, extents, strict=True):
            self._analyzer.bind(axis, tvm.ir.Range(0, extent), allow_override=True)

    def _same(self, got: Any, want: Any) -> bool:
        """Whether two lists of indices are equal."""
        return len(got) == len(want) and all(
            self._analyzer.can_prove_equal(a, b) for a, b in zip(got, want, strict=True)
        )


@dataclass(frozen=True)
class _Padding:
    image: Any
    before: tuple[int, int]
    value: tirx.Expr


def _no_padding(image: Any, dtype: str) -> _Padding:
    return _Padding(image, (0, 0), tirx.const(0, dtype))


def _factor(value: Any) -> _Factor | None:
    """Return `value` as a factor of a product, or None if it is more than a converted load."""
    if isinstance(value, tvm.ir.TensorLoad):
        return _Factor(value)
    loads: list[Any] = []
    tvm_ffi.structural_walk(value, (tvm.ir.TensorLoad, loads.append))
    if len(loads) != 1 or not tvm_ffi.structural_equal(value, widened(loads[0])):
        return None
    return _Factor(loads[0], widened)


def _is_zero(init: Any) -> bool:
    value = getattr(init, "value", None)
    return isinstance(value, tirx.FloatImm) and float(value.value) == 0.0
