"""Makes models of one node, to compare results for data and for the same data as constants."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx

import tvm_interop

OUTPUT = "y"


def one_node(
    op_type: str,
    inputs: Sequence[np.ndarray | None],
    constants: Collection[int] = (),
    *,
    outputs: int = 1,
    opset: int = 20,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model, and its inputs by name.

    Parameters
    ----------
    inputs: the inputs of the node; None for an input that is left out.
    constants: the indices of inputs that are constants of the model.
    """
    arrays = {f"x{i}": np.asarray(a) for i, a in enumerate(inputs) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(inputs)]
    fixed = {f"x{i}" for i in constants}
    results = [f"{OUTPUT}{i}" for i in range(outputs)]
    node = onnx.helper.make_node(op_type, names, results, name="the_node", **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in arrays.items()
            if name not in fixed
        ],
        [onnx.ValueInfoProto(name=name) for name in results],
        [onnx.numpy_helper.from_array(a, n) for n, a in arrays.items() if n in fixed],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model.ir_version = 9
    return model, {name: array for name, array in arrays.items() if name not in fixed}


def computed(model: Any, feeds: dict[str, np.ndarray], **options: Any) -> list[np.ndarray]:
    """The outputs of `model`, which may be anything that `compile` takes, on these inputs.

    TVM's kernels run unless `options` of `compile` say otherwise.
    """
    options = {"providers": ["tvm"], **options}
    artifact = tvm_interop.compile(model, scheduler="sequential", latency_db=":memory:", **options)
    module = tvm_interop.GraphModule(artifact)
    module.run(**feeds)
    outputs = [module.get_output(i).numpy() for i in range(module.get_num_outputs())]
    return [module.as_strings(i, output) for i, output in enumerate(outputs)]
