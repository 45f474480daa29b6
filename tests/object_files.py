"""Shares compiled kernels between tests, so that equal kernels are compiled once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = "TVM_INTEROP_TEST_KERNELS"
"""The environment variable that names the folder of `ObjectFiles`."""


class ObjectFiles:
    """Keeps object files of kernels for CPUs, and machine code of kernels for GPUs.

    Its methods take the places of `kernels.build.write_object` and of
    `kernels.build_cuda.compile_fatbin`. Several processes may share its folder. The first process
    that asks compiles.

    Kernels for CPUs are equal if their names, their structure, their target and their pass context
    are equal. In one `make test`, 1,013 of 2,071 object files had been compiled before. Kernels for
    GPUs are equal if their CUDA source and their architectures are equal.
    """

    def __init__(self, folder: Path) -> None:
        """Remember the folder. No file is made yet."""
        from tvm_interop.kernels.build import write_object
        from tvm_interop.kernels.build_cuda import compile_fatbin

        self._folder = folder
        # The original functions, before this object took their places.
        self._compile = write_object
        self._compile_fatbin = compile_fatbin

    def write(self, kernels: Any, target: Any, path: Path) -> None:
        """Copy the object file if it exists, or compile it."""
        from tvm_interop.compiler.kept_kernels import kernels_key
        from tvm_interop.kernels.build import kernel_hashes

        key = json.dumps([kernels_key(kernel_hashes(kernels)), str(target)], sort_keys=True)
        kept = self._kept(key, lambda own: self._compile(kernels, target, own))
        shutil.copyfile(kept, path)

    def fatbin(self, source: str, archs: Sequence[str]) -> bytes:
        """Return the machine code of CUDA `source` if it is kept, or compile it."""
        key = json.dumps([source, list(archs)])
        kept = self._kept(key, lambda own: own.write_bytes(self._compile_fatbin(source, archs)))
        return kept.read_bytes()

    def _kept(self, key: str, write: Callable[[Path], object]) -> Path:
        """The file of `key`. If there is no such file, `write` writes it."""
        kept = self._folder / hashlib.sha256(key.encode()).hexdigest()
        if not kept.exists():
            self._folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                own = Path(scratch) / "kernels.o"
                write(own)
                os.replace(own, kept)
        return kept
