"""Tests the light models: they are the same for the same seed, and their outputs are comparable."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.models import light


def test_names_are_those_onnx_ships() -> None:
    assert {"squeezenet", "inception_v1", "resnet50", "shufflenet"} <= set(light.names())


def test_same_seed_gives_same_model() -> None:
    one, again = light.build("squeezenet"), light.build("squeezenet")
    other = light.build("squeezenet", seed=1)
    assert one.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    assert one.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True)


def test_weights_are_initializers_and_no_inputs() -> None:
    model = light.build("shufflenet")
    assert [value.name for value in model.graph.input] == ["gpu_0/data_0"]
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}
    read = {name for node in model.graph.node for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= read


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v2", "resnet50"])
def test_output_tells_runs_apart(name: str) -> None:
    """The output is neither one-hot nor uniform, and differs for another input."""
    model = light.build(name)
    (probabilities,) = run_onnxruntime(model, nets.feeds(model)).values()
    (others,) = run_onnxruntime(model, nets.feeds(model, seed=2)).values()
    assert 0.005 < probabilities.max() < 0.9
    assert np.abs(probabilities - others).max() > 1e-3


def test_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(UnsupportedModelError, match=r"`alexnot`.*squeezenet"):
        light.build("alexnot")


def test_models_are_valid() -> None:
    onnx.checker.check_model(light.build("squeezenet"), full_check=True)
