"""Checks TVM's kernels before the artifact gets them, and replaces kernels that are wrong.

Each kernel is compared with a reference (see `kernels.check`). A wrong kernel is built again
without a schedule.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np
import tvm
from tvm import tirx

from .._native.kernels import load_kernels, load_kernels_from
from ..artifact.manifest import KernelCheck
from ..errors import ExecutionError
from ..kernels.build import Count, build_kernels, divisible_kernels, kernel_hashes
from ..kernels.check import LONG, Checked, Findings, find_faults, operations_of
from ..kernels.edge_data import Kind
from ..kernels.numpy_kernel import NumpyKernel
from ..kernels.reference import reference_target
from ..machine.cpu_target import NOT_THIS_CPU, runs_here
from ..measure.kept_files import KeptFiles
from ..measure.measured import Progress, counter, tell
from ..scratch import scratch_folder
from .checked_libraries import LibraryChecker
from .kept_kernels import kernels_key
from .time_budget import TimeBudget

_LOG = logging.getLogger("tvm_interop")
_KIND = "checked"
_VERSION = "2"
"""Version of the checks, which is part of the keys under which their results are kept. Increase it
when the checks change, so that older results are no longer used.
"""

_right: set[str] = set()
"""The keys of the kernels that this process found to be right."""


class CheckedKernels(NamedTuple):
    """The bytes of a kernel library, and the result of its checks."""

    code: bytes
    check: KernelCheck


@dataclass(frozen=True)
class KernelChecker:
    """Checks TVM's scheduled kernels for a CPU against the same kernels before scheduling.

    Only good results are kept. This process keeps in memory each kernel that it found to be right.
    If all kernels of a library are right, this result is also kept on disk for later processes.

    Attributes
    ----------
    as_written: the kernels before scheduling.
    parameters: the types of each kernel's inputs and outputs, by the kernel's name.
    target: the TVM target that the kernels are compiled for.
    libraries: the checker of library kernels for the same model.
    budget: the time that the compilation may take. A kernel that cannot be checked in time is used
        unchecked.
    """

    as_written: tvm.IRModule
    parameters: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    target: Any
    libraries: LibraryChecker
    budget: TimeBudget = field(default_factory=TimeBudget)

    def check(
        self,
        scheduled: tvm.IRModule,
        written_out: tvm.IRModule,
        hashes: Mapping[str, str],
        code: bytes,
        kept: KeptFiles | None,
        progress: Progress | None,
    ) -> CheckedKernels:
        """Check the kernels, and return the library for the artifact.

        The returned `CheckedKernels` also counts the library kernels that `libraries` has checked.

        Parameters
        ----------
        scheduled: the kernels after scheduling.
        written_out: the kernels as they were handed to LLVM.
        hashes: the hashes of the kernels in `written_out`, by name.
        code: the bytes of the library that was built from `written_out`.
        kept: the cache on disk that keeps results of checks for later processes; None for no cache.

        Raises
        ------
        ExecutionError
            A kernel is wrong even without a schedule.
        """
        code, found = self._checked(scheduled, written_out, hashes, code, kept, progress)
        known = self.libraries
        known.forget_results()
        return CheckedKernels(
            code,
            msgspec.structs.replace(
                found, libraries=known.checked, plain={**found.plain, **known.faults}
            ),
        )

    def _checked(
        self,
        scheduled: tvm.IRModule,
        written_out: tvm.IRModule,
        hashes: Mapping[str, str],
        code: bytes,
        kept: KeptFiles | None,
        progress: Progress | None,
    ) -> CheckedKernels:
        if not runs_here(self.target):
            return CheckedKernels(
                code,
                KernelCheck(unchecked=NOT_THIS_CPU),
            )
        before = kernel_hashes(self.as_written)
        alike = {name: f"{before[name]}:{digest}" for name, digest in hashes.items()}
        # A kernel's machine code also depends on versions and options, so `context`, which names
        # them, is part of the key.
        context = kernels_key({}) + (_SHORTER if self._were_checked else "")
        key = json.dumps([_VERSION, context, sorted(alike.values())])
        if self.budget.measures_nothing:
            kept = None
        known = None if kept is None else kept.get(_KIND, key)
        if known is not None:
            return CheckedKernels(code, msgspec.json.decode(known, type=KernelCheck))
        if self.budget.is_spent and hashes:
            self.budget.leave_out(f"checking {len(hashes)} kernels of TVM")
            return CheckedKernels(code, KernelCheck(unchecked=_NO_TIME))
        keys = {name: context + own for name, own in alike.items() if not self._is_too_large(name)}
        tell(progress, f"checking {len(keys)} kernels")
        new = {name: key for name, key in keys.items() if key not in _right}
        faults, late = self._faults_in_time(new, scheduled, code, counter(progress))
        _right.update(key for name, key in new.items() if name not in faults and name not in late)
        passed = KernelCheck(
            checked=len(keys) - len(late),
            too_large=len(hashes) - len(keys),
            unchecked=_NO_TIME if late and len(late) == len(keys) else None,
        )
        if late:
            self.budget.leave_out(f"checking {len(late)} kernels of TVM")
        if not faults:
            if kept is not None and not late:
                kept.put(_KIND, key, msgspec.json.encode(passed))
            return CheckedKernels(code, passed)
        for name, fault in faults.items():
            _LOG.warning(
                "kernel `%s` is wrong as it was compiled, and is built without a schedule instead, "
                "which is slower: %s; please report it",
                name,
                fault,
            )
        plain = self._built_plainly(written_out, faults)
        # The key of a kernel in `keys` stands for the scheduled kernel. So if a kernel was rebuilt
        # without a schedule, its result is not kept.
        still = self._faults({name: keys[name] for name in faults}, None, plain)
        for name, fault in still.items():
            raise ExecutionError(
                f"kernel `{name}` is wrong with and without a schedule: {fault}; please report it"
            )
        return CheckedKernels(plain, msgspec.structs.replace(passed, plain=faults))

    def _faults_in_time(
        self,
        keys: Mapping[str, str],
        scheduled: tvm.IRModule,
        code: bytes,
        count: Count | None,
    ) -> tuple[dict[str, str], set[str]]:
        """Check kernels until the time is over.

        Parameters
        ----------
        keys, scheduled, code, count: see the parameters of `_faults`.

        Returns
        -------
        First, the fault of each wrong kernel, by its name. Second, the names of the kernels that
        were not checked in time. A kernel that is equal to a checked kernel counts as checked.
        """
        alike: dict[str, list[str]] = {}
        for name, key in keys.items():
            alike.setdefault(key, []).append(name)
        faults: dict[str, str] = {}
        reached: set[str] = set()
        done = 0
        for piece in self.budget.pieces(list(alike.values())):
            names = [name for group in piece for name in group]
            in_all = _counted_from(done, len(alike), count)
            faults |= self._faults({name: keys[name] for name in names}, scheduled, code, in_all)
            reached.update(names)
            done += len(piece)
        return faults, set(keys) - reached

    @cached_property
    def _functions(self) -> dict[str, tuple[Any, tirx.PrimFunc]]:
        """The kernels before any schedule: for each name, the kernel's global variable and its
        function.
        """
        return {var.name_hint: (var, func) for var, func in self.as_written.functions_items()}

    @cached_property
    def _operations(self) -> dict[str, int]:
        """The number of operations of each kernel, by name. Counting them is slow."""
        return {name: operations_of(func) for name, (_, func) in self._functions.items()}

    def _is_too_large(self, name: str) -> bool:
        nbytes = sum(
            math.prod(int(size) for size in param.shape) * np.dtype(str(param.dtype)).itemsize
            for param in self._functions[name][1].params
        )
        return nbytes > _MOST_BYTES or self._operations[name] > _MOST

    def _kinds(self, name: str) -> Sequence[Kind]:
        """The kinds of input numbers to check a kernel with.

        Empty means all kinds that suit the kernel.

        A large kernel that was checked when the model was compiled for other shapes is not tried
        again on special numbers, such as NaN and infinities.
        """
        is_long = self._operations[name] > LONG
        return ("ordinary", "small") if self._were_checked and is_long else ()

    @property
    def _were_checked(self) -> bool:
        """Whether the model's kernels were checked when it was compiled for other shapes."""
        return self.libraries.like is not None and self.libraries.like.are_checked

    def _target_of_reference(self, name: str) -> Any:
        return reference_target(0 if self._operations[name] < _SHORT else 1)

    def _faults(
        self,
        keys: Mapping[str, str],
        scheduled: tvm.IRModule | None,
        code: bytes,
        count: Count | None = None,
    ) -> dict[str, str]:
        """Find the fault of each wrong kernel, by the kernel's name. Equal kernels are run once.

        Parameters
        ----------
        keys: the keys of the kernels to check, by name. Equal kernels have equal keys.
        scheduled: the kernels after scheduling; None for kernels that have no schedule.
        code: the bytes of the library with the kernels to check.
        count: called with the number of kernels that are checked so far and with the number of all
            kernels.
        """
        alike: dict[str, list[str]] = {}
        for name, key in keys.items():
            alike.setdefault(key, []).append(name)
        if not alike:
            return {}
        divisible = divisible_kernels(scheduled) if scheduled is not None else set()
        with_loops = (
            {var.name_hint: func for var, func in scheduled.functions_items()} if scheduled else {}
        )
        built = load_kernels_from(code)

        def found_by(reference: Mapping[str, Any]) -> Findings:
            return find_faults(
                [
                    Checked(
                        name,
                        self._functions[name][1],
                        built[name],
                        reference[name],
                        *self.parameters[name],
                        name in divisible,
                        self._kinds(name),
                        results=self.libraries.results_of(name),
                    )
                    for name in reference
                ],
                count,
            )

        reference = self._references([names[0] for names in alike.values()], with_loops)
        faults, not_evaluated = found_by(reference)
        for name, defect in not_evaluated.items():
            _LOG.warning(_NOT_EVALUATED, name, defect)
        # NumPy's functions compute some numbers differently from TVM's. So if a kernel differs from
        # NumPy, it is also compared with an unoptimised build of the same kernel. The kernel is
        # wrong only if it differs from this build too.
        suspects = [name for name in faults if isinstance(reference[name], NumpyKernel)]
        again = [*suspects, *not_evaluated]
        if again:
            confirmed = found_by(self._references(again, with_loops, by_numpy=False)).faults
            faults = {name: f for name, f in faults.items() if name not in suspects} | confirmed
        return {
            name: faults[names[0]]
            for names in alike.values()
            if names[0] in faults
            for name in names
        }

    def _references(
        self,
        names: Sequence[str],
        with_loops: Mapping[str, tirx.PrimFunc],
        by_numpy: bool = True,
    ) -> dict[str, Any]:
        """The references that the kernels `names` are compared with, by the kernel's name.

        If NumPy can compute a kernel, NumPy's version is the reference. If not, the reference is a
        plain build: the kernel compiled for a baseline CPU, in most cases without a schedule.

        Parameters
        ----------
        with_loops: the scheduled kernels, by name. A reference with more than `_LONG` operations is
            built from its scheduled kernel.
        by_numpy: if False, all references are plain builds, and none is NumPy's version.
        """
        found: dict[str, Any] = {}
        to_build: dict[Any, tirx.PrimFunc] = {}
        for name in names:
            var, function = self._functions[name]
            # A kernel takes a bfloat16 as a word of 16 bits, which NumPy cannot interpret.
            has_words = "bfloat16" in (*self.parameters[name][0], *self.parameters[name][1])
            evaluated = self.libraries.reference(name) if by_numpy and not has_words else None
            if evaluated is not None:
                found[name] = evaluated
                continue
            is_long = self._operations[name] > _LONG
            to_build[var] = with_loops.get(name, function) if is_long else function
        if to_build:
            targets = {var.name_hint: self._target_of_reference(var.name_hint) for var in to_build}
            with scratch_folder() as folder:
                path = folder / "reference.so"
                module = tvm.IRModule(to_build)
                library = load_kernels(build_kernels(module, reference_target(), path, targets))
            found |= {name: library[name] for name in targets}
        return found

    def _built_plainly(self, written_out: tvm.IRModule, names: Collection[str]) -> bytes:
        """Build the library again, with the kernels `names` as they were before scheduling."""
        module = written_out.clone()
        for var in list(module.functions):
            if var.name_hint in names:
                module.update_func(var, self._functions[var.name_hint][1])
        targets = {name: self._target_of_reference(name) for name in names}
        with scratch_folder() as folder:
            path = folder / "kernels.so"
            return build_kernels(module, self.target, path, targets).read_bytes()


def _counted_from(before: int, total: int, count: Count | None) -> Count | None:
    """Return a progress function for a later part of a check of `total` kernels.

    The new function adds `before`, the number of kernels that earlier parts have checked, and
    passes the sum to `count`.
    """
    return None if count is None else lambda done, _: count(before + done, total)


_SHORTER = "checked at other shapes"
"""Marks the keys of checks in which large kernels were not tried on special numbers (such as NaN).
"""
_NO_TIME = "the time budget left no time for it"
_NOT_EVALUATED = (
    "NumPy cannot evaluate kernel `%s`, which is checked against a plain build instead; please "
    "report it: %s"
)
_SHORT = 200_000
"""A reference kernel with fewer operations than this is built without optimization, because the
optimization takes longer than it saves."""
_LONG = 1_000_000_000
"""A reference kernel with more operations than this is built from the scheduled loops, but for a
baseline CPU. Without a schedule the kernel would run for seconds."""
_MOST = 50_000_000_000
"""A kernel with more operations than this is not checked."""
_MOST_BYTES = 512 * 2**20
"""A kernel whose tensors take more bytes than this is not checked. A check takes three times the
memory of the tensors."""
