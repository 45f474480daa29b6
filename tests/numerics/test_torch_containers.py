"""Tests programs whose inputs and outputs are containers of classes that are not known here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.one_node import computed
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model

pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

_EXPORT = """
import sys, types, torch
sys.modules["others"] = types.ModuleType("others")
class Pair(dict):
    pass
Pair.__module__, sys.modules["others"].Pair = "others", Pair
torch.utils._pytree.register_pytree_node(
    Pair,
    lambda pair: (list(pair.values()), list(pair)),
    lambda values, names: Pair(zip(names, values)),
    serialized_type_name="others.Pair",
    flatten_with_keys_fn=lambda pair: (
        [(torch.utils._pytree.MappingKey(name), value) for name, value in pair.items()], list(pair)
    ),
)
class Net(torch.nn.Module):
    def forward(self, x, more=None):
        return Pair(half=x / 2, parts=[x + (more or {}).get("a", 1), Pair(last=x - 1)])
path, kind = sys.argv[1:]
inputs = (torch.ones(3),) if kind == "outputs" else (torch.ones(3), Pair(a=torch.ones(3)))
program = torch.export.export(Net(), inputs)
if kind == "without example":
    program.example_inputs = None
torch.export.save(program, path)
"""


def _exported(path: Path, kind: str) -> Path:
    subprocess.run([sys.executable, "-c", _EXPORT, str(path), kind], check=True)
    return path


@pytest.mark.parametrize("kind", ["outputs", "without example"])
def test_containers_of_another_package(kind: str, tmp_path: Path) -> None:
    path = _exported(tmp_path / "net.pt2", kind)
    x = np.array([1, 5, -2], np.float32)
    feeds = {"x": x} if kind == "outputs" else {"x": x, "more_a": np.ones(3, np.float32)}
    got = computed(path, feeds, time_budget=0)
    np.testing.assert_array_equal(got, [x / 2, x + 1, x - 1])


def test_the_package_of_example_inputs_is_named(tmp_path: Path) -> None:
    path = _exported(tmp_path / "net.pt2", "inputs")
    with pytest.raises(UnsupportedModelError, match=r"need the package `others`.*= None"):
        load_model(path)
