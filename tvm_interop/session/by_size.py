"""Compiles each size of a session separately, if inputs cannot be padded to a larger size."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CannotFillUpError, InputError
from ..execution.size_counts import RunCounts, SizeCounts
from ..plain_data import is_whole
from .source import Source

_LOG = logging.getLogger("tvm_interop")
_NOT_FOR_ONE = ("shapes", "most_sizes")
"""The options of `compile` that have a meaning only for ranges of sizes."""


class BySize:
    """The ranges of sizes of a session that compiles its model for each size separately.

    The model is compiled for a size when the session first runs inputs of this size.

    Attributes
    ----------
    why: why the inputs of a run cannot be padded (filled up) to a larger size.
    """

    def __init__(
        self, source: Source, shapes: Mapping[str, Any], error: CannotFillUpError, most: int
    ) -> None:
        """Log that each size is compiled separately.

        Parameters
        ----------
        shapes: the size of each dimension, or its least and its greatest size.
        error: the error that the compilation for all sizes together raised.
        most: the largest number of combinations of sizes that the session keeps ready. The number
            is only logged.
        """
        self.why = error.why
        self._inputs = {info.name: info.dimensions for info in source.inputs}
        self._open = [info.name for info in source.inputs if info.is_open]
        self._ends = {
            name: (given, given) if is_whole(given) else (given[0], given[1])
            for name, given in shapes.items()
        }
        self._wide = [name for name, (least, most_) in self._ends.items() if least < most_]
        self._counts = SizeCounts(())
        _LOG.warning(
            "`%s` is compiled for each size of %s at the first run of this size, which takes a "
            "while (`compile_in_background` answers before that), and the session stays ready for "
            "at most %d sizes that were used last, since %s",
            source.name,
            self._told,
            most,
            self.why,
        )

    def sizes_of(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """Return the sizes that inputs have in the dimensions that have a range.

        Parameters
        ----------
        shapes: the shapes of the inputs with open dimensions, by name.

        Raises
        ------
        InputError
            A size is out of its range, or two inputs disagree about it; the message names the
            dimension.
        """
        found: dict[str, tuple[int, str]] = {}
        for name, shape in shapes.items():
            self._check_known(name, shape)
            for dimension, size in zip(self._inputs[name], shape, strict=True):
                if dimension not in self._ends:
                    continue
                assert isinstance(dimension, str)
                least, most = self._ends[dimension]
                if not least <= size <= most:
                    wanted = str(least) if least == most else f"{least} to {most}"
                    advice = "make a session for a larger range, or divide the inputs"
                    if size == 0:
                        advice = "begin the range at 0, or leave the run out"
                    raise InputError(
                        f"input `{name}` has {dimension} {size}, and the session was made for "
                        f"{dimension} {wanted}: {advice}"
                    )
                before, other = found.setdefault(dimension, (size, name))
                if before != size:
                    raise InputError(
                        f"input `{other}` has {dimension} {before}, and input `{name}` has "
                        f"{dimension} {size}: give all inputs the same {dimension}"
                    )
        self._check_sums(shapes, {name: size for name, (size, _) in found.items()})
        least = {name: (ends[0], "") for name, ends in self._ends.items()}
        return tuple({**least, **found}[name][0] for name in self._wide)

    def count(self, sizes: Sequence[int]) -> None:
        """Count a run of inputs that have the sizes `sizes`."""
        self._counts.count(tuple(sizes), tuple(sizes))

    def forget(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Forget the counted runs at the sizes that inputs of these shapes have."""
        self._counts.forget(self.sizes_of(dict(zip(self._open, shapes, strict=True))))

    @property
    def dimensions(self) -> tuple[str, ...]:
        """The names of the dimensions that have a range of sizes."""
        return tuple(self._wide)

    def counts(self) -> dict[tuple[int, ...], RunCounts]:
        """Return how many runs there were at each combination of sizes."""
        return self._counts.counts()

    @property
    def _told(self) -> str:
        ends = ((name, *self._ends[name]) for name in self._wide)
        return " and ".join(f"{name} {least} to {most}" for name, least, most in ends)

    def _check_known(self, name: str, shape: tuple[int, ...]) -> None:
        """Check the rank of an input, and the dimensions whose sizes the model fixes."""
        dims = self._inputs[name]
        wrong = len(dims) != len(shape) or any(
            isinstance(known, int) and known != size
            for known, size in zip(dims, shape, strict=False)
        )
        if wrong:
            told = ", ".join(map(str, dims))
            raise InputError(f"input `{name}` has shape {shape}, and the model has ({told})")

    def _check_sums(self, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> None:
        """Check the sizes of dimensions whose names are sums, such as `past + 1`."""
        for name, shape in shapes.items():
            for dimension, size in zip(self._inputs[name], shape, strict=True):
                if isinstance(dimension, int) or dimension in sizes:
                    continue
                from ..frontend.open_dimensions import size_of  # Imports TVM, which takes seconds.

                wanted = size_of(dimension, sizes)
                if wanted is not None and wanted != size:
                    raise InputError(
                        f"input `{name}` has size {size} where the model has `{dimension}`, which "
                        f"is {wanted} for the other inputs"
                    )


def without_ranges(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` without the options that `compile` takes only for ranges of sizes."""
    return {name: value for name, value in options.items() if name not in _NOT_FOR_ONE}
