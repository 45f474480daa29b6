"""Tests sessions in forked children, and sessions that are closed while other threads use them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tvm_interop
from tests.forks import in_forked_child
from tests.nets import Net
from tvm_interop import Session
from tvm_interop.errors import ExecutionError, InputError
from tvm_interop.session.pool import Run

LIMIT_S = 20.0
X = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def artifact() -> tvm_interop.Artifact:
    net = Net()
    x = net.input("x", [2, 3])
    net.op("Add", [x, x], "y")
    return tvm_interop.compile(
        net.model("y"), scheduler="sequential", streams=1, providers=["tvm"], latency_db=":memory:"
    )


@pytest.fixture
def session(artifact: tvm_interop.Artifact) -> Iterator[Session]:
    with Session(artifact, instances=2) as session:
        yield session


def check_run(session: Session) -> None:
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], 2 * X)


def check_run_async(session: Session) -> None:
    runs = [session.run_async(None, {"x": X}) for _ in range(4)]
    for run in runs:
        np.testing.assert_array_equal(run.result(LIMIT_S)[0], 2 * X)


def test_runs_in_the_background_of_a_child(session: Session) -> None:
    check_run_async(session)
    time.sleep(0.05)  # Now the worker threads are idle.
    assert in_forked_child(lambda: check_run_async(session)) == ""
    check_run_async(session)


def test_instances_that_the_parent_was_running_are_made_anew(session: Session) -> None:
    """Threads of the parent have both instances and all locks at the fork."""
    assert session._pool is not None
    runs = [Run(), Run()]
    runs[1].thread = -1  # Another thread.
    for run in runs:
        session._pool.take(run)
    with session._compiling, session._by_shape._lock:

        def work() -> None:
            threads = [threading.Thread(target=check_run, args=(session,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_S)
                assert not thread.is_alive()
            check_run_async(session)
            session.close()

        assert in_forked_child(work) == ""
    for run in runs:
        session._pool.give_back(run)
    check_run(session)


def test_an_instance_that_a_signal_took_is_free_again(session: Session) -> None:
    """Ctrl-C raises an exception before a run gives its instance back."""
    pool = session._pool
    assert pool is not None
    give_back, pool.give_back = pool.give_back, None  # type: ignore[method-assign, assignment]
    for _ in range(3):
        with pytest.raises(TypeError):
            session.run(None, {"x": X})
    pool.give_back = give_back  # type: ignore[method-assign]
    threads = [threading.Thread(target=check_run, args=(session,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


@pytest.mark.parametrize("instances", [1, 2])
def test_a_run_within_a_run_of_its_thread_takes_another_instance(
    artifact: tvm_interop.Artifact, instances: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may begin a run when another run has its results but has not returned."""
    session = Session(artifact, instances=instances)
    within: list[Any] = []
    run_on = tvm_interop.GraphModule.run_on

    def run_and_run_again(self: Any, *given: Any) -> Any:
        made = run_on(self, *given)
        monkeypatch.setattr(tvm_interop.GraphModule, "run_on", run_on)
        try:
            within.append(session.run(None, {"x": -X})[0])
        except ExecutionError as error:
            within.append(str(error))
        return made

    wanted = session.run(None, {"x": X})[0]
    other = session.run(None, {"x": -X})[0]
    monkeypatch.setattr(tvm_interop.GraphModule, "run_on", run_and_run_again)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], wanted)
    if instances == 1:
        assert "instances=2" in within[0]
    else:
        np.testing.assert_array_equal(within[0], other)
    check_run(session)


def test_a_run_that_meets_the_end_of_its_session_says_so(
    artifact: tvm_interop.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(artifact)
    check = Session._check_is_open

    def check_and_close(self: Session) -> None:
        monkeypatch.setattr(Session, "_check_is_open", check)
        check(self)
        session.close()  # Another thread closes the session just after the check.

    monkeypatch.setattr(Session, "_check_is_open", check_and_close)
    with pytest.raises(ExecutionError, match="the session was closed"):
        session.run(None, {"x": X})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([1, 2, -3], [2, 4, -6]),
        ([1.0, 2.0, -3.0], [2, 4, -6]),
        ([1, 2.5, 3], None),
        ([1e30, 0, 0], None),
        ([float("nan"), 0, 0], None),
    ],
)
def test_numbers_of_a_list_are_not_cut(given: list[float], wanted: list[int] | None) -> None:
    net = Net()
    k = net.input("k", [3], 7)  # int64
    net.op("Add", [k, k], "y")
    artifact = tvm_interop.compile(
        net.model("y"), scheduler="sequential", streams=1, providers=["tvm"], latency_db=":memory:"
    )
    with Session(artifact) as session:
        if wanted is not None:
            assert session.run(None, {"k": given})[0].tolist() == wanted
            return
        with pytest.raises(InputError, match=r"input `k` \(int64.*cannot be made"):
            session.run(None, {"k": given})
