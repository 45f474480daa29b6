"""Names the first operator of a network whose results on the GPU are wrong.

Where the bundle is made, TVM's kernels for a CPU compute every operator, and some values of each
result are kept. If a network's outputs are wrong on the GPU, the network runs with each tensor in
memory of its own. Its tensors are then compared with the kept values, in the order of the
operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tests.gpu.sanitized_run import TensorsApart
from tvm_interop.plan.plan import Plan

SAMPLES = 64
"""How many values of a result are stored, and how many means over equal parts of the result."""
SAMPLES_FILE = "operators.npz"
"""File beside a network's artifact, with stored values of its operators' results."""


def described(array: np.ndarray) -> np.ndarray:
    """The facts about an operator's result that are stored.

    `described` stores the result's largest absolute value, some of its values, and means of its
    parts. A fault in any part of the result changes a mean, unless the fault is small or cancels
    out.
    """
    flat = array.reshape(-1).astype(np.float64)
    if flat.size == 0:
        return np.zeros(1, np.float32)
    places = np.random.default_rng(flat.size).integers(0, flat.size, SAMPLES)
    parts = np.array_split(flat, min(SAMPLES, flat.size))
    means = [float(part.mean()) for part in parts]
    with np.errstate(over="ignore"):
        return np.array([np.abs(flat).max(), *flat[places], *means], np.float32)


def operator_samples(
    plan: Plan,
    weights: Mapping[int, np.ndarray],
    inputs: Sequence[np.ndarray],
    kernels: Mapping[str, tuple[Callable[..., object], int]],
) -> dict[str, np.ndarray]:
    """Compute each operator of a plan on this CPU, and describe its results.

    Parameters
    ----------
    plan: a plan whose operators TVM's kernels run.
    inputs: the model's inputs.
    kernels: by name, each kernel for this CPU and the number of its parameters. The plan's
        operators may have more tensors, which are workspaces of kernels for a GPU.

    Returns
    -------
    The facts that `described` returns for each result, by the name that `sample_name` gives it.
    """
    from tvm_interop.execution.cpu import as_tensor

    memory = {
        v: np.zeros(value.nbytes, np.uint8)
        for v, value in enumerate(plan.values)
        if value.storage != "alias"
    }
    arrays = []
    for v, value in enumerate(plan.values):
        begin = value.offset or 0 if value.storage == "alias" else 0
        whole = memory[plan.root_of(v)]
        arrays.append(whole[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape))
    for v, array in [*weights.items(), *zip(plan.inputs, inputs, strict=True)]:
        np.copyto(arrays[v], array)
    found = {}
    for i, op in enumerate(plan.operators):
        kernel, number = kernels[op.kernel]
        values = [*op.inputs, *op.outputs][:number]
        kernel(*(as_tensor(arrays[v]) for v in values))
        for j in range(number - len(op.inputs)):
            found[sample_name(i, j)] = described(arrays[op.outputs[j]])
    return found


def sample_name(operator: int, output: int) -> str:
    """The name, in the file, of the stored facts about an operator's output."""
    return f"op{operator}_{output}"


def first_wrong(
    plan: Plan,
    kernels: object,
    weights: Mapping[int, np.ndarray],
    inputs: Sequence[np.ndarray],
    samples: Mapping[str, np.ndarray],
    rtol: Mapping[str, float],
    atol: float,
) -> str:
    """Run a plan on the GPU with each tensor in its own memory; name its first wrong operator.

    Parameters
    ----------
    kernels: TVM's kernels for the GPU, loaded.
    samples: the result of `operator_samples` for the same inputs.
    rtol, atol: the allowed error is `rtol` of the type times the largest absolute value, plus
        `atol`.

    Returns
    -------
    A sentence with the operator's name, number, kernel, error and inputs. If all operators are
    right, the sentence says so. If the outputs are wrong although all operators are right, there
    are two possible reasons. The fault appears only if tensors share memory, or the stored values
    do not show it.
    """
    instance = TensorsApart(plan, kernels, weights, dispatch="streams")
    for v, array in zip(plan.inputs, inputs, strict=True):
        instance.write(v, array)
    instance.run()
    worst = 0.0
    for i, op in enumerate(plan.operators):
        for j, v in enumerate(op.outputs):
            want = samples.get(sample_name(i, j))
            if want is None:  # The value is a workspace of a kernel, so it has no stored facts.
                continue
            allowed = rtol.get(plan.values[v].dtype, 0.0) * abs(float(want[0])) + atol
            error = _largest_error(described(instance.read(v)), want) / allowed
            if not error <= 1:
                read = ", ".join(plan.values[u].name for u in op.inputs)
                return (
                    f"operator {i} of {len(plan.operators)}, `{op.name}`, is the first that is "
                    f"wrong: {error:.3g} of the allowed error in output {j}, by kernel "
                    f"`{op.kernel}`, from {read}"
                )
            worst = max(worst, error)
    return (
        f"no operator is wrong if each tensor has memory of its own: the largest error is "
        f"{worst:.3g} times the allowed error. Look for two tensors that share memory"
    )


def _largest_error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference of two arrays. Infinities and NaN agree only with themselves."""
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    with np.errstate(invalid="ignore"):
        differences = np.where(same, 0.0, np.abs(got.astype(np.float64) - want))
    largest = float(np.nanmax(differences, initial=0.0))
    return math.inf if np.isnan(differences).any() else largest
