"""Fixtures for tests that need the fake CUDA. `test_under_fake_cuda.py` runs these tests."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("UNDER_FAKE_CUDA") else ["test_*.py"]


@pytest.fixture
def check_log(tmp_path: Path) -> Iterator[Callable[..., list[str]]]:
    """Log all calls of the test. The fixture's function ends the log and returns its faults."""
    from tests.fake_cuda import fake_gpu
    from tests.fake_cuda.happens_before import OpAccesses, check

    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)

    def end_and_check(accesses: Mapping[str, OpAccesses] | None = None) -> list[str]:
        gc.collect()  # Release objects that nothing refers to, so that they do not count as leaks.
        fake_gpu.stop_log()
        return check(log, accesses)

    yield end_and_check
    fake_gpu.stop_log()


@pytest.fixture
def asynchronous() -> Iterator[None]:
    """Make a thread for each stream do the GPU's work, with random delays."""
    from tests.fake_cuda import fake_gpu

    fake_gpu.set_delays(1)
    yield
    fake_gpu.set_delays(0)
