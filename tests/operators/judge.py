"""Compiles many cases in one model, and compares the results of each with the oracles."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx

from tests.random_graphs.oracles import by_onnxruntime, by_reference
from tvm_interop import onnx_backend
from tvm_interop.errors import TVMInteropError
from tvm_interop.frontend.load import load_model

from .case import Case
from .decided import REFUSED, oracle_for

Arrays = dict[str, np.ndarray]
RELATIVE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-7}
"""The largest allowed error, relative to the number, or to the largest number if numbers are added
up. It holds for float64 too, because attributes are in float32.
"""
_TINY = {"float16": 1e-4, "float32": 1e-7, "float64": 1e-9}
"""The largest allowed absolute error of a number near zero."""
_TOGETHER = 32
"""The number of cases in a model."""
FAULTS = ("wrong", "raw", "refused", "undecided")


@dataclasses.dataclass
class Trial:
    """A case with a choice of constants, and its verdict.

    Attributes
    ----------
    verdict: `right` and `wrong` are clear. `raw` is an error of a class that is not ours. `refused`
        is an error of ours although onnxruntime runs the case. `limit` is an error of ours that
        `decided` lists, or in a case that onnxruntime does not run. `undecided`: we agree with one
        of two oracles that differ, and `decided` does not say which one is right. `alone` means
        that no oracle runs the case.
    """

    case: Case
    constants: tuple[int, ...]
    verdict: str = ""
    why: str = ""
    wanted: Arrays | None = None
    other: Arrays | None = None

    def __str__(self) -> str:
        kind = "data" if self.constants == self.case.fixed else f"constants {self.constants}"
        return f"{self.verdict}: {self.case} | {kind} | {self.why}"


def trials(cases: Sequence[Case]) -> list[Trial]:
    """Each case with all choices of constants."""
    return [Trial(case, constants) for case in cases for constants in case.ways()]


def judge(given: Sequence[Trial]) -> None:
    """Give each trial its verdict."""
    for trial in given:
        _ask_oracles(trial)
        try:
            load_model(trial.case.model(trial.constants)[0])
        except TVMInteropError as error:
            _refuse(trial, error)
        except Exception as error:
            trial.verdict, trial.why = "raw", _words(error)
    left = [trial for trial in given if not trial.verdict]
    for opset in sorted({trial.case.opset for trial in left}):
        _run([trial for trial in left if trial.case.opset == opset])


def _ask_oracles(trial: Trial) -> None:
    # The oracles do not optimise the model, so it does not matter which inputs are constants.
    model, feeds = trial.case.model(trial.case.fixed)
    theirs, reference = by_onnxruntime(model, feeds), by_reference(model, feeds)
    runs_it = theirs is not None
    oracle = oracle_for(trial.case.op, trial.case.opset)
    if oracle == "onnxruntime":
        reference = None
    if oracle == "reference" and reference is not None:
        theirs = None
    trial.wanted, trial.other = (theirs, reference) if theirs is not None else (reference, None)
    trial.why = "" if runs_it else "not run by onnxruntime"


def _refuse(trial: Trial, error: Exception) -> None:
    words = _words(error)
    listed = any(rule.op in ("", trial.case.op) and rule.words in words for rule in REFUSED)
    others_run_it = trial.why == ""
    trial.verdict = "refused" if others_run_it and not listed else "limit"
    trial.why = words


def _words(error: Exception) -> str:
    return re.sub(r"`\{.*?\}`", "`...`", f"{type(error).__name__}: {error}".replace("\n", " "))[
        :300
    ]


def _run(given: Sequence[Trial]) -> None:
    """Compile and run some trials in one model. If this fails, use smaller models."""
    if len(given) > _TOGETHER:
        for start in range(0, len(given), _TOGETHER):
            _run(given[start : start + _TOGETHER])
        return
    model, feeds = _joined(given)
    try:
        prepared = onnx_backend.prepare(model)
        outputs = prepared.run(feeds)
    except Exception as error:
        if len(given) > 1:
            middle = len(given) // 2
            _run(given[:middle])
            _run(given[middle:])
        elif isinstance(error, TVMInteropError):
            _refuse(given[0], error)
        else:
            given[0].verdict, given[0].why = "raw", _words(error)
        return
    left = iter(outputs)
    for trial in given:
        _compare(trial, [next(left) for _ in range(trial.case.outputs)])


def _joined(given: Sequence[Trial]) -> tuple[onnx.ModelProto, Arrays]:
    """One model with all nodes side by side."""
    joined = onnx.ModelProto()
    feeds: Arrays = {}
    for i, trial in enumerate(given):
        model, own = trial.case.model(trial.constants)
        if not i:
            joined.CopyFrom(model)
            joined.ClearField("graph")
            joined.graph.name = "joined"
        node = model.graph.node[0]
        node.name = f"node{i}"
        for names in (node.input, node.output):
            names[:] = [f"{name}_{i}" if name else "" for name in names]
        for value in (*model.graph.input, *model.graph.output, *model.graph.initializer):
            value.name = f"{value.name}_{i}"
        joined.graph.MergeFrom(model.graph)
        joined.graph.name = "joined"
        feeds |= {f"{name}_{i}": array for name, array in own.items()}
    return joined, feeds


def _compare(trial: Trial, outputs: Sequence[np.ndarray]) -> None:
    if trial.wanted is None:
        trial.verdict = "alone"
        return
    wanted, other = trial.wanted.values(), (trial.other or {}).values()
    fault = _difference(trial.case, outputs, list(wanted))
    if trial.other is None:
        trial.verdict, trial.why = ("right", "") if not fault else ("wrong", fault)
        return
    fault_2 = _difference(trial.case, outputs, list(other))
    if not fault and not fault_2:
        trial.verdict = "right"
    elif not _difference(trial.case, list(wanted), list(other)):
        trial.verdict, trial.why = "wrong", fault or fault_2
    elif oracle_for(trial.case.op, trial.case.opset) == "either" and not (fault and fault_2):
        trial.verdict = "right"
    else:
        trial.verdict = "undecided" if not (fault and fault_2) else "wrong"
        trial.why = f"onnxruntime: {fault or 'same'}; reference: {fault_2 or 'same'}"


def _difference(case: Case, got: Sequence[np.ndarray], wanted: Sequence[Any]) -> str:
    """A description of the first difference, or "" if there is none."""
    for number, (ours, theirs) in enumerate(zip(got, map(np.asarray, wanted), strict=True)):
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"{ours.dtype}{ours.shape} in place of {theirs.dtype}{theirs.shape}"
        off = _off(case, ours, theirs)
        if off.any():
            first = tuple(int(i) for i in np.argwhere(off)[0])
            return f"{off.sum()} of y{number}, {first}: {ours[first]} for {theirs[first]}"
    return ""


def _off(case: Case, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Whether each number differs by more than is allowed."""
    if theirs.dtype.kind not in "f":
        return np.asarray(ours != theirs)
    kind = str(theirs.dtype)
    tolerance = case.tolerance or RELATIVE[kind]
    with np.errstate(all="ignore"):
        finite = np.isfinite(theirs)
        x, y = ours.astype(np.float64), theirs.astype(np.float64)
        scale = np.abs(y)
        if case.sums:
            scale = np.full_like(y, np.abs(y[finite]).max(initial=0.0))
        near = np.abs(x - y) <= tolerance * scale + _TINY[kind]
        near |= np.isinf(y) & (x == y) | np.isnan(y) & np.isnan(x)
    return np.asarray(~near)


def summary(given: Sequence[Trial]) -> dict[str, int]:
    """The number of trials with each verdict."""
    kinds = sorted({trial.verdict for trial in given})
    return {kind: sum(trial.verdict == kind for trial in given) for kind in kinds}


def faults(given: Sequence[Trial]) -> Iterator[Trial]:
    """The trials that are faults."""
    return (trial for trial in given if trial.verdict in FAULTS)
