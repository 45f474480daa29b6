"""Folds batch norms, and scales and shifts of channels, into the preceding convolution.

TVM's `FoldBatchnormToConv2D` folds only a batch norm that directly follows a convolution without a
bias. TVM's `FoldConstant` compiles a kernel for each constant that it computes, which takes most of
the time of lowering a network. Here the constants are computed with NumPy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from .names import NewBindings, replace_bindings, values_of
from .static_shape import static_shape

_CONVS = {tvm.ir.Op.get(f"relax.nn.conv{rank}d") for rank in (1, 2, 3)}
_BATCH_NORM = tvm.ir.Op.get("relax.nn.batch_norm")
_VIEWS = {tvm.ir.Op.get(f"relax.{name}") for name in ("reshape", "expand_dims", "squeeze")}
_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = (
    tvm.ir.Op.get(f"relax.{name}") for name in ("add", "subtract", "multiply", "divide")
)

_SCALES_AND_SHIFTS = {_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE}

_Array = npt.NDArray[np.float64]


@module_pass(opt_level=0, name="FoldAffine")
class FoldAffine:
    """Fold each chain of batch norms, scales and shifts of channels into the convolution before it.

    The weights of the convolution, which must be constant, are multiplied by the scale of the
    chain, and one shift follows. Without a convolution, each batch norm becomes one scale and one
    shift, and other operators stay as they are. A value is folded only if it has a single use. The
    convolution and the last value of the chain keep their names.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Fold the scales and shifts of `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        folded = mod.clone()
        folded.update_func(
            folded.get_global_var("main"), replace_bindings(main, _Chains(main).rewritten)
        )
        return folded


@dataclass(frozen=True)
class _Chain:
    """A chain of operators that computes `source * scale + shift` for each channel.

    Attributes
    ----------
    scale, shift: one number for each channel.
    """

    source: relax.Var
    scale: _Array
    shift: _Array


class _Chains:
    """The variables of a function that equal another variable times a scale plus a shift."""

    def __init__(self, main: relax.Function) -> None:
        self._values = values_of(main)
        self._uses: Counter[relax.Var] = Counter()
        for expr in (*self._values.values(), main.body.body):
            self._uses.update(_operands(expr))
        self._chains: dict[relax.Var, _Chain] = {}
        for var, value in self._values.items():
            chain = self._extended(var, value)
            if chain is not None:
                self._chains[var] = chain

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`; a later pass removes bindings that nothing reads."""
        chain = self._chains.get(binding.var)
        conv = self._foldable_conv(chain.source) if chain else None
        if conv is None:
            return self._norm_alone(binding)
        assert chain is not None
        var, dtype = binding.var, str(binding.var.ty.dtype)
        rank = len(var.ty.shape)
        builder = relax.BlockBuilder()
        weight = conv.args[1].value.numpy()
        scaled = weight * chain.scale.reshape(-1, *[1] * (rank - 1))
        new = _constant(scaled, dtype)
        # The new weights have the type of the old ones, so the type of the result is known.
        same = tvm_ffi.structural_equal(new.ty, conv.args[1].ty)
        known = conv.ty if same else None
        call = relax.Call(conv.op, [conv.args[0], new], conv.attrs, ret_ty=known)
        call = builder.normalize(call)
        inner = relax.DataflowVar(chain.source.name, call.ty)
        result = relax.op.add(inner, _constant(_spread(chain.shift, rank), dtype))
        return [relax.VarBinding(inner, call), relax.VarBinding(var, builder.normalize(result))]

    def _norm_alone(self, binding: relax.Binding) -> list[relax.Binding]:
        """Replace a batch norm that does not follow a convolution by one scale and one shift.

        All other operators stay, because they are computed in the order that the model gives. A
        norm of float16 is computed in float32: if its scale and its shift nearly cancel, few
        correct digits would remain.
        """
        var, value = binding.var, self._values.get(binding.var)
        shape = static_shape(var.ty)
        if not isinstance(value, relax.TupleGetItem) or value.index != 0 or len(shape or ()) < 3:
            return [binding]
        found = self._from_batch_norm(self._values.get(value.tuple_value))
        if found is None:
            return [binding]
        (data, *factors), dtype, rank = found, str(var.ty.dtype), len(shape or ())
        wide = "float32" if dtype == "float16" else dtype
        scale, shift = (_constant(_spread(each, rank), wide) for each in factors)
        new, name = NewBindings(), var.name
        if wide != dtype:
            data = new.bind(relax.op.astype(data, wide), name)
        result = new.bind(relax.op.multiply(data, scale), name)
        result = new.bind(relax.op.add(result, shift), name)
        if wide != dtype:
            new.bind(relax.op.astype(result, dtype), name)
        return new.defining(var)

    def _extended(self, var: relax.Var, value: relax.Expr) -> _Chain | None:
        """The chain that ends in `var`; None if `value` is not a scaling or shift by constants."""
        shape = static_shape(var.ty)
        if shape is None or len(shape) < 3:
            return None
        channels = shape[1]
        found = self._as_scale_and_shift(value, len(shape), channels)
        if found is None:
            return None
        source, scale, shift = found
        before = self._chains.get(source)
        if before is None or self._uses[source] > 1:
            before = _Chain(source, np.ones(channels), np.zeros(channels))
        return _Chain(before.source, before.scale * scale, before.shift * scale + shift)

    def _as_scale_and_shift(
        self, value: relax.Expr, rank: int, channels: int
    ) -> tuple[relax.Var, _Array, _Array] | None:
        if isinstance(value, relax.TupleGetItem) and value.index == 0:
            return self._from_batch_norm(self._values.get(value.tuple_value))
        if not isinstance(value, relax.Call) or value.op not in _SCALES_AND_SHIFTS:
            return None
        source, other = value.args
        if value.op in (_ADD, _MULTIPLY) and self._array(source) is not None:
            source, other = other, source
        array = self._by_channel(other, rank, channels)
        if array is None or not isinstance(source, relax.Var) or not _is_float(source):
            return None
        shape = static_shape(source.ty)
        if shape is None or len(shape) != rank or shape[1] != channels:
            return None  # The operator broadcasts `source` to a larger shape.
        one, zero = np.ones(channels), np.zeros(channels)
        effects = {
            _ADD: (one, array),
            _SUBTRACT: (one, -array),
            _MULTIPLY: (array, zero),
        }
        if value.op == _DIVIDE and np.all(array != 0):
            return source, 1 / array, zero
        return (source, *effects[value.op]) if value.op in effects else None

    def _from_batch_norm(self, norm: relax.Expr | None) -> tuple[relax.Var, _Array, _Array] | None:
        if not isinstance(norm, relax.Call) or norm.op != _BATCH_NORM:
            return None
        attrs = norm.attrs
        arrays = [self._array(arg) for arg in norm.args[1:5]]
        if attrs.training or int(attrs.axis) != 1 or not isinstance(norm.args[0], relax.Var):
            return None
        if any(array is None for array in arrays):
            return None
        gamma, beta, mean, variance = (np.asarray(array, np.float64).ravel() for array in arrays)
        scale = 1 / np.sqrt(variance + float(attrs.epsilon))
        scale = scale * gamma if attrs.scale else scale
        shift = -mean * scale + (beta if attrs.center else 0)
        return norm.args[0], scale, shift

    def _foldable_conv(self, source: relax.Var) -> relax.Call | None:
        conv = self._values.get(source)
        if not isinstance(conv, relax.Call) or conv.op not in _CONVS or self._uses[source] > 1:
            return None
        layouts = conv.attrs.data_layout[:2], conv.attrs.kernel_layout[:2]
        is_constant = isinstance(conv.args[1], tvm.ir.GenericConst)
        return conv if layouts == ("NC", "OI") and is_constant and _is_float(source) else None

    def _array(self, expr: relax.Expr) -> npt.NDArray[np.generic] | None:
        """The array of `expr` if it is a constant or a reshape of a constant; else None."""
        if isinstance(expr, tvm.ir.GenericConst) and isinstance(expr.ty, relax.TensorType):
            array: npt.NDArray[np.generic] = expr.value.numpy()
            return array
        value = self._values.get(expr) if isinstance(expr, relax.Var) else None
        if isinstance(value, relax.Call) and value.op in _VIEWS:
            viewed, shape = self._array(value.args[0]), static_shape(expr.ty)
            return None if viewed is None or shape is None else viewed.reshape(shape)
        return None

    def _by_channel(self, expr: relax.Expr, rank: int, channels: int) -> _Array | None:
        """The constant `expr` as one number for each channel; None if it varies along another
        axis.
        """
        array = self._array(expr)
        if array is None or array.ndim > rank or array.dtype.kind != "f":
            return None
        shape = (1,) * (rank - array.ndim) + array.shape
        if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
            return None
        return np.broadcast_to(array.astype(np.float64).ravel(), channels)


def _operands(expr: relax.Expr) -> list[relax.Var]:
    if isinstance(expr, relax.Var):
        return [expr]
    if isinstance(expr, relax.TupleGetItem):
        return _operands(expr.tuple_value)
    parts = expr.args if isinstance(expr, relax.Call) else getattr(expr, "fields", [])
    return [var for part in parts[:] for var in _operands(part)]


def _is_float(var: relax.Var) -> bool:
    return isinstance(var.ty, relax.TensorType) and str(var.ty.dtype) in (
        "float16",
        "float32",
        "float64",
    )


def _spread(by_channel: _Array, rank: int) -> _Array:
    return by_channel.reshape(1, -1, *[1] * (rank - 2))


def _constant(array: _Array, dtype: str) -> relax.Expr:
    return relax.const(array.astype(dtype), dtype)
