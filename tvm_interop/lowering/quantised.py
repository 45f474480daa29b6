"""Computes the convolutions and matrix products of a quantised model in integers of 8 bits.

A model in QDQ format has operators on floats between `DequantizeLinear` and `QuantizeLinear`. For
example, a convolution or matrix product, a bias, and ReLU or clip may lie between the two. Such a
chain becomes one operator on integers that a kernel library computes. Operators that only move or
select numbers (reshapes, max-pooling, concatenations with one scale) work on the integers directly.
All other operators still compute in floats. The attribute `QUANTISED` has the number of operators
on integers, and the names of the operators on floats.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir.transform import PassContext, module_pass

from ..machine.kernel_libraries import is_supported
from ..program.library_op import LibraryOp, library_op
from .groups import DESCRIPTION, Dataflow
from .names import bindings_of, replace_bindings
from .quantised_chains import (
    DEQUANTIZE,
    QUANTIZE,
    Words,
    chain_of,
    described,
    epilogue,
    label,
    mean_of,
    name_of,
    rounding_after,
    step_of,
    variables,
)
from .quantised_constants import per_axis_weight
from .quantised_kernels import quantised_kernel
from .static_shape import permuted, static_rank, static_shape

QUANTISED = "tvm_interop.quantised"
"""The attribute of `main` that describes the operators that read quantised tensors, as JSON.

`int8` has the number of operators of each kind that are computed in integers. `floats` has the
names of the operators of each kind that are computed in floats.
"""

_FIRST_TO_LAST, _LAST_TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


@module_pass(opt_level=0, name="QuantisedProducts")
class QuantisedProducts:
    """Replace each chain of float operators between quantised tensors by one operator on integers.

    Parameters
    ----------
    libraries
        Loaded kernel libraries. A chain that none of them can compute is still computed in floats.
        If there are no libraries, the operators are only counted.
    """

    def __init__(self, libraries: Sequence[str]) -> None:
        self._libraries = tuple(libraries)

    def transform_module(self, mod: tvm.IRModule, ctx: PassContext) -> tvm.IRModule:
        """Rewrite `mod`; called by TVM's pass machinery."""
        main = mod["main"]
        if not any(name_of(getattr(b, "value", None)) == DEQUANTIZE for b in bindings_of(main)):
            return mod
        rewriter = _Rewriter(mod, Dataflow(main), self._libraries)
        function = replace_bindings(main, rewriter.rewritten)
        if not self._libraries:
            counted = mod.clone()
            report = json.dumps(rewriter.report())
            counted.update_func(counted.get_global_var("main"), main.with_attr(QUANTISED, report))
            return counted
        function = function.with_attr(QUANTISED, json.dumps(rewriter.report()))
        rewritten = rewriter.builder.get()
        rewritten.update_func(rewritten.get_global_var("main"), function)
        return relax.transform.DeadCodeElimination()(rewritten)


