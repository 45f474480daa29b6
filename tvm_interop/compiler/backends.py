"""Which backend compiles for a target: the one place that asks what kind of device it is."""

from __future__ import annotations

from dataclasses import replace

from .backend import Backend
from .cpu import CpuBackend
from .cuda import CudaBackend, is_cuda
from .options import CompileOptions


def backend_for(options: CompileOptions) -> Backend:
    """The backend for the device that `options.target` names.

    Raises
    ------
    DeviceError, InputError
        There is no such device, or an option is not for it.
    """
    return CudaBackend(options) if is_cuda(options.target) else CpuBackend(options)


def why_not_in_bf16(options: CompileOptions) -> str | None:
    """Why nothing can be compiled in bf16 for the target of `options`; None where it can."""
    return backend_for(replace(options, precision="f32", keep_f32=())).why_not_in_bf16()
