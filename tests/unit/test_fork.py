"""Tests processes that fork after they have run a module, as servers do."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest

from tests.chains import Chain, chain_kernels
from tests.forks import in_forked_child
from tvm_interop.errors import ExecutionError

PARKED_AFTER_S = 0.05
"""After this time without work, in seconds, a thread no longer spins."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return chain_kernels(tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("pause_s", [0.0, PARKED_AFTER_S], ids=["spinning", "parked"])
def test_a_new_module_works_in_a_child(kernels: Any, streams: int, pause_s: float) -> None:
    chain = Chain(kernels, streams)

    def work() -> None:
        nonlocal chain
        chain = Chain(kernels, streams)  # This destroys the parent's chain.
        gc.collect()
        for start in range(20):
            chain.check(start)

    for start in range(4):
        chain.check(start)
        time.sleep(pause_s)
        assert in_forked_child(work) == ""
    chain.check(7.0)


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("pause_s", [0.0, PARKED_AFTER_S], ids=["spinning", "parked"])
def test_an_old_module_works_in_a_child(kernels: Any, streams: int, pause_s: float) -> None:
    chain = Chain(kernels, streams)

    def work() -> None:
        for start in range(20):
            chain.check(start)

    for start in range(4):
        chain.check(start)
        time.sleep(pause_s)
        assert in_forked_child(work) == ""
    chain.check(7.0)


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("pause_s", [0.0, PARKED_AFTER_S], ids=["spinning", "parked"])
def test_loops_over_several_threads_work_in_a_child(
    kernels: Any, streams: int, pause_s: float
) -> None:
    old = Chain(kernels, streams, "parallel", threads=2)

    def work() -> None:
        for start in range(20):
            old.check(start)
        for start in range(20):
            Chain(kernels, streams, "parallel", threads=2).check(start)

    for start in range(3):
        old.check(start)
        time.sleep(pause_s)
        assert in_forked_child(work) == ""
    old.check(3.0)


def test_a_module_that_was_running_when_the_process_forked(kernels: Any) -> None:
    chain = Chain(kernels, 2, operators=400)
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            chain.instance.run()

    def work() -> None:
        try:
            chain.check(1.0)
        except ExecutionError as error:
            assert "when the process forked" in str(error)  # noqa: PT017
        Chain(kernels, 2).check(2.0)

    thread = threading.Thread(target=run)
    thread.start()
    said = [in_forked_child(work) for _ in range(10)]
    stop.set()
    thread.join()
    assert said == [""] * 10
    chain.check(3.0)


def test_a_child_may_fork_again(kernels: Any) -> None:
    chain = Chain(kernels, 2)
    chain.check(1.0)

    def work() -> None:
        child = Chain(kernels, 2)
        child.check(2.0)
        assert in_forked_child(lambda: Chain(kernels, 2).check(3.0)) == ""

    assert in_forked_child(work) == ""
