"""Proves that the padded positions of a sequence do not change results at the other positions.

To run a sequence that is shorter than the compiled length, the sequence is padded at its end. The
rows of a batch are independent (`independent_rows`), but the positions of a sequence are not:
attention combines them. A sequence may be padded if two facts about the lowered kernels are proven:

- Each statement computes an element only from elements at the same positions, or at a fixed
  position such as the first. The computation is the same for all lengths (`position_form`).
- A statement may combine positions, such as the sum of a product or the maximum of a softmax.
  Padded positions must not change its result: their terms are exactly 0 in a sum, and below another
  value in a maximum (`padding_bounds`). Usually a mask among the inputs causes this. The mask is
  padded with 0.

With this proof, the numbers at padded positions do not matter. The results at the given positions,
which are not padded, have the same bits (except for the sign of a zero). The proof assumes the
condition that `padding_bounds` states.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from ..program.program import Operator, Program, Value
from ..program.row_axis import MASK_TYPES, axis_of_rows
from .bound_arithmetic import ANY, ONE, ZERO, Bound
from .declared_steps import (
    bounds_after,
    goes_through_positions,
    layouts_after,
    results_of_all,
)
from .independent_rows import (
    RowsDependError,
    check_alike,
    constant_in_words,
    same_bits,
    take_operators,
)
from .kernel_forms import KernelForms, layouts_of
from .kernel_stores import UnprovenError
from .padding_bounds import Bounds, after, plain, reads_later
from .position_form import Form, Layout, one_axis

Anchor: TypeAlias = 'Literal["first", "any", "all", "nowhere"]'


class Masks(NamedTuple):
    """The inputs that must be 0 at padded positions.

    Attributes
    ----------
    names: the names of the inputs that must be 0 at padded positions.
    anchor: where the inputs must be 1, so that the results are right: at the `first` position, at
        `any` one position, or at `all` positions. In these three cases the inputs are masks, with
        numbers from 0 to 1. For `nowhere`, there is no such condition.
    """

    names: tuple[str, ...]
    anchor: Anchor


def masked_positions(
    programs: Mapping[int, Program], inputs: Mapping[str, int], least: int
) -> Masks:
    """Prove that a sequence may be padded at its end, or raise an error.

    Parameters
    ----------
    programs: the lowered model by the length of the sequence; at least two lengths, all above 1.
    inputs: the axis of the sequence, by the name of each input that has it.
    least: the least length of a run.

    Raises
    ------
    RowsDependError
        The proof fails. Padding may still be right.
    """
    assert len(programs) > 1, "the proof compares programs for several lengths"
    return masked_in_all([(programs, {})], inputs, least)


def masked_in_all(
    each: Sequence[tuple[Mapping[int, Program], Mapping[str, int]]],
    inputs: Mapping[str, int],
    least: int,
) -> Masks:
    """Prove that sequences may be padded in several models, with the same masks in all of them.

    Parameters
    ----------
    each: for each model, its programs by length, and the number of independent rows of each input
        (`independent_rows`), by name. If the 1 of a mask may be at `any` position, each of these
        rows must have a 1. The rows may have their 1 at different positions, although the proof
        assumes one position for all rows. A row is independent, so it gives the same results as in
        a batch of copies of itself, and this batch fulfils the assumption.

    Raises
    ------
    RowsDependError
        The same cases as for `masked_positions`.
    """
    proofs = [
        _Proof(list(programs), list(programs.values()), least, rows) for programs, rows in each
    ]
    for proof in proofs:
        proof.take(inputs)
    return _masks(proofs, inputs)


def _masks(proofs: Sequence[_Proof], inputs: Mapping[str, int]) -> Masks:
    """Find the smallest set of inputs that must be masks, and the weakest condition on these
    masks.
    """
    furthest, why = -1, RowsDependError("no input has positions")
    for masks in proofs[0].candidates(inputs):
        for proof in proofs:
            proven, error = proof.proven(masks)
            if error is None:
                continue
            if proven > furthest:
                furthest, why = proven, error
            break
        else:
            return masks
    raise why


class _Proof:
    """The proof that padding does not change the results of one model. It compares the model's
    programs for all lengths, operator by operator.
    """

    def __init__(
        self,
        lengths: list[int],
        programs: list[Program],
        least: int,
        rows: Mapping[str, int],
    ) -> None:
        self._lengths, self._programs, self._least = lengths, programs, least
        self._rows = rows
        self._largest = lengths.index(max(lengths))
        self._layouts: dict[int, Layout] = {}
        self._numbers: dict[int, int] = {}
        self._places: dict[int, int] = {}
        # The indices of values that depend on all positions.
        self._of_all: set[int] = set()
        # The forms of each operator's statements; None for a kernel with the attribute `STEPS`.
        self._forms: list[tuple[Form, ...] | None] = []
        self._known: dict[Any, tuple[tuple[Form, ...], dict[int, Layout]]] = {}

    def take(self, inputs: Mapping[str, int]) -> None:
        """Find the form of each statement (see `position_form`).

        RowsDependError is raised unless each output has its positions along one axis.
        """
        first = self._programs[0]
        check_alike(self._programs, "length")
        for v in first.inputs:
            axis = inputs.get(first.values[v].name)
            if axis is not None:
                self._layouts[v] = one_axis(first.values[v].shape, axis, self._lengths[0])
        for v in first.weights:
            self._take_weight(v)
        take_operators(self._programs, self._take_operator)
        for v in first.outputs:
            self._check_output(v)

    def _take_weight(self, v: int) -> None:
        """Check that a constant for a longer sequence begins with the constant for a shorter
        one.
        """
        arrays = [program.weights[v] for program in self._programs]
        shapes = [array.shape for array in arrays]
        if all(shape == shapes[0] for shape in shapes):
            if not all(same_bits(array, arrays[0]) for array in arrays[1:]):
                name = constant_in_words(self._programs[0], v)
                raise RowsDependError(f"{name} has different values for different lengths")
            if arrays[0].size == 1 and arrays[0].dtype.kind == "i":
                self._numbers[v] = int(arrays[0].item())
            return
        for layout in layouts_of(shapes, self._lengths):
            split = [
                array.reshape(_split_shape(layout, length))
                for array, length in zip(arrays, self._lengths, strict=True)
            ]
            longest = split[self._largest]
            if all(
                np.ascontiguousarray(longest[_beginning(layout, length)]).tobytes()
                == array.tobytes()
                for array, length in zip(split, self._lengths, strict=True)
            ):
                self._layouts[v] = layout
                self._take_places(v, arrays)
                return
        if self._take_places(v, arrays):
            return
        name = constant_in_words(self._programs[0], v)
        if next(layouts_of(shapes, self._lengths), None) is None:
            raise RowsDependError(
                f"{name} has no fixed number of elements for each position: perhaps the model "
                "merges several positions into one, as convolutions with strides do in models of "
                "speech"
            )
        raise RowsDependError(
            f"{name} for a longer sequence does not begin with its numbers for a shorter sequence"
        )

    def _take_places(self, v: int, arrays: Sequence[np.ndarray]) -> bool:
        """Whether a constant holds indices into a flattened tensor (`places` of
        `position_form.Known`).
        """
        if arrays[0].dtype.kind != "i":
            return False
        for layout in layouts_of([array.shape for array in arrays], self._lengths):
            if len(layout) != 2:
                continue
            before = []
            for array, length in zip(arrays, self._lengths, strict=True):
                split = array.reshape(_split_shape(layout, length))
                sequences, position = np.divmod(split, length)
                if (position != np.arange(length).reshape(1, -1, 1)).any():
                    break
                before.append(sequences[:, :1])
                if (sequences != before[-1]).any() or (before[0] != before[-1]).any():
                    break
            else:
                self._layouts[v], self._places[v] = layout, int(before[0].max())
                return bool(before[0].min() >= 0)
        return False

    def _take_operator(self, ops: Sequence[Operator]) -> None:
        """Find the layouts of an operator's outputs, and the forms of its kernel's statements.

        The module `position_form` describes layouts and forms.
        """
        first = self._programs[0]
        pairs = zip(self._programs, ops, strict=True)
        kernels = [program.kernels[op.kernel] for program, op in pairs]
        stored = [first.storage_of(v) for v in ops[0].inputs]
        layouts = {i: self._layouts[v] for i, v in enumerate(stored) if v in self._layouts}
        numbers = {i: self._numbers[v] for i, v in enumerate(stored) if v in self._numbers}
        if any(first.values[v].offset for v in ops[0].inputs) and layouts:
            raise UnprovenError("reads a part of a tensor with positions")
        names = tuple(op.kernel for op in ops)
        places = {i: self._places[v] for i, v in enumerate(stored) if v in self._places}
        if self._of_all.intersection(stored):
            raise UnprovenError(
                "reads a result of the last position, which may be a padded position"
            )
        if layouts and goes_through_positions(kernels, self._lengths):
            self._forms.append(None)
            self._layouts.update(layouts_after(ops[0], kernels[0], layouts, self._lengths[0]))
            self._of_all.update(results_of_all(ops[0], kernels[0]))
            return
        key = names, *(tuple(each.items()) for each in (layouts, numbers, places))
        if key not in self._known:
            proof = KernelForms(self._lengths, kernels, self._least, layouts, numbers, places)
            self._known[key] = proof.run(self._largest)
        forms, found = self._known[key]
        self._forms.append(forms)
        for i, v in enumerate(ops[0].outputs, len(ops[0].inputs)):
            if i in found:
                self._layouts[v] = found[i]

    def _check_output(self, v: int) -> None:
        first = self._programs[0]
        layout, name = self._layouts.get(first.storage_of(v)), first.values[v].name
        if first.storage_of(v) in self._of_all:
            raise RowsDependError(
                f"output `{name}` is a result of the last position, which may be a padded position"
            )
        if layout is None:
            return
        if len(layout) != 2:
            raise RowsDependError(f"output `{name}` has the positions twice")
        shapes = [program.values[v].shape for program in self._programs]
        axis = axis_of_rows(shapes, self._lengths)
        if axis is None or layout != one_axis(shapes[0], axis, self._lengths[0]):
            raise RowsDependError(f"the positions of output `{name}` do not lie in one axis")

    def candidates(self, inputs: Mapping[str, int]) -> Iterator[Masks]:
        """The sets of inputs to try as the masks, in order."""
        first = self._programs[0]
        values = [first.values[v] for v in first.inputs if first.values[v].name in inputs]
        elements = {v.name: math.prod(v.shape) for v in values if v.dtype in MASK_TYPES}
        wide = {v.name for v in values if self._is_wide(v, inputs[v.name])}
        yield Masks((), "nowhere")
        yield Masks((), "first")
        for count in (1, 2):
            for names in itertools.combinations(elements, count):
                yield Masks(names, "nowhere")
                if wide.intersection(names):
                    continue  # An input with several numbers for a position is not a mask.
                # For `any`, the proof assumes that a mask is 1 at one position that is the same in
                # all its rows. Only independent rows may break this assumption (see
                # `masked_in_all`). So all rows of the mask must be independent.
                alone = self._lengths[0] * self._rows.get(names[0], 1)
                if len(names) == 1 and elements[names[0]] == alone:
                    yield Masks(names, "any")
                yield Masks(names, "first")
        for count in (1, 2):
            for names in itertools.combinations(elements, count):
                if not wide.intersection(names):
                    yield Masks(names, "all")

    def _is_wide(self, value: Value, axis: int) -> bool:
        """Whether an input has several numbers for each position of a row. Such an input is not a
        mask.

        If the sequence is the first of two axes, the second axis may be a batch of a fixed size, or
        it may hold features. Integers are taken to be one number for each row of a batch. Floats
        are taken to be several features of one row.
        """
        within = value.shape[axis] // self._lengths[0] * math.prod(value.shape[axis + 1 :])
        may_be_rows = axis == 0 and len(value.shape) == 2 and "float" not in value.dtype
        return within not in (1, self._rows.get(value.name)) and not may_be_rows

    def proven(self, masks: Masks) -> tuple[int, RowsDependError | None]:
        """The number of operators that the proof covers with these masks, and why it then fails.

        The reason is about the next operator.
        """
        program = self._programs[self._largest]
        bounds: dict[int, Bounds] = {}
        for v in program.inputs:
            value, positions = program.values[v], len(self._layouts.get(v, (1,))) - 1
            bounds[v] = plain(value.dtype, positions)
            if value.name in masks.names and masks.anchor == "nowhere":
                zeros = (ZERO,) * positions
                bounds[v] = bounds[v]._replace(filled=zeros, all_filled=ZERO)
            elif value.name in masks.names:
                given = ONE if masks.anchor == "all" else Bound(0, 1)
                zeros, ones = (ZERO,) * positions, (ONE,) * positions
                bounds[v] = Bounds(Bound(0, 1), zeros, ones, given, ZERO)
        for v, array in program.weights.items():
            layout = self._layouts.get(v, (array.size,))
            bounds[v] = _bounds_of(array, layout, self._lengths[self._largest], masks.anchor)
        for i, (op, forms) in enumerate(zip(program.operators, self._forms, strict=True)):
            stored = [bounds[program.storage_of(v)] for v in op.inputs]
            if forms is None:
                try:
                    bounds.update(bounds_after(program, op, stored, self._layouts))
                except UnprovenError as error:
                    return i, RowsDependError(f"operator `{op.name}` {error}")
                continue
            known = {f"parameter{j}": bound for j, bound in enumerate(stored)}
            written: set[str] = set()
            for j, form in enumerate((*forms, *forms) if reads_later(forms) else forms):
                try:
                    found = after(form, known, form.buffer not in written)
                    if j >= len(forms) and found != known[form.buffer]:
                        raise UnprovenError(
                            "has statements in a loop that change each other's results"
                        )
                except UnprovenError as error:
                    return i, RowsDependError(f"operator `{op.name}` {error}")
                known[form.buffer] = found
                written.add(form.buffer)
            for j, v in enumerate(op.outputs, len(op.inputs)):
                bounds[v] = known[f"parameter{j}"]
        return len(program.operators), None


def _split_shape(layout: Layout, length: int) -> tuple[int, ...]:
    """The shape `(a, length, b, length, c)` of a tensor of layout `(a, b, c)`."""
    return (layout[0], *(size for each in layout[1:] for size in (length, each)))


def _beginning(layout: Layout, length: int) -> tuple[slice, ...]:
    """The slices that select the first `length` positions of a tensor of shape `_split_shape`."""
    return (slice(None), *(s for _ in layout[1:] for s in (slice(length), slice(None))))


def _bounds_of(array: np.ndarray, layout: Layout, length: int, anchor: Anchor) -> Bounds:
    """The bounds (see `padding_bounds`) of a constant."""
    split = array.reshape(_split_shape(layout, length))
    axes = range(1, split.ndim, 2)
    everywhere = _bound(split)
    filled, at_anchor = [], []
    for axis in axes:
        if len(axes) == 2:
            # The bounds `filled` are for elements with a padded position on `axis` and a given
            # position on the other axis. Padded positions come after given ones, so the position on
            # `axis` is the larger.
            turned = np.moveaxis(split, (axis, 4 - axis), (0, 1))
            filled.append(_bound(turned[np.tril_indices(length, -1)]))
        else:
            filled.append(_bound(split.take(range(1, length), axis)))
        at_anchor.append(_bound(split.take([0], axis)) if anchor == "first" else everywhere)
    return Bounds(everywhere, tuple(filled), tuple(at_anchor), everywhere, everywhere)


def _bound(array: np.ndarray) -> Bound:
    if array.dtype.kind not in "fiub" or not array.size or np.isnan(array).any():
        return ANY
    # The bounds of integers stay integers, because a float cannot hold all large integers.
    kind = float if array.dtype.kind == "f" else int
    return Bound(kind(array.min()), kind(array.max()))
