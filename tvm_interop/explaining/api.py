"""`explain`: did my operators run side by side, and if not, why?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..compiler.options import CompileOptions
from ..errors import InputError
from .ceiling import Ceiling, ceiling
from .changes import Change, Trial, changes_for, try_change
from .findings import find_all, find_pair
from .subject import Subject, is_artifact, subject_of
from .verdict import FILLS, GAIN, SLOWDOWN, Finding, Verdict


@dataclass(frozen=True)
class Explanation:
    """Why operators of a model or an artifact do, or do not, run side by side.

    Attributes
    ----------
    title: what was explained.
    cores: it was explained for, a stream each.
    findings: on each set of independent operators, or on the pair that was asked for.
    ceiling: how much there is to gain at most; None where a pair was asked for.
    changes: up to three that would help, the largest estimate first.
    trial: the change that was tried.
    """

    title: str
    cores: int
    findings: tuple[Finding, ...]
    ceiling: Ceiling | None = None
    changes: tuple[Change, ...] = ()
    trial: Trial | None = None

    def counts(self) -> dict[str, int]:
        """How many sets have each verdict, those that none has left out."""
        verdicts = [finding.verdict for finding in self.findings]
        return {v.value: verdicts.count(v) for v in Verdict if v in verdicts}

    def as_dict(self) -> dict[str, Any]:
        """For JSON; unknown numbers are null."""
        return {
            "title": self.title,
            "cores": self.cores,
            "thresholds": {"gain": GAIN, "fills": FILLS, "slowdown": SLOWDOWN},
            "findings": [finding.as_dict() for finding in self.findings],
            "counts": self.counts(),
            "ceiling": None if self.ceiling is None else self.ceiling.as_dict(),
            "changes": [
                {
                    "number": i,
                    "kind": change.kind,
                    "what": change.what,
                    "estimated_gain": change.gain,
                    "operators": list(change.operators),
                }
                for i, change in enumerate(self.changes, start=1)
            ],
            "trial": None if self.trial is None else self.trial.as_dict(),
        }


def explain(
    model: Any,
    pair: Sequence[str] | None = None,
    *,
    measure: bool = True,
    try_number: int | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    options: CompileOptions | None = None,
) -> Explanation:
    """Say of each set of independent operators whether running side by side pays, and why not.

    A set has the operators with equally many before them on the longest path from an input; of
    other two ask by `pair`. Operators in turn, each over all cores, are compared with all of them
    at once, each on one core. Latencies come from the database; what is missing is measured on
    this machine, and kept. The thresholds are those of `explaining.verdict`.

    Parameters
    ----------
    model: an artifact, or the path of one; or a model, as `compile` takes it. Of an artifact for
        several shapes of its inputs the first is explained.
    pair: the names of two operators, to explain those alone.
    measure: False measures no operator: what is not known is `unknown`. Of an artifact no code is
        loaded then. A model's kernels are chosen by measurement all the same.
    try_number: the number of a change, from 1, to make and to measure against the model as it is.
    input_shapes: shapes of inputs that the model leaves open, by name.
    options: streams, target, database and so on, as for `compile`.

    Raises
    ------
    GraphError: there is no such operator.
    InputError: there is no change of this number, or it cannot be tried here.
    DeviceError: the model or artifact is for a GPU.
    UnsupportedModelError, ArtifactError: it is neither a model nor an artifact that can be used.

    Examples
    --------
    >>> print(explain("squeezenet").counts())  # doctest: +SKIP
    {'one fills the device': 6, 'little to gain': 2}
    """
    if pair is not None and len(pair) != 2:
        raise InputError(f"`pair` has {len(pair)} names; give two operators")
    if try_number is not None and (pair is not None or not measure):
        raise InputError("a change is tried on a whole model and by measuring: leave `pair` and "
                         "`measure=False` out")  # fmt: skip
    if try_number is not None and is_artifact(model):
        raise InputError(
            f"`{model if isinstance(model, str | os.PathLike) else 'the model'}` is an artifact, "
            "and changes are made to models: give the model that it was compiled from"
        )
    subject = subject_of(model, options or CompileOptions(), input_shapes, measure)
    explained = explain_subject(subject, pair)
    if try_number is None:
        return explained
    if not 1 <= try_number <= len(explained.changes):
        there = f"1 to {len(explained.changes)}" if explained.changes else "none"
        raise InputError(f"there is no change {try_number}; there are {there}")
    change = explained.changes[try_number - 1]
    return replace(explained, trial=try_change(subject, change, model, input_shapes))


def explain_subject(subject: Subject, pair: Sequence[str] | None = None) -> Explanation:
    """As `explain`, for what was read already."""
    wholes = subject.wholes
    if pair is not None:
        found = find_pair(wholes, pair, subject.artifact)
        return Explanation(subject.title, wholes.cores, found)
    found = find_all(wholes, subject.artifact)
    return Explanation(
        subject.title,
        wholes.cores,
        found,
        ceiling(wholes, found),
        changes_for(subject),
    )
