"""Converts operators that onnxruntime fuses when it saves an optimised model.

Most operators that onnxruntime fuses belong to its own domain, `com.microsoft`. Two of them have no
domain: `SimplifiedLayerNormalization`, and `LayerNormalization` in models of opsets that do not
define it. The module `quantised` rewrites the quantised operators of the domain.

Source: onnxruntime's list of its operators, ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from tvm import relax

from ..errors import UnsupportedModelError
from .attention import ATTENTION
from .constants import number_like
from .expand import nodes_of
from .few_bits import import_matmul_of_few_bits, import_matmul_of_four_bit_floats
from .grouped_attention import import_grouped_attention
from .linear_attention import LINEAR_ATTENTION
from .microsoft_small import AS_ONNX_HAS_THEM, SMALL
from .normalisations import axes_of

DOMAIN = "com.microsoft"
_LAYER_NORM_OPSET = 17
"""The first opset with `LayerNormalization`."""


def with_domain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with onnxruntime's domain set for the operators that only onnxruntime defines.

    tf2onnx exports models that use operators of onnxruntime without declaring onnxruntime's domain.
    onnxruntime runs these models anyway.
    """
    standard = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    moved = {"SimplifiedLayerNormalization"}
    if standard and standard[0] < _LAYER_NORM_OPSET:
        moved.add("LayerNormalization")

    def found(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
        return [n for n in nodes_of(graph) if n.domain in ("", "ai.onnx") and n.op_type in moved]

    is_imported = any(o.domain == DOMAIN for o in model.opset_import)
    is_used = any(node.domain == DOMAIN for node in nodes_of(model.graph))
    if not found(model.graph) and (is_imported or not is_used):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for node in found(changed.graph):
        node.domain = DOMAIN
    if not is_imported:
        changed.opset_import.append(onnx.helper.make_opsetid(DOMAIN, 1))
    return changed


def is_known(node: onnx.NodeProto) -> bool:
    """Whether this module converts an operator of onnxruntime's domain."""
    return node.domain == DOMAIN and (
        full_name(node) in MICROSOFT or node.op_type in AS_ONNX_HAS_THEM
    )


def full_name(node: onnx.NodeProto) -> str:
    """The domain and the type of a node's operator. Its converter is found by this name."""
    return f"{node.domain}.{node.op_type}"


def check_outputs(node: onnx.NodeProto) -> None:
    """Refuse a normalisation if its mean or deviation is used as an output, as in training."""
    if node.op_type.startswith("Skip") and any(node.output[1:3]):
        raise UnsupportedModelError(
            f"node `{node.name}` (`{full_name(node)}`) returns a mean or a deviation, as in "
            "training: export the model for inference"
        )


def _gelu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return relax.op.nn.gelu(_biased(bb, inputs, 1))


def _fast_gelu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    return relax.op.nn.gelu_tanh(_biased(bb, inputs, 1))


def _quick_gelu(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x = inputs[0]
    alpha = number_like(x, float(attrs.get("alpha", 1.702)))
    sigmoid = bb.emit(relax.op.sigmoid(bb.emit(relax.op.multiply(x, alpha))))
    return relax.op.multiply(x, sigmoid)


def _biased(bb: relax.BlockBuilder, inputs: Sequence[Any], at: int) -> Any:
    """Return the first input plus the input at index `at`, if the node has that input."""
    bias = inputs[at] if len(inputs) > at else None
    return inputs[0] if bias is None else bb.emit(relax.op.add(inputs[0], bias))


def _fused_matmul(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    factors = []
    for x, name in zip(inputs, "AB", strict=True):
        order = list(range(int(x.ty.ndim)))
        if attrs.get(f"transBatch{name}", 0) and len(order) > 2:
            # `transBatchA` and `transBatchB` make the first axis of a factor its second-to-last
            # axis.
            order = [*order[1:-1], 0, order[-1]]
        if attrs.get(f"trans{name}", 0):
            if len(order) < 2:
                raise UnsupportedModelError(f"it transposes `{name}`, which is a vector")
            order[-2:] = order[-2:][::-1]
        is_turned = order != sorted(order)
        factors.append(bb.emit(relax.op.permute_dims(x, order)) if is_turned else x)
    product = bb.emit(relax.op.matmul(*factors))
    alpha = float(attrs.get("alpha", 1.0))
    return product if alpha == 1 else relax.op.multiply(product, number_like(product, alpha))


def _layer_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs["tvm_custom"]["num_outputs"] > 1:
        raise UnsupportedModelError("it returns a mean, as in training: leave out that output")
    x, scale = inputs[:2]
    bias = inputs[2] if len(inputs) > 2 else None
    bias = bb.emit(relax.op.zeros_like(scale)) if bias is None else bias
    axes = axes_of(x, attrs)
    return relax.op.nn.layer_norm(x, scale, bias, axes, float(attrs.get("epsilon", 1e-5)))


def _rms_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    if attrs["tvm_custom"]["num_outputs"] > 1:
        raise UnsupportedModelError("it returns a deviation, as in training: leave out that output")
    x, scale = inputs[:2]
    return relax.op.nn.rms_norm(x, scale, axes_of(x, attrs), float(attrs.get("epsilon", 1e-5)))


def _skip_layer_norm(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    x, skip, scale, shift, bias = (*inputs, None, None)[:5]
    total = _sum(bb, x, skip, bias)
    shift = bb.emit(relax.op.zeros_like(scale)) if shift is None else shift
    norm = relax.op.nn.layer_norm(total, scale, shift, [-1], float(attrs.get("epsilon", 1e-12)))
    return _with_sum(bb, norm, total, attrs)


def _skip_rms_norm(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    x, skip, scale, bias = (*inputs, None)[:4]
    total = _sum(bb, x, skip, bias)
    norm = relax.op.nn.rms_norm(total, scale, [-1], float(attrs.get("epsilon", 1e-12)))
    return _with_sum(bb, norm, total, attrs)


def _sum(bb: relax.BlockBuilder, x: Any, skip: Any, bias: Any) -> Any:
    total = bb.emit(relax.op.add(x, skip))
    return total if bias is None else bb.emit(relax.op.add(total, bias))


def _with_sum(bb: relax.BlockBuilder, norm: Any, total: Any, attrs: Mapping[str, Any]) -> Any:
    number = attrs["tvm_custom"]["num_outputs"]
    if number == 1:
        return norm
    # `check_outputs` has made sure that nothing uses the second and third output.
    return relax.Tuple([bb.emit(norm), total, total, total][:number])


MICROSOFT = {
    **{
        f"{DOMAIN}.{name}": converter
        for name, converter in {**ATTENTION, **LINEAR_ATTENTION, **SMALL}.items()
    },
    f"{DOMAIN}.BiasGelu": _gelu,
    f"{DOMAIN}.FastGelu": _fast_gelu,
    f"{DOMAIN}.FusedMatMul": _fused_matmul,
    f"{DOMAIN}.Gelu": _gelu,
    f"{DOMAIN}.GroupQueryAttention": import_grouped_attention,
    f"{DOMAIN}.LayerNormalization": _layer_norm,
    f"{DOMAIN}.MatMulBnb4": import_matmul_of_four_bit_floats,
    f"{DOMAIN}.MatMulNBits": import_matmul_of_few_bits,
    f"{DOMAIN}.QuickGelu": _quick_gelu,
    f"{DOMAIN}.SimplifiedLayerNormalization": _rms_norm,
    f"{DOMAIN}.SkipLayerNormalization": _skip_layer_norm,
    f"{DOMAIN}.SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
"""Maps the domain and name of an operator to its converter."""
