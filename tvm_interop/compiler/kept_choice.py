"""Keeps on disk the schedule that was chosen for a model, for later compilations of the same model.

The key of an entry holds everything that the choice depends on, such as the versions and a digest
of this package's own code.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from .._native.library import LIBRARY_PATH
from .._version import __version__
from ..artifact.manifest import SpeedCheck
from ..errors import ScheduleError
from ..measure.kept_files import kept_beside
from ..measure.workloads import workload_hash
from ..scheduling import Schedule
from ..scheduling.registry import is_own

if TYPE_CHECKING:
    from .compilation import Compilation

_CHOICE = "choice"
_CODE = ("compiler", "execution", "measure", "plan", "program", "scheduling", "latency")
"""The subpackages whose Python code decides which schedule an artifact gets. The native library
decides too, and is not listed here.
"""


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule that was chosen, and its speed check.

    Attributes
    ----------
    schedule: the schedule, as JSON text.
    speed_check: the result of the schedule's speed check; None if there was no check.
    """

    schedule: str
    speed_check: SpeedCheck | None


class KeptChoice:
    """The schedule that an earlier, equal compilation on this machine chose for a model."""

    def __init__(
        self,
        compilation: Compilation,
        scheduler: str,
        keep_slower: bool,
        options: Mapping[str, Any],
    ) -> None:
        """Compute the key of the entry on disk. Call this only if `choice_is_kept` returns True."""
        self._kept = kept_beside(compilation.options.latency_db, compilation.options.fresh)
        setting = compilation.measured_latency.setting
        kernels = compilation.kernel_hashes
        self._key = json.dumps(
            [
                __version__,
                _code_digest(LIBRARY_PATH),
                str(compilation.target),
                repr(setting),
                [compilation.streams, compilation.threads],
                [repr(astuple(value)) for value in compilation.program.values],
                [
                    [op.name, op.inputs, op.outputs, op.share, workload_hash(op, kernels)]
                    for op in compilation.program.operators
                ],
                [scheduler, keep_slower, sorted((k, repr(v)) for k, v in options.items())],
            ]
        )

    def read(self) -> tuple[Schedule, SpeedCheck | None] | None:
        """The schedule and its speed check; None if no choice was kept."""
        data = None if self._kept is None else self._kept.get(_CHOICE, self._key)
        if data is None:
            return None
        try:
            choice = msgspec.json.decode(data, type=Choice)
            return Schedule.from_json(choice.schedule), choice.speed_check
        except (msgspec.DecodeError, ScheduleError):
            return None  # An entry that a package of another version wrote may not be readable.

    def write(self, schedule: Schedule, speed_check: SpeedCheck | None) -> None:
        """Keep the schedule and its speed check."""
        if self._kept is not None:
            choice = Choice(schedule.to_json(), speed_check)
            self._kept.put(_CHOICE, self._key, msgspec.json.encode(choice))


def choice_is_kept(
    compilation: Compilation, scheduler: str, latency: Any, options: Mapping[str, Any]
) -> bool:
    """Whether the choice of a schedule can be kept.

    The choice can be kept if the scheduler belongs to this package, the latencies are measured on
    this machine, and the latency database is a file. Options must be numbers or text, so that the
    key can hold them. The choice of a scheduler that a user registered is not kept, because such a
    scheduler may change without a change of the key.
    """
    given = compilation.options
    return (
        latency is None
        and is_own(scheduler)
        and given.latency is None
        and compilation.backend.keeps_choices
        and kept_beside(given.latency_db) is not None
        and all(isinstance(value, str | int | float | None) for value in options.values())
    )


@functools.cache
def _code_digest(library: Path) -> str:
    """A digest of this package's code that measures, schedules, and chooses the schedule.

    Parameters
    ----------
    library: the path of the native library, which holds the native schedulers and the timers.
    """
    root = Path(__file__).parent.parent
    digest = hashlib.sha256(library.read_bytes())
    for room in _CODE:
        for path in sorted((root / room).rglob("*")):
            if path.is_file() and path.parent.name != "__pycache__":
                digest.update(path.read_bytes())
    return digest.hexdigest()
