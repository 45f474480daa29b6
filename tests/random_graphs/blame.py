"""Finds the nodes at fault. Each node gets the inputs that our kernels computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tests.operators.decided import oracle_for

from .conditioning import within_rounding
from .oracles import (
    TOLERANCE,
    Arrays,
    alike,
    by_onnxruntime,
    by_reference,
    constants_of,
    in_usual_types,
    one_of,
    reads,
)

CANCELLING = (
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LayerNormalization",
    "MeanVarianceNormalization",
)
"""Operators that subtract a mean and divide by the deviation.

If the numbers are nearly equal, the result is the rounding error of the mean, divided by the root
of epsilon. This holds for every order of additions.
"""
LOSING_NAN = ("DynamicQuantizeLinear", "GRU", "LSTM")
"""Operators for which onnxruntime takes NaN for a number.

It leaves NaN out of the range of numbers to quantise. In recurrent layers with a bias, it clips NaN
to a number.
"""


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every value as an output."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in known:
                opened.graph.output.append(onnx.ValueInfoProto(name=name))
    return opened


def blamed(model: onnx.ModelProto, feed: Arrays, computed: Arrays) -> dict[str, Any]:
    """The nodes at fault. `computed` has our results of `with_all_outputs`.

    The oracles are onnxruntime and ONNX's reference. `wrong`: we agree with neither oracle, or we
    disagree with the oracle that is right by ONNX's text. `unclear`: we agree with one oracle, and
    it is not decided which oracle is right. `settled`: we agree with the oracle that is right.
    `rounded`: the error of a normalisation is explained by the rounding of its inputs. `unjudged`:
    neither oracle runs the node, not even in other types. A result that ONNX leaves open is not a
    fault.
    """
    known = {**constants_of(model), **feed, **computed}
    opset = next(opset.version for opset in model.opset_import if not opset.domain)
    kinds = ("wrong", "unclear", "settled", "rounded", "unjudged")
    faults: dict[str, list[str]] = {kind: [] for kind in kinds}
    for node in model.graph.node:
        given = {name: known[name] for name in reads(node)}
        if left_open(node, given):
            continue
        alone = one_of(model, node, given)
        asked = {
            "onnxruntime": by_onnxruntime(alone, given),
            "reference": by_reference(alone, given),
        }
        found = {oracle: answer for oracle, answer in asked.items() if answer}
        tolerance = 0.0
        if not found and (usual := in_usual_types(model, node, given, known)) is not None:
            found, tolerance = {"onnxruntime": usual}, TOLERANCE["float32"]
        if not found:
            faults["unjudged"].append(f"{node.op_type} {node.output[0]}")
        for name in filter(None, node.output):
            verdicts = {
                oracle: alike(known[name], answer[name], tolerance)
                for oracle, answer in found.items()
            }
            if not all(verdicts.values()):
                right = _oracle_for(node, given, opset)
                kind = _kind(verdicts, right)
                if kind in ("wrong", "unclear") and node.op_type in CANCELLING:
                    ours = {name: known[name]}
                    answer = found.get(right) or next(iter(found.values()))
                    wanted = {name: answer[name]}
                    kind = "rounded" if within_rounding(alone, given, ours, wanted)[name] else kind
                faults[kind].append(f"{node.op_type} {name}")
    return {kind: names[:5] for kind, names in faults.items() if names}


def _oracle_for(node: onnx.NodeProto, given: Arrays, opset: int) -> str:
    """The oracle that is right for a node, as `tests.operators.decided` says it."""
    if node.op_type in LOSING_NAN and not _all_finite(given):
        return "either"
    return oracle_for(node.op_type, opset)


def _all_finite(given: Arrays) -> bool:
    return all(np.isfinite(a).all() for a in given.values() if a.dtype.kind == "f")


def _kind(verdicts: Mapping[str, bool], right: str) -> str:
    """The kind of fault if not all oracles agree with us."""
    if not any(verdicts.values()):
        return "wrong"
    if right == "either":
        return "settled"
    if right in verdicts:
        return "settled" if verdicts[right] else "wrong"
    return "unclear"


def left_open(node: onnx.NodeProto, given: Arrays) -> bool:
    """Whether ONNX does not define the result of a node.

    ONNX defines no result for a cast of a number that does not fit into the integer type. It
    defines none for a Fourier transform of infinity either: the algorithm decides whether infinity
    is multiplied by 0, which gives NaN, or by a number near 0.
    """
    if node.op_type == "DFT":
        return not _all_finite(given)
    if node.op_type != "Cast":
        return False
    (array,) = given.values()
    to = next(attribute.i for attribute in node.attribute if attribute.name == "to")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(to)
    if array.dtype.kind != "f" or dtype.kind not in "iu":
        return False
    limits = np.iinfo(dtype)
    cut = np.trunc(array.astype(np.float64))
    return not bool(((cut >= float(limits.min)) & (cut < float(limits.max) + 1)).all())
