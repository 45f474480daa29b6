"""The ranges of sizes that an artifact was compiled for, and the time that a request would take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InputError, did_you_mean
from ..plain_data import is_whole
from ..program.row_axis import axes_of_ranges, next_larger

if TYPE_CHECKING:
    from .manifest import RowSizes, SpeedCheck


@dataclass(frozen=True)
class Dimension:
    """A dimension of the inputs that may have any size within a range.

    Attributes
    ----------
    name: the name of the dimension, such as `batch`.
    least, most: the ends of the range.
    compiled: the sizes that the model was compiled for, ascending.
    inputs: the axis of the dimension in each input that has it, by the input's name.
    """

    name: str
    least: int
    most: int
    compiled: tuple[int, ...]
    inputs: dict[str, int]

    def __str__(self) -> str:
        return f"{self.name} {self.least} to {self.most}"


@dataclass(frozen=True)
class CompiledSize:
    """Sizes that the model was compiled for, one for each dimension with a range.

    Attributes
    ----------
    sizes: the size of each dimension, by its name.
    latency_us: the latency of a run at these sizes; None if the artifact does not say.
    source: where the latency comes from. `measured` is the speed check of the compilation, and
        `predicted` is the scheduler's makespan. None without a latency.
    """

    sizes: dict[str, int]
    latency_us: float | None
    source: Literal["measured", "predicted"] | None

    def __str__(self) -> str:
        return _in_words(self.sizes)

    @property
    def latency_in_words(self) -> str:
        """The latency, and where it comes from, as text."""
        if self.latency_us is None:
            return "the artifact does not say how long a run takes"
        how = "measured when it was compiled" if self.source == "measured" else "predicted"
        return f"{self.latency_us:.1f} us, {how}"


@dataclass(frozen=True)
class RequestCost:
    """The compiled sizes at which a request runs, and the cost of padding its inputs to them.

    Attributes
    ----------
    request: the size of each dimension of the request, by its name.
    runs_at: the compiled sizes at which the request runs.
    shape: the index of these sizes in `Ranges.compiled` and `Artifact.input_shapes`.
    filled_share: the fraction of the run's rows and positions that are padding, from 0 to 1.
    own_us: the latency that a run at the request's own sizes would have. It is interpolated between
        the latencies at the next smaller and the next larger compiled sizes. None if one of these
        latencies was not measured.
    """

    request: dict[str, int]
    runs_at: CompiledSize
    shape: int
    filled_share: float
    own_us: float | None

    @property
    def over_own(self) -> float | None:
        """The latency of the run divided by `own_us`; None if one of the two is not known."""
        if self.own_us is None or self.runs_at.latency_us is None:
            return None
        return self.runs_at.latency_us / self.own_us

    def __str__(self) -> str:
        told = (
            f"{_in_words(self.request)}: runs at {self.runs_at}, {self.filled_share:.1%} of the "
            f"run is padding; {self.runs_at.latency_in_words}"
        )
        if self.filled_share == 0 or self.over_own is None:
            return told
        return (
            f"{told}; it takes about {self.over_own:.2f} times as long as a run of the request's "
            "own sizes, whose latency is interpolated between compiled sizes"
        )


@dataclass(frozen=True)
class Ranges:
    """The ranges that an artifact was compiled for; `Artifact.ranges` makes one.

    Attributes
    ----------
    dimensions: the dimensions with a range.
    compiled: the sizes that the model was compiled for, in the order of `Artifact.input_shapes`.
    filled_with_0: the inputs that are padded with 0. All other inputs are padded with copies of
        their last row.
    mean_filling: the cost of padding, averaged over all sizes of the ranges. The cost is the number
        of rows that a run computes, divided by the number of rows of its inputs.
    """

    dimensions: tuple[Dimension, ...]
    compiled: tuple[CompiledSize, ...]
    filled_with_0: tuple[str, ...]
    mean_filling: float

    def cost_of(self, request: Mapping[str, int]) -> RequestCost:
        """Return the sizes at which a request would run, and the cost of padding its inputs.

        Parameters
        ----------
        request: the size of each dimension with a range, by its name.

        Raises
        ------
        InputError
            A dimension is unknown or missing, or its size is out of its range.

        Examples
        --------
        >>> artifact.ranges.cost_of({"batch": 3, "seq": 20}).filled_share  # doctest: +SKIP
        0.53125
        """
        known = {each.name: each for each in self.dimensions}
        told = " and ".join(map(str, self.dimensions))
        if not isinstance(request, Mapping):
            raise InputError(
                f"the request {request!r} is not a mapping: give sizes by name, for {told}"
            )
        for name in request:
            if name not in known:
                raise InputError(
                    f"no dimension `{name}` has a range{did_you_mean(str(name), list(known))}: the "
                    f"model was compiled for {told}"
                )
        for name, each in known.items():
            if name not in request:
                raise InputError(
                    f"the request has no size of `{name}`: give one from {each.least} to "
                    f"{each.most}"
                )
            size = request[name]
            if not is_whole(size) or not each.least <= size <= each.most:
                raise InputError(
                    f"the request has `{name}` {size!r}, and the model was compiled for {each}: "
                    f"give a whole number from {each.least} to {each.most}, or compile the model "
                    "for a larger range"
                )
        given = {name: int(request[name]) for name in known}
        shape = next_larger(
            [tuple(each.sizes.values()) for each in self.compiled], [*given.values()]
        )
        runs_at = self.compiled[shape]
        filled = 1 - math.prod(given.values()) / math.prod(runs_at.sizes.values())
        return RequestCost(given, runs_at, shape, filled, self._own_us(given))

    def _own_us(self, request: Mapping[str, int]) -> float | None:
        """The latency at the sizes of `request`, interpolated linearly between compiled sizes."""
        measured = {
            tuple(each.sizes.values()): each.latency_us
            for each in self.compiled
            if each.source == "measured" and each.latency_us is not None
        }
        corners: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        for each in self.dimensions:
            size = request[each.name]
            below = max(n for n in each.compiled if n <= size)
            above = min(n for n in each.compiled if n >= size)
            share = (size - below) / (above - below) if above > below else 0.0
            ends = [(below, 1 - share), *([(above, share)] if share else [])]
            corners = [((*at, n), weight * part) for at, weight in corners for n, part in ends]
        if any(at not in measured for at, _ in corners):
            return None
        return sum(measured[at] * weight for at, weight in corners)

    def as_dict(self) -> dict[str, Any]:
        """Return the ranges as plain data for JSON; unknown latencies are None."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The ranges as lines of text: each dimension, then each compiled size."""
        found = ["ranges: " + " and ".join(map(str, self.dimensions))]
        for each in self.dimensions:
            inputs = ", ".join(f"`{name}`[{axis}]" for name, axis in each.inputs.items())
            sizes = ", ".join(map(str, each.compiled))
            found.append(f"  {each.name}: axis of {inputs}; compiled for {sizes}")
        if self.filled_with_0:
            names = ", ".join(f"`{name}`" for name in self.filled_with_0)
            found.append(f"  padded with 0: {names}; all others are padded with their last row")
        found += [f"  {each}: {each.latency_in_words}" for each in self.compiled]
        return [
            *found,
            f"  in the mean over all sizes, a run computes {self.mean_filling:.3g} times the rows "
            "that it is given",
        ]


