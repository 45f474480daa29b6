"""Tests logarithms of sums of exponentials, and complements of `erf`, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from tests.one_node import computed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

_INF = float("inf")
_X = torch.tensor([0, 1e-6, -1e-6, 1, -1, 3, -3, 20, -20, 100, -100, 1000, -1000, _INF, -_INF])
_Y = torch.tensor([-3, -1, 0, 0.5, 1, 1.24, 1.25, 1.26, 2, 3, 4, 5, 8, 12, 30, 1e4])
_TABLE = torch.stack([_X[:12], _X[:12].roll(5), _X[:12].flip(0), -100 + _X[:12] / 10])

CASES = {
    "log_sigmoid": (torch.nn.functional.logsigmoid, (_X,)),
    "logaddexp of equal numbers": (torch.logaddexp, (_X, _X.clone())),
    "logaddexp": (torch.logaddexp, (_X, _X.flip(0).clone())),
    "logaddexp2": (torch.logaddexp2, (_X, _X.roll(4).clone())),
    "logcumsumexp of rows": (partial(torch.logcumsumexp, dim=1), (_TABLE,)),
    "logcumsumexp of columns": (partial(torch.logcumsumexp, dim=0), (_TABLE,)),
    "logcumsumexp of a number": (partial(torch.logcumsumexp, dim=0), (torch.tensor(-200.0),)),
    "erfc": (torch.erfc, (_Y,)),
    "erfcx": (torch.special.erfcx, (_Y,)),
    "log_ndtr": (torch.special.log_ndtr, (torch.cat([_Y, -_Y]),)),
}


class _Of(torch.nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs)


@pytest.mark.parametrize("name", CASES)
def test_logarithms_and_complements_are_right_far_from_zero(name: str) -> None:
    function, inputs = CASES[name]
    program = torch.export.export(_Of(function), inputs)
    names = program.graph_signature.user_inputs
    feeds = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
    (got,) = computed(program, feeds, time_budget=0)
    np.testing.assert_allclose(got, function(*inputs).numpy(), 1e-5, 1e-6 if "log" in name else 0)
