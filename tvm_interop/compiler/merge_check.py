"""Compares merged operators with the operators that they replace.

For the comparison, all operators run with the kernels that the artifact gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from ..artifact.manifest import MergeCheck
from ..errors import ScheduleError
from ..execution.instance import outputs_of
from ..lowering.merge_convs import merged_name
from ..measure.measured import tell
from ..program.program import Operator, Program
from ..scheduling.one_after_another import one_after_another
from .backends import backend_for
from .merging import OperatorMerges
from .options import CompileOptions
from .provider_choice import can_run, given_to

LIMIT = 1e-4
"""Operators are merged only if the results differ by at most this fraction of the largest output.
"""

_ROUNDINGS = 4
"""A difference of this many rounding steps of the largest output is always allowed.

In types with few digits, these steps are more than `LIMIT`, so they are the limit.
"""


def compare_merged(
    merges: OperatorMerges,
    groups: Sequence[Sequence[str]],
    shipped: Sequence[Program],
    options: CompileOptions,
) -> MergeCheck:
    """Run the operators of each group apart and merged, on the same random inputs.

    Only the operators of the groups are compiled and run, one after the other. Their inputs are
    random with seed 0: uniform from -1 to 1, and integers from 0 to 7.

    Parameters
    ----------
    groups: the names of the operators that each merged operator replaces.
    shipped: the programs of the model before and after merging. If a library computes an operator
        in one of these programs, the same library computes the operator of this name in the check.
    options: the options of the compilation.

    Raises
    ------
    ScheduleError
        The results differ by more than `LIMIT`. In float16 and bfloat16, and where TF32 is allowed,
        a difference of `_ROUNDINGS` rounding steps is allowed.
    """
    names = [merged_name(group) for group in groups]
    # With a time budget of 0, the libraries' kernels are not checked. The compilation of the model
    # has checked them already.
    backend = backend_for(replace(options, time_budget=0, latency=None))
    missing = backend.why_not_compared()
    if missing is not None:
        return MergeCheck(dict.fromkeys(names), missing)
    tell(options.progress, "comparing merged operators with the operators that they replace")
    module, sizes = merges.beside_apart(groups)
    lowered = backend.lower_unmeasured(module, None, lambda program: _as_shipped(program, shipped))
    program = lowered.program
    plan = lowered.plan(program, one_after_another(program, 1), lambda: None)
    rng = np.random.default_rng(0)
    inputs = [_random(rng, program.values[v].shape, program.values[v].dtype) for v in plan.inputs]
    results = iter(outputs_of(lowered.instance(plan), inputs))
    differences: dict[str, float | None] = {}
    for group, name, size in zip(groups, names, sizes, strict=True):
        apart = [next(results) for _ in range(size)]
        merged = [next(results) for _ in range(size)]
        far = max(_difference(*pair) for pair in zip(apart, merged, strict=True))
        allowed = _allowed(apart[0].dtype, options)
        if not far <= allowed:
            raise ScheduleError(
                f"{', '.join(f'`{each}`' for each in group)} cannot be merged: on random inputs, "
                f"the merged operator's results differ from theirs by {far:.2g} of the largest "
                f"output, and at most {allowed:.2g} is allowed; leave these operators apart, for "
                "example with the scheduler `ios`, or choose other providers of kernels"
            )
        differences[name] = far
    return MergeCheck(differences)


def _as_shipped(program: Program, shipped: Sequence[Program]) -> Program:
    """Give each operator to the library that computes the operator of that name in `shipped`."""
    library_of = {op.whole or op.name: op.library for each in shipped for op in each.operators}

    def takes(op: Operator, library: str) -> bool:
        return library_of.get(op.name) == library and can_run(library, op)

    for library in sorted({library for library in library_of.values() if library is not None}):
        taken = [i for i, op in enumerate(program.operators) if takes(op, library)]
        program = given_to(program, taken, library)
    return program


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        return rng.integers(0, 8, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def _difference(apart: np.ndarray, merged: np.ndarray) -> float:
    """The largest absolute difference between the arrays, divided by the largest value in `apart`.

    The result is infinite in two cases: one array has NaN or infinity where the other array has a
    different number, or `apart` has only zeros and `merged` does not.
    """
    want, got = apart.astype(np.float64), merged.astype(np.float64)
    if np.array_equal(want, got, equal_nan=True):
        return 0.0
    # The difference of two infinities is NaN, which must not raise a warning.
    with np.errstate(invalid="ignore"):
        far = float(np.abs(want - got).max())
    largest = float(np.abs(want).max())
    return far / largest if np.isfinite(far) and 0 < largest < np.inf else float("inf")


def _allowed(dtype: np.dtype, options: CompileOptions) -> float:
    """The largest difference that is allowed between results of the type `dtype`."""
    if dtype.kind in "iu":
        return LIMIT
    step = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    if options.precision == "bf16":
        step = float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)  # type: ignore[no-untyped-call]
    elif options.allow_tf32:
        step = max(step, 2.0**-10)
    return max(LIMIT, _ROUNDINGS * step)
