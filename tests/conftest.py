"""Settings for every test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_latency_db(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests measure for themselves and leave the user's latencies alone."""
    patch = pytest.MonkeyPatch()
    path = tmp_path_factory.mktemp("latency") / "latency.db"
    patch.setenv("TVM_INTEROP_LATENCY_DB", str(path))
    patch.setenv("TVM_INTEROP_KEPT", "")  # Nor do they find what others chose.
