"""The latency database, which keeps measurements so that nothing is measured twice."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import platformdirs

from ..errors import TVMInteropError
from ..latency.estimate import Estimate
from ..latency.measurement import Record, Setting, Workload
from ..ownership import make_own_folder, why_not_trusted

_LOG = logging.getLogger("tvm_interop")
_ENVIRONMENT = "TVM_INTEROP_LATENCY_DB"
_APPLICATION_ID = 0x74766D69
"""The application id in the SQLite file, which marks it as a latency database: "tvmi" in ASCII."""
_LAYOUT = 3
_WAIT_S = 60.0
"""Seconds to wait for another process that is writing."""

_TABLES = (
    "CREATE TABLE workload (hash TEXT PRIMARY KEY, name TEXT NOT NULL, arguments TEXT NOT NULL, "
    "flops INTEGER NOT NULL, nbytes INTEGER NOT NULL, parallel_extent INTEGER NOT NULL)",
    "CREATE TABLE setting (id INTEGER PRIMARY KEY, device TEXT NOT NULL, driver TEXT NOT NULL, "
    "cores INTEGER NOT NULL, tvm_version TEXT NOT NULL, streams INTEGER NOT NULL, "
    "threads INTEGER NOT NULL, "
    "UNIQUE (device, driver, cores, tvm_version, streams, threads))",
    "CREATE TABLE record (key TEXT PRIMARY KEY, latency_us REAL NOT NULL, "
    "samples INTEGER NOT NULL, measured_at TEXT NOT NULL, groups TEXT, "
    "setting INTEGER REFERENCES setting, spread_us REAL)",
)
_SELECT_RECORDS = (
    "SELECT key, latency_us, samples, measured_at, groups, spread_us, device, driver, cores, "
    "tvm_version, streams, threads FROM record LEFT JOIN setting ON setting.id = record.setting"
)


def default_path() -> Path:
    """Path of the database: `$TVM_INTEROP_LATENCY_DB`, or a file in the user's cache folder."""
    override = os.environ.get(_ENVIRONMENT)
    return (
        Path(override)
        if override
        else Path(platformdirs.user_cache_dir("tvm_interop")) / "latency.db"
    )


def open_store(path: str | os.PathLike[str] | None = None) -> LatencyStore:
    """The database at `path`, or the default database if `path` is None.

    If the default file cannot be used, the database is in memory, and a warning is logged. For
    example, a container may have no home folder that can be written to. A database in memory is
    lost when the process ends.

    Raises
    ------
    TVMInteropError
        The file cannot be used as a latency database (see `LatencyStore`).
    OSError
        The folder of a file named by `path` or by the environment variable cannot be made.
    """
    if path is not None or os.environ.get(_ENVIRONMENT):
        return LatencyStore(path)
    default = default_path()
    reason: object = "it may not be written to"
    if not default.exists():
        try:
            make_own_folder(default.parent)
        except OSError as error:
            reason = error.strerror or error
    if os.access(default if default.exists() else default.parent, os.W_OK):
        reason = why_not_trusted(default)
        if reason is None:
            return LatencyStore(default)
    _LOG.warning(
        "latencies are not kept in `%s`: %s; set %s to a file that can be written to",
        default,
        reason,
        _ENVIRONMENT,
    )
    return LatencyStore(":memory:")


