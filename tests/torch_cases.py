"""Compares functions of PyTorch's tensors with PyTorch. One program holds several functions,
because exporting and compiling many small programs takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tests.one_node import computed

Case = tuple[Any, ...]
"""A function, and the tensors that it takes."""


class _Together(torch.nn.Module):
    def __init__(self, functions: list[Callable[..., Any]]) -> None:
        super().__init__()
        self._functions = functions

    def forward(self, inputs: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        return [
            result
            for function, each in zip(self._functions, inputs, strict=True)
            for result in _results(function, each)
        ]


def _results(function: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    made = function(*inputs)
    return [made] if isinstance(made, torch.Tensor) else list(made)


def check_together(cases: Mapping[str, Case], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compare all results of these functions. Types and integers must be equal.

    Parameters
    ----------
    cases: the functions and their inputs by name. The name of a wrong result is in the error.
    """
    functions = [function for function, *_ in cases.values()]
    inputs = [list(each) for _, *each in cases.values()]
    program = torch.export.export(_Together(functions), (inputs,))
    names = program.graph_signature.user_inputs
    given = [value for each in inputs for value in each]
    feeds = {name: value.numpy() for name, value in zip(names, given, strict=True)}
    wanted = [
        (f"result {i} of {name}", result.numpy())
        for name, (function, *each) in cases.items()
        for i, result in enumerate(_results(function, list(each)))
    ]
    for (name, want), got in zip(wanted, computed(program, feeds, time_budget=0), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        exact = want.dtype.kind in "iub"
        np.testing.assert_allclose(
            got, want, 0 if exact else rtol, 0 if exact else atol, err_msg=name
        )
