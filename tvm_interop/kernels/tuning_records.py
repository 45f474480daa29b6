"""A folder of tuning records: MetaSchedule's trials for the kernels of models, on one target.

`database_workload.json` and `database_tuning_record.json` are MetaSchedule's own database. The
first file has one line for each kernel, and the second file one line for each trial.
`comparisons.json` is our own file. It holds the measured times of a kernel's tuned schedule and of
our default schedule.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import tvm
from tvm import s_tir, tirx
from tvm.s_tir.meta_schedule.database import JSONDatabase

from ..atomic_file import replacing
from ..errors import InputError
from .build import kernel_hash

_RECORDS = "database_tuning_record.json"
_COMPARISONS = "comparisons.json"
_HOW = "make some with `tvm-interop tune MODEL --kernels`"


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The latencies of a kernel with its tuned schedule and with our default schedule.

    The two scheduled kernels were measured in turns, on one thread.

    Attributes
    ----------
    tuned, default: hashes of the two scheduled kernels.
    tuned_us, default_us: latency of each kernel, in microseconds.
    """

    tuned: str
    default: str
    tuned_us: float
    default_us: float


class TuningRecords:
    """The tuning records in a folder.

    Attributes
    ----------
    folder: the folder's path.
    target: the target of all records.
    database: MetaSchedule's database of the records.
    """

    def __init__(self, folder: str | os.PathLike[str], target: Any) -> None:
        """Open a folder that has records.

        Raises
        ------
        InputError
            The folder does not exist or has no file of records. Or the records cannot be read, or
            are for another target.
        """
        self.folder = Path(folder)
        self.target = tvm.target.Target(target)
        if not self.folder.is_dir():
            raise InputError(f"there is no folder `{folder}` of tuning records: {_HOW}")
        if not (self.folder / _RECORDS).is_file():
            raise self._empty()
        try:
            self.database = JSONDatabase(work_dir=str(self.folder))
            self._comparisons = _read_comparisons(self.folder / _COMPARISONS)
        except Exception as error:  # TVM may raise any error.
            raise InputError(
                f"the tuning records in `{folder}` cannot be read: {error}; remove the folder"
            ) from error
        self._best: dict[str, Any] = {}
        self._trials: dict[str, int] = {}
        for record in self.database.get_all_tuning_records():
            self._check_target(record)
            self._count(record)

    @classmethod
    def made(cls, folder: str | os.PathLike[str], target: Any) -> TuningRecords:
        """Open a folder of records. The folder is made if it does not exist.

        Raises
        ------
        InputError
            The folder cannot be made, its records cannot be read, or they are for another target.
        """
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / _RECORDS).touch()
        except OSError as error:
            raise InputError(f"cannot keep tuning records in `{folder}`: {error}") from error
        return cls(folder, target)

    def trials_of(self, kernel: tirx.PrimFunc) -> int:
        """The number of trials of `kernel`, including failed trials."""
        return self._trials.get(kernel_hash(kernel), 0)

    def best(self, kernel: tirx.PrimFunc) -> Any:
        """The fastest record of `kernel`, the first if several are equal; None if no trial ran."""
        return self._best.get(kernel_hash(kernel))

    def add(self, record: Any) -> None:
        """Add a tuning record; it is in the file when this method returns."""
        self.database.commit_tuning_record(record)
        self._count(record)

    def compared(self, tuned: tirx.PrimFunc, default: tirx.PrimFunc) -> Comparison | None:
        """The stored comparison of two scheduled kernels; None if they were never compared."""
        return self._comparisons.get((kernel_hash(tuned), kernel_hash(default)))

    def add_comparison(self, comparison: Comparison) -> None:
        """Add a comparison; it is in the file when this method returns."""
        self._comparisons[comparison.tuned, comparison.default] = comparison
        with replacing(self.folder / _COMPARISONS) as temporary:
            listed = list(self._comparisons.values())
            Path(temporary).write_bytes(msgspec.json.format(msgspec.json.encode(listed)))

    def require_some_of(self, kernels: Iterable[tirx.PrimFunc]) -> None:
        """Check that there is a trial of at least one of `kernels`, the kernels of a model.

        Raises
        ------
        InputError
            The folder has no trial of any kernel in `kernels`.
        """
        if not self._trials:
            raise self._empty()
        if not any(self.trials_of(kernel) for kernel in kernels):
            raise InputError(
                f"the tuning records in `{self.folder}` are of other models' kernels, and none is "
                f"of this model's kernels: {_HOW}"
            )

    def _empty(self) -> InputError:
        return InputError(f"folder `{self.folder}` has no tuning records: {_HOW}")

    def _check_target(self, record: Any) -> None:
        if str(record.target) != str(self.target):
            raise InputError(
                f"the tuning records in `{self.folder}` are for target {record.target}, and the "
                f"target here is {self.target}: use another folder, or the same --target"
            )

    def _count(self, record: Any) -> None:
        key = kernel_hash(record.workload.mod["main"])
        self._trials[key] = self._trials.get(key, 0) + 1
        known = self._best.get(key)
        if seconds(record) < (seconds(known) if known is not None else math.inf):
            self._best[key] = record


def seconds(record: Any) -> float:
    """The kernel's shortest run in a trial, in seconds; infinite if the trial failed."""
    return min((float(s) for s in record.run_secs or ()), default=math.inf)


def as_workload(kernel: tirx.PrimFunc) -> tvm.IRModule:
    """The module under which MetaSchedule stores `kernel`.

    Kernels that differ only in their names have equal modules.
    """
    # A schedule changes loops in place, so the module gets a copy of the kernel's loops.
    return tvm.IRModule({"main": s_tir.renew_defs(kernel).with_attr("global_symbol", "main")})


def _read_comparisons(path: Path) -> dict[tuple[str, str], Comparison]:
    if not path.is_file():
        return {}
    listed = msgspec.json.decode(path.read_bytes(), type=list[Comparison])
    return {(found.tuned, found.default): found for found in listed}
