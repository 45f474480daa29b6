"""Gives operators random latencies, because latencies do not matter to tests about numbers."""

from __future__ import annotations

import zlib

import pytest


@pytest.fixture(autouse=True)
def _given_prices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw latencies at random instead of measuring them, with the test's name as the seed.

    This saves the time to compile and run the kernels that are not chosen. So different tests
    choose different kernels, and a test chooses the same kernels on every machine.
    """
    from tests.prices import give_prices, usual  # This import is slow.

    give_prices(monkeypatch, usual(zlib.crc32(request.node.nodeid.encode())))
