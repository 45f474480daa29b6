"""Joins the outputs of a compiled model that are the tensors of a sequence to lists."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .tensor_info import TensorInfo

if TYPE_CHECKING:
    from .pool import Pool
    from .profile_file import ProfileFile
    from .source import Source


def places_of(outputs: Sequence[TensorInfo], tensors: Sequence[str]) -> list[list[int]]:
    """Return the positions of the tensors of each output among the outputs of a compiled model.

    Parameters
    ----------
    outputs: the outputs of the model, of which some may be sequences.
    tensors: the names of the outputs of the compiled model. The tensors of a sequence `parts` are
        `parts[0]`, `parts[1]` and so on.
    """
    places = {name: i for i, name in enumerate(tensors)}
    found = []
    for info in outputs:
        names = (f"{info.name}[{i}]" for i in itertools.count())
        own = itertools.takewhile(places.__contains__, names) if info.is_sequence else [info.name]
        found.append([places[name] for name in own])
    return found


def with_sequences(
    infos: tuple[list[TensorInfo], list[TensorInfo]], source: Source | None
) -> tuple[list[TensorInfo], list[TensorInfo]]:
    """Return the inputs and outputs of a compiled model, with the sequences of its `source`."""
    inputs, tensors = infos
    outputs = [] if source is None else source.outputs
    if not any(info.is_sequence for info in outputs):
        return infos
    places = places_of(outputs, [info.name for info in tensors])
    return inputs, [
        info if info.is_sequence else tensors[own[0]]
        for info, own in zip(outputs, places, strict=True)
    ]


class WithSequences:
    """The part of a session that returns the outputs of a run, some of which may be sequences."""

    outputs: list[TensorInfo]
    _profile: ProfileFile | None

    def _run_on(self, pool: Pool, feed: Mapping[str, Any], wanted: Sequence[int]) -> list[Any]:
        if not any(info.is_sequence for info in self.outputs):
            return pool.run(feed, wanted, self._profile)
        outputs = [self.outputs[i] for i in wanted]
        places = places_of(outputs, [info.name for info in pool.infos()[1]])
        results = pool.run(feed, [*itertools.chain.from_iterable(places)], self._profile)
        return joined(outputs, places, results)


def joined(outputs: Sequence[TensorInfo], places: Sequence[list[int]], results: Any) -> list[Any]:
    """Return a value for each output: a tensor, or a list of the tensors of a sequence.

    Parameters
    ----------
    results: the tensors at `places`, one after the other.
    """
    left = iter(results)
    return [
        list(itertools.islice(left, len(own))) if info.is_sequence else next(left)
        for info, own in zip(outputs, places, strict=True)
    ]
