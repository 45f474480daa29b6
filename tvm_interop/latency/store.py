"""Measured latencies, kept in a file: what was measured once is not measured again."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from ..errors import TVMInteropError

_ENVIRONMENT = "TVM_INTEROP_LATENCY_DB"
_LAYOUT = 1


def default_path() -> Path:
    """Where latencies are kept: `$TVM_INTEROP_LATENCY_DB`, or a file in the user's cache folder."""
    override = os.environ.get(_ENVIRONMENT)
    return (
        Path(override)
        if override
        else Path(platformdirs.user_cache_dir("tvm_interop")) / "latency.db"
    )


class LatencyStore:
    """Latencies in microseconds by key, in an SQLite file that several processes may share.

    Examples
    --------
    >>> store = LatencyStore(":memory:")
    >>> store.put([("conv", 12.5)])
    >>> store.get(["conv", "pool"])
    {'conv': 12.5}
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Open the file at `path` (default: `default_path()`), making it and its folder if need be.

        Raises
        ------
        TVMInteropError
            The file is no latency store, or cannot be opened.
        """
        self.path = str(path if path is not None else default_path())
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = sqlite3.connect(self.path, timeout=60)
            layout = self._connection.execute("PRAGMA user_version").fetchone()[0]
            if layout not in (0, _LAYOUT):
                raise TVMInteropError(
                    f"`{self.path}` holds latencies in layout {layout}, this tvm_interop reads "
                    f"layout {_LAYOUT}; upgrade, or name another file in {_ENVIRONMENT}"
                )
            if self.path != ":memory:":
                # Readers and a writer do not block each other, and a crash loses no commit.
                self._connection.execute("PRAGMA journal_mode=WAL")
            with self._connection:
                self._connection.execute(
                    "CREATE TABLE IF NOT EXISTS latency "
                    "(key TEXT PRIMARY KEY, latency_us REAL NOT NULL)"
                )
                self._connection.execute(f"PRAGMA user_version={_LAYOUT}")
        except sqlite3.DatabaseError as error:
            raise TVMInteropError(
                f"`{self.path}` cannot be used as a latency store ({error}); remove it, or name "
                f"another file in {_ENVIRONMENT}"
            ) from error

    def get(self, keys: Iterable[str]) -> dict[str, float]:
        """The latencies of those `keys` that are known, in microseconds."""
        find = "SELECT latency_us FROM latency WHERE key = ?"
        rows = ((key, self._connection.execute(find, (key,)).fetchone()) for key in keys)
        return {key: row[0] for key, row in rows if row is not None}

    def put(self, latencies: Iterable[tuple[str, float]]) -> None:
        """Keep latencies, in microseconds; all of them or, where that fails, none."""
        with self._connection:
            self._connection.executemany("INSERT OR REPLACE INTO latency VALUES (?, ?)", latencies)

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.ProgrammingError):
            self._connection.close()
