"""Checks the kernels that kernel libraries offer for a model's operators; replaces wrong kernels.

Each kernel is compared with the NumPy version of TVM's kernel for the same operator. If a library's
kernel is wrong, TVM's kernel runs the operator instead.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import tvm
from tvm import tirx

from .._native import cpu as _native
from .._version import __version__
from ..artifact.chosen_kernels import ChosenKernels
from ..kernels.check import Checked, find_faults
from ..kernels.edge_data import Kind
from ..kernels.numpy_kernel import NumpyKernel, numpy_kernel
from ..kernels.reference_results import ReferenceResults, Room
from ..machine.kernel_libraries import library_version
from ..measure.kept_files import KeptFiles
from ..measure.measured import Progress, tell
from ..program.library_op import LibraryOp
from ..program.program import Operator, Program
from ..program.storage import Layout, block_of
from .time_budget import LIBRARIES_SHARE, TimeBudget

_LOG = logging.getLogger("tvm_interop")
_KIND = "checked library"
_VERSION = "1"
"""Version of the checks, which is part of the keys under which their results are kept. Increase it
when the checks change, so that older results are no longer used.
"""
_KINDS: tuple[Kind, ...] = ("ordinary", "denormal", "large")
"""The kinds of input numbers that each kernel is checked with."""

_right: set[str] = set()
"""The keys of the kernels that this process found to be right."""
_not_evaluated: set[str] = set()
"""The keys of the kernels that this process could not check, because NumPy could not compute the
results to compare with.
"""


@dataclass(frozen=True)
class FencedLibraryKernel:
    """A library's kernel, wrapped so that it runs on row-major tensors with guard pages around
    them.

    Tensors are converted to the layouts that the kernel works in, and results back to row-major.
    Any access to a guard page is an error, so guard pages show whether the kernel accesses memory
    outside of its tensors.

    Attributes
    ----------
    library: the library's name.
    description: the operator that the kernel computes.
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
        """Run the kernel, and describe its forbidden access to memory, or "" if there was none."""
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
    """Convert a row-major tensor to `layout`. Zeros fill up the last block of channels."""
    if layout == "plain":
        return array
    batch, channels, height, width = array.shape
    block = block_of(layout)
    blocks = -(-channels // block)
    full = np.zeros((batch, blocks * block, height, width), array.dtype)
    full[:, :channels] = array
    by_block = full.reshape(batch, blocks, block, height, width)
    return np.ascontiguousarray(by_block.transpose(0, 1, 3, 4, 2))


@dataclass
class LibraryChecker:
    """Checks the kernels that libraries have for a program's operators.

    Attributes
    ----------
    as_written: TVM's kernels of the program's operators, before any schedule.
    kept: the cache on disk that keeps results of checks for later processes; None for no cache.
    budget: the time that the compilation may take. A kernel that cannot be checked in time is used
        unchecked.
    like: the kernels that were chosen for the model at other shapes; None if kernels are chosen
        anew. Large kernels that were checked at the other shapes are not checked again.
    checked: how many library kernels of the last program were checked. Equal kernels count once.
    late: how many library kernels of the last program could not be checked in time.
    faults: the fault of each kernel that failed, by the operator's name.
    """

    as_written: tvm.IRModule
    kept: KeptFiles | None
    progress: Progress | None
    budget: TimeBudget = field(default_factory=TimeBudget)
    like: ChosenKernels | None = None
    checked: int = 0
    late: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    _room: Room = field(default_factory=Room)
    _results: dict[str, ReferenceResults] = field(default_factory=dict)
    _references: dict[str, NumpyKernel | None] = field(default_factory=dict)

    def without_faults(self, program: Program, choose: Callable[[Program], Program]) -> Program:
        """Choose kernels by `choose`, and check the chosen library kernels.

        If a kernel is wrong, its operator loses its description, so that no library can run it, and
        `choose` runs again. This is repeated until no chosen kernel is wrong.

        Parameters
        ----------
        choose: chooses a kernel for each operator of a program.
        """
        while True:
            chosen = choose(program)
            faults = self._faults(chosen)
            if not faults:
                if self.late:
                    self.budget.leave_out(f"checking {self.late} kernels of libraries")
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
        """The fault of each wrong kernel, by the operator's name.

        A kernel that several operators use is checked once.
        """
        alike: dict[str, list[str]] = {}
        kernels: dict[str, Checked] = {}
        for op in program.operators:
            if self.like is not None and self.like.is_known_right(op):
                continue
            kernel = self._kernel(program, op)
            if kernel is not None:
                alike.setdefault(kernel.name, []).append(op.name)
                kernels[kernel.name] = kernel
        if self.budget.measures_nothing:
            self.late = len(kernels)
            return {}
        self.late = 0
        self.checked = len(kernels) - len(_not_evaluated & kernels.keys())
        new = sorted(kernels.keys() - _right - _not_evaluated)
        all_new = json.dumps(new)
        if self.kept is not None and self.kept.get(_KIND, all_new) is not None:
            _right.update(new)
            return {}
        if new:
            tell(self.progress, f"checking {len(new)} kernels of libraries")
        found: dict[str, str] = {}
        not_evaluated: dict[str, str] = {}
        reached: list[str] = []
        for keys in self.budget.share(LIBRARIES_SHARE).pieces(new):
            of_piece = find_faults([kernels[key] for key in keys])
            found |= of_piece.faults
            not_evaluated |= of_piece.not_evaluated
            reached += keys
        self.late = len(new) - len(reached)
        self.checked -= self.late
        for key, defect in not_evaluated.items():
            _LOG.warning(
                "the library's kernel for `%s` is not checked: NumPy cannot evaluate TVM's kernel "
                "for comparison; please report it: %s",
                alike[key][0],
                defect,
            )
        _not_evaluated.update(not_evaluated)
        self.checked -= len(not_evaluated)
        _right.update(key for key in reached if key not in found and key not in not_evaluated)
        if new and not (found or not_evaluated or self.late) and self.kept is not None:
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
        """The library kernel of an operator, prepared for the check.

        The kernel's name in the result holds everything on which the kernel's results depend. So
        equal names mean equal kernels. Return None if TVM runs the operator, if the operator
        computes nothing, or if NumPy cannot compute it. Operators are checked before they are
        divided into parts.
        """
        if op.library is None or op.description is None or not op.description.computes:
            return None
        reference = self.reference(op.kernel)
        types = [program.values[v].dtype for v in (*op.inputs, *op.outputs)]
        # TVM's kernel takes a bfloat16 as a word of 16 bits, which NumPy cannot interpret.
        if reference is None or "bfloat16" in types:
            return None
        constants = tuple(program.is_constant(v) for v in op.inputs)
        kinds = [kind for kind in _KINDS if kind != "large" or op.description.takes_large]
        # Do not check bfloat16 kernels on denormal numbers. The CPU's instructions for bfloat16
        # products treat them as zeros.
        narrow = op.description.multiplies and op.description.dtype == "bfloat16"
        version = library_version(op.library)
        key = [_VERSION, __version__, op.library, version, op.description.to_json(), constants]
        return Checked(
            json.dumps(key),
            reference.function,
            FencedLibraryKernel(op.library, op.description, constants),
            reference,
            [program.values[v].dtype for v in op.inputs],
            [program.values[v].dtype for v in op.outputs],
            kinds=[kind for kind in kinds if not narrow or kind != "denormal"],
            results=None if narrow else self.results_of(op.kernel),
            factors="bfloat16" if narrow else "",
        )

    def reference(self, kernel: str) -> NumpyKernel | None:
        """The NumPy version of one of TVM's kernels; None if NumPy cannot compute it."""
        if kernel not in self._references:
            function = self._functions.get(kernel)
            self._references[kernel] = None if function is None else numpy_kernel(function)
        return self._references[kernel]

    def results_of(self, kernel: str) -> ReferenceResults:
        """The results that this kernel's reference has computed so far, kept for later checks."""
        return self._results.setdefault(kernel, ReferenceResults(self._room))

    def forget_results(self) -> None:
        """Forget all results of references that are known so far, to free their memory."""
        self._results.clear()
        self._room = Room()

    @cached_property
    def _functions(self) -> dict[str, tirx.PrimFunc]:
        """TVM's kernels before any schedule, by name."""
        return {var.name_hint: func for var, func in self.as_written.functions_items()}