def ranges_of(
    rows: RowSizes,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    latencies: Sequence[tuple[SpeedCheck | None, float | None]],
) -> Ranges:
    """The ranges of an artifact.

    Parameters
    ----------
    rows: the field `row_sizes` of the artifact's manifest.
    shapes: for each of the artifact's sets of input shapes, the shapes by the inputs' names.
    latencies: the speed check and the predicted makespan, for each of the artifact's sets of input
        shapes.
    """
    by_name = rows.ranges
    sizes = list(zip(*by_name.values(), strict=True))
    axes = {name: axes_of_ranges([each[name] for each in shapes], sizes) for name in shapes[0]}
    dimensions = tuple(
        Dimension(
            name,
            min(each),
            max(each),
            tuple(sorted(set(each))),
            {input_: axis for input_, of in axes.items() if (axis := of[number]) is not None},
        )
        for number, (name, each) in enumerate(by_name.items())
    )
    compiled = tuple(
        _compiled(dict(zip(by_name, each, strict=True)), *known)
        for each, known in zip(sizes, latencies, strict=True)
    )
    masks = tuple(mask.input for mask in rows.masks)
    return Ranges(dimensions, compiled, masks, rows.mean_filling)


def _compiled(
    sizes: dict[str, int], checked: SpeedCheck | None, predicted_us: float | None
) -> CompiledSize:
    if checked is not None:
        is_scheduled = checked.shipped == "scheduled"
        measured_us = checked.scheduled_us if is_scheduled else checked.sequential_us
        return CompiledSize(sizes, measured_us, "measured")
    return CompiledSize(sizes, predicted_us, None if predicted_us is None else "predicted")


def _in_words(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
