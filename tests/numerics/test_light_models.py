"""Runs real architectures one operator at a time, and compares the results with onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.numerics.reference import run_program
from tvm_interop.frontend import load_model
from tvm_interop.models import light
from tvm_interop.transform import LowerToUnits, extract

_NAMES = ("shufflenet", "squeezenet")
"""Two of the light models. `test_schedules` compares all of them, compiled as users do."""


@pytest.mark.parametrize("name", _NAMES)
def test_agrees_with_onnxruntime(name: str, tmp_path: Path) -> None:
    model = light.build(name)
    feeds = nets.feeds(model)
    program = extract(LowerToUnits()(load_model(model)))
    got = run_program(program, feeds, tmp_path)
    want = run_onnxruntime(model, feeds)
    assert list(got) == list(want)
    for output, expected in want.items():
        # Sums are added in different orders, over up to 200 operators in float32. Relative to the
        # largest value, the observed error is below 1e-5.
        np.testing.assert_allclose(got[output], expected, rtol=0, atol=1e-4 * abs(expected).max())
