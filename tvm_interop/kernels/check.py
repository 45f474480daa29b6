"""Each kernel against a reference of it, between fences, before it ships.

A compiler trusts what it is built on: schedules, TVM's passes, LLVM. Each of them has been wrong,
and without a word. So every kernel runs once on numbers at which kernels go wrong, and what it
computes, and what it touches, is compared with the same PrimFunc compiled in the plainest way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import ml_dtypes
import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .._native import cpu as _native
from .build import Count
from .edge_data import Kind, edge_data, is_float
from .flops import kernel_flops
from .loops import SCHEDULED
from .numpy_kernel import NumpyKernel
from .numpy_values import UndefinedError

SHARES = 3
"""How many shares a kernel that can be divided is also run in: with a last one that is smaller."""

_LONG = 20_000_000
"""Operations from which on a kernel is run on two kinds of numbers, not on all."""
_LONGEST = 100_000_000
"""Operations from which on a kernel is run on ordinary numbers alone."""
_ON_THE_EDGE = 0.02
"""Share of numbers rounded to integers that may come out as the next one: half-way between two, the
last bit decides."""
_PERTURBED = 3
"""Runs of the reference on inputs that differ in their last bits, where a result is another."""


@dataclass(frozen=True)
class Checked:
    """A kernel to check.

    Attributes
    ----------
    name: of the kernel, for people.
    function: the PrimFunc as its mathematics is written down, before any schedule.
    built: what ships, loaded: called with its tensors, outputs last; or `RunsFenced`.
    reference: what `function` says, by NumPy, or built in another way.
    inputs, outputs: types of the parameters, inputs first; those of bfloat16 are words of 16 bits
        to the kernel itself.
    divisible: whether it is run in shares, too.
    kinds: of numbers that it is tried on, as far as its traits allow them; empty for all.
    """

    name: str
    function: tirx.PrimFunc
    built: Any
    reference: Any
    inputs: Sequence[str]
    outputs: Sequence[str]
    divisible: bool = False
    kinds: Sequence[Kind] = ()


@runtime_checkable
class RunsFenced(Protocol):
    """A kernel that is no function of tensors, and knows how it is run between fences."""

    def run_fenced(
        self,
        tensors: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        before_fence: bool,
        fill: int,
    ) -> str:
        """As `_native.cpu.run_fenced`."""
        ...


class NotEvaluatedError(Exception):
    """The reference cannot be evaluated, by a defect of ours: of the kernel nothing is known."""


class Findings(NamedTuple):
    """What was found of several kernels.

    Attributes
    ----------
    faults: what is wrong with each kernel at fault, by name, in words.
    not_evaluated: why the reference of a kernel could not be evaluated, by the kernel's name.
    """

    faults: dict[str, str]
    not_evaluated: dict[str, str]


def find_faults(kernels: Sequence[Checked], count: Count | None = None) -> Findings:
    """What is wrong with each kernel at fault, and of which kernels nothing could be said.

    A kernel is at fault that touches memory other than its tensors, writes to an input, traps where
    the reference does not, gives other results in shares than in one piece, or results that differ
    from the reference's by more than another order of sums explains. NaN and infinity must come
    where the reference has them.

    Not compared is what depends on the order of operations or on the processor: what an overflow
    leads to, what becomes of a float that fits into no integer, and what TVM's own maximum makes of
    NaN, which it keeps or drops by which operand has it. Those that keep it (`lowering.extremes`)
    are written in other words, and are compared.

    Parameters
    ----------
    count: told how many are done, and of how many; also by other threads.
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
    """What is wrong with the kernel, in words; None where nothing was found.

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
            edge_data(shape, dtype, of_inputs[i], number * 100 + i, traits.below)
            for i, (shape, dtype) in enumerate(inputs)
        ]
        run = _Run(tensors, outputs, before_fence=number % 2 == 0)
        said, want = run(kernel.reference, 0x00)
        if said:  # Such numbers are not for this kernel.
            continue
        said, got = run(kernel.built, 0xFF)
        if said:
            return f"it {said}, on {kind} numbers"
        if kernel.divisible and kind in ("ordinary", "small"):
            said, in_shares = run(kernel.built, 0x7F, SHARES)
            if said:
                return f"a share of it {said}, on {kind} numbers"
            for i, (whole, parts) in enumerate(zip(got, in_shares, strict=True)):
                if whole.tobytes() != parts.tobytes():
                    return f"output {i} is another one in shares than in one piece"
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
    """For each run the kind of numbers of each input."""
    if "denormal" in traits.kinds and num_inputs > 1:
        # Of denormal numbers alone every product is 0.
        ordinary: Kind = "ordinary"
        yield ("denormal", *(ordinary for _ in range(num_inputs - 1)))
    for kind in traits.kinds:
        yield (kind,) * num_inputs


@dataclass(frozen=True)
class _Run:
    """Runs a function on these tensors; says what it did that it must not, and what came out."""

    tensors: Sequence[np.ndarray]
    outputs: Sequence[tuple[tuple[int, ...], np.dtype]]
    before_fence: bool = True

    def __call__(self, function: Any, fill: int, shares: int = 0) -> tuple[str, list[np.ndarray]]:
        results = [np.empty(shape, dtype) for shape, dtype in self.outputs]
        if isinstance(function, NumpyKernel):
            try:
                function(self.tensors, results)
            except UndefinedError:
                return "is given what it is not made for", results
            except Exception as error:  # A defect of ours is no reason to compile nothing.
                raise NotEvaluatedError(repr(error)) from error
            return "", results
        try:
            if isinstance(function, RunsFenced):
                said = function.run_fenced(self.tensors, results, self.before_fence, fill)
                return said, results
            said = _native.run_fenced(
                function, self.tensors, results, self.before_fence, fill, shares
            )
        except Exception as error:  # Whatever it raises: a kernel of TVM's may refuse its data.
            said = f"fails: {error}"
        return said, results


@dataclass
class Traits:
    """What decides which numbers a kernel is tried on, and how closely results are compared.

    Attributes
    ----------
    operations: of floating-point numbers, or four for each number of its tensors where that is
        more: what it takes is at least to read and write them.
    below: where elements are chosen by data: integers below this one choose any; None where none
        are.
    rounds_to_integers: whether floats become integers somewhere.
    is_made_by_hand: whether it has loops of its own before it is scheduled, such as one over a
        sequence, in which what is large grows and what is hardly different goes far apart.
    has_extremes: whether it has a maximum or minimum of floats that NaN has no place in.
    """

    operations: int = 0
    below: int | None = None
    rounds_to_integers: bool = False
    is_made_by_hand: bool = False
    has_extremes: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of numbers that the kernel is tried on, in order."""
        if self.rounds_to_integers and self.below is not None:
            return ("ordinary",)  # A float may become an index.
        if self.operations > _LONGEST:
            return ("ordinary",)
        special: Kind = "infinite" if self.has_extremes else "special"
        if self.is_made_by_hand:
            return ("small", "small")
        if self.operations > _LONG:
            return (special, "ordinary")
        return (special, "denormal", "large", "ordinary")

    def terms(self, size: int) -> float:
        """About how many numbers are added up for each of `size` results."""
        return max(self.operations / max(size, 1), 1.0)


