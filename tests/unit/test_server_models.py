"""Tests models that are not compiled, but are served by the same executor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tvm_interop.errors import InputError
from tvm_interop.serving.server.any_model import AnyModel, Memory
from tvm_interop.serving.server.choice import Choice
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.tensors import TensorSpec
from tvm_interop.serving.server.ticket import Ticket


class Twice(AnyModel):
    """A model that doubles its input of three numbers."""

    def __init__(self) -> None:
        x, y = (TensorSpec(name, "float32", (3,)) for name in "xy")
        super().__init__("twice", (x,), (y,), Memory(0, 0))

    @property
    def num_instances(self) -> int:
        return 2

    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            ticket.outputs = [2 * ticket.inputs["x"]]

    def run_once(self, slot: int, size: int) -> float:
        return 1e-6


@pytest.mark.parametrize("policy", ["sequential", "streams", "batching", "auto"])
def test_a_model_of_another_kind_is_served(policy: str) -> None:
    choice = Choice(policy, 2)
    with Executor([Twice()], choice.make, instances=choice.num_running) as executor:
        (y,) = executor.infer("twice", {"x": np.array([1, 2, 3], np.float32)})
        assert y.tolist() == [2, 4, 6]
        with pytest.raises(InputError, match="needs input `x`"):
            executor.infer("twice", {"x": np.zeros(4, np.float32)})


def test_one_that_has_no_blocks_is_refused_where_blocks_are_run() -> None:
    choice = Choice("search", 2)
    with pytest.raises(InputError, match="model `twice` cannot be divided"):
        Executor([Twice()], choice.make, instances=choice.num_running, blocks=choice.num_blocks)
