"""Folds nodes during import: computes results that depend only on constants and shapes.

Input shapes are static, so the results of `Shape` and `Size` are constants. Exported models compute
other values from these: sizes to reshape or resize to, axes, slices, ranges of positions. TVM's
converters need such values as constants. This module computes them by ONNX's reference
implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tvm
from onnx.reference import ReferenceEvaluator
from tvm import relax

_MOST_ELEMENTS = 1 << 16
"""The largest number of elements of a tensor that this module folds.

Larger tensors are usually weights, and TVM folds operators of weights faster.
"""

_FOLDED = frozenset(
    {
        # Element-wise operators.
        *("Abs", "Add", "And", "BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"),
        *("Cast", "CastLike", "Ceil", "Div", "Equal", "Exp", "Floor", "Greater", "GreaterOrEqual"),
        *("Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul"),
        *("Neg", "Not", "Or", "Pow", "Reciprocal", "Round", "Sign", "Sqrt", "Sub", "Sum", "Where"),
        "Xor",
        # Operators that move elements.
        *("Compress", "Concat", "ConstantOfShape", "Expand", "EyeLike", "Flatten", "Gather"),
        *("GatherElements", "GatherND", "NonZero", "Range", "Reshape", "ScatterElements"),
        *("ScatterND", "Split", "Squeeze", "Tile", "Transpose", "Trilu", "Unsqueeze"),
        # Exporters use the operators below to compute sizes.
        *("ArgMax", "ArgMin", "CumSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"),
        "TopK",
    }
)
"""Operators for which ONNX's reference implementation gives the same results as our kernels.

The reference is wrong for poolings with padding and for poolings whose rank is not 2. For some
interpolations it differs from our kernels. Operators that are not listed here are folded later, by
`lowering.fold_calls`, which runs the kernels themselves. `QuantizeLinear` and `DequantizeLinear`
are not listed because `lowering.quantised` looks for them later.
"""

_NEVER_FOLDED = (
    *("If", "Loop", "Scan", "Optional"),
    *("SequenceConstruct", "SequenceErase", "SequenceInsert", "SplitToSequence"),
)
"""Operators with subgraphs, and operators whose results are not tensors."""


def fold(
    op_type: str,
    inputs: Sequence[Any],
    attrs: Mapping[str, Any],
    opset: int,
    *,
    of_any_kind: bool = False,
) -> relax.Expr | None:
    """Return the constant result of a node, or None if the node is not folded.

    Parameters
    ----------
    inputs: relax expressions; None for an optional input that is left out.
    attrs: the node's attributes; `tvm_custom` says how many outputs the node has.
    of_any_kind: whether to fold operators outside `_FOLDED` too, except those of `_NEVER_FOLDED`.
        This is needed for empty tensors, because no kernel accepts them.
    """
    if op_type in ("Shape", "Size"):
        return _of_shape(op_type, inputs[0], attrs)
    given = [value for value in inputs if value is not None]
    is_listed = op_type in _FOLDED or op_type == "Unique"
    may_fold = is_listed or (of_any_kind and op_type not in _NEVER_FOLDED)
    if not may_fold or not given or not all(map(_is_small_constant, given)):
        return None
    arrays: list[Any] = [None if value is None else value.value.numpy() for value in inputs]
    if op_type == "CumSum":
        # PyTorch's exporter writes an axis of one element, which ONNX's reference refuses.
        arrays[1] = arrays[1].reshape(())
    try:
        if op_type == "Unique":
            results = _unique(arrays[0], attrs)
        else:
            results = _evaluate(op_type, arrays, attrs, opset)
    except Exception:
        # ONNX's reference may fail on a node that TVM supports, so the node is left to TVM.
        return None
    usable = all(map(_dtype_is_known, results))
    if not usable or sum(result.size for result in results) > _MOST_ELEMENTS:
        return None
    # Without a dtype, `relax.const` would narrow 64-bit numbers to 32 bits.
    constants = [relax.const(result, str(result.dtype)) for result in results]
    return constants[0] if len(constants) == 1 else relax.Tuple(constants)


def _of_shape(op_type: str, value: Any, attrs: Mapping[str, Any]) -> relax.Expr | None:
    shape = getattr(getattr(value, "ty", None), "shape", None)
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(size, tvm.tirx.IntImm) for size in shape):
        return None
    sizes = [int(size) for size in shape]
    if op_type == "Size":
        return relax.const(np.array(np.prod(sizes, dtype=np.int64)), "int64")
    start, end = attrs.get("start", 0), attrs.get("end", len(sizes))
    return relax.const(np.array(sizes[slice(int(start), int(end))]), "int64")


def _unique(array: Any, attrs: Mapping[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Return the results of a `Unique`. ONNX's reference orders them wrongly if `sorted` is 0."""
    numbers, first, places, counts = np.unique(
        array, True, True, True, axis=attrs.get("axis"), equal_nan=False
    )
    if not attrs.get("sorted", 1):
        order = np.argsort(first)
        numbers = np.take(numbers, order, attrs.get("axis", 0))
        first, places, counts = first[order], np.argsort(order)[places], counts[order]
    results = [numbers, first, places.ravel(), counts]
    return results[: attrs["tvm_custom"]["num_outputs"]]


def _is_small_constant(value: Any) -> bool:
    if not isinstance(value, tvm.ir.GenericConst) or not isinstance(value.ty, relax.TensorType):
        return False
    shape = value.ty.shape
    sizes = [int(size) for size in shape] if isinstance(shape, relax.ShapeExpr) else None
    return sizes is not None and int(np.prod(sizes, dtype=np.int64)) <= _MOST_ELEMENTS


def _evaluate(
    op_type: str, arrays: list[Any], attrs: Mapping[str, Any], opset: int
) -> list[np.ndarray[Any, Any]]:
    """Return the node's results, with the dtypes that ONNX gives them."""
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(attrs["tvm_custom"]["num_outputs"])]
    own = {name: value for name, value in attrs.items() if name != "tvm_custom"}
    node = onnx.helper.make_node(op_type, names, outputs, **own)
    given = {name: array for name, array in zip(names, arrays, strict=True) if name}
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in given.items()
    ]
    graph = onnx.helper.make_graph(
        [node], op_type, inputs, [onnx.ValueInfoProto(name=name) for name in outputs]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    typed = onnx.shape_inference.infer_shapes(model).graph.output
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(model).run(None, given)
    # NumPy may return a wider type than ONNX. For example, its sum of 32-bit integers has 64 bits.
    return [_as(np.asarray(result), kind) for result, kind in zip(results, typed, strict=True)]


def _as(array: np.ndarray[Any, Any], kind: onnx.ValueInfoProto) -> np.ndarray[Any, Any]:
    number = kind.type.tensor_type.elem_type
    return array.astype(onnx.helper.tensor_dtype_to_np_dtype(number)) if number else array


def _dtype_is_known(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
