"""Tests models that are not compiled, but are served by the same executor."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest

from tests.served import direct, perceptron, rows
from tvm_interop.errors import InputError
from tvm_interop.serving import Policy, Start, View, Wait
from tvm_interop.serving.policies.slots import free_slot
from tvm_interop.serving.server.any_model import AnyModel, Memory
from tvm_interop.serving.server.choice import Choice
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.tensors import TensorSpec
from tvm_interop.serving.server.ticket import Ticket, Waiter

GIVEN = {"x": np.array([1, 2, 3], np.float32)}


class Twice(AnyModel):
    """A model that doubles its input of three numbers."""

    def __init__(self, name: str = "twice") -> None:
        x, y = (TensorSpec(name, "float32", (3,)) for name in "xy")
        super().__init__(name, (x,), (y,), Memory(0, 0))

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


class Held(Twice):
    """A model like `Twice` whose runs wait until `may_end` is set."""

    def __init__(self) -> None:
        super().__init__("held")
        self.may_end = threading.Event()

    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        assert self.may_end.wait(20)
        super().run(slot, tickets)


class Later(Policy):
    """A policy that starts each request a tenth of a second after its arrival.

    A decision takes a while, so that all workers whose wait ends at the same time wake during it.
    """

    def decide(self, view: View) -> Start | Wait:
        time.sleep(0.02)
        waiting = [queue[0] for queue in view.queues if queue]
        for request in waiting:
            if request.arrived_us + 1e5 <= view.now_us:
                return Start((request,), slot=free_slot(view))
        return Wait(min((r.arrived_us + 1e5 for r in waiting), default=float("inf")))


def test_a_request_starts_in_time_while_another_model_runs() -> None:
    """The worker that started the first request runs it, so another must start the second one."""
    held = Held()
    with Executor([held, Twice()], Later, instances=2) as executor:
        first, second = Waiter(), Waiter()
        executor.submit("held", GIVEN, first)
        time.sleep(0.05)
        ticket = executor.submit("twice", GIVEN, second)
        until = time.monotonic() + 5
        while ticket.outputs is None and time.monotonic() < until:
            time.sleep(0.01)
        was_served = ticket.outputs is not None
        held.may_end.set()
        first.outputs()
        second.outputs()
    assert was_served


def test_a_request_may_have_fewer_rows_than_the_only_batch_size() -> None:
    model = Model("net", perceptron((4,)))
    assert model.inputs[0].shape == (-1, 12)
    assert model.outputs[0].shape == (-1, 5)
    whole = rows(4)
    with Executor([model], Choice("batching", 1).make) as executor:
        for count in (1, 3, 4):
            given = np.concatenate(
                [whole[:count], np.repeat(whole[count - 1 : count], 4 - count, 0)]
            )
            (wanted,) = direct(perceptron((4,)), {"x": given})
            (got,) = executor.infer("net", {"x": whole[:count]})
            np.testing.assert_array_equal(got, wanted[:count])
        with pytest.raises(InputError, match="batches of 1 to 4, got 5"):
            executor.infer("net", {"x": rows(5)})
