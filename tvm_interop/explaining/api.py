"""Provides `explain`, which says whether a model gets faster if operators run concurrently.

If it does not, `explain` gives the reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec

from ..artifact.manifest import MergeCheck
from ..artifact.ranges import Ranges, RequestCost
from ..compiler.options import CompileOptions
from ..errors import InputError
from .ceiling import Ceiling, ceiling
from .changes import Change, Trial, changes_for, try_change
from .findings import find_all, find_pair
from .subject import Subject, is_artifact, subject_of
from .verdict import FILLS, GAIN, SLOWDOWN, Finding, Verdict


@dataclass(frozen=True)
class Explanation:
    """The result of `explain`, for a model or an artifact.

    Attributes
    ----------
    title: the name of the model or artifact.
    cores: the number of cores that the explanation assumes. Each core has one stream.
    findings: one finding for each set of independent operators, or for the requested pair.
    ceiling: bounds on how much scheduling can reduce the latency; None if a pair was requested.
    changes: up to three changes that would help, as `changes_for` orders them.
    trial: the result of trying a change; None if no change was tried.
    merge_check: the comparison of merged operators with the operators that they replaced; None for
        a model, and for an artifact without merged operators.
    ranges: the ranges of sizes that an artifact was compiled for; None if there are none.
    request: the compiled sizes at which the given request runs; None if no request was given.
    """

    title: str
    cores: int
    findings: tuple[Finding, ...]
    ceiling: Ceiling | None = None
    changes: tuple[Change, ...] = ()
    trial: Trial | None = None
    merge_check: MergeCheck | None = None
    ranges: Ranges | None = None
    request: RequestCost | None = None

    def counts(self) -> dict[str, int]:
        """Return, for each verdict, the number of sets that have it. Verdicts that no set has are
        left out.
        """
        verdicts = [finding.verdict for finding in self.findings]
        return {v.value: verdicts.count(v) for v in Verdict if v in verdicts}

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data for JSON; unknown numbers are None."""
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
            "merge_check": msgspec.to_builtins(self.merge_check),
            "ranges": None if self.ranges is None else self.ranges.as_dict(),
            "request": None if self.request is None else asdict(self.request),
        }


def explain(
    model: Any,
    pair: Sequence[str] | None = None,
    *,
    measure: bool = True,
    try_number: int | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    options: CompileOptions | None = None,
    request: Mapping[str, int] | None = None,
) -> Explanation:
    """Say, for each set of independent operators, whether it is faster to run them concurrently.

    A set consists of the operators with the same depth. The depth of an operator is the number of
    operators before it on the longest path from an input. With `pair`, the two operators that it
    names are the only set.

    Two ways to run a set are compared. In the first, the operators run one after the other, each
    divided over all cores. In the second, they run concurrently, each on one core. Latencies come
    from the database. Missing latencies are measured on this machine and stored. The module
    `explaining.verdict` defines the thresholds.

    Parameters
    ----------
    model: an artifact, the path of an artifact, or a model as `compile` takes it. If an artifact
        has plans for several input shapes, the first plan is explained, unless `request` is given.
    pair: the names of two operators; only these are explained.
    measure: whether to measure missing latencies. If False, findings that need a missing latency
        are `unknown`, and no code of an artifact is loaded. A model's kernels are chosen by
        measurement in either case.
    try_number: the number of a change in `changes`, from 1. The changed model is measured against
        the unchanged model.
    input_shapes: the shapes of inputs with open dimensions, by name.
    options: streams, target, database and so on, as for `compile`.
    request: for an artifact with ranges, the size of each dimension with a range, by name. The
        plan that runs this request is explained, and the result says what its padding costs.

    Raises
    ------
    GraphError: there is no operator of that name.
    InputError: there is no change of that number, `model` is an artifact and so cannot be changed,
        `try_number` is given with `pair` or `measure=False`, or `pair` is not two names. Or a size
        of `request` is out of its range, or there are no ranges.
    DeviceError: the model or artifact is for a GPU.
    UnsupportedModelError, ArtifactError: `model` is neither a model nor a usable artifact.

    Examples
    --------
    >>> print(explain("squeezenet").counts())  # doctest: +SKIP
    {'one fills the device': 6, 'little to gain': 2}
    """
    if pair is not None and len(pair) != 2:
        raise InputError(f"`pair` has {len(pair)} names; give two operators")
    if try_number is not None and (pair is not None or not measure):
        raise InputError("`try_number` tries a change by measuring the whole model: leave `pair` "
        "and `measure=False` out")  # fmt: skip
    if try_number is not None and is_artifact(model):
        raise InputError(
            f"`{model if isinstance(model, str | os.PathLike) else 'the model'}` is an artifact, "
            "and changes are made to models: give the model that it was compiled from"
        )
    subject = subject_of(model, options or CompileOptions(), input_shapes, measure, request)
    explained = explain_subject(subject, pair)
    if try_number is None:
        return explained
    if not 1 <= try_number <= len(explained.changes):
        there = f"1 to {len(explained.changes)}" if explained.changes else "none"
        raise InputError(f"there is no change {try_number}; there are {there}")
    change = explained.changes[try_number - 1]
    return replace(explained, trial=try_change(subject, change, model, input_shapes))


def explain_subject(subject: Subject, pair: Sequence[str] | None = None) -> Explanation:
    """Explain the model or artifact that `subject_of` has loaded. See `explain`."""
    wholes, artifact = subject.wholes, subject.artifact
    merge_check = None if artifact is None else artifact.manifest.merge_check
    if pair is not None:
        found = find_pair(wholes, pair, artifact)
        explained = Explanation(subject.title, wholes.cores, found)
    else:
        found = find_all(wholes, artifact)
        changes = changes_for(subject)
        explained = Explanation(subject.title, wholes.cores, found, ceiling(wholes, found), changes)
    return replace(
        explained, merge_check=merge_check, ranges=subject.ranges, request=subject.request
    )
