"""Finds the kernel libraries of this machine: oneDNN so far.

A library is looked for once in a process. Where one is missing, TVM's kernels do its work.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

from . import _runtime
from .errors import ArtifactError, ExecutionError, InputError
from .library_op import LibraryOp

_LOG = logging.getLogger("tvm_interop")

TVM = "tvm"
"""The provider that is always there: kernels that TVM compiles."""

_ONEDNN_OVERRIDE = "TVM_INTEROP_ONEDNN_LIBRARY"
_ONEDNN_PACKAGE = "onednn-cpu-gomp"
_ONEDNN_FILE = "libdnnl.so.3"


def provider_names() -> tuple[str, ...]:
    """Every provider of kernels there could be; `tvm` first."""
    return (TVM, *_FINDERS)


def available_providers(wanted: Iterable[str] | None = None) -> tuple[str, ...]:
    """Those of the `wanted` providers that are there, by default of all; what is not is logged.

    Raises
    ------
    InputError
        There is no provider of that name.
    """
    names = provider_names() if wanted is None else tuple(dict.fromkeys(wanted))
    for name in names:
        if name not in provider_names():
            raise InputError(
                f"there is no kernel provider `{name}`: there are {', '.join(provider_names())}"
            )
    return tuple(name for name in names if name == TVM or library_version(name) is not None)


@functools.cache
def library_version(name: str) -> str | None:
    """The version of kernel library `name`, which is loaded now; None where it cannot be.

    Raises
    ------
    ArtifactError
        There is no library of that name.
    """
    if name not in _FINDERS:
        raise ArtifactError(
            f"there is no kernel library `{name}`: upgrade tvm_interop, or compile the model again"
        )
    path = _FINDERS[name]()
    try:
        return _runtime.load_kernel_library(name, path)
    except ExecutionError as error:
        _LOG.info("no kernels of %s, TVM's do its work: %s", name, error)
        _WHY_MISSING[name] = str(error)
        return None


def why_missing(name: str) -> str | None:
    """Why library `name` cannot be used; None where it can."""
    return None if library_version(name) is not None else _WHY_MISSING[name]


def is_supported(name: str, op: LibraryOp) -> bool:
    """Whether library `name`, which is loaded, can compute `op`."""
    return not _runtime.why_unsupported(name, op.fields())


def _find_onednn() -> str:
    """The file named by `$TVM_INTEROP_ONEDNN_LIBRARY`, the installed package's, or the system's."""
    override = os.environ.get(_ONEDNN_OVERRIDE)
    if override:
        return override
    try:
        files: Any = importlib.metadata.files(_ONEDNN_PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.name == _ONEDNN_FILE:
            return str(file.locate().resolve())
    return _ONEDNN_FILE


_FINDERS: dict[str, Callable[[], str]] = {"onednn": _find_onednn}
_WHY_MISSING: dict[str, str] = {}
