"""Converts the units of a lowered Relax function into a `Program`, a flat list of kernel calls."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import tvm
from tvm import relax, s_tir, tirx

from ..errors import UnsupportedModelError
from ..kernels.flops import kernel_flops
from ..program.library_op import LibraryOp
from ..program.program import Operator, Program, Value
from .bfloat16_ports import BFLOAT16_INPUTS, BFLOAT16_OUTPUTS, names_in
from .fuse_and_name import LIBRARY_OPS
from .groups import REFUSED
from .names import OUTPUT_NAMES, UniqueNames, bindings_of, is_meaningful
from .narrow_storage import NARROW
from .static_shape import static_shape
from .weights import WeightTable, is_supported_dtype

_Tensors: TypeAlias = "int | tuple[_Tensors, ...]"
"""The index of the program's value that stands for a Relax expression; for a tuple, a tuple of
indices.
"""


def extract(mod: tvm.IRModule, func_name: str = "main") -> Program:
    """Turn a function that `LowerToUnits` made into a flat list of kernel calls.

    Parameters
    ----------
    mod
        A lowered module: each binding is a `call_tir`, a `relax.reshape` or a tuple.
    func_name
        The name of the Relax function to convert.

    Returns
    -------
    program
        A program with one operator for each `call_tir`, in the order of the bindings. A reshape
        becomes an alias of another value. A kernel that only copies its input to another shape
        becomes an alias too; TVM keeps such a kernel if its result is an output. Equal constants
        become one weight. If an output is the same as an input, a weight or another output, it
        becomes an alias of that value. If both also have the same name, they become one value.

    Raises
    ------
    UnsupportedModelError
        The module has no such function. Or a binding is not a `call_tir`, a reshape or a tuple: for
        example control flow or a packed call. Or a shape is dynamic. The message names the binding.
    """
    if func_name not in [var.name_hint for var in mod.get_global_vars()]:
        raise UnsupportedModelError(f"the Relax module has no function `{func_name}`")
    return _Extractor(mod, mod[func_name]).run()


class _Extractor:
    def __init__(self, mod: tvm.IRModule, func: relax.Function) -> None:
        self._mod = mod
        self._func = func
        self._values: list[Value] = []
        self._operators: list[Operator] = []
        self._weights = WeightTable()
        self._kernels: dict[str, tirx.PrimFunc] = {}
        self._flops: dict[str, int] = {}
        """The floating-point operations of each kernel, by name."""
        self._env: dict[relax.Var, _Tensors] = {}
        self._output_names = _output_names(func)
        self._library_ops = _library_ops(func, LIBRARY_OPS)
        self._refused = _library_ops(func, REFUSED)
        self._narrow = _narrow_units(func)
        self._bfloat16_inputs = names_in(BFLOAT16_INPUTS, func.attrs)
        self._bfloat16_outputs = names_in(BFLOAT16_OUTPUTS, func.attrs)
        params = {param.name for param in func.params}
        self._operator_names = UniqueNames()
        # Inputs and outputs keep their names. Other values with the same name get a suffix.
        self._value_names = UniqueNames(params | set(self._output_names))

    def run(self) -> Program:
        inputs = []
        for param in self._func.params:
            inputs.append(self._add_value(param.name, param.ty, param.name))
            if param.name in self._bfloat16_inputs:
                self._make_bfloat16(inputs[-1])
            self._env[param] = inputs[-1]
        for binding in bindings_of(self._func):
            self._env[binding.var] = self._visit(binding)
        outputs = self._finish_outputs(self._func.body.body, tuple(inputs))
        return Program(
            values=self._values,
            operators=self._operators,
            inputs=tuple(inputs),
            outputs=outputs,
            weights=self._weights.arrays,
            kernels=tvm.IRModule(self._kernels),
        )

    def _visit(self, binding: relax.Binding) -> _Tensors:
        """Add the operator or alias for `binding`, and return the value that `binding` defines."""
        where = f"binding `{binding.var.name}`"
        if not isinstance(binding, relax.VarBinding):
            _refuse(where, "checks a shape as it runs", "give every input a static shape")
        value = binding.value
        if not isinstance(value, relax.Call):
            return self._tensors(value, where)
        if value.op == tvm.ir.Op.get("relax.call_tir"):
            return self._add_operator(binding.var, value, where)
        if value.op == tvm.ir.Op.get("relax.reshape"):
            return self._add_alias(binding.var, value.args[0], where)
        _refuse(
            where,
            f"calls {_callee(value)}, which is not a kernel of its own",
            "run LowerToUnits first; packed, in-place and nested calls cannot be scheduled",
        )

    def _tensors(self, expr: relax.Expr, where: str) -> _Tensors:
        if isinstance(expr, relax.Var) and expr in self._env:
            return self._env[expr]
        if isinstance(expr, relax.Tuple):
            return tuple(self._tensors(field, where) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            source = self._tensors(expr.tuple_value, where)
            if isinstance(source, tuple):
                item: _Tensors = source[expr.index]
                return item
        if isinstance(expr, tvm.ir.GenericConst):
            return self._add_weight(expr, where)
        kind = type(expr).__name__
        advice = "only tensors can go into kernels: fold scalars and shapes into the kernels"
        if isinstance(expr, relax.If):
            kind, advice = "`if`", "a schedule is fixed before the model runs: keep only one branch"
        _refuse(where, f"uses {kind}, which is not a tensor", advice)

    def _tensor(self, expr: relax.Expr, where: str) -> int:
        found = self._tensors(expr, where)
        if isinstance(found, tuple):
            _refuse(where, "uses a tuple in place of a tensor", "pass its tensors one by one")
        return found

    def _add_operator(self, var: relax.Var, call: relax.Call, where: str) -> _Tensors:
        if len(call.args) > 2:
            _refuse(where, "passes shape variables to its kernel", "give inputs static shapes")
        kernel = self._kernel(call.args[0], where)
        inputs = tuple(self._tensor(arg, where) for arg in call.args[1].fields)
        if len(inputs) == 1 and self._is_view(call, inputs[0], self._kernels[kernel]):
            del self._kernels[kernel]  # The call becomes an alias, so it needs no kernel.
            return self._add_alias(var, call.args[1].fields[0], where)
        name = self._operator_names.take(var.name if is_meaningful(var.name) else kernel)
        out_ty = call.ty_args[0]
        several = isinstance(out_ty, relax.TupleType)
        outputs = tuple(
            self._add_value(self._value_names.take(f"{name}:{i}" if several else name), ty, where)
            for i, ty in enumerate(out_ty.fields if several else [out_ty])
        )
        for v in (*inputs, *outputs):
            shape = self._values[v].shape
            # Only Relax modules have empty tensors: `frontend.empty` removes those of ONNX models.
            if 0 in shape:
                what = f"is or reads an empty tensor of shape {shape}"
                _refuse(where, what, "give every input a size above 0")
        if var.name in self._narrow:
            self._make_bfloat16(outputs[0])
        if len(self._kernels[kernel].params) != len(inputs) + len(outputs):
            _refuse(where, f"gives kernel `{kernel}` a wrong number of arguments", "lower it anew")
        description = self._library_ops.get(var.name)
        if kernel not in self._flops:
            self._flops[kernel] = kernel_flops(self._kernels[kernel])
        self._operators.append(
            Operator(
                name,
                kernel,
                inputs,
                outputs,
                description,
                kernel_flops=self._flops[kernel],
                refused=self._refused.get(var.name),
            )
        )
        return outputs if several else outputs[0]

    def _is_view(self, call: relax.Call, source: int, kernel: tirx.PrimFunc) -> bool:
        """Whether `kernel` copies its input and changes only the shape."""
        shape = static_shape(call.ty_args[0])
        # Compare the sizes too: TVM's analysis also accepts a kernel that copies only the beginning
        # of a tensor.
        same_size = shape is not None and math.prod(shape) == math.prod(self._values[source].shape)
        return same_size and _only_copies(kernel)

    def _kernel(self, callee: relax.Expr, where: str) -> str:
        """The name of the kernel `callee`, which is added to the program's kernels."""
        func = self._mod[callee] if isinstance(callee, tvm.ir.GlobalVar) else None
        if not isinstance(func, tirx.PrimFunc):
            _refuse(where, f"calls {callee}, which is not a PrimFunc", "run LowerToUnits first")
        name = str(callee.name_hint)
        if name not in self._kernels:
            self._kernels[name] = func.with_attr("global_symbol", name)
        return name

    def _add_alias(self, var: relax.Var, source_expr: relax.Expr, where: str) -> int:
        source = self._tensor(source_expr, where)
        base = var.name if is_meaningful(var.name) else f"{self._values[source].name}_view"
        view = self._add_value(self._value_names.take(base), var.ty, where)
        dtype = self._values[source].dtype
        self._values[view] = replace(self._values[view], dtype=dtype, alias_of=self._root(source))
        return view

    def _add_weight(self, constant: tvm.ir.GenericConst, where: str) -> int:
        def add(shape: tuple[int, ...], dtype: str) -> int:
            self._values.append(Value(self._value_names.take("weight"), shape, dtype))
            return len(self._values) - 1

        if not isinstance(constant.ty, relax.TensorType):
            _refuse(where, f"uses a constant {constant}, which is not a tensor", "make it a tensor")
        _static(constant.ty, where)
        return self._weights.index_of(constant.value, add)

    def _add_value(self, name: str, ty: Any, where: str) -> int:
        if not isinstance(ty, relax.TensorType):
            _refuse(where, f"has type {ty}", "only tensors can be scheduled")
        # A name from TVM is of a subclass of `str`, which JSON encoders refuse. So it is converted
        # to `str`.
        self._values.append(Value(str(name), *_static(ty, where)))
        return len(self._values) - 1

    def _make_bfloat16(self, value: int) -> None:
        """Give a value the type bfloat16; in Relax its type is uint16."""
        self._values[value] = replace(self._values[value], dtype="bfloat16")

    def _root(self, value: int) -> int:
        alias_of = self._values[value].alias_of
        return value if alias_of is None else alias_of

    def _finish_outputs(self, body: relax.Expr, inputs: tuple[int, ...]) -> tuple[int, ...]:
        found = self._tensors(body, "the result")
        results = []
        for result in found if isinstance(found, tuple) else (found,):
            if isinstance(result, tuple):
                _refuse("the result", "is a tuple within a tuple", "return a flat tuple")
            results.append(result)
        if not self._output_names:
            return tuple(results)
        if len(self._output_names) != len(results):
            _refuse(
                "the result",
                f"has {len(results)} tensors and {len(self._output_names)} names",
                f"set the attribute `{OUTPUT_NAMES}` to one name for each output, or remove it",
            )
        fixed = set(inputs) | set(self._weights.arrays)
        outputs = []
        for result, name in zip(results, self._output_names, strict=True):
            outputs.append(self._named_output(result, name, fixed))
            if name in self._bfloat16_outputs:
                self._make_bfloat16(outputs[-1])
            fixed.add(outputs[-1])
        return tuple(outputs)

    def _named_output(self, value: int, name: str, fixed: set[int]) -> int:
        """Return the index of the value for the output `name`.

        `fixed` has the values whose names cannot change: inputs, weights and other outputs. If
        `value` is not in `fixed`, it is renamed to `name` and becomes the output. If it is in
        `fixed` under another name, the output becomes an alias of `value`.
        """
        known = self._values[value]
        if value not in fixed:
            self._values[value] = replace(known, name=name)
        elif known.name != name:
            self._values.append(replace(known, name=name, alias_of=self._root(value)))
            return len(self._values) - 1
        return value


