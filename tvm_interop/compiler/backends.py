"""Selects the backend for a target. No other module depends on the kind of a target's device."""

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
        The target names an unknown device, or the device does not support an option.
    """
    return CudaBackend(options) if is_cuda(options.target) else CpuBackend(options)


def why_not_in_bf16(options: CompileOptions) -> str | None:
    """The reason why the target of `options` does not support bf16; None if it does."""
    return backend_for(replace(options, precision="f32", keep_f32=())).why_not_in_bf16()


def can_fill_up(options: CompileOptions) -> bool:
    """Whether the inputs of a run on the target can be padded to a larger compiled size.

    So far inputs can be padded only on CPUs.
    """
    return not is_cuda(options.target)
