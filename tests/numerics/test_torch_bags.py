"""Tests `EmbeddingBag` of programs of `torch.export` against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.one_node import computed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

_ROWS = torch.tensor([[0, 5, 1], [1, 1, 1], [4, 1, 5]])
_FLAT = torch.tensor([0, 5, 1, 1, 2, 5])
_STARTS = torch.tensor([0, 2, 2, 5, 6])
_FACTORS = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.25, 3.0], [2.0, 2.0, -2.0]])


def _check(options: dict[str, Any], *inputs: Any, is_decomposed: bool = False) -> None:
    torch.manual_seed(0)
    module = torch.nn.EmbeddingBag(6, 4, **options).eval()
    if options.get("padding_idx") is not None:
        torch.nn.init.normal_(module.weight)  # PyTorch sets the row of padding to 0.
    program = torch.export.export(module, inputs)
    program = program.run_decompositions() if is_decomposed else program
    given = [each for each in inputs if each is not None]
    names = [name for name in program.graph_signature.user_inputs if name is not None]
    feeds = {name: each.numpy() for name, each in zip(names, given, strict=True)}
    (got,) = computed(program, feeds, time_budget=0)
    np.testing.assert_allclose(got, module(*inputs).detach().numpy(), 1e-5, 1e-6)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1, -1])
@pytest.mark.parametrize("is_decomposed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_bags_with_and_without_padding(mode: str, padding: int | None, is_decomposed: bool) -> None:
    options = {"mode": mode, "padding_idx": padding}
    _check(options, _ROWS, is_decomposed=is_decomposed)
    _check(options, _FLAT, _STARTS, is_decomposed=is_decomposed)


def test_a_last_offset_is_the_end_of_the_last_bag() -> None:
    ends = torch.tensor([0, 2, 2, 6])
    for mode in ("sum", "mean", "max"):
        _check({"mode": mode, "include_last_offset": True}, _FLAT, ends)


@pytest.mark.parametrize("padding", [None, 1])
def test_rows_of_sums_have_factors(padding: int | None) -> None:
    _check({"mode": "sum", "padding_idx": padding}, _ROWS, None, _FACTORS)
