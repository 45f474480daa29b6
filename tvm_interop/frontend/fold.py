"""Computes, while a model is imported, what depends on constants and shapes alone.

Input shapes are static, so `Shape` and `Size` are constants, and so is what exporters compute from
them: sizes to reshape or resize to, axes, slices, ranges of positions. TVM's converters need these
as constants. They are computed by the reference implementation that ONNX brings.
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
"""Larger tensors are weights: folding them is left to TVM, which is faster at it."""

_NOT_FOLDED = frozenset(
    {
        "Bernoulli",
        "Constant",
        "DequantizeLinear",
        "If",
        "Loop",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Scan",
    }
)
"""Operators that draw numbers or hold graphs; `Constant`, which is one already; and what tells the
integers of a quantised model from its floats (see `lowering.quantised`)."""


def fold(
    op_type: str, inputs: Sequence[Any], attrs: Mapping[str, Any], opset: int
) -> relax.Expr | None:
    """The constant result of a node, or None where it is not known before the model runs.

    Parameters
    ----------
    inputs: relax expressions; None for an optional input that is left out.
    attrs: the node's attributes; `tvm_custom` says how many outputs it has.
    """
    if op_type in ("Shape", "Size"):
        return _of_shape(op_type, inputs[0], attrs)
    given = [value for value in inputs if value is not None]
    if op_type in _NOT_FOLDED or not given or not all(map(_is_small_constant, given)):
        return None
    arrays = [None if value is None else value.value.numpy() for value in inputs]
    try:
        results = _evaluate(op_type, arrays, attrs, opset)
    except Exception:  # Whatever the reference lacks, TVM's converter may have.
        return None
    usable = all(isinstance(result, np.ndarray) and _dtype_is_known(result) for result in results)
    if not usable or sum(result.size for result in results) > _MOST_ELEMENTS:
        return None
    # By itself TVM makes 32 bits of 64.
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


def _is_small_constant(value: Any) -> bool:
    if not isinstance(value, tvm.ir.GenericConst) or not isinstance(value.ty, relax.TensorType):
        return False
    shape = value.ty.shape
    sizes = [int(size) for size in shape] if isinstance(shape, relax.ShapeExpr) else None
    return sizes is not None and int(np.prod(sizes, dtype=np.int64)) <= _MOST_ELEMENTS


def _evaluate(
    op_type: str, arrays: list[Any], attrs: Mapping[str, Any], opset: int
) -> list[np.ndarray[Any, Any]]:
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(arrays)]
    outputs = [f"y{i}" for i in range(attrs["tvm_custom"]["num_outputs"])]
    own = {name: value for name, value in attrs.items() if name != "tvm_custom"}
    node = onnx.helper.make_node(op_type, names, outputs, **own)
    inputs = [onnx.ValueInfoProto(name=name) for name in names if name]
    graph = onnx.helper.make_graph(
        [node], op_type, inputs, [onnx.ValueInfoProto(name=name) for name in outputs]
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    given = {name: array for name, array in zip(names, arrays, strict=True) if name}
    with np.errstate(all="ignore"):
        return [np.asarray(result) for result in ReferenceEvaluator(model).run(None, given)]


def _dtype_is_known(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "biuf" and array.dtype.itemsize <= 8
