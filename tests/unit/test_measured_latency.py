"""Measured stage latencies, and the file that keeps them."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from tests.nets import inception_like
from tvm_interop import TVMInteropError
from tvm_interop.compiler import Compilation, CompileOptions
from tvm_interop.latency import measured
from tvm_interop.latency.measured import MeasuredLatency
from tvm_interop.latency.store import LatencyStore


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return Compilation(inception_like(), CompileOptions(streams=2, latency_db=":memory:"))


def latency(compilation: Compilation, store: LatencyStore | None = None) -> MeasuredLatency:
    from tvm_interop.kernels import kernel_hashes

    return MeasuredLatency(
        compilation.program,
        compilation.loaded_kernels,
        kernel_hashes(compilation.program.kernels),
        streams=2,
        store=store,
    )


def heaviest(compilation: Compilation) -> tuple[int, int]:
    """Two of the slowest operators that differ."""
    model = compilation.measured_latency
    order = sorted(range(compilation.graph.num_ops), key=model.op, reverse=True)
    kernels = [compilation.program.operators[i].kernel for i in order]
    second = next(i for i, kernel in enumerate(kernels) if kernel != kernels[0])
    return order[0], order[second]


def test_latencies_are_plausible(compilation: Compilation) -> None:
    model = compilation.measured_latency
    a, b = heaviest(compilation)
    one_after_the_other = model.stage([[a, b]])
    assert model.op(a) > 0
    # Wide bounds: this asks for the right quantity and unit, not for speed.
    assert 0.3 < one_after_the_other / (model.op(a) + model.op(b)) < 3


def test_equal_kernels_share_a_measurement(compilation: Compilation) -> None:
    by_kernel: dict[str, list[int]] = {}
    for i, op in enumerate(compilation.program.operators):
        by_kernel.setdefault(op.kernel, []).append(i)
    twins = next(ops for ops in by_kernel.values() if len(ops) > 1)
    model = latency(compilation)
    assert model.stage([[twins[0]]]) == model.stage([[twins[1]]])
    assert model.measured == 1


def test_more_groups_than_streams_are_packed(compilation: Compilation) -> None:
    model = latency(compilation)
    a, b = heaviest(compilation)
    assert model.stage([[a], [b], [a], [b]]) > 0
    # Packed, it is the two heavier ones apart and the two lighter ones apart.
    assert model.stage([[a, b], [a, b]]) == model.stage([[a], [b], [a], [b]])


def test_a_second_run_measures_nothing(compilation: Compilation, tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    first = latency(compilation, LatencyStore(path))
    a, b = heaviest(compilation)
    stages = [[[a]], [[b]], [[a], [b]], [[a, b]]]
    prices = first.stages(stages)
    assert first.measured == len(stages)
    second = latency(compilation, LatencyStore(path))
    np.testing.assert_array_equal(second.stages(stages), prices)
    assert second.measured == 0


def test_other_settings_are_other_latencies(compilation: Compilation, tmp_path: Path) -> None:
    from tvm_interop.kernels import kernel_hashes

    store = LatencyStore(tmp_path / "latency.db")
    latency(compilation, store).stage([[0]])
    other = MeasuredLatency(
        compilation.program,
        compilation.loaded_kernels,
        kernel_hashes(compilation.program.kernels),
        streams=1,
        store=store,
    )
    other.stage([[0]])
    assert other.measured == 1


def test_progress_is_told(compilation: Compilation) -> None:
    seen: list[tuple[int, int]] = []
    model = latency(compilation)
    model._progress = lambda done, total: seen.append((done, total))
    model.stages([[[i]] for i in range(3)])
    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1] > 0


def test_an_interrupted_search_keeps_what_it_measured(
    compilation: Compilation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_CHUNK", 4)
    path = tmp_path / "latency.db"
    model = latency(compilation, LatencyStore(path))
    n = compilation.graph.num_ops
    stages = [[[i], [j]] for i in range(n) for j in range(i)][:60]

    def interrupt(done: int, total: int) -> None:
        if 0 < done < total:
            raise KeyboardInterrupt

    model._progress = interrupt
    with pytest.raises(KeyboardInterrupt):
        model.stages(stages)
    assert model.measured > 0
    resumed = latency(compilation, LatencyStore(path))
    resumed.stages(stages)
    fresh = latency(compilation)
    fresh.stages(stages)
    assert resumed.measured == fresh.measured - model.measured


def test_store_keeps_and_replaces() -> None:
    store = LatencyStore(":memory:")
    store.put([("a", 1.0), ("b", 2.0)])
    store.put([("b", 3.0)])
    assert store.get(["a", "b", "c"]) == {"a": 1.0, "b": 3.0}


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latency.db"
    path.write_bytes(b"this is no database at all, and long enough to be looked at" * 20)
    with pytest.raises(TVMInteropError, match=r"latency\.db.*remove it"):
        LatencyStore(path)
    newer = tmp_path / "newer.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=99")
    with pytest.raises(TVMInteropError, match="layout 99"):
        LatencyStore(newer)


def _write_many(path: str, who: int) -> None:
    store = LatencyStore(path)
    for i in range(200):
        store.put([(f"{who}:{i}", float(i))])


def test_several_processes_write(tmp_path: Path) -> None:
    path = str(tmp_path / "latency.db")
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, who)) for who in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    keys = [f"{who}:{i}" for who in range(3) for i in range(200)]
    assert len(LatencyStore(path).get(keys)) == 600
