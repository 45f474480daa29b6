"""Tests operators and programs that PyTorch's exporter to ONNX changes, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model
from tvm_interop.frontend.torch_program import as_onnx

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
from torch._higher_order_ops.map import map as map_rows  # noqa: E402

from tests.torch_cases import Case, check_together  # noqa: E402

resize = torch.nn.functional.interpolate
attention = torch.nn.functional.scaled_dot_product_attention
cross_entropy = torch.nn.functional.cross_entropy

_INF, _NAN = float("inf"), float("nan")
_LARGE = torch.tensor([16777217000, 123456789012, -123456789012, -5])
_TENTHS = torch.tensor([1.0, 0.3, 0.6, 0.7, -0.3, -1.0, 5.5, _INF])
_ROWS = torch.arange(1.0, 13.0).view(4, 3)
_TABLE = torch.tensor([[1, 2], [3, 4]])
_BITS = torch.tensor([200, 255, 7, 129], dtype=torch.uint8)
_SCORES = torch.tensor([[0.5, -1.0, 2.0], [1.0, 0.0, -3.0]])
_MASK = torch.tensor([True, False, True])


def _masked(x: Any, mask: Any) -> Any:
    y = x.clone()
    y[:, mask] = 0.5
    return y


CASES: dict[str, Case] = {
    # Rules of onnxscript's optimiser.
    "rows added at all indices": (
        lambda x: (x.index_add(0, torch.arange(4), x), x.index_put((torch.arange(4),), x, True)),
        _ROWS,
    ),
    "bounds without a common number": (
        lambda x: (x.clamp(0, 1).clamp(2, 3), torch.relu(x.clamp(-2, -1)), x.relu().clamp(-3, -1)),
        _ROWS,
    ),
    # Arithmetic.
    "large integers divided": (
        lambda x: (
            torch.div(x, 1000, rounding_mode="floor"),
            torch.div(x, 7, rounding_mode="trunc"),
            torch.div(x.int(), 3, rounding_mode="floor"),
        ),
        _LARGE,
    ),
    "floats divided and rounded down": (
        lambda x: (x // 0.1, torch.div(x, -0.1, rounding_mode="floor"), x.half() // 0.25, x // 0),
        _TENTHS,
    ),
    "remainders": (
        lambda x: (x % 0.1, x % -0.1, torch.remainder(x, _INF), (x.nan_to_num(0, 0) * 1e4) % 0.1),
        _TENTHS,
    ),
    "integers divided by numbers": (
        lambda x: (torch.floor_divide(x, 2), x // 2.5, torch.div(x, -1.5, rounding_mode="floor")),
        torch.tensor([7, -7, 0]),
    ),
    "numbers beside float64 and float16": (
        lambda x: (
            (x.double() * 0.1 - x.double() / 10) * 1e9,
            (x.double().clamp(0.1, 0.1) * 10 - 1) * 1e9,
            torch.where(x > 9, x.double(), 0.1) * 1e9 - 1e8,
            x.half() // 0.1,
            x.half() % 0.3,
        ),
        _TENTHS[:-1],
    ),
    "whole logarithms": (
        lambda x: (torch.log2(x).floor(), torch.log10(torch.round(x)).floor()),
        torch.cat([2.0 ** torch.arange(24), 10.0 ** torch.arange(8)]),
    ),
    "shifted bytes": (
        lambda x: ((x << 2).float(), (x >> 0).int(), (x >> 4) | (x << 4), (x >> 4) & 15),
        _BITS,
    ),
    "negated bytes": (lambda x: (-x, x - 200, x + x, x * x), _BITS),
    "angles with signs of zeros": (
        lambda y, x: (torch.atan2(y, x), torch.atan2(y.double(), x.double()), y.half().atan2(x)),
        torch.tensor([1.0, -1.0, 0.0, -0.0, -0.0, 0.0, 0.0, 1.0, _INF]),
        torch.tensor([-0.0, -0.0, -0.0, -1.0, -0.0, 0.0, -1.0, 0.0, _INF]),
    ),
    "angles of complex numbers": (lambda x: torch.fft.rfft(x).angle(), -_ROWS),
    "powers of two types": (
        lambda x: (x ** torch.tensor([0.5, 1.5]), (x > 2) ** 2, x.half() ** torch.tensor([1.0, 2])),
        _TABLE,
    ),
    "ranges of floats": (
        lambda x: (torch.arange(0, 0.6, 0.2) + x, torch.arange(0, 2.1, 0.7) + x),
        torch.tensor(0.5),
    ),
    "close integers": (
        lambda x: (torch.isclose(x, x + 5, rtol=0.1), x.isfinite(), x.isinf(), x.isnan()),
        torch.tensor([100, 20]),
    ),
    "places of a number among integers": (
        lambda x: (torch.bucketize(2.5, x), torch.bucketize(2, x)),
        torch.tensor([1, 2, 3]),
    ),
    "steps and odds of NaN": (
        lambda x: (torch.heaviside(x, x + 0.25), x.logit(0.1), x.logit(0.6)),
        torch.tensor([0.05, 0.0, -2.0, 0.99, _NAN]),
    ),
    # Reductions.
    "types of means": (
        lambda x: (x.mean(1, dtype=torch.float32), (x > 1).mean((0, 1), dtype=torch.float32)),
        _TABLE,
    ),
    "types of softmax": (
        lambda x: (x.softmax(1, dtype=torch.float32), x.log_softmax(0, dtype=torch.float32)),
        _TABLE,
    ),
    "all dimensions kept": (
        lambda x: (
            x.argmax(keepdim=True),
            x.argmin(keepdim=True),
            x.mean(dim=None, keepdim=True),
            x.norm(keepdim=True),
            torch.linalg.vector_norm(x, 3, keepdim=True),
        ),
        _ROWS,
    ),
    "extremes of booleans": (
        lambda x: ((x > 2).max(), (x > 2).min(), *(x > 2).max(1), (x > 2).min(0, keepdim=True)[0]),
        _TABLE,
    ),
    # Places.
    "diagonals beside infinity": (
        lambda x: (x.diagonal(), x.diagonal(1), x[None].diagonal(-1, 2, 1), (x > 0).diagonal()),
        torch.tensor([[1.0, -_INF, 5], [_INF, 2, _NAN]]),
    ),
    "products of vectors": (
        lambda x, y: (torch.cross(x, y), torch.cross(x[:, :2], y[:, :2])),
        torch.arange(9.0).view(3, 3) ** 2,
        torch.arange(9.0).view(3, 3).flip(0),
    ),
    "a filled diagonal": (lambda x: x.clone().fill_diagonal_(0.5), _ROWS),
    "a mask after whole dimensions": (_masked, _ROWS, _MASK),
    "a mask beside a position": (
        lambda x, mask: (x[:, mask, torch.tensor([2])].sum(1), x[mask[:2], :, torch.tensor([1])]),
        torch.arange(24.0).view(2, 3, 4),
        _MASK,
    ),
    "nearest elements": (
        lambda x: (
            *(resize(x, size=size) for size in (32, 56, 64, 17)),
            *(resize(x, scale_factor=scale) for scale in (0.3, 0.6, 2, 2.05)),
        ),
        torch.arange(56.0).view(1, 2, 28),
    ),
    "a function of each row": (
        lambda x, y: map_rows(lambda row, y: (row.sin() @ y, row.sum()), x, y),
        _ROWS,
        torch.arange(6.0).view(3, 2),
    ),
    # Attention.
    "a negative factor of scores": (
        lambda x: (attention(x, x, x, scale=-0.5), attention(x, x, x, x @ x.mT, scale=-2.0)),
        _ROWS.view(1, 2, 3, 2) / 4,
    ),
    # Losses.
    "cross entropies": (
        lambda x, t: (
            cross_entropy(x, x.softmax(1)),
            cross_entropy(x[0], t[0]),
            cross_entropy(x, t, label_smoothing=0.1),
        ),
        _SCORES,
        torch.tensor([2, 0]),
    ),
}


_TOGETHER = 12
"""The number of cases in one program."""


def _compare(program: Any, feeds: dict[str, Any], wanted: Any, **options: Any) -> None:
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    got = computed(program, feeds, time_budget=0, **options)
    for i, (found, want) in enumerate(zip(got, map(np.asarray, wanted), strict=True)):
        assert (found.dtype, found.shape) == (want.dtype, want.shape), i
        exact = want.dtype.kind in "iub"
        np.testing.assert_allclose(found, want, 0 if exact else 1e-5, 0 if exact else 1e-6, str(i))


@pytest.mark.parametrize("begin", range(0, len(CASES), _TOGETHER))
def test_operators(begin: int) -> None:
    check_together({name: CASES[name] for name in list(CASES)[begin : begin + _TOGETHER]})


class _Sizes(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        rows = x.shape[0]
        return rows * 2, x[: -(-rows // 2)], x * ((-rows) // 2), x.half(), (rows - 1) // 2


def test_sizes_are_rounded_down_and_returned() -> None:
    x = torch.arange(14.0).view(7, 2)
    dims = [{0: torch.export.Dim.AUTO}]
    program = torch.export.export(_Sizes(), (x,), dynamic_shapes=dims)
    for rows in (4, 5):
        wanted = tuple(_Sizes()(x[:rows]))
        shapes = {"input_shapes": {"x": (rows, 2)}}
        _compare(program, {"x": x[:rows].numpy()}, wanted, **shapes)


class _Branches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, lambda x: x.cos() * 2, (x,)), x


@pytest.mark.parametrize("sign", [1, -1])
def test_an_input_of_a_branch_may_be_an_output(sign: int) -> None:
    x = sign * _ROWS
    program = torch.export.export(_Branches(), (x,))
    _compare(program, {"x": x.numpy()}, _Branches()(x))


class _Strided(torch.nn.Module):
    def __init__(self, view: Callable[[Any], Any]) -> None:
        super().__init__()
        self._view = view

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._view(x)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t().as_strided((2, 2), (1, 2)),
        lambda x: x[1:].as_strided((2, 2), (1, 2), 0),
        lambda x: x[:2].as_strided((3, 2), (4, 1)),
    ],
)
def test_views_of_the_memory_of_other_tensors_are_refused(view: Callable[[Any], Any]) -> None:
    program = torch.export.export(_Strided(view), (_ROWS,))
    with pytest.raises(UnsupportedModelError, match=r"`as_strided` reads .*\.contiguous\(\)"):
        load_model(program)


def test_parts_that_begin_later_are_strided() -> None:
    module = _Strided(lambda x: x[1:].as_strided((2, 2), (1, 2)))
    _compare(torch.export.export(module, (_ROWS,)), {"x": _ROWS.numpy()}, module(_ROWS))


class _Quantised(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        operators = torch.ops.quantized_decomposed
        given = (0.1, 3, 0, 127, torch.uint8)
        numbers = operators.quantize_per_tensor.default(x, *given)
        return numbers, operators.dequantize_per_tensor.default(numbers, *given)


def test_quantised_numbers_stay_in_their_range(tmp_path: Path) -> None:
    pytest.importorskip("torch.ao.quantization.fx._decomposed")
    x = torch.linspace(-3, 30, 34)
    torch.export.save(torch.export.export(_Quantised(), (x,)), path := tmp_path / "net.pt2")
    as_onnx(path)
    _compare(path, {"x": x.numpy()}, _Quantised()(x))


class _Regions(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            found = 1.0 - mask, mask**0.5, mask.clamp(0, 1.5)
        branches = lambda x: attention(x, x, x), lambda x: x * 2
        return *found, torch.cond(x.sum() > 0, *branches, (x,))


def test_operators_in_parts_of_a_program() -> None:
    x, mask = torch.ones(2, 3, 4), torch.tensor([1, 0, 2])
    program = torch.export.export(_Regions(), (x, mask))
    _compare(program, {"x": x.numpy(), "mask": mask.numpy()}, _Regions()(x, mask))


class _Cache(torch.nn.Module):
    def __init__(self, is_returned: bool) -> None:
        super().__init__()
        self._is_returned = is_returned

    def forward(self, cache: torch.Tensor, x: torch.Tensor) -> Any:
        cache[:, 1] = x
        return (cache.sum(1), cache) if self._is_returned else cache.sum(1)


@pytest.mark.parametrize("is_returned", [True, False])
def test_inputs_that_a_program_changes(is_returned: bool, caplog: pytest.LogCaptureFixture) -> None:
    module, x = _Cache(is_returned), torch.tensor([5.0, 6, 7, 8])
    program = torch.export.export(module, (_ROWS.clone(), x))
    _compare(program, {"cache": _ROWS.numpy(), "x": x.numpy()}, module(_ROWS.clone(), x))
    assert ("changes its input `cache`" in caplog.text) is not is_returned


class _Parts(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        size = x.shape[0]
        return *x.chunk(2), *x.split(size // 2), x[:2].repeat_interleave(size, 0)


def test_parts_of_an_open_dimension() -> None:
    x = torch.arange(24.0).view(12, 2)
    dims = [{0: 2 * torch.export.Dim("half", min=2, max=8)}]
    program = torch.export.export(_Parts(), (x[:8],), dynamic_shapes=dims)
    for rows in (6, 12):
        shapes = {"input_shapes": {"x": (rows, 2)}}
        _compare(program, {"x": x[:rows].numpy()}, _Parts()(x[:rows]), **shapes)
