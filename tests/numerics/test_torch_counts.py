"""Tests PyTorch's operators that count equal numbers or read the bits of integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.torch_program import as_onnx

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")


class _Counts(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> tuple[Any, ...]:
        bits = (
            y.int().view(torch.int8),
            y.view(torch.int16).view(torch.int64),
            y.to(torch.int16).view(torch.uint8).view(torch.int32),
            (y > 2).view(torch.uint8),
            y.to(torch.uint8).view(torch.int8),
        )
        numbers = torch.unique(y, return_inverse=True, return_counts=True)
        booleans = torch.unique(y > 2, return_inverse=True)
        same = torch.histc(x[:, :1].expand(1, 3), 3)
        return (torch.histc(x, 3, 0, 2), torch.histc(x[:, :6], 4), same, *bits, *numbers, *booleans)


def test_histograms_distinct_numbers_and_bits_of_integers() -> None:
    x = torch.tensor([[0.5, -1.0, 2.0, 0.5, 3.0, 1.25, float("nan"), float("inf")]])
    y = torch.tensor([[3, 1], [3, -7], [1, 300000]])
    program = torch.export.export(_Counts(), (x, y))
    # Other tests compile the operators of this model.
    converted = ReferenceEvaluator(as_onnx(program))
    found = converted.run(None, {"x": x.numpy(), "y": y.numpy()})
    for i, (got, want) in enumerate(zip(found, _Counts()(x, y), strict=True)):
        np.testing.assert_array_equal(got, want.numpy(), err_msg=str(i), strict=True)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.bincount, "`bincount` is known only when the model runs"),
        (lambda y: y.float().view(torch.int32), "the bits of float32 are not read as int32"),
    ],
)
def test_what_has_no_fixed_size_or_no_form_is_refused(function: Any, reason: str) -> None:
    class _Of(torch.nn.Module):
        def forward(self, y: Any) -> Any:
            return function(y)

    program = torch.export.export(_Of(), (torch.tensor([1, 2, 2]),))
    with pytest.raises(UnsupportedModelError, match=reason):
        as_onnx(program)
