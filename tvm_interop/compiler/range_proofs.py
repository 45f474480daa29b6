"""Proves that the inputs of a run may be padded ("filled up") to the next larger compiled size.

Padded inputs give right results in two cases. In the first case the rows along the dimension are
independent, as in a batch: each row of an output depends only on the same row of the inputs
(`lowering.independent_rows`). In the second case the dimension is the length of a sequence, and the
added positions change nothing at the given positions (`lowering.masked_positions`).

If two dimensions have ranges, the rows along one of them must be independent. Let (b, s) be a run
of `b` rows and `s` positions, which is padded to the compiled sizes (B, S). Three steps prove that
the results stay the same:

1. The first `b` rows of the padded run (B, S) have the same bits as the rows of (b, S). The added
   rows may contain anything. This is a proof that rows are independent, for programs of the
   compiled length `S`.
2. A row of (b, s) is computed in the same way for all `b` above 1. This is a proof that rows are
   independent, for lengths `s` that are padded.
3. In the run (B, S), the added positions change nothing at the given positions. This is a proof
   about positions, for `B` rows. By step 2 it holds for all numbers of rows above 1. A single row
   has a separate program and is never padded to several rows, so step 3 is proven again for one
   row.

For step 1, rows are proven to be independent for each compiled length. For step 2, the same is
proven for the smallest lengths that are padded. If both dimensions have independent rows, step 3 is
proven in the same way, in place of a proof about positions.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..artifact.manifest import RowMask, RowSizes, SecondRange
from ..errors import CannotFillUpError, InputError
from ..lowering.independent_rows import RowsDependError, independent_rows, same_bits
from ..lowering.masked_positions import Masks, masked_in_all, masked_positions
from ..program.program import Program
from .imported_sizes import CannotImportError, CountedError, Imported
from .row_ranges import RowRange

_LOG = logging.getLogger("tvm_interop")


def check_rows(model: Any, chosen: RowRange) -> tuple[RowSizes, bool]:
    """Prove that the inputs of a run may be padded to the next larger compiled size.

    Returns
    -------
    First, the manifest's entries for the ranges. Second, whether the only range is that of a batch.
    A batch is the first dimension of all inputs and outputs.

    Raises
    ------
    CannotFillUpError
        There is no proof; the message names the operator.
    """
    try:
        if len(chosen.dimensions) == 2:
            return _Pair(model, chosen).sizes(), False
        return _check_one(model, chosen)
    except RowsDependError as error:
        names = " and ".join(f"`{name}`" for name in chosen.dimensions)
        what = "a range of" if len(chosen.dimensions) == 1 else "ranges of"
        ends = ", ".join(f'"{d}": {{{sizes[0]}, {sizes[-1]}}}' for d, sizes in _named(chosen))
        typed = ",".join(f"{d}={sizes[0]},{sizes[-1]}" for d, sizes in _named(chosen))
        set_of = f'shapes={{{ends}}} (on the command line, --shapes "{typed}")'
        if isinstance(error, CountedError):
            raise CannotFillUpError(
                f"the model cannot be compiled for {what} {names}: {error}",
                f". Give a set of the sizes that you need, such as {set_of}",
            ) from None
        if isinstance(error, CannotImportError):
            raise CannotFillUpError(
                f"the model cannot be compiled for {what} {names}: {error}",
                ". If it was exported for "
                "one size of this dimension, export it for any size (in PyTorch, name the "
                "dimension in `dynamic_shapes`; for a recurrent layer, its length may stay fixed "
                "unless you give `dynamo=False` and `dynamic_axes`). If it takes some sizes only, "
                f"give a set of those that you need, such as {set_of}",
            ) from None
        raise CannotFillUpError(
            f"the model cannot be compiled for {what} {names}: runs are padded to a compiled size, "
            f"and this could change results, since {error}",
            ". Compile it for the sizes "
            f"that you need instead: give a set of them, such as {set_of}",
        ) from None


def _named(chosen: RowRange) -> Iterator[tuple[str, list[int]]]:
    """The name and the sizes of each dimension, as text for a message."""
    yield from zip(chosen.dimensions, chosen.sizes, strict=True)


def _check_one(model: Any, chosen: RowRange) -> tuple[RowSizes, bool]:
    (axes,), (sizes,), (name,) = chosen.axes, chosen.sizes, chosen.dimensions
    shapes = {size: chosen.shapes((size,)) for size in (*sizes, *chosen.filled(0))}
    imported = Imported(model)
    programs, _ = _programs(imported, shapes, axes)
    try:
        ins, outs = independent_rows(programs, axes)
    except RowsDependError as not_rows:
        # The rows are not independent. But the dimension may be the length of a sequence, because
        # the length may also be the first dimension.
        try:
            masks = masked_positions(programs, axes, min(sizes))
        except RowsDependError as not_positions:
            raise _neither(not_rows, not_positions, name, axes) from None
        imported.check_sizes(chosen)
        return RowSizes(name, tuple(sizes), _row_masks(masks)), False
    imported.check_sizes(chosen)
    first = next(iter(programs.values()))
    ports = [first.values[v].name for v in (*first.inputs, *first.outputs)]
    is_batch = all({**ins, **outs}.get(name) == (0, 1) for name in ports)
    special = imported.why_not_joined(shapes) if is_batch else None
    if special is not None:
        _LOG.warning(
            "a server will not join requests of this model, since it treats a few rows "
            "differently from many rows: %s",
            special,
        )
    return RowSizes(name, tuple(sizes)), is_batch and special is None


def _neither(
    not_rows: RowsDependError, not_positions: RowsDependError, name: str, axes: Mapping[str, int]
) -> RowsDependError:
    """Why a dimension is neither a batch of independent rows nor a sequence of positions."""
    if any(axes.values()):
        # A dimension that is not the first dimension of an input is usually the length of a
        # sequence.
        return not_positions
    if str(not_rows) == str(not_positions):
        return not_rows
    return RowsDependError(
        f"for a batch of `{name}`, whose rows must not depend on each other, {not_rows}; and for a "
        f"sequence of `{name}`, {not_positions}"
    )


def _row_masks(masks: Masks) -> tuple[RowMask, ...]:
    return tuple(RowMask(name, masks.anchor) for name in masks.names)


class _Pair:
    """The proof for two ranges of sizes. The module's docstring explains its three steps."""

    def __init__(self, model: Any, chosen: RowRange) -> None:
        self._imported, self._chosen = Imported(model), chosen
        self._lowered: dict[tuple[int, ...], Program] = {}

    def sizes(self) -> RowSizes:
        """The manifest's entries for the ranges.

        The first entry is the range whose rows are independent.
        """
        names, why = self._chosen.dimensions, {}
        # Try the outer dimension of the inputs first, because it is usually the batch.
        for of_rows in sorted((0, 1), key=lambda d: max(self._chosen.axes[d].values())):
            try:
                self._prove_rows(of_rows)
            except RowsDependError as error:
                why[of_rows] = error
                continue
            try:
                self._prove_rows(1 - of_rows)
                masks: tuple[RowMask, ...] = ()
            except RowsDependError:
                masks = _row_masks(self._masks(1 - of_rows))
            self._imported.check_sizes(self._chosen)
            pairs = self._chosen.combinations
            first, second = (tuple(pair[d] for pair in pairs) for d in (of_rows, 1 - of_rows))
            return RowSizes(names[of_rows], first, masks, SecondRange(names[1 - of_rows], second))
        if all(isinstance(error, CannotImportError) for error in why.values()):
            raise why[0]
        told = ", and ".join(f"for `{names[d]}`, {error}" for d, error in why.items())
        raise RowsDependError(f"the rows of one of them must not depend on each other: {told}")

    def _prove_rows(self, number: int) -> None:
        """Prove that the rows along dimension `number` do not depend on each other.

        The proof covers all sizes of the other dimension.
        """
        sizes, filled = self._chosen.sizes[number], self._chosen.filled(number)
        others, others_filled = self._chosen.sizes[1 - number], self._chosen.filled(1 - number)
        for other in (*reversed(others), *others_filled):
            if other == others[-1]:
                wanted = [*sizes, *filled]
            elif other in others:
                wanted = [*sizes, *filled[:1]]
            else:
                wanted = [sizes[-1], *(filled[:1] or sizes[:1])]
            independent_rows(self._programs(number, wanted, other), self._chosen.axes[number])

    def _masks(self, number: int) -> Masks:
        """Prove that positions of a sequence may be padded, for many rows and for a single row."""
        of_rows, lengths = 1 - number, [*self._chosen.sizes[number], *self._chosen.filled(number)]
        most = self._chosen.sizes[of_rows][-1]
        each = [
            (
                self._programs(number, lengths, rows),
                dict.fromkeys(self._chosen.axes[of_rows], rows),
            )
            for rows in dict.fromkeys((most, self._chosen.sizes[of_rows][0]))
            if rows in (1, most)
        ]
        least = self._chosen.sizes[number][0]
        return masked_in_all(each, self._chosen.axes[number], least)

    def _programs(self, number: int, sizes: list[int], other: int) -> dict[int, Program]:
        """The model lowered for two or more sizes of a dimension, all above 1; by size."""
        above_1 = [size for size in dict.fromkeys(sizes) if size > 1]
        if len(above_1) == 1:
            # The programs for two sizes show which numbers in a program come from the size.
            above_1.append(above_1[0] + 1)
        return {
            size: self._program((size, other) if number == 0 else (other, size)) for size in above_1
        }

    def _program(self, sizes: tuple[int, ...]) -> Program:
        if sizes not in self._lowered:
            made = self._imported.lowered(self._chosen.shapes(sizes), sizes)
            for before in list(self._lowered.values())[:1]:
                _share_weights(made, before)
            self._lowered[sizes] = made
        return self._lowered[sizes]


