"""Tests operators on complex numbers, as rotary positions use them, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.one_node import computed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

CASES: dict[str, Callable[..., torch.Tensor]] = {
    "a new axis": lambda x, turns, places: x * turns[:2].unsqueeze(1),
    "rows at given places": lambda x, turns, places: x * turns[places].unsqueeze(1),
    "one row": lambda x, turns, places: x * turns[1],
    "a wider shape": lambda x, turns, places: turns[:2].unsqueeze(1).expand(2, 3, 4),
    "an axis less": lambda x, turns, places: x[:, :1].squeeze(1) * turns[:2],
    "an exponential": lambda x, turns, places: torch.exp(x * 0.5),
    "powers": lambda x, turns, places: x**2 + x**0.5 + x**-1,
    "a root and a logarithm": lambda x, turns, places: x.sqrt() + x.log(),
    "a choice": lambda x, turns, places: torch.where(x.real > 0, x, x.imag),
    "a mask": lambda x, turns, places: x.masked_fill(x.real > 0, 2),
    "rows by their numbers": lambda x, turns, places: (
        x * turns.index_select(0, places).unsqueeze(1)
    ),
    "a part": lambda x, turns, places: x.split(2, -1)[1] * turns[:2, None, 2:],
    "a factor": lambda x, turns, places: x * torch.exp(1j * turns[:2].imag.unsqueeze(1)),
    "numbers that are made": lambda x, turns, places: (
        torch.nn.functional.linear(x, turns[:3], turns[0, :3])
        + torch.full((3,), 1 + 2j)
        + torch.ones(3, dtype=x.dtype)
        + torch.full_like(turns[0, :3], 2 - 1j)
        - x.new_ones(3) * x.new_full((3,), 0.5j)
        + x.new_zeros(3)
    ),
    "numbers that are moved": lambda x, turns, places: (
        turns[:3, :3].tril(-1)
        + turns[:3, :3].triu().diagonal(1).repeat_interleave(3, 0)[:3]
        + turns.gather(1, torch.tensor([[0, 3, 3]] * 3))
        + turns[:3, :3].index_put((places[1:],), x[0, 0, :3])
    ),
    "spectra and comparisons": lambda x, turns, places: (
        torch.fft.ifft(torch.fft.fft(x, 3), 6) * torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        + torch.where((x == x.real)[..., :1] | (x != x)[..., :1], 1j, x.conj().imag[..., :1])
    ),
    "repeated sums": lambda x, turns, places: x.cumsum(1).repeat(1, 2, 1),
}


class _Turned(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._function = CASES[name]

    def forward(self, x: torch.Tensor, angles: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        turns = torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(self._function(torch.view_as_complex(x), turns, places))


@pytest.mark.parametrize("name", CASES)
def test_complex_numbers_are_converted_by_parts(name: str) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(2, 3, 4, 2), torch.randn(5, 4), torch.tensor([4, 0])
    program = torch.export.export(_Turned(name), inputs)
    names = program.graph_signature.user_inputs
    feeds = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
    (got,) = computed(program, feeds, time_budget=0)
    np.testing.assert_allclose(got, _Turned(name)(*inputs).numpy(), 1e-5, 1e-6)
