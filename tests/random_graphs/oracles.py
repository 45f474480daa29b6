"""Computes the expected outputs of a model with onnxruntime and with ONNX's reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-6}
"""The allowed error, relative to the largest number of an output or to 1."""

Arrays = Mapping[str, np.ndarray]


def by_onnxruntime(model: onnx.ModelProto, feed: Arrays) -> dict[str, np.ndarray] | None:
    """The outputs by onnxruntime. None if onnxruntime has no kernel for a node."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    names = [output.name for output in model.graph.output]
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return dict(zip(names, session.run(names, dict(feed)), strict=True))
    except Exception:
        return None


class Slice(OpRun):  # type: ignore[misc]
    """`Slice` as ONNX's text defines it.

    If a slice steps backwards, a start before the first element means the first element. ONNX's
    reference slices like Python, which gives an empty slice in this case.
    """

    def _run(
        self, data: np.ndarray, starts: Any, ends: Any, axes: Any = None, steps: Any = None
    ) -> tuple[np.ndarray]:
        axes = range(len(starts)) if axes is None else axes
        steps = [1] * len(starts) if steps is None else steps
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            size = data.shape[axis]
            begin, stop = (int(i) + size if i < 0 else int(i) for i in (start, end))
            if step > 0:
                begin, stop = min(max(begin, 0), size), min(max(stop, 0), size)
            else:
                begin, stop = min(max(begin, 0), size - 1), min(max(stop, -1), size - 1)
            data = np.take(data, np.arange(begin, stop, step), axis=int(axis))
        return (data,)


def by_reference(model: onnx.ModelProto, feed: Arrays) -> dict[str, np.ndarray] | None:
    """The outputs by ONNX's reference. None if the reference cannot run the model."""
    names = [output.name for output in model.graph.output]
    try:
        with np.errstate(all="ignore"):
            outputs = ReferenceEvaluator(model, new_ops=[Slice]).run(None, dict(feed))
            return dict(zip(names, outputs, strict=True))
    except Exception:
        return None


def in_usual_types(
    model: onnx.ModelProto, node: onnx.NodeProto, given: Arrays, computed: Arrays
) -> dict[str, np.ndarray] | None:
    """The results of a node by onnxruntime in float32 and int64, because onnxruntime has most
    kernels for these types.

    The results are converted to the types of `computed`. So results that wrap around, or that are
    rounded, agree only within the tolerance of float32.
    """
    usual = {"f": np.dtype(np.float32), "i": np.dtype(np.int64), "u": np.dtype(np.int64)}
    cast = {name: a.astype(usual.get(a.dtype.kind, a.dtype)) for name, a in given.items()}
    found = by_onnxruntime(one_of(model, node, cast), cast)
    if found is None:
        return None
    return {name: array.astype(computed[name].dtype) for name, array in found.items()}


def by_nodes(model: onnx.ModelProto, feed: Arrays) -> dict[str, np.ndarray] | None:
    """The results of each node. Each node runs alone, in the first oracle that can run it.

    None if neither oracle runs a node.
    """
    known = {**constants_of(model), **feed}
    for node in model.graph.node:
        given = {name: known[name] for name in reads(node)}
        alone = one_of(model, node, given)
        found = by_onnxruntime(alone, given) or by_reference(alone, given)
        if found is None:
            return None
        known |= found
    return {output.name: known[output.name] for output in model.graph.output}


def constants_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The initializers, by name."""
    return {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}


def one_of(model: onnx.ModelProto, node: onnx.NodeProto, given: Arrays) -> onnx.ModelProto:
    """A model whose only node is this node. Its inputs are the values that the node reads."""
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    return onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )


def reads(node: onnx.NodeProto) -> list[str]:
    """The values that a node and its subgraphs read, each once."""
    return list(dict.fromkeys([*filter(None, node.input), *_read_by_subgraphs(node)]))


def _read_by_subgraphs(node: onnx.NodeProto) -> Iterator[str]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            body = attribute.g
            own = {value.name for value in (*body.input, *body.initializer)}
            own |= {name for inner in body.node for name in inner.output}
            wanted = [name for inner in body.node for name in reads(inner)]
            wanted += [value.name for value in body.output]
            yield from (name for name in wanted if name not in own)


def alike(got: np.ndarray, wanted: np.ndarray, tolerance: float = 0.0) -> bool:
    """Whether two arrays agree.

    The arrays must have the same type and shape. Integers must be equal, and NaN and infinities
    must be in the same places. Errors, relative to the largest number, may be as large as
    `tolerance`, or as the tolerance of the type if that is larger.
    """
    wanted = np.asarray(wanted)
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return False
    if got.dtype.kind in "biu":
        return bool((got == wanted).all())
    tolerance = max(tolerance, TOLERANCE[str(got.dtype)])
    ours, theirs = got.astype(np.float64), wanted.astype(np.float64)
    is_finite = np.isfinite(theirs)
    if not np.array_equal(ours[~is_finite], theirs[~is_finite], equal_nan=True):
        return False
    if not np.isfinite(ours[is_finite]).all():
        return False
    scale = max(1.0, float(np.abs(theirs[is_finite]).max(initial=0.0)))
    return bool((np.abs(ours - theirs)[is_finite] <= tolerance * scale).all())