def _share_weights(program: Program, before: Program) -> None:
    """Keep only one copy of weights that two programs have in common, to save memory."""
    for v, array in before.weights.items():
        own = program.weights.get(v)
        if own is not None and own.shape == array.shape and same_bits(own, array):
            program.weights[v] = array


def warn_of_dependent_rows(model: Any, shapes: Mapping[int, Mapping[str, tuple[int, ...]]]) -> None:
    """Log a warning unless it can be proven that the rows of a batch are independent.

    Parameters
    ----------
    shapes: the shapes of the model's open inputs, by batch size.
    """
    imported = Imported(model)
    try:
        programs, axes = _programs(imported, shapes, None)
        if programs:
            independent_rows(programs, axes)
            special = imported.why_not_joined(shapes)
            if special is not None:
                raise RowsDependError(
                    f"the model treats a few rows differently from many rows: {special}"
                )
    except RowsDependError as error:
        _LOG.warning(
            "the rows of a batch may depend on each other, so that requests which are joined may "
            "change each other's answers: %s",
            error,
        )


def _programs(
    imported: Imported,
    shapes: Mapping[int, Mapping[str, tuple[int, ...]]],
    axes: Mapping[str, int] | None,
) -> tuple[dict[int, Program], Mapping[str, int]]:
    """Return the model lowered for several sizes, by size, and the axis of the dimension in each
    input.

    The sizes above 1 in `shapes` are used. If only one size is above 1, a second size is added. If
    all sizes are 1, the result has no program: a single row is never padded, so nothing needs to be
    proven about it.

    Parameters
    ----------
    axes: the axis of the dimension in each input, by the input's name; None for the first axis of
        all inputs.
    """
    programs: dict[int, Program] = {}
    for size, given in shapes.items():
        if size > 1:
            programs[size] = imported.lowered(given, (size,))
            _share_weights(programs[size], next(iter(programs.values())))
    if not programs:
        return {}, axes or {}
    size, first = next(iter(programs.items()))
    if axes is None:
        axes = {first.values[v].name: 0 for v in first.inputs}
    if len(programs) == 1:
        # Two sizes are needed: the difference between their programs shows which numbers come from
        # the size.
        other, program = _with_another_size(imported, first, size, axes)
        programs[other] = program
    return programs, axes


def _with_another_size(
    imported: Imported, first: Program, size: int, axes: Mapping[str, int]
) -> tuple[int, Program]:
    """Lower the model for a size near `size`, and return this size too.

    Another size than `size + 1` may be needed: a program of `torch.export` may exclude larger sizes
    or odd sizes.
    """
    values = [first.values[v] for v in first.inputs]
    for other in (size + 1, size - 1, size + 2):
        shapes = {
            value.name: tuple(
                d // size * other if a == axes.get(value.name) else d
                for a, d in enumerate(value.shape)
            )
            for value in values
        }
        if other > 1:
            with contextlib.suppress(InputError):
                return other, imported.lowered(shapes, (other,))
    raise RowsDependError(f"the model runs for a size of {size}, but not for sizes near it")