def _output_names(func: relax.Function) -> list[str]:
    """The outputs' names in the function's attribute; empty if it has no such attribute."""
    if func.attrs and OUTPUT_NAMES in func.attrs:
        return [str(name) for name in func.attrs[OUTPUT_NAMES]]
    return []


def _library_ops(func: relax.Function, attribute: str) -> dict[str, LibraryOp]:
    """The descriptions in an attribute of `func`, by the names of the described units."""
    table = func.attrs[attribute] if func.attrs and attribute in func.attrs else {}
    return {str(unit): LibraryOp.from_json(str(text)) for unit, text in table.items()}


def _narrow_units(func: relax.Function) -> set[str]:
    """The names of the functions, one for each operator, whose results are bfloat16. Relax
    represents this type by uint16.
    """
    units = func.attrs[NARROW] if func.attrs and NARROW in func.attrs else []
    return {str(unit) for unit in units}


def _static(ty: relax.TensorType, where: str) -> tuple[tuple[int, ...], str]:
    shape = static_shape(ty)
    if shape is None:
        _refuse(where, f"has the dynamic shape {ty.shape}", "give every input a static shape")
    dtype = str(ty.dtype)
    if not is_supported_dtype(dtype):
        _refuse(where, f"has dtype {dtype}, which NumPy lacks", "convert the model to another")
    return shape, dtype


def _only_copies(kernel: tirx.PrimFunc) -> bool:
    """Whether `kernel` copies its input unchanged to an output of another shape."""
    # TVM's analysis fails on kernels that TVM cannot schedule, so it is not called for them.
    is_schedulable = isinstance(kernel.body, s_tir.SBlockRealize)
    return is_schedulable and bool(relax.analysis.has_reshape_pattern(kernel))


def _callee(call: relax.Call) -> str:
    name = getattr(call.op, "name", None) or getattr(call.op, "name_hint", None)
    first = call.args[0] if name in ("relax.call_dps_packed", "relax.call_tir_inplace") else None
    target = getattr(first, "global_symbol", None) or getattr(first, "name_hint", None)
    return f"`{name or call.op}`" + (f" of `{target}`" if target else "")


def _refuse(where: str, why: str, what_to_do: str) -> NoReturn:
    raise UnsupportedModelError(f"{where} {why}: {what_to_do}")