class LatencyStore:
    """Latencies in microseconds by key, in an SQLite file that several processes may share.

    Other processes see the records when `put` returns. A process that dies loses only the
    measurement in progress. A machine that loses power may lose the last measurements, but the file
    stays valid. A file of an older layout is upgraded when it is opened.

    Examples
    --------
    >>> store = LatencyStore(":memory:")
    >>> store.put([Record(key="conv", latency_us=12.5, samples=9, measured_at="")])
    >>> store.get(["conv", "pool"])
    {'conv': 12.5}
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        """Open the file at `path` (default: `default_path()`); make it and its folder if missing.

        Raises
        ------
        TVMInteropError
            The file is not a latency database, is damaged, of a newer layout, or cannot be opened.
        """
        self.path = str(path if path is not None else default_path())
        if self.path != ":memory:":
            Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with self._explained():
            # In autocommit mode, SQLite begins no transaction by itself. The method `_transaction`
            # begins one.
            self._connection = sqlite3.connect(self.path, timeout=_WAIT_S, isolation_level=None)
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def get(self, keys: Iterable[str]) -> dict[str, float]:
        """The latencies of the `keys` that are known, in microseconds."""
        return {key: known.latency_us for key, known in self.estimates(keys).items()}

    def estimates(self, keys: Iterable[str]) -> dict[str, Estimate]:
        """The estimates of the latencies of the `keys` that are known."""
        find = "SELECT latency_us, spread_us, samples FROM record WHERE key = ?"
        with self._explained():
            rows = ((key, self._connection.execute(find, (key,)).fetchone()) for key in keys)
            return {key: Estimate(*row) for key, row in rows if row is not None}

    def put(self, records: Iterable[Record], workloads: Iterable[Workload] = ()) -> None:
        """Write records, which replace earlier records with the same keys.

        If the method fails, no record is written.

        Parameters
        ----------
        workloads: the workloads that the records refer to, unless the database has them already.
        """
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO workload VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (w.hash, w.name, _json(w.arguments), w.flops, w.nbytes, w.parallel_extent)
                    for w in workloads
                ],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO record VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        r.key,
                        r.latency_us,
                        r.samples,
                        r.measured_at,
                        None if r.groups is None else _json(r.groups),
                        None if r.setting is None else _setting_id(connection, r.setting),
                        r.spread_us,
                    )
                    for r in records
                ],
            )

    def keep(self, records: Iterable[Record], workloads: Iterable[Workload] = ()) -> None:
        """Write records like `put`. If the file cannot be written to, go on in memory.

        For example, the disk may be full. A compilation needs its latencies in any case, so the
        contents of the file are copied to memory, and a warning is logged. From then on, nothing is
        written to the file.

        Raises
        ------
        TVMInteropError
            The file cannot be read, or a record is invalid.
        """
        records, workloads = list(records), list(workloads)
        try:
            self.put(records, workloads)
        except TVMInteropError as error:
            if self.path == ":memory:" or not isinstance(error.__cause__, sqlite3.OperationalError):
                raise
            _LOG.warning("%s; this process keeps its latencies in memory from now on", error)
            self._move_to_memory()
            self.put(records, workloads)

    def _move_to_memory(self) -> None:
        with self._explained():
            memory = sqlite3.connect(":memory:", isolation_level=None)
            self._connection.backup(memory)
            self._connection.close()
        self._connection, self.path = memory, ":memory:"

    def records(self, device: str | None = None) -> list[Record]:
        """All records in the order of their keys; with `device`, only records of that device."""
        where, values = ("", []) if device is None else (" WHERE device = ?", [device])
        with self._explained():
            rows = self._connection.execute(f"{_SELECT_RECORDS}{where} ORDER BY key", values)
            return [_read_record(row) for row in rows]

    def workloads(self) -> dict[str, Workload]:
        """All workloads by hash, in the order of their hashes."""
        with self._explained():
            rows = self._connection.execute(
                "SELECT hash, name, arguments, flops, nbytes, parallel_extent FROM workload "
                "ORDER BY hash"
            )
            return {row[0]: _read_workload(row) for row in rows}

    def counts(self) -> list[tuple[Setting | None, int, str, str, float | None]]:
        """For each setting: number of records, times of first and last record, and mean spread.

        The spread of a record is the interquartile range of a stage's runs, divided by the latency.
        The mean is None if no record has a spread.
        """
        with self._explained():
            rows = self._connection.execute(
                "SELECT device, driver, cores, tvm_version, streams, threads, count(*), "
                "min(measured_at), max(measured_at), avg(spread_us / latency_us) FROM record "
                "LEFT JOIN setting ON setting.id = record.setting "
                "GROUP BY setting.id ORDER BY device, tvm_version, streams, threads"
            )
            return [
                (
                    None if row[0] is None else msgspec.convert(_fields(Setting, row[:6]), Setting),
                    *row[6:],
                )
                for row in rows
            ]

    def delete(self, keys: Iterable[str]) -> int:
        """Remove records, and return how many there were.

        Settings and workloads to which no record refers any more are removed too, and the file
        shrinks.
        """
        with self._transaction() as connection:
            removed = sum(
                connection.execute("DELETE FROM record WHERE key = ?", (key,)).rowcount
                for key in keys
            )
            connection.execute(
                "DELETE FROM setting WHERE id NOT IN "
                "(SELECT setting FROM record WHERE setting IS NOT NULL)"
            )
            connection.execute(
                "DELETE FROM workload WHERE hash NOT IN (SELECT ran.value FROM record, "
                "json_each(record.groups) AS on_stream, json_each(on_stream.value) AS ran)"
            )
        with self._explained():
            self._connection.execute("VACUUM")
        return removed

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.ProgrammingError):
            self._connection.close()

    def _prepare(self) -> None:
        """Check that the file is a latency database, and make or upgrade its tables."""
        if self.path != ":memory:":
            self._check_origin()
            self._write_ahead()
        with self._transaction() as connection:
            # Check the layout again inside the transaction, where no other process can write:
            # another process may have made the tables meanwhile.
            layout = self._pragma("user_version")
            if layout == _LAYOUT:
                return
            if layout == 2:
                connection.execute("ALTER TABLE record ADD COLUMN spread_us REAL")
            else:
                for table in _TABLES:
                    connection.execute(table)
            if layout == 1:
                connection.execute(
                    "INSERT INTO record SELECT key, latency_us, 0, '', NULL, NULL, NULL "
                    "FROM latency"
                )
                connection.execute("DROP TABLE latency")
            connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {_LAYOUT}")

    def _check_origin(self) -> None:
        # The queries run in one transaction, so that all their results describe the same state of
        # the file. Otherwise another process could make the tables between two queries.
        with self._transaction("DEFERRED"):
            occupied, is_old = self._has(), self._has("latency")
            origin, layout = self._pragma("application_id"), self._pragma("user_version")
        named = f"name another file in {_ENVIRONMENT}, or by `--latency-db`"
        if origin == _APPLICATION_ID or (origin == 0 and layout == 1 and is_old):
            if layout <= _LAYOUT:
                return
            raise TVMInteropError(
                f"`{self.path}` holds latencies in layout {layout}, but this tvm_interop reads "
                f"only layouts up to {_LAYOUT}; upgrade tvm_interop, or {named}"
            )
        if origin or layout or occupied:
            raise TVMInteropError(
                f"`{self.path}` is a database, but not a latency database; {named}"
            )

    def _write_ahead(self) -> None:
        """Turn on write-ahead logging, so that readers and a writer can use the file at once.

        Records are handed to the system, which writes them to the disk later. To wait for the disk
        would take milliseconds for each of the hundreds of measurements of a model. With the log,
        the file stays valid even if the machine loses power.

        If another process turns on write-ahead logging at the same time, SQLite reports an error
        and does not wait. So this method tries again.
        """
        give_up = time.monotonic() + _WAIT_S
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = NORMAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def _pragma(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _has(self, table: str = "%") -> bool:
        find = "SELECT 1 FROM sqlite_master WHERE name LIKE ? LIMIT 1"
        return self._connection.execute(find, (table,)).fetchone() is not None

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Run the `with` block as a transaction, which makes either all changes or none.

        A transaction of kind IMMEDIATE begins only when no other process is writing. A transaction
        of kind DEFERRED, which is for reading, sees one state of the file throughout.
        """
        with self._explained():
            self._connection.execute(f"BEGIN {kind}")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # After some errors, such as a full disk, SQLite itself has ended the transaction.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Replace each error of SQLite by an error that tells the user what to do."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise TVMInteropError(
                f"the latency database `{self.path}` cannot be used now: {error}; check whether "
                "another program uses the file, its permissions, and the free space on its disk, "
                "or name another file in "
                f"{_ENVIRONMENT}"
            ) from error
        except sqlite3.DatabaseError as error:
            raise TVMInteropError(
                f"`{self.path}` cannot be used as a latency database ({error}): it is damaged, or "
                f"another kind of file; remove it, or name another file in {_ENVIRONMENT}"
            ) from error


