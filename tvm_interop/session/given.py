"""Checks and converts the arguments that a user gives to a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DeviceError, InputError
from .source import Source
from .tensor_info import TensorInfo


def is_open(source: Source, options: Mapping[str, Any]) -> bool:
    """Whether an input has open dimensions for which `options` gives no shape.

    A model with such an input can be compiled only when `run` gets inputs.
    """
    given = options.get("input_shapes") or {}
    ranges = options.get("batch_sizes"), options.get("shapes")
    if ranges != (None, None) or not isinstance(given, Mapping):
        return False
    return any(info.is_open and info.name not in given for info in source.inputs)


def check_artifact_options(options: Mapping[str, Any], wanted: int, threads: int | None) -> None:
    """Check the arguments for a session of an artifact, which was compiled for `wanted` threads."""
    if options:
        raise InputError(
            f"`{'`, `'.join(options)}`: options are for models that are compiled, and this is an "
            "artifact, which is compiled already; leave them out"
        )
    if threads is not None and threads < wanted:
        raise InputError(
            f"the artifact was compiled for {wanted} threads, and `threads` is {threads}: give the "
            "model instead of the artifact, or limit this process with "
            "tvm_interop.set_num_threads"
        )


def with_type(value: Any, info: TensorInfo) -> Any:
    """Convert a list of numbers to an array of the input's dtype; return other values as is."""
    if hasattr(value, "__dlpack__") or hasattr(value, "__array__") or value is None:
        return value
    try:
        return np.asarray(value, info.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"input {info} cannot be made from the given value: {error}") from error


def check_providers(providers: Sequence[Any] | None, target: Any) -> None:
    names = [name if isinstance(name, str) else name[0] for name in providers or ()]
    if names and "CPUExecutionProvider" not in names and str(target).startswith("llvm"):
        raise DeviceError(
            f"`providers` is {names}, and a session runs on the CPU unless `target` says "
            'otherwise: add "CPUExecutionProvider", or give target="cuda"'
        )
