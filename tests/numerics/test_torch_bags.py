"""Tests `EmbeddingBag` of programs of `torch.export` against PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.one_node import computed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

_ROWS = torch.tensor([[0, 5, 1], [1, 1, 1], [4, 1, 5]])
_FLAT = torch.tensor([0, 5, 1, 1, 2, 5])
_STARTS = torch.tensor([0, 2, 2, 5, 6])
_FACTORS = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.25, 3.0], [2.0, 2.0, -2.0]])
_MODES = ("sum", "mean", "max")


class _Bags(torch.nn.Module):
    """Each of the bags takes each of the given arguments."""

    def __init__(self, options: Sequence[dict[str, Any]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bags = torch.nn.ModuleList(torch.nn.EmbeddingBag(6, 4, **each) for each in options)
        for bag in self.bags:
            torch.nn.init.normal_(bag.weight)  # PyTorch sets the row of padding to 0.

    def forward(self, arguments: list[list[Any]]) -> list[Any]:
        return [bag(*each) for bag in self.bags for each in arguments]


def _check(
    options: Sequence[dict[str, Any]], *arguments: list[Any], is_decomposed: bool = False
) -> None:
    """Compare bags with these options, each on each of these lists of arguments."""
    module, inputs = _Bags(options).eval(), (list(arguments),)
    program = torch.export.export(module, inputs)
    program = program.run_decompositions() if is_decomposed else program
    given = [each for one in arguments for each in one]
    feeds = {
        name: each.numpy()
        for name, each in zip(program.graph_signature.user_inputs, given, strict=True)
        if each is not None
    }
    got = computed(program, feeds, time_budget=0)
    for one, wanted in zip(got, module(*inputs), strict=True):
        np.testing.assert_allclose(one, wanted.detach().numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("padding", [None, 1, -1])
@pytest.mark.parametrize("is_decomposed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bags_with_and_without_padding(padding: int | None, is_decomposed: bool) -> None:
    options = [{"mode": mode, "padding_idx": padding} for mode in _MODES]
    _check(options, [_ROWS], [_FLAT, _STARTS], is_decomposed=is_decomposed)


def test_a_last_offset_is_the_end_of_the_last_bag() -> None:
    ends = torch.tensor([0, 2, 2, 6])
    _check([{"mode": mode, "include_last_offset": True} for mode in _MODES], [_FLAT, ends])


def test_rows_of_sums_have_factors() -> None:
    options = [{"mode": "sum", "padding_idx": padding} for padding in (None, 1)]
    _check(options, [_ROWS, None, _FACTORS])
