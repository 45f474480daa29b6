"""Runs an artifact once, so that its outputs can be compared bit by bit with other artifacts."""

from __future__ import annotations

import numpy as np

import tvm_interop


def bits(artifact: tvm_interop.Artifact) -> bytes:
    """The bytes of all outputs, for random inputs that are the same for all artifacts."""
    module = tvm_interop.GraphModule(artifact)
    shapes, dtypes = module.get_input_info()
    rng = np.random.default_rng(0)
    module.run(**{name: rng.uniform(-1, 1, s).astype(dtypes[name]) for name, s in shapes.items()})
    return b"".join(
        module.get_output(i).numpy().tobytes() for i in range(len(artifact.plan.outputs))
    )
