"""Checks each kernel against a reference before a model may use the kernel.

Faults in schedules, TVM's passes and LLVM have each made wrong kernels, without an error. So every
kernel runs on numbers at which kernels often fail, and its results are compared with a reference.
NumPy evaluates the reference, or TVM compiles it with few optimisations. Memory pages that nobody
may access ("fences") lie around the kernel's tensors. An access to a fence shows that the kernel
accesses other memory than its tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .._native import cpu as _native
from ..plain_data import is_float
from .build import Count
from .edge_data import Kind, edge_data
from .flops import kernel_flops
from .loops import SCHEDULED
from .numpy_kernel import NumpyKernel
from .numpy_values import UndefinedError
from .reference_results import ReferenceResults

SHARES = 3
"""The number of shares in which a divisible kernel is checked; each computes a part of the output.

The last share may be smaller.
"""

LONG = 20_000_000
"""A kernel with more operations than this is not tried on denormal and large numbers."""
_LONGEST = 100_000_000
"""A kernel with more operations than this is tried only on `ordinary` numbers (see `edge_data`)."""
_ON_THE_EDGE = 0.02
"""If the kernel rounds floats to integers, this fraction of a result's elements may be wrong.

A float near the middle between two integers may be rounded to either, as its last bit decides.
"""
_PERTURBED = 3
"""How often the reference runs again if a kernel's result differs from the reference's result.

