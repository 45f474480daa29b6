"""Raises errors for names of Relay. An error names the counterpart of the name in today's TVM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

RELAY: Mapping[str, str] = {
    "Call": "tvm.relax.Call",
    "ExprMutator": "tvm.relax.PyExprMutator",
    "ExprVisitor": "tvm.relax.PyExprVisitor",
    "Function": "tvm.relax.Function",
    "If": "tvm.relax.If",
    "Let": "tvm.relax.VarBinding",
    "TensorType": "tvm.relax.TensorType",
    "Tuple": "tvm.relax.Tuple",
    "TupleGetItem": "tvm.relax.TupleGetItem",
    "Var": "tvm.relax.Var",
    "adt": "",
    "analysis": "tvm.relax.analysis",
    "bind": "tvm.relax.transform.BindParams",
    "build_module": "tvm_interop.relay.build, or tvm.compile",
    "const": "tvm.relax.const",
    "create_executor": "tvm.relax.VirtualMachine",
    "dataflow_pattern": "tvm.relax.dpl",
    "expr": "tvm.relax.expr",
    "expr_functor": "tvm.relax.expr_functor",
    "fromtext": "tvm.script.from_source",
    "image": "tvm.relax.op.image",
    "load_param_dict": "tvm.runtime.load_param_dict",
    "nn": "tvm.relax.op.nn",
    "op": "tvm.relax.op",
    "optimize": "tvm.relax.get_pipeline",
    "parse": "tvm.script.from_source",
    "prelude": "",
    "qnn": "tvm.relax.op.quantize and tvm.relax.op.dequantize",
    "quantize": "",
    "save_param_dict": "tvm.runtime.save_param_dict",
    "scope_builder": "tvm.relax.BlockBuilder",
    "testing": "tvm_interop.models",
    "ty": "tvm.relax.ty",
    "var": "tvm.relax.Var",
    "vm": "tvm.relax.VirtualMachine",
}
"""Names of `tvm.relay`, each with its counterpart in today's TVM; empty if there is none."""

FRONTEND: Mapping[str, str] = {
    "from_caffe": "",
    "from_caffe2": "",
    "from_coreml": "",
    "from_darknet": "",
    "from_keras": "",
    "from_mxnet": "",
    "from_oneflow": "",
    "from_paddle": "",
    "from_pytorch": "tvm.relax.frontend.torch.from_exported_program",
    "from_tensorflow": "",
    "from_tensorflow2": "",
    "from_tflite": "tvm.relax.frontend.tflite.from_tflite",
}
"""Importers of `tvm.relay.frontend`, each with its counterpart in today's TVM; empty if there is
none. A model that has no importer can be exported to ONNX."""

CONTRIB: Mapping[str, str] = {
    "cuda_graph": "",
    "debugger": "tvm_interop.GraphModule.profile",
    "debug_executor": "tvm_interop.GraphModule.profile",
    "debug_runtime": "tvm_interop.GraphModule.profile",
    "graph_runtime": "tvm_interop.contrib.graph_executor",
    "pipeline_executor": "",
}
"""Names that `tvm.contrib` lost together with the graph executor, each with its counterpart; empty
if there is none."""

GRAPH_EXECUTOR: Mapping[str, str] = {
    "create": "tvm_interop.GraphModule(tvm_interop.load(path))",
    "get_device": "tvm.device",
}
"""Names of `tvm.contrib.graph_executor`, each with its counterpart."""


def refuse(module: str, name: str, known: Mapping[str, str], otherwise: str = "") -> NoReturn:
    """Raise an error for a `name` that the old `module` had; the error names the replacement.

    Parameters
    ----------
    known: the names of the old module, each with its counterpart in today's TVM, or with an empty
        text if it has none.
    otherwise: advice for a name that has no counterpart.

    Raises
    ------
    ImportError: for a name in `known`. The message of an AttributeError would be lost when a script
        runs `from module import name`.
    AttributeError: for any other name.
    """
    if name.startswith("_"):
        raise AttributeError(f"module `tvm_interop.{module}` has no attribute `{name}`")
    if name not in known:
        raise AttributeError(
            f"tvm_interop keeps no `{module}.{name}`; Relay left TVM in 0.20, and most of its "
            "names are found in tvm.relax"
        )
    where = f"its counterpart is {known[name]}" if known[name] else "it has no counterpart"
    hint = f"; {otherwise}" if otherwise and not known[name] else ""
    raise ImportError(f"tvm_interop keeps no `{module}.{name}`: {where}{hint}")
