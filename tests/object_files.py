"""Shares compiled kernels between tests, so that equal kernels are compiled and linked once."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_interop.kernels.linker import Linker

FOLDER = "TVM_INTEROP_TEST_KERNELS"
"""The environment variable that names the folder of `ObjectFiles`."""


class ObjectFiles:
    """Keeps object files and libraries of kernels for CPUs, and machine code of kernels for GPUs.

    The methods of this class take the places of `kernels.build.write_object`, of
    `kernels.linker.Linker.link` and of `kernels.build_cuda.compile_fatbin`. Several processes may
    share one folder. The first process that asks for a kernel compiles it.

    Kernels for CPUs are equal if their structure, their target and their pass context are equal.
    Each kernel is compiled by itself, under a name that is made from its structure. So models share
    a kernel even if they give it different names. Kernels for GPUs are equal if their CUDA source
    and their architectures are equal. Libraries are equal if their object files and their linker
    are equal.
    """

    def __init__(self, folder: Path) -> None:
        """Remember the folder. No file is made yet."""
        from tvm_interop.kernels.build import write_object
        from tvm_interop.kernels.build_cuda import compile_fatbin
        from tvm_interop.kernels.linker import Linker

        self._folder = folder
        # The original functions, before this object took their places.
        self._compile = write_object
        self._compile_fatbin = compile_fatbin
        self._link = Linker.link

    def write(self, kernels: Any, target: Any, path: Path) -> None:
        """Copy the object file if it exists, or compile it."""
        from tvm_interop.kernels.build import kernel_hashes

        hashes = kernel_hashes(kernels)

        def write(own: Path) -> None:
            if len(hashes) > 0 and _is_for_this_machine(target):
                self._join(kernels, hashes, target, own)
            else:
                self._compile(kernels, target, own)

        shutil.copyfile(self._kept(_key_of(hashes, target), write), path)

    def _join(self, kernels: Any, hashes: dict[str, str], target: Any, path: Path) -> None:
        """Join object files of single kernels; each kernel gets its name in this module back."""
        parts = []
        for variable, function in kernels.functions_items():
            name = variable.name_hint
            kept = self._alone(function, hashes[name], target)
            part = path.with_name(f"{len(parts)}.part")
            symbols = [
                f"--redefine-sym={before}{_shared_name(hashes[name])}{after}={before}{name}{after}"
                for before, after in (("__tvm_ffi_", ""), ("", "_compute_"))
            ]
            subprocess.run(["objcopy", *symbols, kept, part], check=True)
            parts.append(part)
        subprocess.run(["ld", "-r", "-o", path, *parts], check=True)

    def _alone(self, function: Any, its_hash: str, target: Any) -> Path:
        """The object file of one kernel under its shared name."""
        import tvm

        name = _shared_name(its_hash)
        module = tvm.IRModule({name: function.with_attr("global_symbol", name)})
        key = _key_of({name: its_hash}, target)
        return self._kept(key, lambda own: self._compile(module, target, own))

    def link(self, linker: Linker, objects: list[str], library: Path) -> None:
        """Copy the library that `linker` makes of these object files.

        Link it first if it does not exist.
        """
        contents = [hashlib.sha256(Path(one).read_bytes()).hexdigest() for one in objects]
        kept = self._kept(
            json.dumps([*linker, *contents]), lambda own: self._link(linker, objects, own), ".so"
        )
        shutil.copy(kept, library)

    def fatbin(self, source: str, archs: Sequence[str]) -> bytes:
        """Return the machine code of CUDA `source` if it is kept, or compile it."""
        key = json.dumps([source, list(archs)])
        kept = self._kept(key, lambda own: own.write_bytes(self._compile_fatbin(source, archs)))
        return kept.read_bytes()

    def _kept(self, key: str, write: Callable[[Path], object], suffix: str = ".o") -> Path:
        """The kept file for `key`. If it is missing, `write` makes it, with the given suffix."""
        kept = self._folder / hashlib.sha256(key.encode()).hexdigest()
        if not kept.exists():
            self._folder.mkdir(exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                own = Path(scratch) / f"kernels{suffix}"
                write(own)
                os.replace(own, kept)
        return kept


def _key_of(hashes: dict[str, str], target: Any) -> str:
    from tvm_interop.compiler.kept_kernels import kernels_key

    return json.dumps([kernels_key(hashes), str(target)], sort_keys=True)


def _shared_name(its_hash: str) -> str:
    """The name under which a kernel is compiled, made from the hash of its structure."""
    return f"kernel_{its_hash}"


def _is_for_this_machine(target: Any) -> bool:
    """Whether the tools of this machine can read object files for `target`."""
    import tvm

    here = tvm.target.Target("llvm").attrs["mtriple"]
    return bool(str(target.attrs.get("mtriple", here)).partition("-")[0] == here.partition("-")[0])