The inputs of these runs differ in their last bits from the original inputs.
"""


@dataclass(frozen=True)
class Checked:
    """A kernel to check.

    Attributes
    ----------
    name: the kernel's name, for messages.
    function: the kernel's PrimFunc before it is scheduled.
    built: the loaded kernel that models will run. It is a function of its tensors, outputs last, or
        a `RunsFenced`.
    reference: another implementation of `function`: a `NumpyKernel`, or a kernel that is compiled
        in another way.
    inputs, outputs: the data types of the kernel's inputs and of its outputs. The kernel itself
        receives bfloat16 tensors as words of 16 bits.
    divisible: whether the kernel is also run in shares, each of which computes a part of the
        output.
    kinds: the kinds of numbers that the kernel is tried on, a subset of `Traits.kinds`; empty for
        all kinds in `Traits.kinds`.
    results: if `reference` is a `NumpyKernel`, keeps the reference's results for later checks.
    factors: the type to which the kernel rounds floats before it multiplies them, such as
        `bfloat16`; empty if it multiplies them as they are. All input floats are of this type.
    """

    name: str
    function: tirx.PrimFunc
    built: Any
    reference: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    divisible: bool = False
    kinds: Sequence[Kind] = ()
    results: ReferenceResults | None = None
    factors: str = ""


@runtime_checkable
class RunsFenced(Protocol):
    """A kernel, such as a library's kernel, that has its own method to run between fences.

    A fence is a memory page that nobody may access.
    """

    def run_fenced(
        self,
        tensors: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        before_fence: bool,
        fill: int,
    ) -> str:
        """Run the kernel between two fences, and return the same as `_native.cpu.run_fenced`."""
        ...


class NotEvaluatedError(Exception):
    """The kernel is not checked, because our code failed to evaluate its reference."""


class Findings(NamedTuple):
    """The results of checking several kernels.

    Attributes
    ----------
    faults: a description of the fault of each wrong kernel, by the kernel's name.
    not_evaluated: the reason why a kernel's reference could not be evaluated, by the kernel's name.
    """

    faults: dict[str, str]
    not_evaluated: dict[str, str]


def find_faults(kernels: Sequence[Checked], count: Count | None = None) -> Findings:
    """Check several kernels, on as many threads as a model may run on.

    A kernel is at fault if it does one of these things: it

    - accesses memory other than its tensors, or writes to an input;
    - traps on numbers on which the reference does not trap;
    - gives other results in shares, each of which is a part of the output, than in one run;
    - gives results that differ from the reference's by more than the order of additions can
      explain;
    - gives NaN or infinity at other places than the reference.

    Some results depend on the order of operations or on the processor, so they are not compared.
    These are an overflow, a float converted to an integer type that cannot hold it, and TVM's own
    maximum on NaN. If one operand is NaN, the order of the operands decides whether TVM's maximum
    is NaN. Maxima that `lowering.extremes` makes always keep NaN, so they are compared.

    Parameters
    ----------
    count: called with the number of kernels that are checked so far and with the number of all
        kernels. Several threads may call it.
    """
    findings = Findings({}, {})
    done: list[str] = []

    def look(kernel: Checked) -> None:
        try:
            fault = find_fault(kernel)
        except NotEvaluatedError as error:
            findings.not_evaluated[kernel.name] = str(error)
        else:
            if fault:
                findings.faults[kernel.name] = fault
        if count is not None:
            done.append(kernel.name)
            count(len(done), len(kernels))

    with ThreadPoolExecutor(_native.num_threads()) as pool:
        list(pool.map(look, kernels))
    return findings


def find_fault(kernel: Checked) -> str | None:
    """A description of the kernel's fault; None if no fault was found.

    Raises
    ------
    NotEvaluatedError
        NumPy fails on the kernel's reference.
    """
    with np.errstate(all="ignore"):
        return _fault(kernel)


def _fault(kernel: Checked) -> str | None:
    traits = traits_of(kernel.function)
    shapes = [tuple(int(size) for size in param.shape) for param in kernel.function.params]
    dtypes = [np.dtype(dtype) for dtype in (*kernel.inputs, *kernel.outputs)]
    arguments = list(zip(shapes, dtypes, strict=True))
    inputs, outputs = arguments[: len(kernel.inputs)], arguments[len(kernel.inputs) :]
    for number, of_inputs in enumerate(_kinds(traits, len(inputs))):
        kind = of_inputs[0] if of_inputs else "ordinary"
        if kernel.kinds and kind not in kernel.kinds:
            continue
        tensors = [
            edge_data(shape, dtype, of_inputs[i], number * 100 + i, traits.below, kernel.factors)
            for i, (shape, dtype) in enumerate(inputs)
        ]
        run = _Run(tensors, outputs, before_fence=number % 2 == 0)
        if kernel.results is not None and isinstance(kernel.reference, NumpyKernel):
            said, want = kernel.results.of(number, partial(run, kernel.reference, 0x00))
        else:
            said, want = run(kernel.reference, 0x00)
        # The reference is undefined on these numbers, so they test nothing.
        if said:
            continue
        said, got = run(kernel.built, 0xFF)
        if said:
            return f"it {said}, on {kind} numbers"
        if kernel.divisible and kind in ("ordinary", "small"):
            said, in_shares = run(kernel.built, 0x7F, SHARES)
            if said:
                return f"a share of the kernel {said}, on {kind} numbers"
            for i, (whole, parts) in enumerate(zip(got, in_shares, strict=True)):
                if whole.tobytes() != parts.tobytes():
                    return f"output {i} differs between a run in shares and a run in one piece"
        if traits.rounds_to_integers and kind not in ("ordinary", "small"):
            continue
        spare = _ON_THE_EDGE if traits.rounds_to_integers else 0.0
        tolerances = [_Tolerance(array, traits.terms(array.size), kind, spare) for array in want]
        if all(t.allows(array) for t, array in zip(tolerances, got, strict=True)):
            continue
        for turn in range(_PERTURBED):
            said, moved = _Run(_perturbed(tensors, turn), outputs)(kernel.reference, 0x00)
            if not said:
                for tolerance, array in zip(tolerances, moved, strict=True):
                    tolerance.moves_to(array)
        for i, (tolerance, array) in enumerate(zip(tolerances, got, strict=True)):
            if not tolerance.allows(array):
                return f"output {i} is wrong on {kind} numbers: {tolerance.difference(array)}"
    return None


def _kinds(traits: Traits, num_inputs: int) -> Iterator[tuple[Kind, ...]]:
    """For each run of the kernel, the kinds of numbers in its inputs: one kind for each input."""
    if "denormal" in traits.kinds and num_inputs > 1:
        # The product of two denormal numbers is always 0, so only one input gets denormal numbers.
        ordinary: Kind = "ordinary"
        yield ("denormal", *(ordinary for _ in range(num_inputs - 1)))
    for kind in traits.kinds:
        yield (kind,) * num_inputs


@dataclass(frozen=True)
class _Run:
    """Runs a function on `tensors`.

    Calling the object returns a text about the function's fault ("" if none), and its results.

    Attributes
    ----------
    tensors: the inputs.
    outputs: shapes and data types of the results.
    before_fence: whether a fence (a memory page that nobody may access) lies at the end of each
        tensor. If not, a fence lies at its start.
    """

    tensors: Sequence[np.ndarray]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype]]
    before_fence: bool = True

    def __call__(self, function: Any, fill: int, shares: int = 0) -> tuple[str, list[np.ndarray]]:
        results = [np.empty(shape, dtype) for shape, dtype in self.outputs]
        if isinstance(function, NumpyKernel):
            try:
                function(self.tensors, results)
            except UndefinedError:
                return "has no defined result for its inputs", results
            except Exception as error:  # A defect in our own code must not stop the compilation.
                raise NotEvaluatedError(repr(error)) from error
            return "", results
        try:
            if isinstance(function, RunsFenced):
                said = function.run_fenced(self.tensors, results, self.before_fence, fill)
                return said, results
            said = _native.run_fenced(
                function, self.tensors, results, self.before_fence, fill, shares
            )
        except Exception as error:  # A TVM kernel that refuses its data may raise any error.
            said = f"fails: {error}"
        return said, results


@dataclass
class Traits:
    """Properties of a kernel. They decide on which numbers it is tried, and how it is compared.

    Attributes
    ----------
    operations: the number of the kernel's floating-point operations. It counts at least four for
        each element of the tensors, because reading and writing an element takes time too.
    below: the excluded upper bound of integers in the inputs, if the kernel may use them as indices
        or as shift counts; else None.
    rounds_to_integers: whether the kernel converts floats to integers.
    is_made_by_hand: whether the kernel's loops are written by hand, such as a loop over a sequence.
        Such a kernel is tried only on small numbers, because large numbers and rounding errors may
        grow with each iteration.
    has_extremes: whether the kernel has TVM's own maximum or minimum of floats, which may drop NaN.
    """

    operations: int = 0
    below: int | None = None
    rounds_to_integers: bool = False
    is_made_by_hand: bool = False
    has_extremes: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of numbers on which the kernel is tried, in order."""
        if self.rounds_to_integers and self.below is not None:
            # The kernel may use a rounded float as an index, so it is not tried on large and
            # special floats.
            return ("ordinary",)
        if self.is_made_by_hand:
            return ("small",) if self.operations > _LONGEST else ("small", "small")
        if self.operations > _LONGEST:
            return ("ordinary",)
        special: Kind = "infinite" if self.has_extremes else "special"
        if self.operations > LONG:
            return (special, "ordinary")
        return (special, "denormal", "large", "ordinary")

    def terms(self, size: int) -> float:
        """An estimate of how many terms are added up for one of the `size` elements of a result."""
        return max(self.operations / max(size, 1), 1.0)


