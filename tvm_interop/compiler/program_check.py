"""Compares a compiled program of `torch.export` with PyTorch.

PyTorch's exporter to ONNX converts some operators to something else without a word. So the finished
artifact runs once, and its outputs are compared with those of PyTorch. The inputs are those that
the program was exported with. PyTorch runs before the model is compiled, so that a program which
was read from a file need not stay in memory.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np

from ..artifact.artifact import Artifact
from ..artifact.program_check import ProgramCheck
from ..errors import TVMInteropError, first_line
from ..execution.graph_module import GraphModule
from ..frontend.program_example import Example, run_example
from ..measure.measured import tell
from .backends import backend_for
from .options import CompileOptions
from .precision import errors_of

_LOG = logging.getLogger("tvm_interop")

LIMIT = 1e-3
"""The least bound of an error, which is that of models in float32."""
_ROUNDINGS = 8
"""The bound is at least this many rounding steps of the type with the fewest digits."""


class ExpectedRun(NamedTuple):
    """What the artifact shall compute.

    Attributes
    ----------
    shape: the index of the compiled shapes of inputs that PyTorch ran on.
    example: the run, or the reason why there is none.
    """

    shape: int
    example: Example | str


def expected_run(
    program: Any, each: Sequence[Mapping[str, tuple[int, ...]]], options: CompileOptions
) -> ExpectedRun | None:
    """Run a program in PyTorch, for the largest of the shapes that it is compiled for.

    Nothing runs if this machine cannot run the artifact.

    Parameters
    ----------
    program: a `torch.export.ExportedProgram`; for None, which is any other model, the result is
        None.
    each: the sets of shapes of the inputs with open dimensions.
    """
    if program is None:
        return None
    missing = backend_for(replace(options, precision="f32", keep_f32=())).why_not_compared()
    if missing is not None:
        return ExpectedRun(0, missing)
    largest = max(range(len(each)), key=lambda i: sum(map(math.prod, each[i].values())))
    tell(options.progress, "running the program in PyTorch")
    return ExpectedRun(largest, run_example(program, each[largest]))


def check_program(
    artifacts: Sequence[Artifact], expected: ExpectedRun | None, options: CompileOptions
) -> None:
    """Compare the outputs of an artifact with PyTorch's, and log a warning if they differ.

    The manifest of the first artifact gets the result.

    Parameters
    ----------
    artifacts: the artifact for each set of shapes.
    expected: the run in PyTorch; None for any other model.
    """
    if expected is None:
        return
    first, compared, example = artifacts[0], artifacts[expected.shape], expected.example
    if isinstance(example, Example):
        tell(options.progress, "comparing the outputs with PyTorch's")
        check = _compared(compared, example)
    else:
        check = ProgramCheck({}, unchecked=example)
    first.manifest = msgspec.structs.replace(first.manifest, program_check=check)
    if check.warning is not None:
        _LOG.warning("%s", check.warning)


def _compared(artifact: Artifact, example: Example) -> ProgramCheck:
    plan = artifact.plan
    names = [plan.values[v].name for v in plan.inputs]
    if set(names) != set(example.inputs) or len(plan.outputs) != len(example.outputs):
        return ProgramCheck(
            {},
            unchecked=f"the program has the inputs {', '.join(example.inputs)} and "
            f"{len(example.outputs)} outputs, and the compiled model has the inputs "
            f"{', '.join(names)} and {len(plan.outputs)} outputs",
        )
    try:
        with warnings.catch_warnings():
            # A model that was compiled for more cores than this process may use.
            warnings.simplefilter("ignore", RuntimeWarning)
            with GraphModule(artifact) as module:
                results = module.run_on(example.inputs, range(len(plan.outputs)))
    except TVMInteropError as error:
        return ProgramCheck({}, unchecked=f"the compiled model does not run: {first_line(error)}")
    errors: dict[str, float | None] = {}
    for i, want in enumerate(example.outputs):
        name = plan.values[plan.outputs[i]].name
        far = _error(results[i], want)
        if far is not None:
            errors[name] = far if math.isfinite(far) else None
    bound = _bound(artifact, example)
    return ProgramCheck(errors, bound, "resized" if example.is_resized else "example")


def _error(got: np.ndarray, want: np.ndarray) -> float | None:
    """The error of an output, as `ProgramCheck` has it; None without any number to compare."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return math.inf
    if want.size == 0:
        return None
    if np.dtype(want.dtype).kind in "biu":
        return float(np.mean(got != want))
    if not np.isfinite(want.astype(np.float64)).any():
        return None
    return errors_of(got, want)[0]


def _bound(artifact: Artifact, example: Example) -> float:
    """The largest error that rounding explains.

    In bf16, it may be twice the error that the compilation measured on other inputs.
    """
    bound = max(LIMIT, _ROUNDINGS * example.eps)
    precision = artifact.manifest.precision
    if precision is None and artifact.manifest.quantised is None:
        return bound
    step = float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)  # type: ignore[no-untyped-call]
    measured = 0.0 if precision is None else precision.error
    return max(bound, _ROUNDINGS * step, 2 * measured)
