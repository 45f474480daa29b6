"""Tests programs that PyTorch has quantised (PT2E) with scales that are tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.one_node import computed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
pytest.importorskip("torch.ao.quantization.fx._decomposed")

_OF = torch.ops.quantized_decomposed
_BYTES = (-128, 127, torch.int8)


class _Dynamic(torch.nn.Module):
    """A product.

    The scale of its input differs from run to run, and its weight has a scale for each row.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (8, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(8) / 50)
        self.register_buffer("zeros", torch.randint(-3, 3, (8,)))

    def forward(self, x: torch.Tensor) -> Any:
        scale, zero = _OF.choose_qparams.tensor(x, -128, 127, 1e-7, torch.int8)
        numbers = _OF.quantize_per_tensor.tensor(x, scale, zero, *_BYTES)
        floats = _OF.dequantize_per_tensor.tensor(numbers, scale, zero, *_BYTES)
        given = (self.weight, self.scales, self.zeros, 0, *_BYTES)
        weight = _OF.dequantize_per_channel.default(*given)
        return torch.nn.functional.linear(floats, weight), numbers, scale, zero


class _Symmetric(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        results = []
        for low, high, dtype in ((-127, 127, torch.int8), (0, 255, torch.uint8)):
            given = (low, high, dtype)
            scale, zero = _OF.choose_qparams_symmetric.tensor(x, low, high, 1e-5, dtype)
            numbers = _OF.quantize_per_tensor.tensor(x, scale, zero, *given)
            results += [numbers, _OF.dequantize_per_tensor.tensor(numbers, scale, zero, *given)]
        return tuple(results)


class _Rows(torch.nn.Module):
    """Numbers with a scale for each row, and a weight with a scale for each group of columns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-8, 7, (8, 16), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(8, 4))

    def forward(self, x: torch.Tensor) -> Any:
        scales, zeros = _OF.choose_qparams_per_token_asymmetric.default(x, torch.int8)
        numbers = _OF.quantize_per_token.default(x, scales, zeros, *_BYTES)
        floats = _OF.dequantize_per_token.default(numbers, scales, zeros, *_BYTES, torch.float32)
        given = (self.weight, self.scales, None, -8, 7, torch.int8, 4, torch.float32)
        weight = _OF.dequantize_per_channel_group.default(*given)
        return torch.nn.functional.linear(floats, weight), numbers


@pytest.mark.parametrize("kind", [_Dynamic, _Symmetric, _Rows])
def test_scales_that_are_tensors(kind: type, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = kind().eval(), torch.randn(4, 16) * 3 + 1
    torch.export.save(torch.export.export(module, (x,)), path := tmp_path / "net.pt2")
    got = computed(path, {"x": x.numpy()}, time_budget=0)
    for i, (found, want) in enumerate(zip(got, module(x), strict=True)):
        assert (found.dtype, found.shape) == (want.numpy().dtype, tuple(want.shape)), i
        np.testing.assert_allclose(found, want.numpy(), 1e-5, 1e-5, err_msg=str(i))


class _Products(torch.nn.Module):
    def forward(self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
        scales = torch.arange(1.0, 17.0)
        return torch._int_mm(a, b), torch.ops.aten._weight_int8pack_mm(
            x, b.t().contiguous(), scales
        )


def test_products_of_integers() -> None:
    torch.manual_seed(0)
    a, b = (torch.randint(-128, 127, size, dtype=torch.int8) for size in ((32, 8), (8, 16)))
    given = {"x": torch.randn(4, 8), "a": a, "b": b}
    program = torch.export.export(_Products(), tuple(given.values()))
    feeds = {name: each.numpy() for name, each in given.items()}
    got = computed(program, feeds, time_budget=0)
    for found, want in zip(got, _Products()(**given), strict=True):
        assert found.dtype == want.numpy().dtype
        np.testing.assert_allclose(found, want.numpy(), 1e-5, 1e-4)
