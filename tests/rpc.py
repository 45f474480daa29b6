"""Runs a tracker of TVM's RPC and servers with our runtime on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tvm_interop.execution.rpc_server import ServerAddress

KEY = "test-machine"
WAIT_S = 120.0


def library() -> str:
    """The path of the native library that this process has loaded."""
    with open("/proc/self/maps") as file:
        return next(line.split()[-1] for line in file if "libtvm_interop.so" in line)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def start(*arguments: str, port: int) -> subprocess.Popen[bytes]:
    """Start a program of TVM in its own process group, so that its children end with it."""
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
    """A tracker and servers. Tests may kill the servers."""

    def __init__(self, servers: int) -> None:
        port = free_port()
        self.address = ServerAddress("127.0.0.1", port, KEY)
        self.tracker = start("tvm.exec.rpc_tracker", port=port)
        self._wait_until_it_listens()
        self.servers = [self.start_server() for _ in range(servers)]

    def start_server(self, key: str = KEY, runtime: bool = True) -> subprocess.Popen[bytes]:
        """Start one more server. `runtime` says whether it loads our runtime."""
        loads = ("--load-library", library()) if runtime else ()
        return start(
            "tvm.exec.rpc_server", "--tracker", self.tracker_at, "--key", key, *loads,
            port=free_port(),
        )  # fmt: skip

    @property
    def tracker_at(self) -> str:
        return f"{self.address.host}:{self.address.port}"

    def _wait_until_it_listens(self) -> None:
        """Wait until the tracker listens. A server or client that connects earlier would wait 5
        s."""
        end = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection((self.address.host, self.address.port)).close()
                return
            except OSError:
                assert time.monotonic() < end, "the tracker did not start"
                time.sleep(0.1)

    def wait_for(self, count: int, key: str = KEY) -> None:
        """Wait until `count` servers with the key `key` are free."""
        from tvm import rpc

        tracker = rpc.connect_tracker(self.address.host, self.address.port)
        end = time.monotonic() + WAIT_S
        while (queues := tracker.summary()["queue_info"]).get(key, {}).get("free", 0) != count:
            assert time.monotonic() < end, f"{count} free servers were expected, not {queues}"
            time.sleep(0.2)

    def close(self) -> None:
        for process in (*self.servers, self.tracker):
            kill(process)


def running_farm(servers: int) -> Iterator[Farm]:
    """Yield a tracker and `servers` servers, which end with the context."""
    need_rpc()
    running = Farm(servers=servers)
    try:
        yield running
    finally:
        running.close()


def need_rpc() -> None:
    """Skip the test if a package that TVM's RPC needs is missing."""
    for package in ("tornado", "psutil", "cloudpickle"):
        pytest.importorskip(package, reason=f"{package} is not installed (extra `farm`)")
