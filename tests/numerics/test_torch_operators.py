"""Tests operators of PyTorch that this package converts itself, against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

from tests.torch_cases import Case, check_together  # noqa: E402

_NAN, _INFINITY = float("nan"), float("inf")
_COUNTS, _FIRST = torch.tensor([1, 0, 3, 2]), torch.tensor(0)
_PART, _PLACES = torch.tensor([[0], [1]]), torch.tensor([[0, 5], [-1, 2]])


class _Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return tuple(self._function(*inputs))


def _check(function: Callable[..., Any], *inputs: torch.Tensor) -> None:
    _check_all((function, *inputs))


def _check_all(*cases: Case) -> None:
    """Compare these functions on their inputs, in one program."""
    check_together({f"function {i}": case for i, case in enumerate(cases)}, 1e-4, 1e-5)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def _small() -> dict[str, Case]:
    return {
        "elements are repeated by constant counts": (
            lambda x: (x.repeat_interleave(_COUNTS, 1), _COUNTS.cumsum(0)), torch.randn(2, 4, 3)
        ),
        "indices of a part of the scattered elements": (
            lambda x: (
                x.scatter(1, _PART, x), x.scatter_add(1, _PART, x),
                x.scatter_reduce(1, _PART, x, "sum"),
                *(x.scatter(1, _PART, y, reduce=h) for y, h in ((7.0, "add"), (x, "multiply"))),
            ),
            torch.randn(4, 6),
        ),
        "tensors without dimensions": (
            lambda x: (
                *x.topk(1), x.prod(0), x.all(0), x.scatter(0, _FIRST, 3.0),
                x.scatter_add(0, _FIRST, x), x.scatter_reduce(0, _FIRST, x, "mean"),
            ),
            torch.tensor(2.5),
        ),
        "only dimensions of size 1 are squeezed": (
            lambda x: [x.squeeze(0), x.squeeze(1), x.squeeze((0, -2)), x.sum().squeeze(0)],
            torch.randn(3, 1, 4),
        ),
        "integers are taken from floats": (
            lambda x: [(1.0 - x) * -1e4, 1 - x, torch.rsub(x, 2.5, alpha=2), 1.5 - x.int()],
            torch.tensor([1, 0, -3, 7]),
        ),
        "the sign of NaN is zero": (
            lambda x: (x.sign(), (x > 0).sign()), torch.tensor([_NAN, 2.0, 0.0, -3.0])
        ),
        "hypotenuses do not overflow": (
            lambda x: [torch.hypot(x, x.flip(0))],
            torch.tensor([1e30, 0, _INFINITY, 3, -4, 0, -1e30, _NAN]),
        ),
        "bounds of different types": (
            lambda x, i: (x.clamp(0, 0.5), x.clip(-0.5, max=1), x.clamp(0, 2), i.clamp(0, 2.5)),
            torch.randn(4, 5), torch.randint(-5, 5, (3, 4)),
        ),
        "a tensor is clipped several times": (
            lambda x: (x.clamp_min(0).clamp_max(0.5), x.clamp_min(-0.5).clamp_max(1), x.relu() * 2),
            torch.randn(4, 5),
        ),
        "ranges and shifts": (
            lambda x, i: (
                torch.arange(-1, 2.0) / 1.5 + x, torch.arange(0, 2, 0.75) / 3 + x,
                torch.arange(3) + i, i >> torch.arange(3), i << torch.arange(3),
            ),
            torch.randn(3), torch.tensor([-200, 77, 5]),
        ),
        "quantiles of the normal distribution": (
            lambda x: [torch.special.ndtri(x)],
            torch.tensor([
                0, 1, 0.5, 0.1, 0.9, 0.999, 1e-3, 1e-10, 1e-38, -1, 2, _NAN, 0.8646, 0.8647
            ]),
        ),
        "elements are put by their places": (
            lambda x, y: (
                x.put(_PLACES, y), x.put(_PLACES[0], y[0], accumulate=True),
                (x > 0).put(_PLACES, y > 0),
            ),
            torch.randn(3, 4), torch.randn(2, 2),
        ),
        "distances of all pairs of rows": (
            lambda x: [torch.pdist(x, p) for p in (0.0, 1, 1.5, 2, _INFINITY)], torch.randn(5, 3)
        ),
    }  # fmt: skip


def test_small_programs() -> None:
    check_together(_small(), 1e-4, 1e-5)


def test_booleans_are_added_and_sorted() -> None:
    x, y = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    _check_all(
        (lambda x, y: (x + y, torch.add(x, y, alpha=False), x + True, x.int() + y), x, y),
        (lambda x: x.sort(stable=True), x),
    )


def test_a_check_of_all_elements_is_left_out() -> None:
    def checked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch._check_tensor_all(x > -100)
        torch._check_tensor_all((x < 100).all(), lambda: "too large")
        aten = torch.ops.aten
        return x + 1, aten._is_all_true(x > 0), aten._is_any_true(x > 0), aten._is_any_true(x > 9)

    _check(checked, torch.randn(3, 4))


def test_a_tensor_with_factor_zero_is_not_read() -> None:
    nan, a, b = torch.full((3, 5), _NAN), torch.randn(2, 3, 4), torch.randn(2, 4, 5)
    ones = torch.ones(3, 5)
    _check_all(
        (lambda x, a, b: (torch.baddbmm(x, a, b, beta=0, alpha=0.5),), nan, a, b),
        (lambda x, a, b: (torch.addbmm(x, a, b, beta=0),), nan, a, b),
        (lambda x, a, b: (torch.addmv(x, a, b, beta=0),), nan[:, 0].clone(), a[0], b[0, :, 0]),
        (lambda x, a, b: (torch.baddbmm(x, a, b, beta=2, alpha=3), x.addbmm(a, b)), ones, a, b),
    )


def test_a_single_bound_keeps_infinity() -> None:
    x = torch.tensor([1, _NAN, _INFINITY, -_INFINITY, -2])
    _check_all(
        (lambda x: (x.clamp(min=0), x.clamp(max=2), x.clip(0, 2), x.clip(max=0.5)), x),
        (lambda x: (x.clamp_min(0.5), x.clamp_max(-1), x.clamp_min(x[4]), x.clamp_max(x[0])), x),
        (lambda x: (x.clamp(min=0), x.clamp_max(2), x.clamp(-1, 1)), torch.arange(-3, 4)),
    )


def test_medians_of_rows_with_nan() -> None:
    x = torch.tensor([[1.0, _NAN, 3, 2], [4, 2, 3, 1], [_NAN, _NAN, 0, 1]])
    _check_all(
        (lambda x: (*x.median(1), x.median(), *x.median(0, keepdim=True)), x),
        (lambda x: (*x.nanmedian(1), x.nanmedian(), x[1].median(), x[0, 0].nanmedian()), x),
        (lambda x: (*x.median(1), x.median(), x.nanmedian()), torch.randperm(24).reshape(4, 6)),
    )


def test_cumulative_extremes() -> None:
    inputs = [
        torch.tensor([[1.0, _NAN, 3, 2, 9], [4, 2, 4, 1, 4], [-1, -2, -3, _NAN, _NAN]]),
        torch.tensor([[3, 1, 3, 4, 4, 0, 5], [-3, -3, -4, -1, -5, 7, 7]]),
        torch.tensor([[False, True, False, True]]),
        torch.tensor(2.5),
    ]
    _check_all(*((lambda x: (*x.cummax(-1), *x.cummin(-1), *x.cummax(0)), x) for x in inputs))


def test_places_in_sorted_rows() -> None:
    rows, values = torch.arange(10.0).repeat(4, 1), torch.randn(4, 6) * 5
    search, bucketize = torch.searchsorted, torch.bucketize
    _check_all(
        (
            lambda rows, x: (
                search(rows, x),
                search(rows, x, right=True, out_int32=True),
                search(rows[0], x, side="right"),
                search(rows[0], 3.0),
                search(rows.flip(1), x, sorter=rows.flip(1).argsort(-1)),
                bucketize(x, rows[0]),
                bucketize(x[0, 0], rows[0], right=True),
            ),
            rows,
            values,
        ),
        (
            lambda x, bounds: (bucketize(x, bounds), bucketize(x, bounds, right=True)),
            torch.tensor([0.0, _NAN, 1, float("inf"), -1]),
            torch.tensor([-1.0, 0, 1]),
        ),
    )


def test_windows() -> None:
    names = ("bartlett", "blackman", "hamming", "hann", "kaiser")
    _check_all(*((partial(_windows, getattr(torch, f"{name}_window")), torch.randn(6))
             for name in names))  # fmt: skip


def _windows(window: Callable[..., Any], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (
        x * window(6), window(1) + x[:1], x * window(6, periodic=False),
        x * window(6, dtype=torch.float64),
    )  # fmt: skip


def test_scattered_reductions() -> None:
    at, rows = torch.tensor([[0, 2, 0], [1, 2, 0]]), torch.tensor([0, 2, 0])
    kinds = [(kind, own) for kind in ("mean", "prod", "amin", "amax") for own in (True, False)]

    def reduced(x: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        return [
            *(x.scatter_reduce(0, at, source, kind, include_self=own) for kind, own in kinds),
            *(x.index_reduce(0, rows, source, kind, include_self=own) for kind, own in kinds),
        ]

    _check_all(
        (reduced, torch.randn(4, 6), torch.randn(3, 6)),
        (reduced, torch.randint(-9, 9, (4, 6)), torch.randint(-9, 9, (3, 6))),
    )


def test_booleans_are_scattered_and_reduced() -> None:
    at = torch.tensor([[0, 1, 0], [2, 2, 0]])
    _check(
        lambda x, y: (
            *(x.scatter_reduce(0, at, y, kind) for kind in ("sum", "prod", "amin", "amax")),
            x.scatter_reduce(0, at, y, "amin", include_self=False), x.scatter_add(0, at, y),
            x.scatter(0, at, y),
        ),
        torch.rand(3, 3) > 0.5,
        torch.rand(2, 3) > 0.5,
    )  # fmt: skip


def test_inverses_and_solutions() -> None:
    matrices, right = torch.randn(3, 4, 4) + 3 * torch.eye(4), torch.randn(3, 4, 2)
    linalg = torch.linalg
    _check(
        lambda a, b: (
            a.inverse(), linalg.inv(a), linalg.matrix_power(a, -2), linalg.solve(a, b),
            linalg.solve(a, b[..., 0]), linalg.solve(a, b.mT, left=False),
            linalg.solve(a[0], b[0, :, 0]),
            linalg.solve_triangular(a, b, upper=False),
            linalg.solve_triangular(a, b, upper=True, unitriangular=True),
            linalg.solve_triangular(a, b.mT, upper=True, left=False),
        ),
        matrices,
        right,
    )  # fmt: skip


def test_decompositions_of_cholesky() -> None:
    def decomposed(x: torch.Tensor) -> list[torch.Tensor]:
        positive = x @ x.mT + torch.eye(4)
        lower, fault = torch.linalg.cholesky_ex(positive)
        return [torch.linalg.cholesky(positive, upper=upper) for upper in (False, True)] + [
            lower, fault, torch.cholesky(positive)
        ]  # fmt: skip

    _check(decomposed, torch.randn(3, 4, 4))


def test_logarithms_of_determinants() -> None:
    """The determinant of the large matrix is too large for a float32."""
    inputs = [torch.randn(3, 4, 4), torch.zeros(2, 2), torch.randn(120, 120) * 30, -torch.eye(3)]
    _check_all(*((lambda x: (*torch.linalg.slogdet(x), torch.logdet(x)), x) for x in inputs))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2}])
def test_lstm_with_projections(options: dict[str, Any]) -> None:
    layer = torch.nn.LSTM(6, 8, proj_size=3, **options).eval()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            sequence, states = self.layer(x)
            return sequence, *states

    x = torch.randn(5, 2, 6)
    program = torch.export.export(Net(), (x,))
    for got, want in zip(computed(program, {"x": x.numpy()}, time_budget=0), Net()(x), strict=True):
        np.testing.assert_allclose(got, want.detach().numpy(), 1e-4, 1e-5)


def test_an_operator_without_a_form_in_onnx_is_named() -> None:
    program = torch.export.export(_Of(lambda x: torch.linalg.lu(x)), ([torch.randn(3, 3)],))
    message = r"node `linalg_lu` \(`torch.ops.aten.linalg_lu.default`\): ONNX has no form of"
    with pytest.raises(UnsupportedModelError, match=message) as caught:
        load_model(program)
    assert "OpOverload" not in str(caught.value)


def test_powers_and_circular_padding_give_no_warnings_of_tvm(
    capfd: pytest.CaptureFixture[str],
) -> None:
    _check_all(
        (
            lambda x: (
                *(x**n for n in (2, 3, 4.0, 5, 6, 7, 8, 12, -3)),
                x.abs() ** 3.5,
                x.norm(p=3),
                x[0, 0, 0] ** 3,
                x[0, 0, 0].abs() ** 3.5,
                torch.nn.functional.pad(x, (2, 1), mode="circular"),
            ),
            torch.randn(1, 4, 6),
        ),
        (lambda x: (x**3, x**5, x.int() ** 4, x**9), torch.randint(-9, 9, (3, 4))),
    )
    assert "Warning" not in capfd.readouterr().err


def test_special_functions() -> None:
    ends = torch.tensor([0.0, 1, 2, 0.5, -1, -2.5, 1e-6, -1e-6, 170, 1e20, float("inf"), _NAN])
    x = torch.cat([torch.linspace(-7.3, 9, 60), ends])
    u = torch.cat([torch.linspace(-1, 1, 41), torch.tensor([0.999999, -0.99999, 1e-8, 1.5, _NAN])])
    _check_all((lambda x: (torch.lgamma(x), torch.digamma(x)), x), (lambda x: [torch.erfinv(x)], u))


def test_solutions_with_a_decomposed_matrix() -> None:
    def solved(x: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [
            result
            for upper in (False, True)
            for factor in [torch.linalg.cholesky(x @ x.mT + torch.eye(4), upper=upper)]
            for result in (
                torch.cholesky_solve(b, factor, upper), torch.cholesky_inverse(factor, upper),
            )
        ]  # fmt: skip

    _check(solved, torch.randn(3, 4, 4), torch.randn(3, 4, 2))


def test_layers_of_fourier_neural_operators() -> None:
    """Some operators of complex numbers are converted by their real and imaginary parts."""
    fft = torch.fft
    weights = torch.complex(torch.randn(3, 3, 4), torch.randn(3, 3, 4))

    def of_part(x: torch.Tensor) -> torch.Tensor:
        spectrum = fft.rfft2(x)
        result = torch.zeros_like(spectrum)
        result[..., :4, :3] = spectrum[..., :4, :3] * weights[0, 0, :3]
        return fft.irfft2(result, s=x.shape[-2:])

    def of_rows(x: torch.Tensor) -> torch.Tensor:
        spectrum = fft.rfft(x[:, :, 0])
        result = torch.zeros(2, 3, 5, dtype=torch.cfloat)
        result[..., :4] = torch.einsum("bix,iox->box", spectrum[..., :4], weights)
        return fft.irfft(result, n=8)

    def padded(x: torch.Tensor) -> torch.Tensor:
        part = fft.rfft2(x)[..., :4, :3]
        return fft.irfft2(torch.nn.functional.pad(part, (0, 2, 0, 4)), s=x.shape[-2:])

    _check(lambda x: (of_part(x), of_rows(x), padded(x)), torch.randn(2, 3, 8, 8))


def test_numbers_close_to_0_and_1_keep_their_effect() -> None:
    _check(
        lambda x, y: (
            x / (y + 1e-9), y - 1e-10, (x * 1.000004 - x) * 1e6, (x / 1.000004 - x) * 1e6,
            x + 0, x * 1, x - 0, x / 1, y[0] + 1e-9,
        ),
        torch.ones(3),
        torch.zeros(3),
    )  # fmt: skip


def test_modes_of_rows() -> None:
    x = torch.tensor([[3.0, 1, 3, 1, 2], [4, 2, 7, 1, 5], [-_INFINITY, _INFINITY, _INFINITY, 0, 2]])
    _check_all(
        (lambda x: (*x.mode(1), *x.mode(0, keepdim=True), *x[0, 0].mode()), x),
        (lambda x: (*x.mode(1), *x.mode(0), *(x > 2).mode(1)), torch.randint(0, 5, (4, 9))),
    )
    rows = torch.tensor([[_NAN, 1, 2], [_NAN] * 3])
    program = torch.export.export(_Of(lambda x: x.mode(1)), ([rows],))
    values, _ = computed(program, {"inputs_0": rows.numpy()}, time_budget=0)
    np.testing.assert_array_equal(values, [1, _NAN])


def test_orthogonal_decompositions() -> None:
    qr = torch.linalg.qr
    _check_all(
        (lambda x: (*qr(x), *qr(x[:, :3]), *qr(x[:2])), torch.randn(5, 5)),
        (lambda x: (*qr(x, mode="complete"), *qr(-x[:1], mode="complete")), torch.randn(5, 3)),
        (lambda x: qr(x), torch.stack([torch.randn(4, 6), torch.zeros(4, 6), torch.eye(4, 6)])),
    )


def test_exponentials_of_matrices() -> None:
    x = torch.randn(3, 5, 5)
    of = torch.matrix_exp
    _check(lambda x: (of(x), of(0 * x[0]), of(1e-4 * x), of(9 * x - 9 * x.mT)), x)


@pytest.mark.slow
def test_polygamma() -> None:
    x = torch.tensor([0.1, 0.5, 1, 2.5, 10, 100, 1e-3, -0.5, -1.3, -4.7])
    _check_all(
        (lambda x: [torch.polygamma(n, x) for n in range(6)], x),
        (lambda x: [torch.polygamma(n, x) for n in (2, 3)], torch.tensor([0.0, -1])),
    )


@pytest.mark.slow
def test_bessel_functions() -> None:
    special = torch.special
    x = torch.tensor([0, 0.1, -0.1, 1, -3, 7.9, 8.1, 19.9, -20.1, 50, -88, 1e-20])
    _check_all(
        (lambda x: (special.i0(x), special.i0e(x), special.i1(x), special.i1e(x)), x),
        (lambda x: (special.i0e(x), special.i1e(x)), torch.tensor([1e3, -1e4, 1e10, 3e38])),
    )


def test_parts_and_neighbours_of_floats() -> None:
    infinity = float("inf")
    x = [0, -0.0, 1, -1, 0.5, 3, 1e-45, -1e-40, 3.4028234e38, infinity, -infinity, _NAN, 2**0.5, 8,
         7.9999995, 1.1754944e-38]  # fmt: skip
    y = [1, infinity, 2, -infinity, 0, -3, 0, 1, infinity, 1, 2, 3, _NAN, 8, 9, -1]

    def neighbours(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        pairs = (x, y), (x, -y), (x, x), (y, x)
        return [(torch.nextafter(a, b) - a) * 2.0**100 for a, b in pairs]

    _check_all(
        (lambda x: torch.frexp(x), torch.tensor(x)), (neighbours, torch.tensor(x), torch.tensor(y))
    )


def test_smaller_tensors_are_repeated_in_assignments() -> None:
    def assigned(x: torch.Tensor) -> list[torch.Tensor]:
        results = [torch.zeros(4, 4) for _ in range(4)]
        results[0][1:] = x[0]
        results[1][:, 2:3] = x[:1, :1]
        results[2][:] = x[0]
        results[3][:, 1] = x[0, 0]
        return [*results, torch.vander(x[0]), torch.vander(x[0], 3, increasing=True)]

    _check(assigned, torch.rand(4, 4))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_greatest_common_divisors(dtype: torch.dtype) -> None:
    x = torch.tensor([[12, 0, -8, 0, 1_836_311_903, 7], [5, 9, 36, 1, 2, -49]], dtype=dtype)
    y = torch.tensor([[18, 5, 12, 0, 1_134_903_170, 21]], dtype=dtype)
    _check(
        lambda x, y: (torch.gcd(x, y), torch.gcd(y, y[0, 0]), torch.lcm(x[:, :4], y[:, :4])), x, y
    )


def test_attention_with_a_mask_that_is_computed_from_weights() -> None:
    """The mask is computed from weights with gradients. PyTorch then gives the result of attention
    other strides than the exported program."""

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(6, 18)
            self.places = torch.nn.Parameter(torch.randn(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.project(x).reshape(1, 4, 3, 2, 3).permute(2, 0, 3, 1, 4)
            query, key, value = heads.unbind(0)
            attend = torch.nn.functional.scaled_dot_product_attention
            result = attend(query, key, value, attn_mask=query @ self.places.T)
            return result.permute(0, 2, 1, 3).reshape(1, 4, -1)

    x, network = torch.randn(1, 4, 6), Attention().eval()
    (got,) = computed(torch.export.export(network, (x,)), {"x": x.numpy()}, time_budget=0)
    np.testing.assert_allclose(got, network(x).detach().numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("is_bool", [True, False])
def test_rows_of_attention_without_keys_are_zeros(is_bool: bool) -> None:
    """Rows of padding on the left of a causal decoder may read no key."""
    x = torch.randn(1, 2, 5, 8)
    mask = (torch.tensor([0, 0, 1, 1, 1]).bool() & torch.ones(5, 5).tril().bool())[None, None]
    if not is_bool:
        mask = torch.zeros(1, 1, 5, 5).masked_fill(~mask, -torch.inf)

    def attended(x: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.scaled_dot_product_attention(x, x, x, mask)]

    assert not attended(x, mask)[0][0, 0, 0].any()
    _check(attended, x, mask)
