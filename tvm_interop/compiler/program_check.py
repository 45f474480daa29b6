"""Compares a compiled program of `torch.export` with PyTorch.

PyTorch's exporter to ONNX converts some operators wrongly without a warning. So the finished
artifact runs once, on the inputs that the program was exported with, and its outputs are compared
with PyTorch's. A program that came from a file is read again for the comparison, so that its
weights are not in memory while the model is compiled.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

from ..artifact.artifact import Artifact
from ..artifact.program_check import ProgramCheck
from ..errors import TVMInteropError, UnsupportedModelError, first_line
from ..execution.graph_module import GraphModule
from ..frontend.program_example import Example, run_example
from ..frontend.torch_program import program_of
from ..measure.measured import tell
from .backends import backend_for
from .options import CompileOptions
from .precision import errors_of

_LOG = logging.getLogger("tvm_interop")

LIMIT = 1e-3
"""Errors up to this limit are always allowed. Models in float32 may have no larger errors."""
_ROUNDINGS = 8
"""Errors up to this many rounding steps, of the type with the fewest digits, are always allowed."""


def check_program(program: Any, artifacts: Sequence[Artifact], options: CompileOptions) -> None:
    """Compare the outputs of a compiled program with PyTorch's; log a warning if they differ.

    Only the artifact with the largest inputs runs. The result of the comparison is stored in the
    manifest of the first artifact.

    Parameters
    ----------
    program: the program, or its file, as in `ConvertedProgram`. If it is None, there is nothing to
        compare.
    artifacts: the artifact for each set of input shapes.
    """
    if program is None:
        return
    check = _check(program, max(artifacts, key=_input_elements), options)
    first = artifacts[0]
    first.manifest = msgspec.structs.replace(first.manifest, program_check=check)
    if check.warning is not None:
        _LOG.warning("%s", check.warning)


def _input_elements(artifact: Artifact) -> int:
    return sum(map(math.prod, artifact.input_shapes[0].values()))


def _check(program: Any, artifact: Artifact, options: CompileOptions) -> ProgramCheck:
    backend = backend_for(replace(options, precision="f32", keep_f32=()))
    missing = backend.why_not_compared() or backend.why_not_run(artifact.plan)
    if missing is not None:
        return ProgramCheck({}, unchecked=str(missing))
    tell(options.progress, "comparing the outputs with PyTorch's")
    try:
        example = run_example(program_of(program), artifact.input_shapes[0])
    except UnsupportedModelError as error:
        return ProgramCheck({}, unchecked=str(error))
    if not isinstance(example, Example):
        return ProgramCheck({}, unchecked=example)
    return _compared(artifact, example, options)


def _compared(artifact: Artifact, example: Example, options: CompileOptions) -> ProgramCheck:
    plan = artifact.plan
    names = [plan.values[v].name for v in plan.inputs]
    counts = {each.count for each in artifact.manifest.counted}
    num_outputs = len(plan.outputs) - len(counts)
    if set(names) != set(example.inputs) or num_outputs != len(example.outputs):
        return ProgramCheck(
            {},
            unchecked=f"the program has the inputs {', '.join(example.inputs)} and "
            f"{len(example.outputs)} outputs, and the compiled model has the inputs "
            f"{', '.join(names)} and {num_outputs} outputs",
        )
    try:
        with warnings.catch_warnings():
            # Leave out warnings, for example that the model was compiled for more cores than this
            # process may use.
            warnings.simplefilter("ignore", RuntimeWarning)
            with GraphModule(artifact) as module:
                results = module.run_on(example.inputs, range(num_outputs))
    except TVMInteropError as error:
        return ProgramCheck({}, unchecked=f"the compiled model does not run: {first_line(error)}")
    errors: dict[str, float | None] = {}
    for i, want in enumerate(example.outputs):
        name = plan.values[plan.outputs[i]].name
        far = _error(results[i], want)
        if far is not None:
            errors[name] = far if math.isfinite(far) else None
    if not errors:
        return ProgramCheck({}, unchecked="PyTorch gives no finite number on the example inputs")
    bound = _bound(artifact, example, options)
    return ProgramCheck(errors, bound, "resized" if example.is_resized else "example")


def _error(got: np.ndarray, want: np.ndarray) -> float | None:
    """The error of an output, as in `ProgramCheck`; None if there is no number to compare."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return math.inf
    if want.size == 0:
        return None
    if np.dtype(want.dtype).kind in "biu":
        return float(np.mean(got != want))
    if not np.isfinite(want.astype(np.float64)).any():
        return None
    return errors_of(got, want)[0]


def _bound(artifact: Artifact, example: Example, options: CompileOptions) -> float:
    """The largest error that rounding can cause. Larger errors count as faults.

    In bf16, an error up to twice the error that the compilation measured on other inputs is
    allowed.
    """
    precision, step = artifact.manifest.precision, example.eps
    if options.allow_tf32:
        step = max(step, 2.0**-10)
    if precision is not None or artifact.manifest.quantised is not None:
        step = max(step, float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps))  # type: ignore[no-untyped-call]
    return max(LIMIT, _ROUNDINGS * step, 0.0 if precision is None else 2 * precision.error)
