"""Tests that operators give the results of the oracles, with inputs and with constants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from .__main__ import selected
from .case import Case, numbers
from .families import FAMILIES
from .judge import FAULTS, judge, trials
from .mended import mended

_SAMPLE = 307
"""The usual tests run one of so many cases."""
_LARGER_SAMPLE = 31
"""The slow tests run one of so many cases.

With `TVM_INTEROP_ALL_OF_ONNX=1` all cases run, in about an hour.
"""


def _run(every: int, *families: str) -> None:
    # Use a new process. If a kernel crashes the process, the kernel is found and named.
    command = [sys.executable, "-m", "tests.operators", *families, "--every", str(every)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"


@pytest.mark.slow
def test_what_was_mended_stays_right() -> None:
    found = trials(list(mended()))
    judge(found)
    faults = [str(trial) for trial in found if trial.verdict in (*FAULTS, "limit")]
    assert not faults, "\n".join(faults)


def test_some_are_right() -> None:
    _run(_SAMPLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", FAMILIES)
def test_many_are_right(family: str) -> None:
    _run(1 if "TVM_INTEROP_ALL_OF_ONNX" in os.environ else _LARGER_SAMPLE, family)


def test_a_fault_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test plants faults in two converters.

    The converter of `Neg` changes nothing, and the converter of `Abs` refuses. `Sign` has no fault.
    """
    from tvm_interop.errors import UnsupportedModelError
    from tvm_interop.frontend import converters

    def refused(*_: object) -> None:
        raise UnsupportedModelError("no")

    kinds = {"Neg": lambda bb, inputs, attrs: inputs[0], "Abs": refused}
    for op, converter in kinds.items():
        monkeypatch.setitem(converters._CONVERTERS, op, converter)
    found = trials([Case(op, [numbers("float32", 3)]) for op in ("Neg", "Abs", "Sign")])
    judge(found)
    verdicts = {(trial.case.op, trial.verdict) for trial in found}
    # If the input is a constant, the result is computed before the faulty converter sees the node.
    assert verdicts == {
        ("Neg", "wrong"), ("Neg", "right"), ("Abs", "refused"), ("Abs", "right"), ("Sign", "right")
    }  # fmt: skip


def test_there_are_cases_of_each_family() -> None:
    assert all(len(selected([name])) > 100 for name in FAMILIES)
