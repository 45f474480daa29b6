"""Mixtures of experts as `transformers` exports them: each group of rows has its own matrix."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.one_node import computed

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

from tvm_interop.errors import UnsupportedModelError  # noqa: E402
from tvm_interop.frontend import load_model  # noqa: E402
from tvm_interop.frontend.torch_experts import define  # noqa: E402


class _Experts(torch.nn.Module):
    def __init__(self, ends: list[int]) -> None:
        super().__init__()
        self._weight = torch.nn.Parameter(torch.randn(len(ends), 16, 8))
        self._ends = torch.tensor(ends, dtype=torch.int32)
        self._product = define()

    def forward(self, rows: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        return self._product(rows, self._weight, offs=self._ends + shift)


def _example(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 16), torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize("ends", [[1, 1, 6], [0, 2, 3, 3, 3, 5, 6], [2, 6, 6, 6]])
def test_each_group_of_rows_has_its_matrix(ends: list[int]) -> None:
    torch.manual_seed(0)
    example = _example(6)
    module = _Experts(ends).eval()
    program = torch.export.export(module, example)
    feeds = {"rows": example[0].numpy(), "shift": example[1].numpy()}
    (got,) = computed(program, feeds, time_budget=0)
    np.testing.assert_allclose(got, module(*example).detach().numpy(), 1e-5, 1e-5)


def test_rows_of_no_group_are_zeros() -> None:
    torch.manual_seed(0)
    program = torch.export.export(_Experts([1, 2, 4]).eval(), _example(6))
    rows, shift = _example(6)
    (got,) = computed(program, {"rows": rows.numpy(), "shift": shift.numpy()}, time_budget=0)
    assert not got[4:].any()
    assert got[:4].all()


def test_a_file_is_read_where_transformers_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "experts.pt2"
    torch.export.save(torch.export.export(_Experts([1, 6]).eval(), _example(6)), path)
    code = f"from tvm_interop.frontend.load import load_model; load_model({str(path)!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_operator_of_another_package_is_named(tmp_path: Path) -> None:
    path = tmp_path / "other.pt2"
    code = (
        "import sys, torch\n"
        "of = dict(mutates_args=(), schema='(Tensor x) -> Tensor')\n"
        "torch.library.custom_op('others::twice', lambda x: 2 * x, **of)\n"
        "torch.library.register_fake('others::twice', torch.empty_like)\n"
        "class Twice(torch.nn.Module):\n"
        "    def forward(self, x): return torch.ops.others.twice(x) + 1\n"
        "program = torch.export.export(Twice(), (torch.ones(3),))\n"
        "torch.export.save(program, sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    with pytest.raises(UnsupportedModelError, match=r"`others\.twice\.default`"):
        load_model(path)


class _Grouped(torch.nn.Module):
    def forward(self, rows: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> Any:
        rows, weight = rows.bfloat16(), weight.bfloat16()
        product = torch.nn.functional.grouped_mm
        every = product(rows.reshape(3, 2, 16), weight)
        return product(rows, weight, offs=ends).float(), every.float()


@pytest.mark.skipif(
    not hasattr(torch.nn.functional, "grouped_mm"), reason="PyTorch is older than 2.10"
)
def test_pytorch_has_a_product_of_groups_too() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    given = {"rows": torch.randn(6, 16), "weight": torch.randn(3, 16, 8), "ends": ends}
    program = torch.export.export(_Grouped(), tuple(given.values()))
    feeds = {name: each.numpy() for name, each in given.items()}
    got = computed(program, feeds, time_budget=0)
    for found, want in zip(got, _Grouped()(**given), strict=True):
        np.testing.assert_allclose(found, want.numpy(), 2e-2, 2e-2)
