"""Sends wrong and costly requests to a server, beside honest clients that check every answer.

    python -m tests.server_fuzz [--seconds 1800] [--seed 0]

Honest clients send correct requests. For a sixth of the time they run alone. Then four more clients
send mutated bytes, mutated messages, costly requests and halves of requests. Server and clients use
the address 127.0.0.1 only.

The exit code is 1 in these cases: an answer was wrong, or shows a defect of the server; the 99th
percentile of `/v2/health/live` was 100 ms or more; the server took over 128 MiB more memory than
with only the honest clients; or descriptors are left open at the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.utils import InferenceServerException

from tests import server_faults as faults
from tests.costly_requests import costly_http, costly_message
from tests.served import direct, heavy

_DEFECTS = frozenset({"500", "INTERNAL", "UNKNOWN"})
_PAUSE_S = 0.02
"""The pause between the requests of one client, in seconds.

The test looks for faults, so the server need not be under full load.
"""
_LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
_WORST_LIVE_S = 0.1
_MOST_GROWTH = 128 * 2**20
"""The most bytes that the server may take beyond its memory while only honest clients run.

The limit is a number of bytes and not a share of the server's memory. Most of that memory is for
imported modules, and the memory for requests does not depend on it.
"""


def mutated(data: bytes, draw: random.Random) -> bytes:
    """`data` with some bytes changed, left out, doubled or added."""
    changed = bytearray(data)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(changed) + 1)
        size = draw.choice([1, 1, 2, 8, 40])
        kind = draw.randrange(4)
        if kind == 0:
            changed[at : at + size] = draw.randbytes(size)
        elif kind == 1:
            del changed[at : at + size]
        elif kind == 2:
            changed[at:at] = changed[at : at + size] * draw.choice([1, 2, 50])
        else:
            changed[at:at] = draw.choice([b'"', b"[", b"}", b"\0", b"\xff", b"9" * 400, b"\r\n"])
    return bytes(changed)


def _wrong_http(ports: tuple[int, int], draw: random.Random) -> str:
    data = faults.malformed_http(draw)
    if draw.random() < 0.5:
        data = mutated(data, draw)
    return _status(faults.send(ports[0], data))


def _costly_http(ports: tuple[int, int], draw: random.Random) -> str:
    return _status(faults.send(ports[0], costly_http(draw), 10))


def _half_http(ports: tuple[int, int], draw: random.Random) -> str:
    """Send half of a request.

    After the half request, some clients disconnect, and some wait until the server does.
    """
    data = faults.heavy_request()
    with socket.create_connection(("127.0.0.1", ports[0]), 10) as connection:
        try:
            connection.sendall(data[: draw.randrange(len(data))])
            if draw.random() < 0.3:
                connection.settimeout(10)
                connection.recv(1)
        except OSError:
            pass
    return "half"


def _wrong_grpc(ports: tuple[int, int], draw: random.Random) -> str:
    data = costly_message(draw) if draw.random() < 0.3 else faults.malformed_message(draw)
    if data and draw.random() < 0.5:
        data = mutated(data, draw)
    with grpc.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        return faults.send_message(channel, data)


def _status(answer: bytes) -> str:
    return answer[9:12].decode() if answer.startswith(b"HTTP/1.1 ") else "closed"


_ATTACKS: tuple[Callable[[tuple[int, int], random.Random], str], ...] = (
    _wrong_http, _costly_http, _half_http, _wrong_grpc,
)  # fmt: skip


def attack(ports: tuple[int, int], seed: int, end: Event, told: Any) -> None:
    """Send wrong and costly requests until the end; then tell the count of each status."""
    counts: Counter[str] = Counter()

    def client(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        while not end.is_set():
            try:
                counts[_ATTACKS[number](ports, draw)] += 1
            except OSError as error:
                counts[type(error).__name__] += 1
            time.sleep(_PAUSE_S)

    _all(client, len(_ATTACKS))
    told.put(("attack", dict(sorted(counts.items()))))


def be_honest(ports: tuple[int, int], end: Event, told: Any) -> None:
    """Send correct requests until the end, and check each answer."""
    counts: Counter[str] = Counter()
    x = np.zeros((192, 192), np.float32)
    request, wanted = faults.heavy_request(), direct(heavy(), {"x": x})[0].tobytes()
    server = faults.Process(None, *ports, Path())  # type: ignore[arg-type]

    def client(number: int) -> None:
        while not end.is_set():
            try:
                if number:
                    answer = faults.send(ports[0], request, 10)
                    right = answer.startswith(b"HTTP/1.1 200") and answer.endswith(wanted)
                else:
                    faults.check_serves(server)
                    right = True
            except (
                AssertionError, ValueError, OSError, grpc.RpcError, InferenceServerException,
            ):  # fmt: skip
                right = False
            counts["right" if right else "wrong"] += 1
            time.sleep(_PAUSE_S)

    _all(client, 2)
    told.put(("honest", dict(counts)))


def _all(client: Callable[[int], None], count: int) -> None:
    threads = [threading.Thread(target=client, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def watch(server: faults.Process, seconds: float) -> tuple[list[float], float]:
    """Return the sorted times of `/v2/health/live` in seconds, and the largest memory in bytes."""
    took, memory = [], 0.0
    until = time.perf_counter() + seconds
    with socket.create_connection(("127.0.0.1", server.http_port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while time.perf_counter() < until:
            begin = time.perf_counter()
            connection.sendall(_LIVE)
            answer = connection.recv(4096)
            took.append(time.perf_counter() - begin)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            memory = max(memory, server.memory())
            time.sleep(0.01)
    return sorted(took), memory


def fuzz(server: faults.Process, seconds: float, seed: int) -> list[str]:
    """Run the fuzz test, print figures, and return what is wrong."""
    spawn = multiprocessing.get_context("spawn")
    told, end = spawn.Queue(), spawn.Event()
    ports = (server.http_port, server.grpc_port)
    faults.check_serves(server)
    time.sleep(3)
    descriptors = server.descriptors()
    honest = spawn.Process(target=be_honest, args=(ports, end, told))
    attackers = spawn.Process(target=attack, args=(ports, seed, end, told))
    try:
        honest.start()
        alone, honest_memory = watch(server, seconds / 6)
        attackers.start()
        beside, memory = watch(server, seconds * 5 / 6)
        end.set()
        counts = dict(told.get(timeout=120) for _ in range(2))
    finally:
        for process in (honest, attackers):
            if process.pid is not None:
                process.kill()
                process.join()
    faults.check_serves(server)
    left = faults.settled_descriptors(server, descriptors, 30)

    def p99(took: list[float]) -> float:
        return took[len(took) * 99 // 100]

    print(f"honest: {counts['honest']}; attacks: {counts['attack']}")
    for name, took in (("alone", alone), ("under attack", beside)):
        print(
            f"live, {name}: {len(took)} times, median {took[len(took) // 2] * 1e3:.1f} ms, 99% "
            f"{p99(took) * 1e3:.1f} ms, at most {took[-1] * 1e3:.1f} ms"
        )
    print(
        f"memory: {honest_memory / 2**20:.0f} MiB, under attack {memory / 2**20:.0f} MiB; "
        f"descriptors: {descriptors}, then {left}"
    )
    defects = {key: n for key, n in counts["attack"].items() if key in _DEFECTS}
    found = {
        f"defects of the server: {defects}": bool(defects),
        f"honest clients: {counts['honest']}": set(counts["honest"]) != {"right"},
        "/v2/health/live took too long": p99(beside) >= _WORST_LIVE_S,
        "the server took too much memory": memory > honest_memory + _MOST_GROWTH,
        "descriptors are left open": left > descriptors + 1,
        "the log has a traceback": "Traceback" in server.log.read_text(),
    }
    return [text for text, is_so in found.items() if is_so]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    limits = {"max_request_bytes": 64 * 2**20, "max_queue": 1000}
    with tempfile.TemporaryDirectory() as folder, faults.served(Path(folder), **limits) as server:
        try:
            found = fuzz(server, options.seconds, options.seed)
            code = server.stop()
        except (AssertionError, OSError, queue.Empty, subprocess.TimeoutExpired) as error:
            found = [f"the server did not answer, or did not end: {error!r}"]
        else:
            if code:
                found.append(f"the server ended with {code}")
    for text in found:
        print("FAILED:", text)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
