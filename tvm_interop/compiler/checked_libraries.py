"""Kernels of libraries, checked as TVM's are: one that is at fault runs nothing in a model."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import tvm

from .._native import cpu as _native
from .._version import __version__
from ..kernels.check import Checked, find_faults
from ..kernels.edge_data import Kind
from ..kernels.numpy_kernel import NumpyKernel, numpy_kernel
from ..machine.kernel_libraries import library_version
from ..measure.kept_files import KeptFiles
from ..measure.measured import Progress, tell
from ..program.library_op import LibraryOp
from ..program.program import Operator, Program
from ..program.storage import BLOCK, Layout

_LOG = logging.getLogger("tvm_interop")
_KIND = "checked library"
_VERSION = "1"
"""Part of the keys under which verdicts are remembered: what is found changes with it."""
_KINDS: tuple[Kind, ...] = ("ordinary", "denormal", "large")
"""Of numbers."""

_right: set[str] = set()
"""Keys of kernels that were found right by this process."""
_not_evaluated: set[str] = set()
"""Keys of those of which this process could not say anything."""


@dataclass(frozen=True)
class FencedLibraryKernel:
    """A kernel of a library, to be run on plain tensors, in whatever layouts it works.

    Attributes
    ----------
    constants: whether each input is a weight.
    """

    library: str
    description: LibraryOp
    constants: tuple[bool, ...]

    def run_fenced(
        self,
        tensors: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        before_fence: bool,
        fill: int,
    ) -> str:
        """As `_native.cpu.run_library_fenced`."""
        layouts = self.description.layouts
        plain = [*tensors, *results]
        arrays = [_laid_out(array, layout) for array, layout in zip(plain, layouts, strict=True)]
        said = _native.run_library_fenced(
            self.library,
            self.description.fields(),
            arrays[: len(tensors)],
            arrays[len(tensors) :],
            self.constants,
            before_fence,
            fill,
        )
        for result, made in zip(results, arrays[len(tensors) :], strict=True):
            if made is not result:
                batch, channels, height, width = result.shape
                images = made.transpose(0, 1, 4, 2, 3).reshape(batch, -1, height, width)
                result[...] = images[:, :channels]
        return said


def _laid_out(array: np.ndarray, layout: Layout) -> np.ndarray:
    """Images of `blocked16` have their last block filled up with zeros."""
    if layout == "plain":
        return array
    batch, channels, height, width = array.shape
    blocks = -(-channels // BLOCK)
    full = np.zeros((batch, blocks * BLOCK, height, width), array.dtype)
    full[:, :channels] = array
    by_block = full.reshape(batch, blocks, BLOCK, height, width)
    return np.ascontiguousarray(by_block.transpose(0, 1, 3, 4, 2))


@dataclass
class LibraryChecker:
    """Checks the kernels that libraries have for a program's operators.

    Attributes
    ----------
    as_written: TVM's kernels of the same operators, before any schedule.
    kept: where verdicts are remembered from one process to the next.
    checked: how many kernels were, so far.
    faults: what was wrong with the others, by the operator's name.
    """

    as_written: tvm.IRModule
    kept: KeptFiles | None
    progress: Progress | None
    checked: int = 0
    faults: dict[str, str] = field(default_factory=dict)

    def without_faults(self, program: Program, choose: Callable[[Program], Program]) -> Program:
        """What `choose` makes of the program, no kernel of a library being at fault.

        An operator with such a kernel counts as one that no library knows, and the choice is made
        again.
        """
        while True:
            chosen = choose(program)
            faults = self._faults(chosen)
            if not faults:
                return chosen
            self.faults |= faults
            program = replace(
                program,
                operators=[
                    replace(op, description=None) if op.name in faults else op
                    for op in program.operators
                ],
            )

    def _faults(self, program: Program) -> dict[str, str]:
        """What is wrong, by the operator's name; operators that are alike are checked once."""
        alike: dict[str, list[str]] = {}
        kernels: dict[str, Checked] = {}
        for op in program.operators:
            kernel = self._kernel(program, op)
            if kernel is not None:
                alike.setdefault(kernel.name, []).append(op.name)
                kernels[kernel.name] = kernel
        self.checked = len(kernels) - len(_not_evaluated & kernels.keys())
        new = sorted(kernels.keys() - _right - _not_evaluated)
        all_new = json.dumps(new)
        if self.kept is not None and self.kept.get(_KIND, all_new) is not None:
            _right.update(new)
            return {}
        if new:
            tell(self.progress, f"checking {len(new)} kernels of libraries")
        found, not_evaluated = find_faults([kernels[key] for key in new])
        for key, defect in not_evaluated.items():
            _LOG.warning(
                "the library's kernel for `%s` is not checked: NumPy cannot evaluate TVM's; please "
                "report it: %s",
                alike[key][0],
                defect,
            )
        _not_evaluated.update(not_evaluated)
        self.checked -= len(not_evaluated)
        _right.update(key for key in new if key not in found and key not in not_evaluated)
        if new and not found and not not_evaluated and self.kept is not None:
            self.kept.put(_KIND, all_new, b"right")
        for key, fault in found.items():
            _LOG.warning(
                "the library's kernel for %s is wrong, and TVM's runs instead: %s; please report "
                "it",
                ", ".join(f"`{name}`" for name in alike[key]),
                fault,
            )
        return {name: fault for key, fault in found.items() for name in alike[key]}

    def _kernel(self, program: Program, op: Operator) -> Checked | None:
        """What to check, by a name that has all that decides what it computes.

        None where TVM runs the operator, where it computes nothing, and where NumPy does not know
        it. A part of an operator is not looked at: its kernel is that of the whole.
        """
        if op.library is None or op.description is None or not op.description.computes:
            return None
        reference = self._references.get(op.kernel)
        types = [program.values[v].dtype for v in (*op.inputs, *op.outputs)]
        if reference is None or "bfloat16" in types:  # Words of 16 bits, to TVM's kernel.
            return None
        constants = tuple(program.is_constant(v) for v in op.inputs)
        version = library_version(op.library)
        key = [_VERSION, __version__, op.library, version, op.description.to_json(), constants]
        return Checked(
            json.dumps(key),
            reference.function,
            FencedLibraryKernel(op.library, op.description, constants),
            reference,
            [program.values[v].dtype for v in op.inputs],
            [program.values[v].dtype for v in op.outputs],
            kinds=[kind for kind in _KINDS if kind != "large" or op.description.takes_large],
        )

    @cached_property
    def _references(self) -> dict[str, NumpyKernel]:
        """TVM's kernels by NumPy, as far as it knows them, by name."""
        functions = self.as_written.functions_items()
        known = {var.name_hint: numpy_kernel(func) for var, func in functions}
        return {name: kernel for name, kernel in known.items() if kernel is not None}
