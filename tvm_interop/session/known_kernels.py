"""Compiles a model for new input shapes with the kernels that were chosen for other shapes.

After a complete compilation, a session stores which kernels were chosen, by the shapes of the
inputs. For new shapes of about the same size, the same kernels are used. Then nothing is measured,
and the session answers after seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..artifact.chosen_kernels import ChosenKernels

if TYPE_CHECKING:
    from ..artifact.artifact import Artifact
    from .kept_artifacts import KeptArtifacts

_FAR = 8.0
"""Kernels that were chosen for inputs of some shapes are used for inputs of other shapes only if
the numbers of elements of both differ by at most this factor."""
_MOST = 16
"""Largest number of shapes for which the kernels of a model are stored. The oldest entries are
dropped first."""
_OPTIONS = frozenset(
    {
        "fallback", "fresh", "input_shapes", "latency_db", "progress", "providers", "scheduler",
        "streams", "target", "threads", "time_budget", "winograd",
    }
)  # fmt: skip
"""Kernels that were chosen for other shapes are used only if all options given to `compile` are in
this set. With any other option, such as a precision or an option of a scheduler, measurements are
made at each shape."""

Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of inputs, by name."""


class KernelsForShapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kernels that were chosen for a model at the shapes `shapes` of its inputs."""

    shapes: dict[str, tuple[int, ...]]
    kernels: ChosenKernels


class KnownKernels:
    """The stored kernels of one model, compiled with the same options for several shapes."""

    def __init__(self, kept: KeptArtifacts, name: str, key: str) -> None:
        """Keep the arguments, which say where the kernels are stored.

        Parameters
        ----------
        kept: the store of artifacts.
        name: the model's name.
        key: a key for the model and the options, without the shapes.
        """
        self._kept, self._name, self._key = kept, name, key

    def nearest(self, shapes: Shapes) -> KernelsForShapes | None:
        """Return the kernels stored for the shapes nearest to `shapes`; None if all are too far
        away.

        The distance of two shapes is the factor by which their numbers of elements differ. If a
        model has several inputs, the largest of their distances counts. If several stored shapes
        are equally near, the shapes that were stored last are chosen.
        """
        near = [(_distance(each.shapes, shapes), -i, each) for i, each in enumerate(self._all())]
        near = [found for found in near if found[0] <= _FAR]
        return min(near, key=lambda found: found[:2])[2] if near else None

    def add(self, shapes: Shapes, artifact: Artifact) -> None:
        """Store the kernels of `artifact`, which was compiled in full for these shapes."""
        new = KernelsForShapes(dict(shapes), ChosenKernels.of(artifact))
        entries = [*(each for each in self._all() if each.shapes != new.shapes), new]
        self._kept.keep_kernels(self._name, self._key, msgspec.json.encode(entries[-_MOST:]))

    def _all(self) -> list[KernelsForShapes]:
        stored = self._kept.find_kernels(self._name, self._key)
        if stored is None:
            return []
        try:
            return msgspec.json.decode(stored, type=list[KernelsForShapes])
        except msgspec.MsgspecError:
            return []  # The file is damaged. The next complete compilation writes it again.


def _distance(one: Shapes, other: Shapes) -> float:
    if one.keys() != other.keys():
        return math.inf
    factors = [max(math.prod(one[n]), 1) / max(math.prod(other[n]), 1) for n in one]
    return max((max(factor, 1 / factor) for factor in factors), default=1.0)


def may_carry(options: Mapping[str, Any]) -> bool:
    """Whether, with these options for `compile`, kernels chosen for other shapes may be used."""
    target = options.get("target", "llvm")
    return (
        not options.get("fresh")
        and options.keys() <= _OPTIONS
        and isinstance(target, str)
        and target.startswith("llvm")
        and options.get("time_budget") != 0
    )


def carried_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a compilation that takes its kernels from another artifact (`like`).

    If no scheduler is given, the model runs sequentially, because searching for a schedule and
    checking it takes longer than all other steps together.
    """
    scheduler = options.get("scheduler", "auto")
    return {
        "fallback": False,
        **options,
        "scheduler": "sequential" if scheduler == "auto" else scheduler,
    }
