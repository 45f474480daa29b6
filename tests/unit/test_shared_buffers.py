"""Tests inputs and outputs in the same memory. No operator may read bytes that were overwritten.

An operator may write an output before another operator has read an input.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.nets import Net
from tvm_interop import Artifact, GraphModule

SHAPE = (16, 16)


@pytest.fixture(scope="module")
def compiled() -> Artifact:
    """The model `y = x W`, `z = x x`, which writes y before it reads x for z."""
    net = Net()
    x = net.input("x", SHAPE)
    net.op("MatMul", [x, net.weight(*SHAPE)], "y")
    net.op("Mul", [x, x], "z")
    return tvm_interop.compile(
        net.model("y", "z"), scheduler="sequential", streams=1, providers=["tvm"],
        latency_db=":memory:",
    )  # fmt: skip


@pytest.fixture(params=["memory", "file"])
def module(request: pytest.FixtureRequest, compiled: Artifact, tmp_path: Path) -> GraphModule:
    if request.param == "memory":
        return GraphModule(compiled)
    compiled.save(tmp_path / "model.tar")
    return GraphModule(tmp_path / "model.tar")


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)


def wanted(compiled: Artifact, x: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(array) for array in GraphModule(compiled)(x)]


def check(module: GraphModule, y: np.ndarray, z: np.ndarray) -> None:
    np.testing.assert_array_equal(module.get_output("y").numpy(), y)
    np.testing.assert_array_equal(module.get_output("z").numpy(), z)


def test_a_state_passes_in_one_array(module: GraphModule, compiled: Artifact) -> None:
    state = tvm_interop.aligned_empty(SHAPE, "float32")
    state[...] = numbers()
    module.set_output_zero_copy("y", state)
    module.set_input_zero_copy("x", state)
    for _ in range(3):
        y, z = wanted(compiled, state.copy())
        module.run()
        check(module, y, z)
        np.testing.assert_array_equal(state, y)
    y, z = wanted(compiled, state.copy())
    module.profile()
    check(module, y, z)


def test_a_state_passes_in_the_modules_own_memory(module: GraphModule, compiled: Artifact) -> None:
    state = module.get_output_zero_copy("y")
    state[...] = numbers()
    module.set_input_zero_copy("x", state)
    for _ in range(3):
        y, z = wanted(compiled, state.numpy().copy())
        module.run()
        check(module, y, z)
        np.testing.assert_array_equal(state, y)


def test_an_output_is_given_as_an_input_for_one_run(
    module: GraphModule, compiled: Artifact
) -> None:
    module.run(x=numbers())
    before = module.get_output_zero_copy("y")
    z = wanted(compiled, before.numpy().copy())[1]
    np.testing.assert_array_equal(module.run_on({"x": before}, [1])[1], z)


def test_memory_that_is_apart_again_is_used_in_place(
    module: GraphModule, compiled: Artifact
) -> None:
    shared, apart = (tvm_interop.aligned_empty(SHAPE, "float32") for _ in range(2))
    module.set_output_zero_copy("y", shared)
    module.set_input_zero_copy("x", shared)
    module.set_input_zero_copy("x", apart)
    apart[...] = numbers(1)
    module.run()
    y, z = wanted(compiled, numbers(1))
    check(module, y, z)
    np.testing.assert_array_equal(shared, y)
    np.testing.assert_array_equal(apart, numbers(1))
    # The output is in place: a reader of the module's own memory sees the caller's array.
    assert np.shares_memory(module.get_output_zero_copy("y").numpy(), shared)


def test_a_part_of_another_array_counts_too(module: GraphModule, compiled: Artifact) -> None:
    both = tvm_interop.aligned_empty((24, 16), "float32")
    both[:16] = numbers()
    module.set_input_zero_copy("x", both[:16])
    module.set_output_zero_copy("y", both[8:])
    y, z = wanted(compiled, numbers())
    module.run()
    check(module, y, z)
    np.testing.assert_array_equal(both[8:], y)
