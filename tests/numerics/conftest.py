"""Gives operators latencies, which do not matter to tests about numbers."""

from __future__ import annotations

import zlib

import pytest


@pytest.fixture(autouse=True)
def _given_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure nothing, which saves the time to compile and run the kernels that are not chosen.

    Different tests run different mixes of kernels, and a test runs the same mix on every machine.
    """
    from tests.prices import give_prices, usual  # This import is slow.

    give_prices(monkeypatch, usual(zlib.crc32(request.node.nodeid.encode())))
