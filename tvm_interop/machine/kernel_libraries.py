"""Finds the kernel libraries of this machine: oneDNN for CPUs, cuDNN and cuBLASLt for GPUs.

A process looks for each library once. If a library is missing, TVM's kernels are used instead.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from ..errors import ArtifactError, ExecutionError, InputError
from ..program.library_op import LibraryOp
from ..program.storage import Layout
from .library_files import CUBLASLT, CUDNN, ONEDNN, LibraryFile, file_identity

_LOG = logging.getLogger("tvm_interop")

TVM = "tvm"
"""The provider of the kernels that TVM compiles. It is always available."""

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class _Library:
    """A kernel library: the kind of device that its kernels run on, and where to look for it."""

    device: Device
    place: LibraryFile

    @property
    def native(self) -> Any:
        """The module with the native functions for this library."""
        from .._native import cpu, cuda

        return cpu if self.device == "cpu" else cuda


_LIBRARIES = {
    "onednn": _Library("cpu", ONEDNN),
    "cudnn": _Library("cuda", CUDNN),
    "cublaslt": _Library("cuda", CUBLASLT),
}
_WHY_MISSING: dict[str, str] = {}


def provider_names(device: Device | None = None) -> tuple[str, ...]:
    """Return the names of all kernel providers for `device`, or for any device if it is None; `tvm`
    is first.

    The list may contain providers that are missing on this machine.
    """
    return (TVM, *(name for name, lib in _LIBRARIES.items() if device in (None, lib.device)))


def check_provider_names(names: Iterable[str], device: Device) -> None:
    """Check that each of `names` is a provider of kernels for `device`.

    Raises
    ------
    InputError
        A name is not the name of a provider for `device`; the message has this name.
    """
    known = provider_names(device)
    for name in names:
        if name in known:
            continue
        if name in _LIBRARIES:
            where = "a GPU" if device == "cuda" else "a CPU"
            raise InputError(
                f"kernel provider `{name}` has no kernels for {where}: choose among "
                f"{', '.join(known)}, or compile for another kind of target"
            )
        raise InputError(f"there is no kernel provider `{name}`: choose among {', '.join(known)}")


def available_providers(
    wanted: Iterable[str] | None = None, device: Device = "cpu"
) -> tuple[str, ...]:
    """Return the `wanted` providers that are available, and log the providers that are missing.

    If `wanted` is not given, all known providers for `device` are wanted.

    Raises
    ------
    InputError
        `wanted` contains a name that is not the name of a provider for `device`.
    """
    names = provider_names(device) if wanted is None else tuple(dict.fromkeys(wanted))
    check_provider_names(names, device)
    return tuple(name for name in names if name == TVM or library_version(name) is not None)


@functools.cache
def library_version(name: str) -> str | None:
    """Load kernel library `name` and return its version, or None if it cannot be loaded.

    Raises
    ------
    ArtifactError
        There is no library of that name.
    """
    library = _library(name)
    try:
        return str(library.native.load_kernel_library(name, library.place.find()))
    except ExecutionError as error:
        _LOG.info("library %s cannot be loaded, so TVM's kernels run instead: %s", name, error)
        _WHY_MISSING[name] = str(error)
        return None


def library_identity(name: str) -> str | None:
    """Return a text that differs between versions of library `name`, or None if it is missing.

    This function takes only milliseconds. The function `library_version` takes longer, because it
    imports tvm_ffi, which imports PyTorch if PyTorch is installed.
    """
    try:
        return file_identity(_library(name).place.find())
    except OSError:
        # Only a file name is known, but the system's loader may find the file in its own folders.
        return library_version(name)


def why_missing(name: str) -> str | None:
    """Return why library `name` cannot be loaded, or None if it can."""
    return None if library_version(name) is not None else _WHY_MISSING[name]


def why_refused(name: str, op: LibraryOp) -> str:
    """Return why library `name` does not compute `op` on this machine, or "" if it does.

    A missing GPU library is not a reason, because models for GPUs may be compiled on a machine
    without a GPU.
    """
    if _library(name).device == "cpu":
        missing = why_missing(name)
        if missing is not None:
            return f"is missing: {missing}"
    return why_unsupported(name, op)


def is_supported(name: str, op: LibraryOp) -> bool:
    """Whether library `name` can compute `op`. A library for CPUs must be loaded already."""
    return not why_unsupported(name, op)


def why_unsupported(name: str, op: LibraryOp) -> str:
    """Return why library `name` cannot compute `op`, or "" if it can.

    A library for CPUs must be loaded already.
    """
    return str(_library(name).native.why_unsupported(name, op.fields()))


def blocked_layout(name: str) -> Layout:
    """The blocked layout for which library `name`, which must be loaded, has fast kernels."""
    return cast(Layout, _library(name).native.blocked_layout(name))


def _library(name: str) -> _Library:
    if name not in _LIBRARIES:
        raise ArtifactError(
            f"there is no kernel library `{name}`: upgrade tvm_interop, or compile the model again"
        )
    return _LIBRARIES[name]
