"""Writes PyTorch's `flex_attention` with operators that ONNX has.

A program holds the functions that change the scores and choose the pairs as graphs of single
numbers. They are traced for all numbers at once.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch._higher_order_ops.flex_attention import flex_attention, math_attention
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp


def without_flex_attention(program: Any) -> Any:
    """Return the program with attention in the place of each `flex_attention`.

    A program without `flex_attention` is returned unchanged.
    """
    if not any(node.target is flex_attention for node in program.graph.nodes):
        return program
    module = copy.copy(program.graph_module)
    module.graph = _copied(program.graph_module.graph, module)
    for node in list(module.graph.nodes):
        if node.target is flex_attention:
            _replace(node, module)
    module.recompile()
    return torch.export.ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=program.graph_signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _copied(graph: Any, owner: Any) -> Any:
    result = torch.fx.Graph(owning_module=owner)
    results = result.graph_copy(graph, {}, return_output_node=True)
    result.output(results[0], type_expr=None)
    list(result.nodes)[-1].meta.update(results[1].meta)
    return result


def _replace(node: Any, module: Any) -> None:
    query, key, value, scores, mask, scale, options, *others = node.args
    for_scores, for_mask = others if others else ((), ())
    tensors = [query, key, value, *for_scores, *for_mask]
    change, choose = (getattr(module, each.target) for each in (scores, mask[-1]))
    count = len(for_scores)

    def attention(query: Any, key: Any, value: Any, *given: Any) -> Any:
        return math_attention(
            query, key, value, change, (choose,), scale, options, given[:count], given[count:]
        )

    examples = [each.meta["val"] for each in tensors]
    traced = make_fx(attention)(*examples)
    for constant in list(traced.graph.find_nodes(op="get_attr")):
        _fill(constant, getattr(traced, constant.target))
    FakeTensorProp(traced, examples[0].fake_mode).propagate_dont_convert_inputs(*examples)
    with module.graph.inserting_before(node):
        results = module.graph.graph_copy(
            traced.graph,
            dict(zip(traced.graph.find_nodes(op="placeholder"), tensors, strict=True)),
        )
    # The nodes that take a result keep their names, which the program's signature has.
    for user in list(node.users):
        user.target, user.args = torch.ops.aten.alias.default, (results[user.args[1]],)
    module.graph.erase_node(node)


def _fill(constant: Any, value: Any) -> None:
    """Compute a constant of a trace, such as -inf, in the place of reading it from the module."""
    with constant.graph.inserting_before(constant):
        filled = constant.graph.call_function(
            torch.ops.aten.full.default, ([], value.item()), {"dtype": value.dtype}
        )
    constant.replace_all_uses_with(filled)
    constant.graph.erase_node(constant)
