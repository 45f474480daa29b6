"""Tests the core of the server without a network: requests, queues, policies and instances."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.served import Slow, direct, perceptron, rows, two_types
from tvm_interop.errors import (
    CancelledError,
    DeadlineError,
    ExecutionError,
    InputError,
    ModelNotFoundError,
    OverloadedError,
    UnavailableError,
)
from tvm_interop.serving import Policy, Start, View, Wait, make_policy
from tvm_interop.serving.server.choice import Choice
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.model import Model
from tvm_interop.serving.server.ticket import Ticket, Waiter

WHOLE = ("auto", "sequential", "streams", "batching")
"""The policies that run whole models. Another file tests policies that run blocks."""


def sequential() -> Policy:
    return make_policy("sequential")


def batching() -> Policy:
    return make_policy("batching", batch=4)


class Gate:
    """Makes runs of a model wait until `open` is called, and notes the requests of each run."""

    def __init__(self) -> None:
        self.runs: list[list[int]] = []
        self._open = threading.Event()
        self.entered = threading.Semaphore(0)

    def __call__(self, ids: list[int]) -> None:
        self.runs.append(ids)
        self.entered.release()
        assert self._open.wait(20)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def held() -> Iterator[Callable[..., tuple[Executor, Gate]]]:
    """A function that makes an executor. Runs of its model `net` wait until a gate is opened."""
    made: list[tuple[Executor, Gate]] = []

    def make(policy: Callable[[], Policy] = sequential, **options: Any) -> tuple[Executor, Gate]:
        model, gate = Slow("net", perceptron(), options.get("instances", 1)), Gate()
        executor = Executor([model], policy, **options)
        model.gate = gate
        made.append((executor, gate))
        return executor, gate

    yield make
    for executor, gate in made:
        gate.open()
        executor.close()


def submitted(executor: Executor, count: int = 1, **options: Any) -> Waiter:
    waiter = Waiter()
    executor.submit("net", {"x": rows(count)}, waiter, **options)
    return waiter


@pytest.mark.parametrize("policy", WHOLE)
def test_answers_are_those_of_the_graph_module(policy: str) -> None:
    choice = Choice(policy, instances=2)
    models = [Model(name, made, choice.num_instances) for name, made in (
        ("net", perceptron()), ("two", two_types()),
    )]  # fmt: skip
    inputs = [
        ("net", {"x": rows(1, 1)}),
        ("two", {"a": np.ones((2, 3), np.float32), "k": np.arange(6).reshape(2, 3)}),
        ("net", {"x": rows(4, 2)}),
    ]
    with Executor(models, choice.make, instances=choice.num_instances) as executor:
        for _ in range(3):
            for name, given in inputs:
                wanted = direct(perceptron() if name == "net" else two_types(), given)
                for got, want in zip(executor.infer(name, given), wanted, strict=True):
                    np.testing.assert_array_equal(got, want)


def test_many_threads_get_their_own_answers() -> None:
    inputs = [rows(1 + i % 4, i) for i in range(60)]
    answers: dict[int, np.ndarray] = {}
    with Executor(
        [Model("net", perceptron(), 2)], Choice("batching").make, instances=2
    ) as executor:

        def ask(first: int) -> None:
            for i in range(first, len(inputs), 4):
                answers[i] = executor.infer("net", {"x": inputs[i]})[0]

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = executor.model("net").statistics.told()
    assert told["inference_count"] == sum(len(x) for x in inputs)
    assert told["inference_stats"]["success"]["count"] == len(inputs)
    for i, x in enumerate(inputs):
        # The bits of a row may depend on the batch size, and therefore on the number of rows that
        # ran together.
        ones = np.concatenate([direct(perceptron(), {"x": row[None]})[0] for row in x])
        np.testing.assert_allclose(answers[i], ones, rtol=1e-5, atol=1e-6)


def test_requests_are_joined_and_neighbours_do_not_matter(
    held: Callable[..., tuple[Executor, Gate]],
) -> None:
    executor, gate = held(batching)
    first = submitted(executor)
    assert gate.entered.acquire(timeout=20)
    mine = rows(1, 7)
    answers = []
    for seeds in ((1, 2, 3), (4, 5, 6)):
        waiters = [Waiter() for _ in range(4)]
        executor.submit("net", {"x": mine}, waiters[0])
        for seed, waiter in zip(seeds, waiters[1:], strict=True):
            executor.submit("net", {"x": rows(1, seed)}, waiter)
        answers.append(waiters)
    gate.open()
    first.outputs()
    one, other = (waiters[0].outputs()[0] for waiters in answers)
    assert gate.runs == [[0], [1, 2, 3, 4], [5, 6, 7, 8]]
    np.testing.assert_array_equal(one, other)
    alone = direct(perceptron(), {"x": np.repeat(mine, 4, axis=0)})[0][:1]
    np.testing.assert_array_equal(one, alone)


def test_rows_are_filled_up_to_the_next_batch_size(
    held: Callable[..., tuple[Executor, Gate]],
) -> None:
    executor, gate = held(batching)
    gate.open()
    waiter = Waiter()
    ticket = executor.submit("net", {"x": rows(3)}, waiter)
    got = waiter.outputs()[0]
    assert (ticket.ran_batch, got.shape) == (4, (3, 5))
    padded = direct(perceptron(), {"x": np.concatenate([rows(3), rows(3)[-1:]])})[0][:3]
    np.testing.assert_array_equal(got, padded)


def test_a_full_queue_refuses_and_says_when_to_come_back(
    held: Callable[..., tuple[Executor, Gate]],
) -> None:
    executor, gate = held(max_queue=2)
    waiters = [submitted(executor)]
    assert gate.entered.acquire(timeout=20)
    waiters += [submitted(executor) for _ in range(2)]
    with pytest.raises(OverloadedError, match="2 requests wait for model `net`") as refused:
        submitted(executor)
    assert refused.value.retry_after_s > 0
    gate.open()
    assert all(len(waiter.outputs()) == 1 for waiter in waiters)
    submitted(executor).outputs()
    assert executor.model("net").statistics.outcomes == {
        "served": 4, "failed": 0, "rejected": 1, "late": 0, "cancelled": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "policy",
    [
        sequential,
        lambda: make_policy("streams", streams=1),
        lambda: make_policy("batching", batch=1),
        Choice("auto", instances=1).make,
    ],
)
def test_priorities_are_served_first(
    policy: Callable[[], Policy], held: Callable[..., tuple[Executor, Gate]]
) -> None:
    executor, gate = held(policy)
    waiters = [submitted(executor)]
    assert gate.entered.acquire(timeout=20)
    waiters += [submitted(executor, count=4, priority=p) for p in (0, -1, 5, 0, 5)]
    gate.open()
    for waiter in waiters:
        waiter.outputs()
    assert gate.runs == [[0], [3], [5], [1], [4], [2]]


@pytest.mark.parametrize("policy", [Choice(p, instances=1).make for p in WHOLE])
def test_of_equal_priority_the_earlier_deadline_is_served_first(
    policy: Callable[[], Policy],
) -> None:
    gate = Gate()
    models = [Slow("a", perceptron()), Slow("b", perceptron()), Slow("c", perceptron())]
    executor = Executor(models, policy)
    for model in models:
        model.gate = gate
    waiters = [Waiter() for _ in range(4)]
    asked = [("a", None), ("a", None), ("b", 60e6), ("c", 50e6)]
    for (name, timeout_us), waiter in zip(asked, waiters, strict=True):
        executor.submit(name, {"x": rows(4)}, waiter, timeout_us=timeout_us)
        if waiter is waiters[0]:
            assert gate.entered.acquire(timeout=20)
    gate.open()
    for waiter in waiters:
        waiter.outputs()
    executor.close()
    assert gate.runs == [[0], [3], [2], [1]]


def test_late_requests_never_start(held: Callable[..., tuple[Executor, Gate]]) -> None:
    executor, gate = held()
    first = submitted(executor)
    assert gate.entered.acquire(timeout=20)
    late = submitted(executor, timeout_us=20_000)
    in_time = submitted(executor, timeout_us=60e6)
    # The late request is refused at once, before the only instance is free.
    with pytest.raises(DeadlineError, match=r"in the 20\.0 ms that the client allows"):
        late.outputs()
    gate.open()
    first.outputs()
    in_time.outputs()
    assert gate.runs == [[0], [2]]


def test_what_cannot_be_served_in_time_never_starts(
    held: Callable[..., tuple[Executor, Gate]],
) -> None:
    executor, gate = held()
    gate.open()
    executor.model("net").statistics.measured(1, [0.5] * 16)
    with pytest.raises(DeadlineError):
        submitted(executor, timeout_us=400_000).outputs()
    # The measured 0.5 s may be wrong. So the server still tries a few requests, and corrects the
    # time.
    served = 0
    for _ in range(20):
        try:
            submitted(executor, timeout_us=400_000).outputs()
            served += 1
        except DeadlineError:
            pass
    assert served >= 1


def test_cancelled_requests_never_start(held: Callable[..., tuple[Executor, Gate]]) -> None:
    executor, gate = held()
    first = submitted(executor)
    assert gate.entered.acquire(timeout=20)
    waiter = Waiter()
    executor.cancel(executor.submit("net", {"x": rows(1)}, waiter))
    with pytest.raises(CancelledError):
        waiter.outputs()
    gate.open()
    first.outputs()
    assert gate.runs == [[0]]


def test_two_instances_run_at_once(held: Callable[..., tuple[Executor, Gate]]) -> None:
    executor, gate = held(lambda: make_policy("streams", streams=2), instances=2)
    waiters = [submitted(executor) for _ in range(3)]
    assert gate.entered.acquire(timeout=20)
    assert gate.entered.acquire(timeout=20)
    assert not gate.entered.acquire(timeout=0.05)
    gate.open()
    for waiter in waiters:
        waiter.outputs()


def test_drain_serves_what_was_taken(held: Callable[..., tuple[Executor, Gate]]) -> None:
    executor, gate = held()
    waiters = [submitted(executor) for _ in range(5)]
    assert not executor.drain(0.05)
    assert not executor.is_ready
    with pytest.raises(UnavailableError, match="shutting down"):
        submitted(executor)
    gate.open()
    assert executor.drain(20)
    assert all(len(waiter.outputs()) == 1 for waiter in waiters)


def test_a_failing_model_stops_no_other() -> None:
    class Failing(Model):
        def run(self, slot: int, tickets: Any) -> None:
            if any(float(ticket.inputs["x"][0, 0]) == 13 for ticket in tickets):
                raise ExecutionError("operator `h/MatMul`: thirteen")
            super().run(slot, tickets)

    models = [Failing("bad", perceptron()), Model("good", perceptron())]
    with Executor(models, batching) as executor:
        inputs = [rows(1, i) for i in range(8)]
        inputs[5][0, 0] = 13
        waiters = [Waiter() for _ in inputs]
        for x, waiter in zip(inputs, waiters, strict=True):
            executor.submit("bad", {"x": x}, waiter)
        for i, waiter in enumerate(waiters):
            if i == 5:
                with pytest.raises(ExecutionError, match=r"model `bad` failed.*thirteen"):
                    waiter.outputs()
            else:
                assert waiter.outputs()[0].shape == (1, 5)
        assert executor.infer("good", {"x": rows(1)})
        assert executor.model("bad").statistics.outcomes["failed"] == 1


class Wrong(Policy):
    def decide(self, view: View) -> Start | Wait:
        waiting = [request for queue in view.queues for request in queue]
        return Start((waiting[0],), slot=7) if waiting else Wait()


def test_a_policy_that_fails_is_named() -> None:
    Wrong.name = "wrong"
    executor = Executor([Model("net", perceptron())], Wrong)
    with pytest.raises(ExecutionError, match=r"policy `wrong` failed.*slot 7.*has 1"):
        executor.infer("net", {"x": rows(1)})
    assert not executor.is_ready
    with pytest.raises(UnavailableError, match="policy `wrong` failed"):
        executor.infer("net", {"x": rows(1)})
    executor.close()


def test_joint_graphs_are_refused() -> None:
    with pytest.raises(InputError, match="compiled models run by their own plans; choose one of"):
        Choice("pos").make()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({}, "was given no input `x`; it needs `x`"),
        ({"X": rows(1)}, r"has no input `X` \(did you mean `x`\?\); its inputs are `x`"),
        ({"x": rows(1).astype(np.float64)}, "got float64 of shape"),
        ({"x": rows(1)[0]}, r"needs input `x` .*got float32 of shape \(12,\)"),
        ({"x": rows(5)}, "takes batches of 1 to 4, got 5"),
        ({"x": rows(0)}, "takes batches of 1 to 4, got 0"),
    ],
)
def test_wrong_inputs_are_named(inputs: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Model("net", perceptron()).check(inputs)


def test_unknown_models_are_named() -> None:
    with Executor([Model("net", perceptron())], sequential) as executor:
        with pytest.raises(ModelNotFoundError, match=r"no model `nett` \(did you mean `net`\?\)"):
            executor.infer("nett", {})
        with pytest.raises(ModelNotFoundError, match="no version `2`; it has 1"):
            executor.model("net", "2")


def test_models_come_and_go_while_others_are_served() -> None:
    executor = Executor([Model("a", perceptron(), 2)], Choice("auto", 2).make, instances=2)
    stop, errors = threading.Event(), []

    def ask() -> None:
        while not stop.is_set() and not errors:
            try:
                executor.infer("a", {"x": rows(2)})
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(3):
            executor.add(Model("b", two_types(), 2))
            given = {"a": np.ones((2, 3), np.float32), "k": np.ones((2, 3), np.int64)}
            assert len(executor.infer("b", given)) == 2
            executor.remove("b")
            with pytest.raises(ModelNotFoundError):
                executor.infer("b", given)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert executor.model("a").statistics.outcomes["served"] > 3
    executor.close()


def test_auto_decides_again_in_the_background() -> None:
    with Executor([Model("net", perceptron(), 2)], Choice("auto", 2).make, instances=2) as executor:
        until = time.monotonic() + 20
        while len(executor.explanation()) < 2 and time.monotonic() < until:
            executor.infer("net", {"x": rows(1)})
        assert "the load is known better" in executor.explanation()[1][1]


def deciding() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "tvm-interop-auto"]


def test_auto_decides_no_more_once_it_is_closed_or_replaced() -> None:
    executor = Executor([Model("net", perceptron())], Choice("auto", 1).make)
    for end in (lambda: executor.add(Model("two", two_types())), executor.close):
        until = time.monotonic() + 30
        while not deciding() and time.monotonic() < until:
            executor.infer("net", {"x": rows(1)})
        end()
        assert not deciding()


def test_a_process_ends_while_auto_decides() -> None:
    """At its end, Python stops daemon threads. If such a thread is in native code, the process
    aborts."""
    script = (
        "from tests.served import perceptron, rows\n"
        "from tvm_interop.serving.server.choice import Choice\n"
        "from tvm_interop.serving.server.executor import Executor\n"
        "from tvm_interop.serving.server.model import Model\n"
        "import threading\n"
        "with Executor([Model('net', perceptron())], Choice('auto', 1).make) as executor:\n"
        "    while 'tvm-interop-auto' not in [t.name for t in threading.enumerate()]:\n"
        "        executor.infer('net', {'x': rows(1)})\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr


def test_a_ticket_is_told_once(held: Callable[..., tuple[Executor, Gate]]) -> None:
    executor, gate = held()
    told: list[Ticket] = []
    gate.open()
    ticket = executor.submit("net", {"x": rows(1)}, told.append)
    executor.drain()
    executor.cancel(ticket)
    executor.close()
    assert told == [ticket]
