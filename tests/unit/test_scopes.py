"""Tests that no messages of TVM's code generator are printed while TVM's kernels are built."""

from __future__ import annotations

import numpy as np
import pytest

from ..one_node import computed, one_node


def test_scatters_are_built_without_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    data = np.arange(7, dtype=np.float32)
    model = one_node("ScatterElements", [data, np.array([5, 1]), -data[:2]], axis=0)
    np.testing.assert_array_equal(computed(*model)[0], [0, -1, 2, 3, 4, 0, 6])
    assert "pragma" not in capfd.readouterr().err