def traits_of(function: tirx.PrimFunc) -> Traits:
    """The traits of a kernel that has no schedule yet."""
    traits = Traits(operations_of(function))
    has_blocks = isinstance(function.body, s_tir.SBlockRealize)
    traits.is_made_by_hand = not has_blocks or SCHEDULED in (function.attrs or {})
    if traits.is_made_by_hand:  # Its indices may come from anywhere: 0 is always one.
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
    """Floating-point operations of a kernel, or four for each number of its tensors if more."""
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
    """How far a result may be from the reference's.

    That is what rounding explains: a part of the largest number of the output that grows with the
    root of how many numbers are added up; and, as far as it was tried, how far the reference itself
    moves with the last bits of its inputs. `spare` is the share of elements that may be anything.
    """

    want: np.ndarray
    terms: float
    kind: Kind
    spare: float = 0.0
    _moved: npt.NDArray[np.float64] | None = field(default=None)

    def allows(self, got: np.ndarray) -> bool:
        bits = np.dtype(f"u{got.dtype.itemsize}")
        if np.array_equal(got.view(bits), self.want.view(bits)):
            return True  # And is seen at once.
        return bool(self._outside(got).sum() <= math.ceil(self.spare * got.size))

    def moves_to(self, other: np.ndarray) -> None:
        """Allow for as much as the reference moved: to `other`, with inputs hardly different."""
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
        """The first element that is outside, in words."""
        outside = self._outside(got)
        place = tuple(int(i) for i in np.argwhere(outside)[0])
        return (
            f"{int(outside.sum())} of {outside.size} elements, the first at {list(place)}: "
            f"{got[place]} for {self.want[place]}"
        )

    def _outside(self, got: np.ndarray) -> npt.NDArray[np.bool_]:
        if not is_float(self.want.dtype):
            unequal: npt.NDArray[np.bool_] = got != self.want
            return unequal if self._moved is None else unequal & (self._moved == 0)
        want, have = _as_doubles(self.want), _as_doubles(got)
        finite = np.isfinite(want)
        scale = float(np.abs(want[finite]).max(initial=0.0))
        info: Any = ml_dtypes.finfo(self.want.dtype)  # type: ignore[no-untyped-call]
        narrow = info.bits < 32
        part = float(info.eps) * ((8 if narrow else 64) + 8 * math.sqrt(self.terms))
        allowed = part * scale + 4 * math.sqrt(self.terms) * float(info.smallest_subnormal)
        apart = np.abs(want - have) > (allowed if self._moved is None else allowed + self._moved)
        agree = (want == have) | (np.isnan(want) & np.isnan(have))
        outside: npt.NDArray[np.bool_] = ~agree & np.where(
            finite & np.isfinite(have), apart, self._moved is None or ~np.isinf(self._moved)
        )
        if self.kind == "large":
            outside &= finite & np.isfinite(have)
        return outside


_AS_FAR = 16.0


def _as_doubles(array: np.ndarray) -> npt.NDArray[np.float64]:
    return array.astype(np.float64)


def _perturbed(tensors: Sequence[np.ndarray], turn: int) -> list[np.ndarray]:
    """The same tensors, some of their floats one representable number further or nearer."""
    rng = np.random.default_rng([turn])
    return [_nudged(tensor, rng) if is_float(tensor.dtype) else tensor for tensor in tensors]


def _nudged(tensor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    bits = np.dtype(f"u{tensor.dtype.itemsize}")
    numbers = tensor.view(bits)
    steps = np.resize(rng.integers(-1, 2, 65_537), tensor.shape).astype(bits)
    movable = np.isfinite(_as_doubles(tensor)) & (_as_doubles(tensor) != 0)
    return np.where(movable, numbers + steps, numbers).view(tensor.dtype)