def traits_of(function: tirx.PrimFunc) -> Traits:
    """The traits of a kernel that is not scheduled yet."""
    traits = Traits(operations_of(function))
    has_blocks = isinstance(function.body, s_tir.SBlockRealize)
    traits.is_made_by_hand = not has_blocks or SCHEDULED in (function.attrs or {})
    # A hand-written kernel may use any integer input as an index. Only 0 is always a valid index.
    if traits.is_made_by_hand:
        traits.below = 1

    def index(source: Any, indices: Sequence[Any]) -> None:
        for size, chosen in zip(source.shape, indices, strict=True):
            if _has(chosen, tvm.ir.TensorLoad):
                traits.below = min(traits.below or int(size), int(size))

    def shift(call: Any) -> None:
        if str(getattr(call.op, "name", "")) in _SHIFTS and _has(call.args[1], tvm.ir.TensorLoad):
            traits.below = min(traits.below or 8, 8)

    def cast(node: Any) -> None:
        if _is_float_type(node.value.ty) and not _is_float_type(node.ty):
            traits.rounds_to_integers = True

    def extreme(node: Any) -> None:
        traits.has_extremes |= _is_float_type(node.ty)

    tvm_ffi.structural_walk(
        function.body,
        [
            (tirx.Max, extreme),
            (tirx.Min, extreme),
            (tvm.ir.TensorLoad, lambda load: index(load.source, load.indices)),
            (tirx.BufferStore, lambda store: index(store.buffer, store.indices)),
            (tvm.ir.Call, shift),
            (tirx.Cast, cast),
        ],
    )
    return traits


def operations_of(function: tirx.PrimFunc) -> int:
    """The kernel's floating-point operations, or four per tensor element if that is more."""
    numbers = sum(math.prod(int(size) for size in param.shape) for param in function.params)
    return max(kernel_flops(function), 4 * numbers)


_SHIFTS = ("prim.shift_left", "prim.shift_right", "tirx.shift_left", "tirx.shift_right")


def _has(expression: Any, kind: type) -> bool:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, (kind, found.append))
    return bool(found)


def _is_float_type(kind: Any) -> bool:
    return "float" in str(kind.dtype)


