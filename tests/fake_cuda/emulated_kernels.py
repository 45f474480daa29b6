"""TVM's kernels under the fake CUDA, executed by the emulation of CUDA kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tests.cuda_emulation.compare import ARCHS
from tests.cuda_emulation.device_code import device_code
from tests.cuda_emulation.emulated_kernel import EmulatedKernel, build_program, program_source

from . import fake_gpu


class EmulatedKernels(fake_gpu.Kernels):
    """TVM's kernels for a GPU, which really compute when the fake GPU runs them.

    Each kernel is built when it is first asked for, unless the folder has the program of an equal
    kernel already. The kernels must have one result, and all their tensors must be float32.
    """

    def __init__(self, kernels: tvm.IRModule, folder: Path) -> None:
        """Make the kernels.

        Parameters
        ----------
        kernels: the scheduled kernels.
        folder: a folder for their programs.
        """
        super().__init__({})
        self._scheduled = {var.name_hint: func for var, func in kernels.functions_items()}
        self._folder = folder

    def get_function(self, name: str, query_imports: bool) -> Any:
        """Return the kernel `name`, as the same method of a TVM module does."""
        if name not in self._effects:
            self._effects[name] = self._built(name)
        return super().get_function(name, query_imports)

    def _built(self, name: str) -> Callable[..., None]:
        scheduled = self._scheduled[name]
        sizes = [4 * int(np.prod([int(dim) for dim in p.shape])) for p in scheduled.params]
        code = device_code("kernel", scheduled, ARCHS)
        digest = hashlib.sha256(program_source(code, sizes).encode()).hexdigest()
        program = self._folder / digest
        if not program.exists():
            build_program(code, sizes, program, sanitize=False)
        emulated = EmulatedKernel(program, [])

        def effect(*arrays: np.ndarray) -> None:
            said = emulated.run_fenced(arrays[:-1], arrays[-1:], True, 0xFF)
            assert not said, f"kernel `{name}` {said}"

        return effect
