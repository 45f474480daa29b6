"""Tests the file of measured latencies: several processes, damage, old versions and export."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tvm_interop import TVMInteropError
from tvm_interop.cli.app import run_app
from tvm_interop.latency.estimate import Estimate
from tvm_interop.latency.measurement import Record, Setting, Workload, stage_key, utc
from tvm_interop.machine.cpu_name import cpu_model
from tvm_interop.measure.exchange import export_lines, import_lines
from tvm_interop.measure.store import LatencyStore

SETTING = Setting(
    device=cpu_model(), driver="", cores=2, tvm_version="0.27.0", streams=2, threads=1
)
CONV = Workload(
    hash="c0",
    name="conv",
    arguments=(("float32", (1, 3, 8, 8)), ("float32", (1, 4, 8, 8))),
    flops=1000,
    nbytes=1792,
    parallel_extent=256,
)
_NORMAL = 1
"""SQLite's number of the setting in which only a checkpoint of the log waits for the disk."""
POOL = Workload(hash="p0", name="pool", arguments=(), flops=0, nbytes=64, parallel_extent=16)


def record(key: str, us: float = 1.0, measured_at: str = "2026-01-01T00:00:00Z") -> Record:
    return Record(
        key=key,
        latency_us=us,
        samples=9,
        measured_at=measured_at,
        groups=(("c0", "p0"), ("c0",)),
        setting=SETTING,
    )


def test_keeps_and_replaces() -> None:
    store = LatencyStore(":memory:")
    store.put([record("a", 1.0), record("b", 2.0)], [CONV, POOL])
    store.put([record("b", 3.0)], [CONV])
    assert store.get(["a", "b", "c"]) == {"a": 1.0, "b": 3.0}
    assert store.records() == [record("a", 1.0), record("b", 3.0)]
    assert store.records("another device") == []
    assert store.workloads() == {"c0": CONV, "p0": POOL}


def test_a_measurement_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    store = LatencyStore(tmp_path / "latency.db")
    assert store._pragma("synchronous") == _NORMAL
    (mode,) = store._connection.execute("PRAGMA journal_mode").fetchone()
    assert mode == "wal"  # Only with the log does the file stay valid if the power fails.


def test_all_or_nothing() -> None:
    store = LatencyStore(":memory:")
    with pytest.raises(TVMInteropError, match="NOT NULL"):
        store.put([record("a"), Record(key="b", latency_us=None, samples=1, measured_at="")])  # type: ignore[arg-type]
    assert store.records() == []


def on_a_full_disk(path: Path) -> LatencyStore:
    """A store with the record `a`, whose file cannot grow any more."""
    store = LatencyStore(path)
    store.put([record("a", 1.0)], [CONV, POOL])
    store._connection.execute("PRAGMA max_page_count = 1")  # At least the pages that there are.
    return store


MANY = [record(f"{i}" * 500) for i in range(300)]


def test_a_full_disk_is_named_and_the_file_stays_free_for_others(tmp_path: Path) -> None:
    store = on_a_full_disk(tmp_path / "latency.db")
    with pytest.raises(TVMInteropError, match=r"disk is full; check .* the free space"):
        store.put(MANY)
    LatencyStore(tmp_path / "latency.db").put([record("b", 2.0)])
    assert store.get(["a", "b", MANY[0].key]) == {"a": 1.0, "b": 2.0}