@dataclass
class _Tolerance:
    """Decides whether a result is close enough to the reference's.

    A result may differ by a fraction of the output's largest number, because of rounding. This
    fraction grows with the square root of the number of terms in a sum. `moves_to` also allows for
    another difference: how much the reference changes if the last bits of its inputs change.

    Attributes
    ----------
    want: the reference's result.
    terms: how many numbers are added up for each element of the result.
    kind: the kind of numbers of the first input.
    spare: the largest fraction of the elements that may differ by any amount.
    """

    want: np.ndarray
    terms: float
    kind: Kind
    spare: float = 0.0
    _moved: npt.NDArray[np.float64] | None = field(default=None)

    def allows(self, got: np.ndarray) -> bool:
        bits = np.dtype(f"u{got.dtype.itemsize}")
        if np.array_equal(got.view(bits), self.want.view(bits)):
            return True  # Equal bits are always correct, NaN included.
        return bool(self._outside(got).sum() <= math.ceil(self.spare * got.size))

    def moves_to(self, other: np.ndarray) -> None:
        """Allow for `_AS_FAR` times the distance between the reference's result and `other`.

        `other` is the reference's result on inputs that differ in their last bits. An integer
        element that differs between the two results may have any value.
        """
        if self._moved is None:
            self._moved = np.zeros(self.want.shape)
        if not is_float(self.want.dtype):
            self._moved[self.want != other] = np.inf
            return
        want, other = _as_doubles(self.want), _as_doubles(other)
        far = np.abs(want - other)
        same = (want == other) | (np.isnan(want) & np.isnan(other))
        far = np.where(same, 0.0, np.where(np.isfinite(far), far, np.inf))
        self._moved = np.maximum(self._moved, _AS_FAR * far)

    def difference(self, got: np.ndarray) -> str:
        """A message with the number of wrong elements and with the first of them."""
        outside = self._outside(got)
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        return (
            f"{int(outside.sum())} of {outside.size} elements, the first at {list(place)}: "
            f"{got[place]} instead of {self.want[place]}"
        )

    def _outside(self, got: np.ndarray) -> npt.NDArray[np.bool_]:
        if not is_float(self.want.dtype):
            unequal: npt.NDArray[np.bool_] = got != self.want
            return unequal if self._moved is None else unequal & (self._moved == 0)
        if self._moved is None and self.want.dtype == np.float32 and self._all_near(got):
            return np.zeros((), np.bool_)
        want, have = _as_doubles(self.want), _as_doubles(got)
        far = np.abs(want - have)
        # Usually all differences are finite. Then the tests for NaN and infinity below are skipped.
        if self._moved is None and np.isfinite(far).all():
            scale = float(max(want.max(initial=0.0), -want.min(initial=0.0)))
            return np.asarray(far > self._allowed(scale))
        finite = np.isfinite(want)
        scale = float(np.abs(want[finite]).max(initial=0.0))
        allowed = self._allowed(scale)
        apart = far > (allowed if self._moved is None else allowed + self._moved)
        agree = (want == have) | (np.isnan(want) & np.isnan(have))
        outside: npt.NDArray[np.bool_] = ~agree & np.where(
            finite & np.isfinite(have), apart, self._moved is None or ~np.isinf(self._moved)
        )
        if self.kind == "large":
            outside &= finite & np.isfinite(have)
        return outside

    def _all_near(self, got: np.ndarray) -> bool:
        """Whether all elements are finite and close to the reference's.

        This quick test takes a third of the time of the exact comparison. If it fails, the exact
        comparison follows. It rounds differences to float32, so it also fails for differences that
        are almost too large.
        """
        scale = max(self.want.max(initial=0.0), -self.want.min(initial=0.0))
        far = np.subtract(self.want, got)
        most = max(far.max(initial=0.0), -far.min(initial=0.0))
        return bool(np.isfinite(scale) and most <= 0.99 * self._allowed(float(scale)))

    def _allowed(self, scale: float) -> float:
        """The largest difference that rounding causes if the largest finite result is `scale`."""
        info: Any = ml_dtypes.finfo(self.want.dtype)  # type: ignore[no-untyped-call]
        narrow = info.bits < 32
        part = float(info.eps) * ((8 if narrow else 64) + 8 * math.sqrt(self.terms))
        return part * scale + 4 * math.sqrt(self.terms) * float(info.smallest_subnormal)


_AS_FAR = 16.0


def _as_doubles(array: np.ndarray) -> npt.NDArray[np.float64]:
    return array.astype(np.float64)


def _perturbed(tensors: Sequence[np.ndarray], turn: int) -> list[np.ndarray]:
    """Copies of the tensors with some floats replaced by a neighbouring representable number."""
    rng = np.random.default_rng([turn])
    return [_nudged(tensor, rng) if is_float(tensor.dtype) else tensor for tensor in tensors]


def _nudged(tensor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    bits = np.dtype(f"u{tensor.dtype.itemsize}")
    numbers = tensor.view(bits)
    steps = np.resize(rng.integers(-1, 2, 65_537), tensor.shape).astype(bits)
    movable = np.isfinite(_as_doubles(tensor)) & (_as_doubles(tensor) != 0)
    return np.where(movable, numbers + steps, numbers).view(tensor.dtype)
