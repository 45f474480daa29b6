"""What onnxruntime says a model computes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime


def run_onnxruntime(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], *, rewrites: bool = True
) -> dict[str, np.ndarray]:
    """Outputs of `model` by name; without rewrites, of its operators as they stand."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if not rewrites:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))