def test_a_compilation_goes_on_in_memory_where_the_disk_is_full(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = on_a_full_disk(tmp_path / "latency.db")
    store.keep(MANY)
    store.keep([record("c", 3.0)])
    assert caplog.text.count("latencies in memory from now on") == 1
    assert "disk is full" in caplog.text
    assert store.get(["a", "c"]) == {"a": 1.0, "c": 3.0}
    assert len(store.records()) == len(MANY) + 2
    assert len(LatencyStore(tmp_path / "latency.db").records()) == 1
    with pytest.raises(TVMInteropError, match="NOT NULL"):
        store.keep([Record(key="d", latency_us=None, samples=1, measured_at="")])  # type: ignore[arg-type]


def test_delete_takes_along_what_nothing_refers_to() -> None:
    store = LatencyStore(":memory:")
    lone = Record(
        key="lone", latency_us=1, samples=9, measured_at="", groups=(("c0",),), setting=SETTING
    )
    store.put([record("a"), lone], [CONV, POOL])
    assert store.delete(["a", "not there"]) == 1
    assert list(store.workloads()) == ["c0"]
    assert store.records() == [lone]


def test_how_far_runs_differ_is_told() -> None:
    store = LatencyStore(":memory:")
    spreads = [None, 0.1, 0.3]
    records = [
        msgspec.structs.replace(record(str(i), 2.0), spread_us=s) for i, s in enumerate(spreads)
    ]
    store.put([*records, msgspec.structs.replace(record("0 us", 0.0), spread_us=0.2)], [CONV, POOL])
    ((setting, count, *_, spread),) = store.counts()
    assert (setting, count) == (SETTING, 4)
    assert spread == pytest.approx(0.1), "a stage with a latency of 0 has no relative spread"


# The next tests are about files that are damaged or have another format.


def test_an_older_layout_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE latency (key TEXT PRIMARY KEY, latency_us REAL NOT NULL)")
        connection.execute("INSERT INTO latency VALUES ('a', 4.5)")
        connection.execute("PRAGMA user_version = 1")
    store = LatencyStore(path)
    assert store.get(["a"]) == {"a": 4.5}
    assert store.records() == [Record(key="a", latency_us=4.5, samples=0, measured_at="")]
    store.put([record("b")], [CONV, POOL])
    assert LatencyStore(path).get(["a", "b"]) == {"a": 4.5, "b": 1.0}


def test_the_layout_without_spreads_is_renewed(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    LatencyStore(path).put([record("a")], [CONV, POOL])
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE record DROP COLUMN spread_us")
        connection.execute("PRAGMA user_version = 2")
    store = LatencyStore(path)
    assert store.records() == [record("a")]
    assert store.estimates(["a"]) == {"a": Estimate(1.0, None, 9)}
    spread = msgspec.structs.replace(record("b"), spread_us=0.5)
    store.put([spread])
    assert LatencyStore(path).records() == [record("a"), spread]


def test_lines_without_spreads_are_read(tmp_path: Path) -> None:
    store, other = LatencyStore(":memory:"), LatencyStore(":memory:")
    store.put([record("a")], [CONV, POOL])
    head, *lines = export_lines(store)
    assert json.loads(head)["version"] == 2
    older = [json.loads(line) for line in (head, *lines)]
    older[0]["version"] = 1
    del older[-1]["record"]["spread_us"]
    assert import_lines(other, map(json.dumps, older), "lines") == (1, 1)
    assert other.records() == [record("a")]


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    LatencyStore(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(TVMInteropError, match=r"latency\.db.*layout 99.*upgrade"):
        LatencyStore(path)


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "latency.db"
    text.write_bytes(b"this is not a database at all, and long enough to be looked at" * 20)
    with pytest.raises(TVMInteropError, match=r"latency\.db.*remove it"):
        LatencyStore(text)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE photographs (name TEXT)")
    with pytest.raises(TVMInteropError, match=r"other\.db.*not a latency database"):
        LatencyStore(other)
    with sqlite3.connect(other) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (1,)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    store = LatencyStore(path)
    store.put([record(f"{i:05}") for i in range(2000)], [CONV, POOL])
    store.close()
    content = bytearray(path.read_bytes())
    content[8192:] = os.urandom(len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(TVMInteropError, match=r"latency\.db.*damaged.*remove it"):
        LatencyStore(path).records()


# Several processes.


def write_many(path: str, who: int, ready: multiprocessing.synchronize.Barrier) -> None:
    ready.wait()  # All processes open the new file at the same time, which may be a race.
    store = LatencyStore(path)
    for i in range(100):
        store.put([record(f"{who}:{i}", float(i))], [CONV, POOL])


def test_several_processes_write(tmp_path: Path) -> None:
    path = str(tmp_path / "latency.db")
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(3)
    writers = [context.Process(target=write_many, args=(path, who, ready)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    keys = [f"{who}:{i}" for who in range(3) for i in range(100)]
    assert len(LatencyStore(path).get(keys)) == 300


def test_another_process_makes_the_tables_between_two_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "latency.db"
    with sqlite3.connect(path) as connection:
        # The other process has only set the mode of the database, and has made no table yet.
        connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    pragma = LatencyStore._pragma

    def ask_then_make_tables(store: LatencyStore, name: str) -> int:
        answer = pragma(store, name)
        monkeypatch.undo()
        LatencyStore(path).put([record("theirs")], [CONV, POOL])
        return answer

    monkeypatch.setattr(LatencyStore, "_pragma", ask_then_make_tables)
    store = LatencyStore(path)
    store.put([record("ours")], [CONV, POOL])
    assert store.get(["theirs", "ours"]) == {"theirs": 1.0, "ours": 1.0}


_WRITER = """
import sys
sys.path.insert(0, ".")
from tests.unit.test_latency_store import CONV, POOL, record
from tvm_interop.measure.store import LatencyStore
store = LatencyStore(sys.argv[1])
begin = len(store.records())
for i in range(begin, 10**6):
    store.put([record(f"{i:06}", float(i))], [CONV, POOL])
    print(i, flush=True)
"""


def test_killed_twice_nothing_committed_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    reported = -1
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as writer:
            assert writer.stdout is not None
            first = int(writer.stdout.readline())
            assert first > reported, "the new writer must continue after the killed one"
            for line in writer.stdout:
                reported = int(line)
                if reported == first + 50:
                    writer.send_signal(signal.SIGKILL)
                    break
            said = [int(line) for line in writer.stdout.read().split()]
        assert writer.returncode == -signal.SIGKILL
        reported = max([reported, *said])
        there = LatencyStore(path).records()
        assert [r.key for r in there] == [f"{i:06}" for i in range(len(there))]
        assert all(r == record(r.key, float(r.key)) for r in there)
        assert len(there) in (reported + 1, reported + 2), "written, perhaps not yet reported"


# Export and import.


def test_export_and_import() -> None:
    store, other = LatencyStore(":memory:"), LatencyStore(":memory:")
    bare = Record(key="old", latency_us=2.0, samples=0, measured_at="")
    store.put([record("a"), record("b", 5.0, "2026-05-05T00:00:00Z"), bare], [CONV, POOL])
    other.put([record("b", 7.0, "2026-06-06T00:00:00Z")], [CONV, POOL])
    assert import_lines(other, export_lines(store), "lines") == (1, 3)
    assert other.get(["a", "b"]) == {"a": 1.0, "b": 7.0}
    fresh = LatencyStore(":memory:")
    import_lines(fresh, (line for line in export_lines(other)), "lines")
    assert list(export_lines(fresh)) == list(export_lines(other))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "empty"),
        (["{}"], "line 1"),
        (['{"format": "tvm_interop.latencies", "version": 3}'], "line 1"),
        (["HEAD", '{"record": {"key": "a"}}'], "line 2"),
        (["HEAD", "{}"], "line 2.*either a workload or a record"),
        (["HEAD", "RECORD"], "line 2.*`c0`, which no earlier line describes"),
        (["HEAD", "no json"], "line 2"),
    ],
)
def test_lines_of_no_use(lines: list[str], says: str) -> None:
    good = LatencyStore(":memory:")
    good.put([record("a")], [CONV, POOL])
    head, *_, a_record = export_lines(good)
    lines = [{"HEAD": head, "RECORD": a_record}.get(line, line) for line in lines]
    store = LatencyStore(":memory:")
    with pytest.raises(TVMInteropError, match=says):
        import_lines(store, lines, "lines.jsonl")
    assert store.records() == []


# The command line.


def test_db_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other, lines = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "a.jsonl"
    elsewhere = Setting(
        device="abacus", driver="", cores=1, tvm_version="0.1", streams=1, threads=1
    )
    foreign = Record(
        key="f", latency_us=1, samples=9, measured_at=utc(), groups=(), setting=elsewhere
    )
    bare = Record(key="old", latency_us=2.0, samples=0, measured_at="")
    LatencyStore(path).put([record("a"), record("b", 2.0, utc()), foreign, bare], [CONV, POOL])

    def facts(*arguments: str) -> dict[str, object]:
        assert run_app(["db", *arguments, "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    db = ["--latency-db", str(path)]
    stats = facts("stats", *db)
    assert (stats["records"], stats["workloads"]) == (4, 2)
    assert len(stats["settings"]) == 3  # type: ignore[arg-type]
    assert run_app(["db", "stats", *db]) == 0
    assert "older layout" in capsys.readouterr().out
    assert facts("export", "-o", str(lines), *db)["lines"] == 6
    assert facts("import", str(lines), "--latency-db", str(other))["taken"] == 3
    assert facts("prune", "--other-devices", "--dry-run", *db)["removed"] == 1
    assert facts("prune", "--other-devices", *db) == {"removed": 1, "kept": 3, "dry_run": False}
    assert facts("prune", "--older-than", "2", *db)["removed"] == 1
    assert facts("prune", "--undescribed", *db)["removed"] == 1
    assert [r.key for r in LatencyStore(path).records()] == ["b"]


def test_db_commands_that_are_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.db"
    assert run_app(["db", "stats", "--latency-db", str(path)]) == 2
    assert "a.db" in capsys.readouterr().err
    assert not path.exists()
    LatencyStore(path).close()
    assert run_app(["db", "prune", "--latency-db", str(path)]) == 2
    assert "--older-than" in capsys.readouterr().err
    assert run_app(["db", "import", str(tmp_path / "no.jsonl"), "--latency-db", str(path)]) == 2
    assert "no.jsonl" in capsys.readouterr().err


def test_keys_are_those_of_older_databases() -> None:
    """If the keys of the database changed, users would have to measure all latencies again."""
    cpu = Setting(
        device="a CPU avx2", driver="", cores=6, tvm_version="0.25.0", streams=2, threads=3
    )
    gpu = msgspec.structs.replace(cpu, device="a GPU sm_90", cores=0, threads=1)
    stage = [["b", "a"], ["a"]]
    on_cpu = "0a92b9f91e38e14fbe0712b013e605908399bd5ca664f7047d4f9fce252d62ac"
    on_gpu = "6db31b72e3842c2239d1214890a336a30a698648b86c2c60327ce97704a979ca"
    assert stage_key(cpu, True, stage) == stage_key(cpu, True, stage[::-1]) == on_cpu
    assert stage_key(gpu, False, stage) == on_gpu
    others = [
        stage_key(cpu, False, stage),
        stage_key(msgspec.structs.replace(cpu, threads=2), True, stage),
        stage_key(msgspec.structs.replace(cpu, streams=3), True, stage),
        stage_key(msgspec.structs.replace(cpu, device="another"), True, stage),
        stage_key(msgspec.structs.replace(cpu, tvm_version="0.26.0"), True, stage),
        stage_key(cpu, True, [["a", "b"], ["a"]]),
    ]
    assert len({on_cpu, *others}) == 1 + len(others)
