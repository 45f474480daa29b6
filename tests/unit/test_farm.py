"""Stages measured by TVM's own RPC servers: a tracker and two servers on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.nets import inception_like
from tvm_interop import DeviceError, InputError
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import Compilation, CompileOptions
from tvm_interop.latency.farm import FarmAddress, FarmLatency
from tvm_interop.latency.measured import Progress
from tvm_interop.latency.store import LatencyStore

KEY = "test-machine"
WAIT_S = 120.0


def library() -> str:
    """The native library that this process has loaded."""
    with open("/proc/self/maps") as file:
        return next(line.split()[-1] for line in file if "libtvm_interop.so" in line)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def start(*arguments: str, port: int) -> subprocess.Popen[bytes]:
    """One of TVM's programs, in a group of its own so that its children can be killed with it."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments, "--host", "127.0.0.1",
         "--port", str(port), "--port-end", str(port + 1)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip


def kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


class Farm:
    """A tracker, and servers that may be killed."""

    def __init__(self) -> None:
        port = free_port()
        self.address = FarmAddress("127.0.0.1", port, KEY)
        self.tracker = start("tvm.exec.rpc_tracker", port=port)
        self._wait_until_it_listens()
        self.servers = [self.start_server() for _ in range(2)]

    def start_server(self) -> subprocess.Popen[bytes]:
        tracker = f"{self.address.host}:{self.address.port}"
        return start(
            "tvm.exec.rpc_server", "--tracker", tracker, "--key", KEY,
            "--load-library", library(), port=free_port(),
        )  # fmt: skip

    def _wait_until_it_listens(self) -> None:
        """Both sides of TVM wait five seconds where the tracker is late."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection((self.address.host, self.address.port)).close()
                return
            except OSError:
                assert time.monotonic() < end, "the tracker did not start"
                time.sleep(0.1)

    def wait_for(self, count: int) -> None:
        from tvm import rpc

        tracker = rpc.connect_tracker(self.address.host, self.address.port)
        end = time.monotonic() + WAIT_S
        while (queues := tracker.summary()["queue_info"]).get(KEY, {}).get("free", 0) != count:
            assert time.monotonic() < end, f"{count} servers were waited for, there are {queues}"
            time.sleep(0.2)

    def close(self) -> None:
        for process in (*self.servers, self.tracker):
            kill(process)


@pytest.fixture
def farm() -> Iterator[Farm]:
    for package in ("tornado", "psutil", "cloudpickle"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra `farm`)")
    running = Farm()
    try:
        yield running
    finally:
        running.close()


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
    assert latency.num_servers == 2
    n = compiled.graph.num_ops
    stages = [[[i], [j]] for i in range(n) for j in range(i)]
    op_us = [latency.op(i) for i in range(n)]
    assert all(us >= 0 for us in op_us)
    assert max(op_us) > 0
    to_kill.append(farm.servers[0])
    prices = latency.stages(stages)
    assert latency.num_servers == 1
    assert np.isfinite(prices).all()
    store = LatencyStore(tmp_path / "latency.db")
    records = [r for r in store.records() if r.setting and r.setting.device == f"rpc:{KEY}"]
    assert {r.key for r in records} == set(latency.keys([*stages, *([[i]] for i in range(n))]))
    assert latency.measured == len(records), "each was measured once, and kept"
    here = compiled.measured_latency
    assert not set(here.keys(stages)) & {r.key for r in records}, "another device's are others"
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
        "--rpc-tracker", f"{farm.address.host}:{farm.address.port}",
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


def test_no_tracker() -> None:
    for package in ("tornado", "psutil", "cloudpickle"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra `farm`)")
    address = FarmAddress("127.0.0.1", free_port(), KEY)
    with pytest.raises(DeviceError, match=r"no tracker answers at 127\.0\.0\.1.*rpc_tracker"):
        compilation().farm_latency(address)


@pytest.mark.parametrize(("tracker", "key"), [("nowhere", "k"), ("host:", "k"), ("host:1", "")])
def test_addresses_of_no_use(tracker: str, key: str) -> None:
    with pytest.raises(InputError, match="give"):
        FarmAddress.parse(tracker, key)


def test_tracker_and_key_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["tune", "squeezenet", "--rpc-tracker", "host:9190"]) == 2
    assert "--rpc-key" in capsys.readouterr().err


def test_kernels_of_libraries_stay_here() -> None:
    compiled = compilation()
    compiled.program.operators[0] = replace(compiled.program.operators[0], library="onednn")
    hashes = compiled._kernel_hashes
    with pytest.raises(InputError, match="--providers tvm"):
        FarmLatency(
            FarmAddress("127.0.0.1", 1, KEY), compiled.program, compiled.loaded_kernels,
            compiled.kernels, hashes, streams=2,
        )  # fmt: skip
