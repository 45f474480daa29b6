"""Imports a model for several sizes, and checks the numbers that it computes from the sizes."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ..errors import InputError, UnsupportedModelError
from ..frontend.load import load_model, read_once
from ..frontend.open_dimensions import may_be_onnx
from ..frontend.size_conditions import attached, check_sizes
from ..frontend.size_values import follow_sizes
from ..frontend.sizes_hidden import UnevenSizesError
from ..lowering.extract import extract
from ..lowering.independent_rows import RowsDependError
from ..lowering.lower import LowerToUnits
from ..lowering.names import COUNTED_OUTPUTS, OUTPUT_NAMES
from ..models.external_weights import array_of
from ..models.source import read_for_import
from ..program.program import Program
from .needed_memory import check_fits
from .row_ranges import RowRange

_MOST_SIZES = 1024
"""The largest number of pairs of sizes that are tried. If there are more pairs, some are left out.
"""

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of inputs, by name."""


class CannotImportError(RowsDependError):
    """The model cannot be imported for some sizes. The text names the sizes and the reason."""


class CountedError(CannotImportError):
    """The size of an output depends on computed values. The text names the output."""


class Imported:
    """A model that is imported for several sizes, with the shapes of its tensors for each size."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._read: Any = None
        self._seen: dict[tuple[int, ...], dict[str, tuple[int, ...]]] = {}

    def lowered(self, shapes: Shapes, sizes: tuple[int, ...]) -> Program:
        """Lower the model for inputs of the shapes `shapes`. In these shapes, the dimensions with a
        range have the sizes `sizes`.

        Raises
        ------
        CannotImportError
            The model cannot be imported.
        InputError
            The tensors are too large for this machine.
        """
        lower: Any = LowerToUnits("llvm", are_sizes_alike=True)
        try:
            program = extract(lower(self._import(shapes, sizes)))
        except UnsupportedModelError as error:
            raise _not_imported(shapes, error) from error
        check_fits(program, shapes)
        return program

    def _import(self, shapes: Shapes, sizes: tuple[int, ...]) -> Any:
        seen: dict[str, tuple[int, ...]] = {}
        if self._read is None:
            self._read = read_once(self._model)
        made = load_model(self._read, shapes, seen)
        _check_outputs(made)
        self._seen[sizes] = seen
        return made

    def check_sizes(self, chosen: RowRange) -> dict[int, str]:
        """Check the numbers that the model computes from the sizes. Within a range, such a number
        must grow by the same amount whenever the size grows by 1 (see `frontend.size_values`).

        Returns
        -------
        For each dimension, by its number, a text that says how the model treats a size of 1
            differently from larger sizes.

        Raises
        ------
        RowsDependError
            A number does not grow by the same amount each time; the text names the node.
        InputError
            The model was converted from a program that was not exported for a size in a range.
        """
        ends = [(sizes[0], sizes[-1]) for sizes in chosen.sizes]
        model = self._graph
        exported = attached(model)
        if exported is not None:
            has_conditions = bool(exported.conditions)
            for sizes in _all_sizes(ends) if has_conditions else itertools.product(*ends):
                check_sizes(model, chosen.shapes(sizes))
        for sizes in itertools.product(*map(_samples, ends)):
            if sizes not in self._seen:
                try:
                    self._import(chosen.shapes(sizes), sizes)
                except UnsupportedModelError as error:
                    raise _not_imported(chosen.shapes(sizes), error) from error
        return self._followed(chosen.dimensions, _all_sizes(ends))

    def why_not_joined(self, shapes: Mapping[int, Shapes]) -> str | None:
        """How a batch gives other results than its rows one by one; None if the results are equal.

        A server may join requests of any number of rows, even fewer than the smallest compiled
        size. So the sizes 1 and 2 are compared too, if the model can be imported for them. A
        program of `torch.export` must also have been exported for these sizes.

        Parameters
        ----------
        shapes: the shapes of the inputs by batch size.
        """
        if not may_be_onnx(self._model):
            # Only ONNX models show which numbers are computed from sizes, so other models are not
            # checked.
            return None
        for size, given in shapes.items():
            if (size,) not in self._seen:
                self._import(given, (size,))
        (small, one), *_ = sorted(shapes.items())
        (large, other) = max(shapes.items())
        grown = {
            name: [a for a, (d, e) in enumerate(zip(shape, other[name], strict=True)) if d != e]
            for name, shape in one.items()
        }
        least = min(shapes)
        for size in range(1, min(least, 3)):
            given = {
                name: tuple(size if a in grown[name] or (small == large and a == 0) else d
                            for a, d in enumerate(shape))
                for name, shape in one.items()
            }  # fmt: skip
            try:
                self._import(given, (size,))
            # A program of `torch.export` may not run for this size.
            except (UnsupportedModelError, InputError):
                continue
            least = min(least, size)
        try:
            return self._followed(("batch",), _all_sizes([(least, large)])).get(0)
        except RowsDependError as error:
            return str(error)

    @functools.cached_property
    def _graph(self) -> onnx.ModelProto:
        is_read = isinstance(self._model, onnx.ModelProto)
        return self._model if is_read else read_for_import(self._model)

    def _read_weight(self, tensor: onnx.TensorProto) -> np.ndarray:
        """The values of a weight of a model in a file, if the weight is not in memory."""
        return array_of(tensor, Path(self._model))

    def _followed(self, dimensions: Sequence[str], sizes: list[tuple[int, ...]]) -> dict[int, str]:
        is_file = isinstance(self._model, (str, os.PathLike))
        read = self._read_weight if is_file else None
        try:
            return follow_sizes(self._graph, dimensions, sizes, self._seen, read)
        except UnevenSizesError as error:
            raise RowsDependError(str(error)) from None


def _check_outputs(mod: Any) -> None:
    """Refuse outputs whose size depends on computed values, before anything is proven or compiled.

    Raises
    ------
    CountedError
        The text names these outputs.
    """
    attrs = mod["main"].attrs or {}
    outputs = {int(output) for output, *_ in attrs.get(COUNTED_OUTPUTS, ())}
    if outputs:
        names = ", ".join(f"`{attrs[OUTPUT_NAMES][i]}`" for i in sorted(outputs))
        raise CountedError(f"the size of its output {names} depends on computed values")


def _not_imported(shapes: Shapes, error: UnsupportedModelError) -> CannotImportError:
    return CannotImportError(f"it cannot be imported for the input shapes {dict(shapes)}: {error}")


def _samples(ends: tuple[int, int]) -> list[int]:
    """Some sizes of a range: the largest, the two smallest above 1, and 1 if it is in the range."""
    least, most = ends
    first = [1] if least == 1 else []
    above = max(least, 2)
    return sorted({*first, above, min(above + 1, most), most})


def _all_sizes(ends: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """All sizes that a run may have.

    If two ranges have more than `_MOST_SIZES` pairs of sizes, the result has only some of the
    pairs. These are random pairs, and pairs in which at least one size is near an end of its range.
    """
    every = [range(least, most + 1) for least, most in ends]
    if len(every) == 1 or math.prod(map(len, every)) <= _MOST_SIZES:
        return list(itertools.product(*every))
    (first, second), rng = every, np.random.default_rng(0)
    found = {(n, end) for n in first for end in _samples(ends[1])}
    found.update((end, n) for n in second for end in _samples(ends[0]))
    drawn = (rng.integers(each[0], each[-1] + 1, _MOST_SIZES) for each in every)
    found.update((int(a), int(b)) for a, b in zip(*drawn, strict=True))
    return sorted(found)
