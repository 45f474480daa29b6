"""Measures the error of a model in bfloat16, compared with the same model in float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..artifact.manifest import Precision
from ..errors import InputError
from ..execution.instance import outputs_of
from ..plain_data import is_float
from ..plan.plan import Plan
from ..scheduling.one_after_another import one_after_another
from .cpu import CpuBackend
from .provider_choice import give_to_libraries

if TYPE_CHECKING:
    from .compilation import Compilation

MAX_ERROR = 0.02
"""The largest error with which `auto` takes bf16, unless another limit is given."""


def measured_precision(
    compilation: Compilation,
    model: Any,
    input_shapes: dict[str, tuple[int, ...]] | None,
    inputs: Mapping[str, Any] | None = None,
) -> Precision:
    """Measure the difference between the outputs of a model in bf16 and in float32.

    The error is measured even if the time budget of the compilation is spent.

    The model in bf16 and the model in float32 run once on the same inputs. All schedules of a
    compilation give the same bits, so one schedule is enough. Each operator of the float32 model
    runs on a library's kernel if a library has one, and on TVM's otherwise. Kernels are not timed,
    because the error does not depend on which kernel is faster.

    Parameters
    ----------
    compilation: the compilation in bf16.
    model, input_shapes: the model and the shapes that the compilation was made from.
    inputs: an array for each input, by name; by default random numbers from -1 to 1, drawn with
        seed 0. Integer inputs are zeros then, which are valid indices.

    Raises
    ------
    InputError
        An array is missing, is for an unknown input, or does not have its input's shape and type.
    """
    options = replace(
        compilation.options, precision="f32", keep_f32=(), tuning_records=None, time_budget=None
    )
    backend = CpuBackend(options)
    reference = backend.lower_unmeasured(
        model, input_shapes, lambda program: give_to_libraries(program, backend.providers)
    )
    in_turn = one_after_another(reference.program, 1)
    plan = reference.plan(reference.program, in_turn, lambda: None)
    given = _arrays(plan, inputs)
    wanted = outputs_of(reference.instance(plan), given)
    own_plan = compilation.plan(compilation.sequential())
    got = outputs_of(compilation.instance(own_plan), given)
    errors = [errors_of(g, w) for g, w in zip(got, wanted, strict=True)]
    return Precision(
        keep_f32=tuple(compilation.options.keep_f32),
        error=max(error for error, _ in errors),
        largest_difference=max(largest for _, largest in errors),
        inputs="random" if inputs is None else "given",
    )


def repeated_or_cut(
    inputs: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Any] | None:
    """Return arrays whose numbers are repeated or cut along each axis, to get the given shapes.

    All numbers come from the given array, so integers stay valid as indices. An array that is
    empty, or that has another number of axes than its shape, is returned unchanged.

    Parameters
    ----------
    inputs: the arrays by name; None if the user gave none. None is returned unchanged.
    shapes: the shapes of inputs, by name.
    """
    if inputs is None:
        return None
    found = dict(inputs)
    for name, shape in shapes.items():
        array = np.asarray(found[name]) if name in found else np.empty(0)
        if not array.size or array.ndim != len(shape):
            continue
        for axis, size in enumerate(shape):
            array = array.take(np.arange(size) % array.shape[axis], axis)
        found[name] = array
    return found


def _arrays(plan: Plan, inputs: Mapping[str, Any] | None) -> list[np.ndarray]:
    values = [plan.values[v] for v in plan.inputs]
    if inputs is None:
        rng = np.random.default_rng(0)
        return [_random(rng, value.shape, value.dtype) for value in values]
    names = {value.name for value in values}
    if names != set(inputs):
        wrong = ", ".join(f"`{name}`" for name in sorted(names ^ set(inputs)))
        raise InputError(
            "to measure the error, `inputs` must have an array for each input of the model and no "
            f"others; missing or unknown: {wrong}"
        )
    arrays = [np.asarray(inputs[value.name]) for value in values]
    for value, array in zip(values, arrays, strict=True):
        if (array.shape, str(array.dtype)) != (value.shape, value.dtype):
            raise InputError(
                f"input `{value.name}` is {value.dtype} of shape {value.shape}, and `inputs` has "
                f"{array.dtype} of shape {array.shape}"
            )
    return arrays


def _random(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    if not is_float(dtype):
        return np.zeros(shape, dtype)
    return rng.uniform(-1, 1, shape).astype(dtype)


def errors_of(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """The `error` and `largest_difference` of `Precision` for one output.

    Both `error` and `largest_difference` are infinite if `got` has NaN or infinity where `wanted`
    has a finite number.
    """
    wide, exact = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(exact)
    if not np.isfinite(wide[finite]).all():
        return float("inf"), float("inf")
    wide, exact = wide[finite], exact[finite]
    difference = wide - exact
    if difference.size == 0 or not difference.any():
        return 0.0, 0.0
    norm = max(float(np.linalg.norm(exact)), np.finfo(np.float32).tiny)
    largest = max(float(np.abs(exact).max()), np.finfo(np.float32).tiny)
    return float(np.linalg.norm(difference)) / norm, float(np.abs(difference).max()) / largest