class _Rewriter:
    """Rewrites the bindings of a quantised model in order.

    Attributes
    ----------
    builder: a block builder with the functions of the module and the new functions.
    """

    def __init__(self, mod: tvm.IRModule, graph: Dataflow, libraries: Sequence[str]) -> None:
        self.builder = relax.BlockBuilder(mod)
        self._graph = graph
        self._libraries = libraries
        self._words: dict[relax.Var, Words] = {}
        self._same: dict[relax.Var, relax.Expr] = {}
        self._channels_last: dict[relax.Var, relax.Var] = {}
        self._chains: dict[relax.Var, Callable[[], relax.Expr]] = {}
        self._inside: set[relax.Var] = set()
        self._new: list[relax.Binding] = []
        self._done: dict[str, int] = {}
        self._floats: dict[str, list[str]] = {}

    def report(self) -> dict[str, Any]:
        """The content of the attribute `QUANTISED`."""
        return {"int8": self._done, "floats": self._floats}

    def rewritten(self, binding: relax.Binding) -> list[relax.Binding]:
        """The bindings that replace `binding`; a later pass removes bindings that nothing reads."""
        self._new = []
        if not isinstance(binding, relax.VarBinding):
            return [binding]
        var, value = binding.var, binding.value
        kept = self._visit(var, value)
        return [*self._new, relax.VarBinding(var, kept)]

    def _visit(self, var: relax.Var, value: Any) -> relax.Expr:
        """The expression that `var` is bound to after the rewriting."""
        name = name_of(value)
        if var in self._chains:
            return self._chains.pop(var)()
        if var in self._inside:
            return value
        if name == DEQUANTIZE:
            return self._dequantised(var, value)
        if name == QUANTIZE:
            return self._quantised(var, value)
        result = None
        if name in _PRODUCTS:
            result = self._product(var, value)
        elif name in _MOVES:
            result = self._moved(var, value)
        elif name == "relax.nn.max_pool2d":
            result = self._pooled(var, value)
        elif name in _MEANS:
            result = self._averaged(var, value)
        elif name == "relax.concat":
            result = self._joined(var, value)
        if result is not None:
            return result
        self._note(var, value)
        if name == "relax.mean":
            return self._mean_of_floats(var, value)
        return self._elementwise(var, value)

    def _note(self, var: relax.Var, value: Any) -> None:
        """Count an operator that reads quantised tensors and computes in floats."""
        if isinstance(value, relax.Call) and any(
            arg in self._words for arg in variables(value.args)
        ):
            kind = value.op.name.removeprefix("relax.").removeprefix("nn.")
            self._floats.setdefault(kind, []).append(str(var.name))

    # Roundings.

    def _dequantised(self, var: relax.Var, value: relax.Call) -> relax.Expr:
        words = _resolved(value.args[0], self._same)
        numbers = step_of(value)
        is_float32 = str(value.ty.dtype) == "float32"  # As the results of the integer kernels are.
        if numbers is not None and is_float32 and str(words.ty.dtype) in ("int8", "uint8"):
            self._words[var] = Words(words, *numbers)
            last = self._channels_last.get(words)
            if last is not None:
                call = relax.Call(value.op, [last, *value.args[1:]], value.attrs)
                self._channels_last[var] = self._emit(call, var.name)
        return relax.Call(value.op, [words, *value.args[1:]], value.attrs, value.ty_args)

    def _quantised(self, var: relax.Var, value: relax.Call) -> relax.Expr:
        known = self._words.get(value.args[0])
        numbers = step_of(value)
        same_step = known is not None and numbers == (known.scale, known.zero)
        if known is not None and same_step and known.dtype == str(value.ty.dtype):
            self._same[var] = known.var
            return known.var
        return self._elementwise(var, value)

    # Products.

    def _product(self, var: relax.Var, value: relax.Call) -> relax.Expr | None:
        """Replace the chain that begins with this product, if a library can compute it in integers.

        The new operator is written where the last binding of the chain was.
        """
        words = self._words.get(value.args[0])
        if words is None:
            return None
        make = self._conv2d if name_of(value) == "relax.nn.conv2d" else self._matmul
        made = make(var, value, words)
        if made is None:
            return None
        chain, write = made
        self._count(name_of(value).rpartition(".")[2])
        if chain.sum is not None:
            self._count("add")
        return self._end_of(chain.vars, value, write)

    def _count(self, kind: str) -> None:
        self._done[kind] = self._done.get(kind, 0) + 1

    def _end_of(
        self, chain: Sequence[relax.Var], value: relax.Call, write: Callable[[], relax.Expr]
    ) -> relax.Expr:
        """Call `write`, which makes the operator for `chain`, at the last binding of the chain.

        Returns
        -------
        The expression for the first binding of the chain: `value`, or the new operator if the
        chain has only one binding.
        """
        if len(chain) == 1:
            return write()
        self._inside.update(chain)
        self._chains[chain[-1]] = write
        return value

    def _conv2d(self, var: relax.Var, value: relax.Call, words: Words) -> Any:
        attrs = value.attrs
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
            return None
        weight = per_axis_weight(self._graph.values, value.args[1], 0)
        data, made = static_shape(value.args[0].ty), static_shape(value.ty)
        if weight is None or data is None or made is None:
            return None
        integers, steps = weight
        chain = chain_of(self._graph, var, channel_axis=1, taken=self._inside)
        op = described(
            "quantised_conv2d",
            words,
            chain,
            (permuted(data, _FIRST_TO_LAST), integers.shape, permuted(made, _FIRST_TO_LAST)),
            0,
            window=integers.shape[2:],
            strides=tuple(int(s) for s in attrs.strides),
            padding=tuple(int(p) for p in attrs.padding),
            dilation=tuple(int(d) for d in attrs.dilation),
            groups=int(attrs.groups),
        )
        if not self._is_supported(op):
            return None

        def write() -> relax.Expr:
            args = [self._lastly(words.var), relax.const(integers)]
            args.extend(epilogue(op, words, steps, chain))
            if chain.sum is not None:
                args.append(self._lastly(self._words[chain.sum.addend].var))
            result = self._call(op, args, var.name)
            self._channels_last[chain.vars[-1]] = result
            return relax.op.permute_dims(result, _LAST_TO_FIRST)

        return chain, write

    def _matmul(self, var: relax.Var, value: relax.Call, words: Words) -> Any:
        left, right, made = (static_shape(e.ty) for e in (*value.args, value))
        if left is None or right is None or made is None or len(left) < 2 or len(right) < 2:
            return None
        weight = per_axis_weight(self._graph.values, value.args[1], len(right) - 1)
        other = self._words.get(value.args[1])
        factor: Callable[[], relax.Expr]
        if weight is not None:
            integers, steps = weight
            factor, zero = lambda: relax.const(integers), 0
        elif other is not None:
            words_of_right, steps = other, np.full(right[-1], other.scale, np.float32)
            factor = lambda: self._signed(words_of_right)  # noqa: E731
            zero = other.zero - 128 if other.dtype == "uint8" else other.zero
        else:
            return None
        chain = chain_of(self._graph, var, channel_axis=len(made) - 1, taken=self._inside)
        op = described("quantised_matmul", words, chain, (left, right, made), zero)
        if not self._is_supported(op):
            return None

        def write() -> relax.Expr:
            args = [words.var, factor(), *epilogue(op, words, steps, chain)]
            if chain.sum is not None:
                args.append(self._words[chain.sum.addend].var)
            return self._call(op, args, var.name)

        return chain, write

    # The methods below rewrite operators that move or select integers.

    def _moved(self, var: relax.Var, value: relax.Call) -> relax.Expr | None:
        words = self._words.get(value.args[0])
        if words is None:
            return None
        call = relax.Call(value.op, [words.var, *value.args[1:]], value.attrs, value.ty_args)
        return self._again(var, self._emit(call, var.name), words)

    def _pooled(self, var: relax.Var, value: relax.Call) -> relax.Expr | None:
        """Compute a max pooling on integers.

        Scales are positive, so the largest float of a window has the largest integer.
        """
        attrs, words = value.attrs, self._words.get(value.args[0])
        is_of_integers = str(value.ty.dtype) in ("int8", "uint8")
        if is_of_integers:
            words = Words(_resolved(value.args[0], self._same), 1.0, 0)
        data, made = static_shape(value.args[0].ty), static_shape(value.ty)
        if words is None or data is None or made is None:
            return None
        if (attrs.layout, attrs.out_layout) != ("NCHW", "NCHW"):
            return None
        op = library_op(
            op="quantised_max_pool2d",
            shapes=(permuted(data, _FIRST_TO_LAST), permuted(made, _FIRST_TO_LAST)),
            layouts=("plain", "plain"),
            dtype="int8",
            stored=(words.dtype, words.dtype),
            window=tuple(int(size) for size in attrs.pool_size),
            strides=tuple(int(s) for s in attrs.strides),
            padding=tuple(int(p) for p in attrs.padding),
            dilation=tuple(int(d) for d in attrs.dilation),
        )
        if not self._is_supported(op):
            return None
        self._count("max_pool2d")
        result = self._call(op, [self._lastly(words.var)], var.name)
        plain = self._emit(relax.op.permute_dims(result, _LAST_TO_FIRST), var.name)
        self._channels_last[plain] = result
        if is_of_integers:
            self._same[var] = plain
            return plain
        return self._again(var, plain, words)

    def _averaged(self, var: relax.Var, value: relax.Call) -> relax.Expr | None:
        """Compute a mean on integers, if it is directly quantised to the data type of its input.

        The zero point of the input is subtracted from the mean of the integers. The mean is
        multiplied by the scale of the input and divided by the scale of the result. Then the zero
        point of the result is added, and the sum is rounded.
        """
        words = self._words.get(value.args[0])
        mean = mean_of(value)
        chain = [var]
        while (following := self._graph.only_user(chain[-1])) and name_of(following[1]) in _SHAPES:
            chain.append(following[0])
        rounded = rounding_after(self._graph, chain[-1])
        if words is None or mean is None or rounded is None or rounded[1][2] != words.dtype:
            return None
        end, (scale, zero, dtype) = rounded
        if mean["counts_padding"] and words.zero != 0 and any(mean["padding"]):
            return None  # The padding is the float 0, which is the integer `words.zero`, not 0.
        data, made = mean.pop("shapes")
        ratio = words.scale / scale
        op = library_op(
            op="quantised_avg_pool2d",
            shapes=(permuted(data, _FIRST_TO_LAST), permuted(made, _FIRST_TO_LAST)),
            layouts=("plain", "plain"),
            dtype="int8",
            stored=(dtype, dtype),
            steps=(("linear", ratio, zero - words.zero * ratio),),
            **mean,
        )
        if not self._is_supported(op):
            return None
        self._count(value.op.name.removeprefix("relax.").removeprefix("nn."))

        def write() -> relax.Expr:
            result = self._call(op, [self._lastly(words.var)], var.name)
            plain = relax.op.permute_dims(result, _LAST_TO_FIRST)
            if static_shape(end.ty) == made:
                self._channels_last[end] = result
                return plain
            return relax.op.reshape(self._emit(plain, var.name), end.ty.shape)

        return self._end_of([*chain, end], value, write)

    def _mean_of_floats(self, var: relax.Var, value: relax.Call) -> relax.Expr:
        """The mean of a float image, computed with channels last if the image has this layout."""
        image = value.args[0]
        last = self._channels_last.get(image) if isinstance(image, relax.Var) else None
        if last is None or mean_of(value) is None:
            return value
        mean = self._emit(relax.op.mean(last, [1, 2], keepdims=True), var.name)
        plain = relax.op.permute_dims(mean, _LAST_TO_FIRST)
        if static_rank(var.ty) == 4:
            self._channels_last[var] = mean
            return plain
        return relax.op.reshape(self._emit(plain, var.name), var.ty.shape)

    def _joined(self, var: relax.Var, value: relax.Call) -> relax.Expr | None:
        if not isinstance(value.args[0], relax.Tuple):
            return None
        found = [self._words.get(field) for field in value.args[0].fields]
        parts = [words for words in found if words is not None]
        kinds = {(words.scale, words.zero, words.dtype) for words in parts}
        if len(parts) < len(found) or len(kinds) != 1:
            return None
        axis = int(value.attrs.axis)
        if len(value.ty.shape) == 4 and all(w.var in self._channels_last for w in parts):
            last = [self._channels_last[w.var] for w in parts]
            result = self._emit(relax.op.concat(last, _FIRST_TO_LAST.index(axis % 4)), var.name)
            plain = self._emit(relax.op.permute_dims(result, _LAST_TO_FIRST), var.name)
            self._channels_last[plain] = result
        else:
            plain = self._emit(relax.op.concat([w.var for w in parts], axis), var.name)
        return self._again(var, plain, parts[0])

    def _again(self, var: relax.Var, words: relax.Var, before: Words) -> relax.Expr:
        """Dequantise the moved integers `words`, with the scale and zero point of `before`."""
        self._words[var] = Words(words, before.scale, before.zero)
        zero = relax.const(before.zero, before.dtype)
        scale = relax.const(before.scale, "float32")
        last = self._channels_last.get(words)
        if last is not None:
            floats = relax.op.dequantize(last, scale, zero, axis=0, out_dtype="float32")
            self._channels_last[var] = self._emit(floats, var.name)
        return relax.op.dequantize(words, scale, zero, axis=0, out_dtype="float32")

    # The methods below handle images with their channels last.

    def _elementwise(self, var: relax.Var, value: relax.Expr) -> relax.Expr:
        """`value`, computed with channels last if all its inputs are available in this layout."""
        if name_of(value) not in _ELEMENTWISE or static_rank(var.ty) != 4:
            return value
        args = [self._arranged(arg) for arg in value.args]
        known = [arg for arg in variables(value.args) if arg in self._channels_last]
        if not known or any(arg is None for arg in args):
            return value
        result = self._emit(relax.Call(value.op, args, value.attrs, value.ty_args), var.name)
        self._channels_last[var] = result
        return relax.op.permute_dims(result, _LAST_TO_FIRST)

    def _arranged(self, arg: relax.Expr) -> relax.Expr | None:
        """`arg` with its channels last; None if `arg` is not available in this layout."""
        if isinstance(arg, relax.Var):
            return self._channels_last.get(arg)
        if isinstance(arg, tvm.ir.GenericConst):
            array = arg.value.numpy()
            if array.size == 1:
                return arg
            if array.ndim == 4:
                turned = np.ascontiguousarray(array.transpose(_FIRST_TO_LAST))
                return relax.const(turned, str(array.dtype))
            return None
        return arg if not isinstance(getattr(arg, "ty", None), relax.TensorType) else None

    def _lastly(self, words: relax.Expr) -> relax.Var:
        """The integers `words` with channels last; a transposition is added if necessary."""
        if words not in self._channels_last:
            moved = relax.op.permute_dims(words, _FIRST_TO_LAST)
            self._channels_last[words] = self._emit(moved, f"{label(words)}_channels_last")
        return self._channels_last[words]

    def _signed(self, words: Words) -> relax.Expr:
        """The integers as int8: if they are uint8, 128 is subtracted."""
        if words.dtype == "int8":
            return words.var
        name = f"{label(words.var)}_signed"
        wide = self._emit(relax.op.astype(words.var, "int16"), name)
        shifted = self._emit(relax.op.subtract(wide, relax.const(128, "int16")), name)
        return self._emit(relax.op.astype(shifted, "int8"), name)

    def _is_supported(self, op: LibraryOp) -> bool:
        return any(is_supported(name, op) for name in self._libraries)

    def _call(self, op: LibraryOp, args: list[relax.Expr], name: str) -> relax.Var:
        """A call of a new function with TVM's kernel of `op`; a library may compute it instead."""
        kernel = self.builder.add_func(quantised_kernel(op), op.op)
        params = [relax.Var(f"p{i}", arg.ty) for i, arg in enumerate(args)]
        inner = relax.BlockBuilder()
        with inner.function("group", params, private=True):
            with inner.dataflow():
                ty = relax.TensorType(op.shapes[-1], op.stored[-1])
                made = inner.emit_output(relax.call_tir(kernel, params, ty))
            inner.emit_func_output(made)
        function = inner.finalize()["group"]
        function = function.with_attrs({"Primitive": True, DESCRIPTION: op.to_json()})
        return self._emit(relax.Call(self.builder.add_func(function, op.op), args), name)

    def _emit(self, call: relax.Expr, name: str) -> relax.Var:
        call = self.builder.normalize(call)
        var = relax.DataflowVar(name, call.ty)
        self._new.append(relax.VarBinding(var, call))
        return var


_SHAPES = ("relax.reshape", "relax.expand_dims", "relax.squeeze")
_MEANS = ("relax.mean", "relax.nn.avg_pool2d")
_PRODUCTS = ("relax.nn.conv2d", "relax.matmul")
_MOVES = (*_SHAPES, "relax.permute_dims")
_ELEMENTWISE = {
    QUANTIZE,
    *(
        f"relax.{name}"
        for name in (
            *("add", "clip", "divide", "exp", "maximum", "minimum", "multiply", "negative"),
            *("nn.relu", "nn.leakyrelu", "nn.silu", "nn.gelu", "sigmoid", "subtract", "tanh"),
        )
    ),
}
"""Element-wise operators. They work on images in any layout."""


def _resolved(expr: relax.Expr, same: dict[relax.Var, relax.Expr]) -> relax.Expr:
    return same.get(expr, expr) if isinstance(expr, relax.Var) else expr
