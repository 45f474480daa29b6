"""Draws the latencies of operators, which do not matter to tests about numbers."""

from __future__ import annotations

import zlib

import pytest

from tests.prices import random_clock


@pytest.fixture(autouse=True)
def _drawn_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each stage a random latency after one run, which saves up to thirty runs.

    The draw depends on the test's name. So different tests run different mixes of kernels, and a
    test runs the same mix on every machine.
    """
    from tvm_interop._native import cpu  # This import is slow.

    seed = zlib.crc32(request.node.nodeid.encode())
    monkeypatch.setattr(cpu, "measure_interleaved", random_clock(seed, cpu.run))
