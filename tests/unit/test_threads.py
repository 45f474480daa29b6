"""Tests the threads that run a module: several at once, and threads that cannot be started."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import tvm_interop
from tests.chains import Chain, chain_kernels
from tests.forks import in_forked_child
from tvm_interop.errors import ExecutionError, InputError


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return chain_kernels(tmp_path_factory.mktemp("chain"))


@pytest.mark.parametrize("streams", [1, 2])
def test_a_run_beside_a_profile(kernels: Any, streams: int) -> None:
    def profile(chain: Chain, stop: threading.Event, told: list[BaseException]) -> None:
        while not stop.is_set():
            try:
                rows = chain.instance.profile()
                assert sorted(row[0] for row in rows) == list(range(200))
            except BaseException as error:
                told.append(error)

    def work() -> None:
        chain = Chain(kernels, streams, operators=200)
        stop = threading.Event()
        told: list[BaseException] = []
        thread = threading.Thread(target=profile, args=(chain, stop, told))
        thread.start()
        for _ in range(3000):
            try:
                chain.instance.run()
            except ExecutionError as error:
                told.append(error)
        stop.set()
        thread.join()
        assert not [error for error in told if "already running" not in str(error)]

    assert in_forked_child(work) == ""  # The fault that this test looks for is a crash.


def test_threads_that_cannot_be_started(kernels: Any) -> None:
    def work() -> None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), resource.RLIM_INFINITY))
        tvm_interop.set_num_threads(64)
        with pytest.raises(ExecutionError, match="cannot be started"):
            Chain(kernels, 64, operators=64)

    assert in_forked_child(work) == ""


@pytest.mark.parametrize("threads", [0, -1, 5000, 2.0, True])
def test_a_number_of_threads_that_is_none(threads: Any) -> None:
    with pytest.raises(InputError, match="from 1 to 4096"):
        tvm_interop.set_num_threads(threads)


@pytest.mark.parametrize("text", ["0", "many", "-3", "2x"])
def test_an_environment_variable_that_is_no_number(text: str) -> None:
    code = "import tvm_interop; print(tvm_interop.num_threads())"
    done = _python(code, TVM_INTEROP_NUM_THREADS=text)
    assert done.returncode != 0
    assert f"TVM_INTEROP_NUM_THREADS is `{text}`" in done.stderr


def test_the_environment_sets_the_number() -> None:
    code = "import tvm_interop; print(tvm_interop.num_threads())"
    assert _python(code, TVM_INTEROP_NUM_THREADS="7").stdout.strip() == "7"


def test_no_more_threads_than_asked_for(kernels: Any) -> None:
    def work() -> None:
        tvm_interop.set_num_threads(3)
        before = len(os.listdir("/proc/self/task"))
        for streams, kernel, threads in [(2, "serial", 1), (4, "parallel", 8), (16, "parallel", 1)]:
            Chain(kernels, streams, kernel, threads).check(1.0)
        # There are two working threads, and one thread that sleeps forever (`StartWitness`).
        assert len(os.listdir("/proc/self/task")) <= before + 3
        affinity = os.sched_getaffinity(0)
        Chain(kernels, 2).check(2.0)
        assert os.sched_getaffinity(0) == affinity

    assert in_forked_child(work) == ""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_what_a_user_lets_threads_run_on_is_kept(kernels: Any) -> None:
    """The test sets the mask of each thread of a running process, as `taskset -ap` does."""

    def work() -> None:
        tvm_interop.set_num_threads(3)
        chain = Chain(kernels, 3)
        chain.check(1.0)
        for cpu in sorted(os.sched_getaffinity(0)) * 2:
            threads = [int(thread) for thread in os.listdir("/proc/self/task")]
            for thread in threads:
                os.sched_setaffinity(thread, {cpu})
            for _ in range(50):
                chain.check(1.0)
                time.sleep(0.001)
            for thread in threads:
                assert os.sched_getaffinity(thread) == {cpu}

    assert in_forked_child(work) == ""


def _python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
