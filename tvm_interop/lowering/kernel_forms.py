"""Finds, for each statement of a kernel, a form that is the same for all lengths of a sequence.

A form describes what a statement computes at one position of the sequence (see `position_form`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tvm import tirx

from ..kernels.loops import ROWS
from .kernel_stores import Store, UnprovenError, stores_of
from .padded_tensors import without_padded
from .position_form import Form, Known, Layout, PositionLoop, form_of, layout_of, splits

_MOST_TRIALS = 50
"""The search gives up after it has tried this many layouts for each statement of a kernel, on
average.
"""
_UNEVEN = (
    "writes a tensor that has no fixed number of elements for each position, such as the border of "
    "a convolution or of a pooling over positions"
)


def layouts_of(shapes: Sequence[Sequence[int]], lengths: Sequence[int]) -> Iterator[Layout]:
    """The layouts (see `position_form`) that a tensor may have, given its shape for each length."""
    if len({len(shape) for shape in shapes}) > 1:
        return
    choices: list[list[int | None]] = []
    for sizes in zip(*shapes, strict=True):
        if len(set(sizes)) == 1:
            choices.append([None])
            continue
        each = {divmod(size, length) for size, length in zip(sizes, lengths, strict=True)}
        if len(each) > 1 or min(each)[1]:
            return
        choices.append([loop.inner for loop in splits(min(each)[0])])
    for inner in itertools.product(*choices):
        yield layout_of(shapes[0], inner, lengths[0])


class KernelForms:
    """Finds the form of each statement of a kernel: what it computes at one position.

    A form must be the same for all lengths of the sequence.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        kernels: Sequence[tirx.PrimFunc],
        least: int,
        layouts: Mapping[int, Layout],
        numbers: Mapping[int, int],
        places: Mapping[int, int],
    ) -> None:
        self._lengths, self._kernels, self._least = lengths, kernels, least
        self._layouts, self._numbers, self._places = layouts, numbers, places
        self._trials = 0
        self._names: list[dict[Any, str]] = []
        self._is_padded = False

    def run(self, largest: int) -> tuple[tuple[Form, ...], dict[int, Layout]]:
        """Return the forms of the statements, and the layout of each parameter that has
        positions.
        """
        if ROWS in (self._kernels[0].attrs or {}) and self._layouts:
            raise UnprovenError(
                "goes through positions, but not from the first to the last as a running sum does: "
                "perhaps from the last to the first"
            )
        each = [list(stores_of(kernel.body, [], [])) for kernel in self._kernels]
        if len({len(stores) for stores in each}) > 1:
            raise UnprovenError("has different statements for different lengths")
        each, self._is_padded = without_padded(each, self._kernels, self._has_layout)
        for kernel, stores in zip(self._kernels, each, strict=True):
            names = {param: f"parameter{i}" for i, param in enumerate(kernel.params)}
            for store in stores:
                names.setdefault(store.buffer, f"buffer{len(names)}")
            self._names.append(names)
        begin = {f"parameter{i}": layout for i, layout in self._layouts.items()}
        statements = list(zip(*each, strict=True))
        try:
            forms, found = self._solved(statements, 0, begin)
        except UnprovenError as error:
            if self._is_padded:
                raise
            # A kernel may also read earlier positions without a padded tensor, as in a shift of
            # all positions by one. Such a kernel is read as if it had a padded tensor.
            self._is_padded, self._trials = True, 0
            try:
                forms, found = self._solved(statements, 0, begin)
            except UnprovenError:
                raise error from None
        layouts = {
            i: found[f"parameter{i}"]
            for i in range(len(self._kernels[0].params))
            if f"parameter{i}" in found
        }
        return forms, layouts

    def _has_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        return next(layouts_of(shapes, self._lengths), None) is not None

    def _solved(
        self, statements: Sequence[Sequence[Store]], i: int, layouts: dict[str, Layout]
    ) -> tuple[tuple[Form, ...], dict[str, Layout]]:
        """Find the forms of the statements from index `i` on, and the layouts of all buffers.

        `layouts` holds the layouts of the buffers that earlier statements read or write.
        """
        if i == len(statements):
            return (), layouts
        stores, why = statements[i], UnprovenError(_UNEVEN)
        name = self._names[0][stores[0].buffer]
        is_new = all(self._names[0][each[0].buffer] != name for each in statements[:i])
        for layout in self._possible(stores, layouts.get(name), is_new):
            trial = {**layouts, name: layout} if len(layout) > 1 else layouts
            for loops in self._loops(stores):
                self._trials += 1
                if self._trials > _MOST_TRIALS * len(statements):
                    raise UnprovenError("has more possible forms than are tried")
                try:
                    form = self._form(stores, trial, loops)
                    forms, found = self._solved(statements, i + 1, trial)
                    return (form, *forms), found
                except UnprovenError as error:
                    why = error
        raise why

    def _possible(
        self, stores: Sequence[Store], known: Layout | None, is_new: bool
    ) -> Iterator[Layout]:
        if not is_new:
            yield known or (0,)
            return
        shapes = [[int(size) for size in store.buffer.shape] for store in stores]
        yield from layouts_of(shapes, self._lengths)

    def _loops(self, stores: Sequence[Store]) -> Iterator[dict[int, PositionLoop]]:
        """Yield each way to describe the loops whose number of steps grows with the length."""
        if len({len(store.loops) for store in stores}) > 1:
            raise UnprovenError("has different loops for different lengths")
        growing: dict[int, list[PositionLoop]] = {}
        for i, loops in enumerate(zip(*(store.loops for store in stores), strict=True)):
            extents = [extent for _, extent in loops]
            if len(set(extents)) == 1:
                continue
            each = {divmod(e, length) for e, length in zip(extents, self._lengths, strict=True)}
            if len(each) > 1 or min(each)[1]:
                raise UnprovenError("has a loop that does not run over whole positions")
            growing[i] = splits(min(each)[0])
        for chosen in itertools.product(*growing.values()):
            yield dict(zip(growing, chosen, strict=True))

    def _form(
        self,
        stores: Sequence[Store],
        layouts: Mapping[str, Layout],
        loops: Mapping[int, PositionLoop],
    ) -> Form:
        forms = []
        for store, length, kernel, names in zip(
            stores, self._lengths, self._kernels, self._names, strict=True
        ):
            of_buffers = {b: layouts[name] for b, name in names.items() if name in layouts}
            numbers = {kernel.params[i]: number for i, number in self._numbers.items()}
            places = {kernel.params[i]: most for i, most in self._places.items()}
            known = Known(length, self._least, names, of_buffers, numbers, places, self._is_padded)
            forms.append(form_of(store, known, loops))
        if any(form != forms[0] for form in forms):
            raise UnprovenError("computes something else for one length than for another")
        return forms[0]
