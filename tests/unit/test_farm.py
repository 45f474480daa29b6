"""Tests measuring on servers of TVM's RPC: a tracker and two servers on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.nets import inception_like
from tests.rpc import KEY, Farm, free_port, kill, need_rpc, running_farm
from tvm_interop import DeviceError, InputError
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.execution import rpc_server
from tvm_interop.execution.rpc_deadline import answer_within
from tvm_interop.execution.rpc_server import ServerAddress
from tvm_interop.latency.measurement import Setting
from tvm_interop.measure import farm_timer as farm_module
from tvm_interop.measure.farm_timer import FarmStageTimer, farm_timer
from tvm_interop.measure.measured import MeasuredLatency, Progress
from tvm_interop.measure.stage_timer import Job
from tvm_interop.measure.store import LatencyStore


@pytest.fixture
def farm() -> Iterator[Farm]:
    yield from running_farm(servers=2)


def compilation(path: Path | str = ":memory:", progress: Progress | None = None) -> Compilation:
    options = CompileOptions(streams=2, latency_db=path, providers=("tvm",), progress=progress)
    return Compilation(inception_like(), options)


@pytest.mark.slow
def test_two_servers_measure_and_one_is_killed(farm: Farm, tmp_path: Path) -> None:
    farm.wait_for(2)
    to_kill: list[subprocess.Popen[bytes]] = []

    def progress(done: int, _total: int) -> None:
        if done and to_kill:
            kill(to_kill.pop())

    compiled = compilation(tmp_path / "latency.db", progress)
    latency = compiled.farm_latency(farm.address)
    assert num_servers(latency) == 2
    n = compiled.graph.num_ops
    stages = [[[i], [j]] for i in range(n) for j in range(i)]
    op_us = [latency.op(i) for i in range(n)]
    assert all(us >= 0 for us in op_us)
    assert max(op_us) > 0
    to_kill.append(farm.servers[0])
    prices = latency.stages(stages)
    assert num_servers(latency) == 1
    assert np.isfinite(prices).all()
    store = LatencyStore(tmp_path / "latency.db")
    records = [r for r in store.records() if r.setting and r.setting.device == f"rpc:{KEY}"]
    assert {r.key for r in records} == set(latency.keys([*stages, *([[i]] for i in range(n))]))
    assert latency.measured == len(records), "each stage must be measured once, and stored"
    here = compiled.measured_latency
    assert not set(here.keys(stages)) & {r.key for r in records}, "each device has its own keys"
    latency.close()
    farm.wait_for(1)


@pytest.mark.slow
def test_tune_on_the_farm(farm: Farm, tmp_path: Path) -> None:
    import onnx

    pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")
    farm.wait_for(2)
    onnx.save(inception_like(), tmp_path / "net.onnx")
    assert run_app([
        "tune", str(tmp_path / "net.onnx"), "-o", str(tmp_path / "schedule.json"),
        "--streams", "2", "--providers", "tvm", "--latency-db", str(tmp_path / "latency.db"),
        "--max-measurements", "30", "--rpc-key", KEY,
        "--rpc-tracker", farm.tracker_at,
    ]) == 0  # fmt: skip
    assert (tmp_path / "schedule.json").exists()
    settings = [r.setting for r in LatencyStore(tmp_path / "latency.db").records()]
    assert {s.device for s in settings if s is not None} == {f"rpc:{KEY}"}
    farm.wait_for(2)


@pytest.mark.slow
def test_the_last_server_fails(farm: Farm) -> None:
    farm.wait_for(2)
    latency = compilation().farm_latency(farm.address)
    latency.op(0)
    for server in farm.servers:
        kill(server)
    with pytest.raises(DeviceError, match="the last server failed"):
        latency.stages([[[0], [1]]])


@pytest.mark.slow
def test_a_server_that_hangs_is_given_up(farm: Farm) -> None:
    farm.wait_for(2)
    compiled = compilation()
    latency = compiled.farm_latency(farm.address, answer_s=20.0)
    latency.op(0)
    os.killpg(farm.servers[0].pid, signal.SIGSTOP)
    n = compiled.graph.num_ops
    prices = latency.stages([[[i], [j]] for i in range(n) for j in range(i)])
    assert np.isfinite(prices).all()
    assert num_servers(latency) == 1
    os.killpg(farm.servers[1].pid, signal.SIGSTOP)
    with pytest.raises(DeviceError, match="the last server has not answered for 20 s"):
        latency.stages([[[0, 1, 2]]])
    latency.close()


@pytest.mark.slow
def test_hanging_servers_and_trackers_are_not_waited_for(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rpc_server, "_REQUEST_S", 10.0)
    farm.wait_for(2)
    os.killpg(farm.servers[0].pid, signal.SIGSTOP)
    latency = compilation().farm_latency(farm.address)
    assert num_servers(latency) == 1
    latency.close()
    os.killpg(farm.tracker.pid, signal.SIGSTOP)
    with pytest.raises(DeviceError, match=r"the tracker at .* has not answered for 10 s"):
        compilation().farm_latency(farm.address)


class Served:
    """Stands for a program on a server. Each run takes one microsecond. If `hangs` is given, the
    server answers only after this event."""

    def __init__(self, hangs: threading.Event | None = None) -> None:
        self.hangs = hangs

    def measure(self, stages: list[object], warmup: int, repeats: int) -> np.ndarray:
        if self.hangs is not None:
            self.hangs.wait(60)
        return np.full((len(stages), repeats), 1e-6)


def timer_of(monkeypatch: pytest.MonkeyPatch, *served: Served) -> FarmStageTimer:
    monkeypatch.setattr(farm_module, "_LOOK_S", 0.02)
    setting = Setting(device="rpc:k", driver="", cores=2, tvm_version="", streams=1, threads=1)
    return FarmStageTimer(served, setting, answer_s=0.2)  # type: ignore[arg-type]


def job(op: int) -> Job[tuple[int, float]]:
    """A job that runs operator `op` once. Its result is `op` and the seconds that the run took."""
    return lambda rounds: (op, rounds([[[op]]])([0], 1)[0][0])


def num_servers(latency: MeasuredLatency) -> int:
    assert isinstance(latency.timer, FarmStageTimer)
    return latency.timer.num_servers


def test_the_job_of_a_hanging_server_is_measured_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    late = threading.Event()
    timer = timer_of(monkeypatch, Served(late), Served())
    found: dict[int, float] = {}
    for op, seconds in timer.do([job(op) for op in range(5)]):
        assert op not in found, "a job was done twice"
        found[op] = seconds
        late.set() if timer.num_servers == 1 else None  # Let the hanging server answer.
    assert found == dict.fromkeys(range(5), 1e-6)
    assert timer.num_servers == 1
    assert "has not answered for 0.2 s" in caplog.text


def test_when_all_servers_hang_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    never = threading.Event()
    timer = timer_of(monkeypatch, Served(never), Served(never))
    with pytest.raises(DeviceError, match="the last server has not answered"):
        list(timer.do([job(op) for op in range(5)]))
    with pytest.raises(DeviceError, match="no server is left"):
        list(timer.do([job(0)]))
    never.set()


def test_answers_that_are_no_times_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Served()
    wrong.measure = lambda stages, warmup, repeats: np.full((len(stages), repeats), np.nan)  # type: ignore[method-assign]
    with pytest.raises(
        DeviceError, match=r"the last server failed: .* latencies that are negative or not finite"
    ):
        list(timer_of(monkeypatch, wrong).do([job(0)]))


def test_calls_end() -> None:
    assert answer_within(60, "it", lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        answer_within(60, "it", lambda: 1 // 0)
    never = threading.Event()
    with pytest.raises(DeviceError, match=r"it has not answered for 0\.1 s"):
        answer_within(0.1, "it", lambda: never.wait(60))
    never.set()


def test_no_tracker() -> None:
    need_rpc()
    address = ServerAddress("127.0.0.1", free_port(), KEY)
    with pytest.raises(DeviceError, match=r"no tracker answers at 127\.0\.0\.1.*rpc_tracker"):
        compilation().farm_latency(address)


@pytest.mark.parametrize(("tracker", "key"), [("nowhere", "k"), ("host:", "k"), ("host:1", "")])
def test_addresses_of_no_use(tracker: str, key: str) -> None:
    with pytest.raises(InputError, match="give"):
        ServerAddress.parse(tracker, key)


def test_tracker_and_key_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["tune", "squeezenet", "--rpc-tracker", "host:9190"]) == 2
    assert "--rpc-key" in capsys.readouterr().err


def test_kernels_of_libraries_stay_here() -> None:
    compiled = compilation()
    compiled.program.operators[0] = replace(compiled.program.operators[0], library="onednn")
    with pytest.raises(InputError, match="--providers tvm"):
        farm_timer(
            ServerAddress("127.0.0.1", 1, KEY), compiled.program, compiled.kernels, streams=2
        )