def _setting_id(connection: sqlite3.Connection, setting: Setting) -> int:
    values = msgspec.structs.astuple(setting)
    connection.execute(
        "INSERT OR IGNORE INTO setting (device, driver, cores, tvm_version, streams, threads) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        values,
    )
    found = connection.execute(
        "SELECT id FROM setting WHERE device = ? AND driver = ? AND cores = ? "
        "AND tvm_version = ? AND streams = ? AND threads = ?",
        values,
    ).fetchone()
    return int(found[0])


def _read_record(row: tuple[object, ...]) -> Record:
    key, latency_us, samples, measured_at, groups, spread_us, *setting = row
    fields = {
        "key": key,
        "latency_us": latency_us,
        "samples": samples,
        "measured_at": measured_at,
        "spread_us": spread_us,
        "groups": None if groups is None else msgspec.json.decode(str(groups)),
        "setting": None
        if setting[0] is None
        else dict(zip(Setting.__struct_fields__, setting, strict=True)),
    }
    return msgspec.convert(fields, Record)


def _read_workload(row: tuple[object, ...]) -> Workload:
    fields = _fields(Workload, row)
    fields["arguments"] = msgspec.json.decode(str(fields["arguments"]))
    return msgspec.convert(fields, Workload)


def _fields(struct: type[msgspec.Struct], values: Iterable[object]) -> dict[str, object]:
    return dict(zip(struct.__struct_fields__, values, strict=True))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
