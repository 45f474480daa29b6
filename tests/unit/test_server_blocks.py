"""Tests policies that run blocks of compiled models side by side."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

import tvm_interop
from tests.nets import chain, inception_like
from tests.served import direct, perceptron, rows
from tvm_interop.errors import ExecutionError, InputError, UnavailableError
from tvm_interop.serving import Policy, Start, View, Wait, make_policy
from tvm_interop.serving.decisions import Agents, Space
from tvm_interop.serving.server.choice import Choice
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.ticket import Ticket, Waiter


@functools.cache
def artifact(name: str) -> tvm_interop.Artifact:
    made = chain() if name == "chain" else inception_like(size=6, channels=8)
    return tvm_interop.compile(
        made, scheduler="sequential", streams=1, threads=1, providers=["tvm"],
        latency_db=":memory:",
    )  # fmt: skip


def inputs(name: str, seed: int) -> dict[str, np.ndarray]:
    plan = artifact(name).plan
    (value,) = (plan.values[v] for v in plan.inputs)
    drawn = np.random.default_rng(seed).standard_normal(value.shape)
    return {value.name: drawn.astype(np.float32)}


def models(count: int, kind: type[Model] = Model) -> list[Model]:
    return [kind(name, artifact(name), count) for name in ("chain", "branches")]


def search(**options: Any) -> Policy:
    return make_policy("search", budget=4, inside=3, **options)


def plus() -> Policy:
    return make_policy("top+", budget=4, inside=3)


def agents() -> Policy:
    """Untrained agents. Their decisions do not matter here."""
    space = Space((3, 3), shortest_s=1e-6, longest_s=2e-6)
    rng = np.random.default_rng(4)
    weights = {}
    for agent, part in enumerate(space.slices()):
        for layer, (a, b) in enumerate(((space.state_size, 4), (4, part.stop - part.start))):
            weights[f"actor{agent}.{layer}.w"] = rng.normal(size=(a, b))
            weights[f"actor{agent}.{layer}.b"] = rng.normal(size=b)
    return make_policy("top", agents=Agents(space, weights), inside=3, threshold=0.0, check_us=1.0)


@pytest.mark.parametrize("policy", [search, functools.partial(search, in_flight=2), plus, agents])
def test_answers_are_those_of_whole_runs(policy: Callable[[], Policy]) -> None:
    """Many requests run at once, so several blocks of one model are busy."""
    with Executor(models(3), policy, instances=2, blocks=3) as executor:
        assert [model.num_blocks for model in executor.models.values()] == [3, 3]
        asked = [(name, seed) for seed in range(12) for name in ("chain", "branches")]
        waiters = [Waiter() for _ in asked]
        for (name, seed), waiter in zip(asked, waiters, strict=True):
            executor.submit(name, inputs(name, seed), waiter)
        for (name, seed), waiter in zip(asked, waiters, strict=True):
            wanted = direct(artifact(name), inputs(name, seed))
            for got, want in zip(waiter.outputs(), wanted, strict=True):
                np.testing.assert_array_equal(got, want)
        assert executor.drain(20)
        assert [executor.waiting(name) for name in ("chain", "branches")] == [0, 0]
        told = executor.model("chain").statistics.told()
    assert told["inference_count"] == 12
    assert told["inference_stats"]["success"]["count"] == 12


class Recorded(Model):
    """A model that notes each run of a block. If `hold` is an event, runs wait for it."""

    seen: ClassVar[list[tuple[str, int, int]]] = []
    hold: threading.Event | None = None
    entered = threading.Semaphore(0)

    def run_block(self, slot: int, block: int, ticket: Ticket) -> None:
        Recorded.seen.append((self.name, block, ticket.id))
        if Recorded.hold is not None:
            Recorded.entered.release()
            assert Recorded.hold.wait(20)
        super().run_block(slot, block, ticket)


@pytest.fixture
def recorded() -> Any:
    Recorded.seen, Recorded.hold = [], None
    Recorded.entered = threading.Semaphore(0)
    yield Recorded
    if Recorded.hold is not None:
        Recorded.hold.set()


def one_block() -> Policy:
    """All blocks of both models together form one combined block."""
    return make_policy(
        "search", combination=(tuple((m, b) for m in (0, 1) for b in range(3)),), inside=3
    )


def test_blocks_of_a_combined_block_run_side_by_side(recorded: Any) -> None:
    executor = Executor(models(3, recorded), one_block, instances=2, blocks=3)
    recorded.hold = threading.Event()
    waiters = [Waiter(), Waiter()]
    # The first request begins alone. The first block of the second request runs beside the second
    # block of the first request.
    executor.submit("chain", inputs("chain", 0), waiters[0])
    assert recorded.entered.acquire(timeout=20)
    executor.submit("branches", inputs("branches", 0), waiters[1])
    held, recorded.hold = recorded.hold, threading.Event()
    held.set()
    assert recorded.entered.acquire(timeout=20)
    assert recorded.entered.acquire(timeout=20), "two blocks must run at the same time"
    assert {row[:2] for row in recorded.seen[1:3]} == {("chain", 1), ("branches", 0)}
    recorded.hold.set()
    for waiter in waiters:
        waiter.outputs()
    executor.close()
    for name in ("chain", "branches"):
        assert [block for model, block, _ in recorded.seen if model == name] == [0, 1, 2]


def test_models_change_between_the_blocks_of_a_request(recorded: Any) -> None:
    """While a request runs, another model is removed. The request begins again and is answered."""
    executor = Executor(models(3, recorded), search, instances=2, blocks=3)
    recorded.hold = threading.Event()
    waiter = Waiter()
    executor.submit("chain", inputs("chain", 5), waiter)
    assert recorded.entered.acquire(timeout=20)
    change = threading.Thread(target=executor.remove, args=("branches",))
    change.start()
    while not executor._is_paused:
        pass
    recorded.hold.set()
    change.join(20)
    np.testing.assert_array_equal(
        waiter.outputs()[0], direct(artifact("chain"), inputs("chain", 5))[0]
    )
    assert [block for _, block, _ in recorded.seen] == [0, 0, 1, 2]
    assert executor.waiting("chain") == 0
    executor.close()


def test_a_block_that_fails_fails_its_request_alone() -> None:
    class Failing(Model):
        def run_block(self, slot: int, block: int, ticket: Ticket) -> None:
            if block == 1 and ticket.id == 2:
                raise ExecutionError("operator `c3`: thirteen")
            super().run_block(slot, block, ticket)

    with Executor(models(3, Failing), search, instances=2, blocks=3) as executor:
        waiters = [Waiter() for _ in range(8)]
        for seed, waiter in enumerate(waiters):
            executor.submit("chain", inputs("chain", seed), waiter)
        for seed, waiter in enumerate(waiters):
            if seed == 2:
                with pytest.raises(ExecutionError, match=r"model `chain` failed.*thirteen"):
                    waiter.outputs()
            else:
                wanted = direct(artifact("chain"), inputs("chain", seed))[0]
                np.testing.assert_array_equal(waiter.outputs()[0], wanted)
        assert executor.drain(20)


def test_requests_between_blocks_are_refused_when_the_server_ends(recorded: Any) -> None:
    executor = Executor(models(3, recorded), one_block, instances=2, blocks=3)
    recorded.hold = threading.Event()
    waiter = Waiter()
    executor.submit("chain", inputs("chain", 0), waiter)
    assert recorded.entered.acquire(timeout=20)
    end = threading.Thread(target=executor.close)
    end.start()
    while not executor._is_stopped:
        pass
    recorded.hold.set()
    with pytest.raises(UnavailableError, match="the server has ended"):
        waiter.outputs()
    end.join(20)


class TooMany(Policy):
    """A policy that admits every request."""

    def decide(self, view: View) -> Any:
        from tvm_interop.serving.tasks import Admit

        return next((Admit(queue[0]) for queue in view.queues if queue), Wait())


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (3, "more requests into model `chain` than the model's 1 inst"),
        (1, "`chain` is not divided"),
    ],
)
def test_a_policy_that_lets_too_many_in_is_told(blocks: int, said: str) -> None:
    TooMany.name = "too many"
    executor = Executor(models(1), TooMany, blocks=blocks)
    with executor._wake:  # The policy decides only after both requests are there.
        waiters = [Waiter(), Waiter()]
        for waiter in waiters:
            executor.submit("chain", inputs("chain", 0), waiter)
    for waiter in waiters:
        with pytest.raises(ExecutionError, match=said):
            waiter.outputs()
    assert said in str(executor.broken)
    executor.close()


def test_a_model_of_several_shapes_cannot_be_divided() -> None:
    with pytest.raises(InputError, match="`net` was compiled for 3 shapes"):
        Executor([Model("net", perceptron(), 3)], search, blocks=3)
    assert rows(1).shape == (1, 12)


@pytest.mark.parametrize("name", ["search", "top+"])
def test_a_server_may_choose_policies_of_blocks(name: str) -> None:
    choice = Choice(name, instances=2, blocks=3)
    assert (choice.num_running, choice.num_instances, choice.num_blocks) == (2, 3, 3)
    with Executor(
        models(choice.num_instances), choice.make, instances=2, blocks=choice.num_blocks
    ) as executor:
        got = executor.infer("chain", inputs("chain", 1))
    np.testing.assert_array_equal(got[0], direct(artifact("chain"), inputs("chain", 1))[0])


def test_blocks_of_a_policy_that_starts_nothing_are_refused() -> None:
    class Empty(Policy):
        name = "empty"

        def decide(self, view: View) -> Start | Wait:
            return Start((None,), parts=((0, 0),)) if view.queues[0] else Wait()

    executor = Executor(models(1), Empty, blocks=3)
    with pytest.raises(ExecutionError, match="a combined block without a request"):
        executor.infer("chain", inputs("chain", 0))
    executor.close()
