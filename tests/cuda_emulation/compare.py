"""Compares the emulated kernels of a model with the reference of the kernel check."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_interop._native.cpu import run_fenced
from tvm_interop._native.kernels import load_kernels
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.kernels.build import build_kernels, kernel_hash
from tvm_interop.kernels.check import Checked, NotEvaluatedError, find_fault
from tvm_interop.kernels.numpy_kernel import NumpyKernel, numpy_kernel
from tvm_interop.kernels.reference import reference_target
from tvm_interop.lowering.extract import extract
from tvm_interop.scratch import scratch_folder

from .device_code import DeviceCode, NotExecutedError, WrongLaunchError, device_code
from .emulated_kernel import EmulatedKernel, build_program

ARCHS = ("sm_90",)
"""The GPU architectures that kernels are compiled for."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of a model.

    Attributes
    ----------
    name: the kernel's name.
    as_written, scheduled: the kernel before and after it is scheduled for a GPU. The scheduled
        kernel may have workspaces as additional parameters at the end.
    inputs, outputs: the types of the parameters of `as_written`, inputs first.
    alike: the number of equal kernels in the model, including this kernel.
    """

    name: str
    as_written: tirx.PrimFunc
    scheduled: tirx.PrimFunc
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    alike: int = 1


@dataclass(frozen=True)
class Verdict:
    """The result of executing a kernel.

    Attributes
    ----------
    kernel: the kernel.
    fault: what is wrong with it, or "".
    not_executed: the reason why it was not executed, or "".
    error: the largest difference from the reference on ordinary numbers, as a share of the largest
        number of the reference's result; NaN if no two finite numbers were compared.
    """

    kernel: Kernel
    fault: str = ""
    not_executed: str = ""
    error: float = math.nan


def kernels_of(model: Any, archs: Sequence[str] = ARCHS) -> list[Kernel]:
    """The distinct kernels of a model that is compiled for a GPU; no GPU is needed.

    Parameters
    ----------
    model: a model, as `tvm_interop.compile` takes it.
    """
    compilation = Compilation(model, CompileOptions("cuda", archs=list(archs)))
    program = compilation.program
    as_written = dict(_by_name(extract(compilation.module).kernels))
    scheduled = dict(_by_name(program.kernels))
    found: dict[tuple[str, str], Kernel] = {}
    for name in dict.fromkeys(op.kernel for op in program.operators):
        op = next(op for op in program.operators if op.kernel == name)
        types = [str(program.values[v].dtype) for v in (*op.inputs, *op.outputs)]
        types = types[: len(as_written[name].params)]
        key = (kernel_hash(as_written[name]), kernel_hash(scheduled[name]))
        before = found.get(key)
        found[key] = Kernel(
            before.name if before else name,
            as_written[name],
            scheduled[name],
            tuple(types[: len(op.inputs)]),
            tuple(types[len(op.inputs) :]),
            before.alike + 1 if before else 1,
        )
    return list(found.values())


def _by_name(kernels: tvm.IRModule) -> Iterator[tuple[str, tirx.PrimFunc]]:
    return ((var.name_hint, func) for var, func in kernels.functions_items())


def check_kernel(
    kernel: Kernel,
    code: DeviceCode | None = None,
    archs: Sequence[str] = ARCHS,
    sanitize: bool = True,
) -> Verdict:
    """Execute a kernel and compare its results with the reference.

    Parameters
    ----------
    code: the source and launches to execute; by default TVM generates them.
    sanitize: whether accesses outside of tensors and arrays are found.

    Raises
    ------
    DeviceError
        There is no C++ compiler.
    """
    try:
        code = code or device_code(kernel.name, kernel.scheduled, archs)
        with scratch_folder() as folder:
            return _check(kernel, code, folder, sanitize)
    except WrongLaunchError as error:
        return Verdict(kernel, str(error))
    except NotExecutedError as error:
        return Verdict(kernel, not_executed=str(error))


def _check(kernel: Kernel, code: DeviceCode, folder: Path, sanitize: bool) -> Verdict:
    sizes = [_nbytes(param) for param in kernel.scheduled.params]
    program = folder / "kernel"
    build_program(code, sizes, program, sanitize)
    emulated = EmulatedKernel(program, sizes[len(kernel.as_written.params) :])

    types = kernel.inputs, kernel.outputs
    fault = ""
    for reference in _references(kernel, folder / "reference.so"):
        checked = Checked(kernel.name, kernel.as_written, emulated, reference, *types)
        try:
            fault = find_fault(checked) or ""
        except NotEvaluatedError as error:
            fault = f"its reference cannot be evaluated: {error}"
        if not fault or emulated.failed:
            break
    if fault:
        return Verdict(kernel, fault)
    if emulated.runs == 0:
        return Verdict(kernel, not_executed="its reference fails on all numbers of the check")
    return Verdict(kernel, error=_error(reference, *emulated.last))


def _nbytes(param: Any) -> int:
    lanes = np.dtype(str(param.dtype)).itemsize
    return math.prod(int(size) for size in param.shape) * lanes


def _references(kernel: Kernel, library: Path) -> Iterator[Any]:
    """NumPy's version of a kernel if there is one, then a plain build of the kernel.

    NumPy's functions have special cases of their own. So a kernel counts as wrong only if it also
    differs from the plain build. `tvm_interop.kernels.check` has the same rule.
    """
    if "bfloat16" not in (*kernel.inputs, *kernel.outputs):  # NumPy lacks bfloat16.
        evaluated = numpy_kernel(kernel.as_written)
        if evaluated is not None:
            yield evaluated
    yield _plain_build(kernel, library)


def _plain_build(kernel: Kernel, path: Path) -> Any:
    function = kernel.as_written.with_attr("global_symbol", kernel.name)
    module = tvm.IRModule({kernel.name: function})
    return load_kernels(build_kernels(module, reference_target(), path))[kernel.name]


def _error(reference: Any, tensors: list[np.ndarray], got: list[np.ndarray]) -> float:
    """The largest error of results that passed the check, as `Verdict` defines `error`."""
    want = [np.empty_like(array) for array in got]
    with np.errstate(all="ignore"):
        if isinstance(reference, NumpyKernel):
            reference(tensors, want)
        else:
            run_fenced(reference, tensors, want, True, 0)
    errors = [_error_of(*pair) for pair in zip(want, got, strict=True)]
    return max((error for error in errors if not math.isnan(error)), default=math.nan)


def _error_of(want: np.ndarray, got: np.ndarray) -> float:
    want, got = want.astype(np.float64), got.astype(np.float64)
    known = np.isfinite(want) & np.isfinite(got)
    if not known.any():
        return math.nan
    scale = float(np.abs(want[known]).max())
    return float(np.abs(want - got)[known].max()) / (scale or 1.0)
