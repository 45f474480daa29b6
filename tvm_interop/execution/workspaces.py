"""Limits the GPU memory that kernels of cuDNN and cuBLASLt use for intermediate results."""

from __future__ import annotations

from .._native import cuda as _cuda
from ..errors import InputError
from ..plain_data import is_whole


def workspace_limit() -> int:
    """Return the most bytes of a GPU's memory that one library kernel may use as its workspace."""
    return _cuda.workspace_limit()


def set_workspace_limit(nbytes: int) -> None:
    """Limit the workspaces of library kernels for GPUs that this process prepares from now on.

    Each stream of a module on a GPU has one workspace, which its kernels of cuDNN and cuBLASLt
    share. The workspace is as large as the largest workspace that one of these kernels needs, and
    at most `nbytes` bytes. It is freed when the module is closed. Algorithms that need more are
    left out, and slower algorithms run instead. If an operator has no algorithm within the limit,
    the model is refused when it is loaded.

    The limit is 64 MiB by default. Under another limit, a library may choose an algorithm whose
    results differ in the last bits.

    Raises
    ------
    InputError
        `nbytes` is not a whole number, or it is negative.
    """
    if not is_whole(nbytes) or nbytes < 0:
        raise InputError(f"`nbytes` is {nbytes!r}; give a whole number of bytes, 0 or more")
    _cuda.set_workspace_limit(int(nbytes))
