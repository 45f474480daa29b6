"""Compares our server with the server of an earlier release: throughput and processor time per
request.

    python -m benchmarks.serving_before --before PYTHON [--rounds 60] [--seconds 0.4] [--json FILE]

`PYTHON` is the interpreter of an environment with the earlier release. Both servers serve the same
artifact of a small perceptron, which the earlier release compiles.

Each round measures the servers in a new random order. One client sends small requests to a server
for the given seconds, one after the other, on a connection that stays open. It does so over HTTP
(with JSON) and over gRPC. The results are the ratios of the new server to the earlier one in each
round: requests a second, and the server's processor time for each request. A second server of the
earlier release takes part too. Its ratio to the first server of that release is the noise.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.machine_state import observe
from benchmarks.options import add_json, add_rounds

_MODEL = "perceptron"
_COMPILE = """
import sys
from tests.served import perceptron
perceptron().save(sys.argv[1])
"""
_X = np.linspace(-1, 1, 12, dtype=np.float32)
_READY_S = 60
_REST_S = 0.05
_DRAWS = 2000


@dataclass
class Server:
    """A running server, and for each protocol a function that sends one request to it.

    The connections stay open.
    """

    process: psutil.Process
    ask: dict[str, Callable[[], None]]

    def rate(self, protocol: str, seconds: float) -> tuple[float, float]:
        """Send requests for `seconds` seconds.

        Returns
        -------
        Requests a second, and microseconds of the server's processor time for each request.
        """
        ask, count = self.ask[protocol], 0
        ask()
        spent, began = sum(self.process.cpu_times()[:2]), time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            ask()
            count += 1
        return count / took, (sum(self.process.cpu_times()[:2]) - spent) / count * 1e6


@contextlib.contextmanager
def serving(python: str, artifact: Path) -> Iterator[Server]:
    """Run a server of an environment for as long as the context lasts.

    Parameters
    ----------
    python: interpreter of the environment.
    """
    # Start the server in the root folder of its own release. In the current folder, Python would
    # import this package instead.
    root = Path(python).absolute().parents[2]
    command = [python, "-m", "tvm_interop", "serve", str(artifact), "--name", _MODEL]
    started = subprocess.Popen(
        [*command, "--http-port", "0", "--grpc-port", "0", "--policy", "sequential"],
        cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        process = psutil.Process(started.pid)
        http_port, grpc_port = _ports(process)
        connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
        with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            yield Server(process, {"HTTP": by_http(connection), "gRPC": by_grpc(stub)})
        connection.close()
    finally:
        started.terminate()
        started.wait(30)


def _ports(process: psutil.Process) -> tuple[int, int]:
    """The ports of HTTP and of gRPC. Waits until the server listens on both.

    Raises
    ------
    TimeoutError: the server does not listen after `_READY_S` seconds.
    """
    until = time.monotonic() + _READY_S
    while time.monotonic() < until:
        ports = {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}
        by_protocol: dict[bool, int] = {_speaks_http(port): port for port in ports}
        if len(by_protocol) == 2:
            return by_protocol[True], by_protocol[False]
        time.sleep(0.2)
    raise TimeoutError(f"the server does not listen after {_READY_S} s")


def _speaks_http(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def by_http(connection: http.client.HTTPConnection) -> Callable[[], None]:
    """A function that sends one request over HTTP, with tensors as JSON."""
    tensor = {"name": "x", "shape": [1, 12], "datatype": "FP32", "data": _X.tolist()}
    body = json.dumps({"inputs": [tensor]})

    def ask() -> None:
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"/v2/models/{_MODEL}/infer", body, headers)
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"HTTP {answer.status}: {answer.read()[:200]!r}")
        answer.read()

    return ask


def by_grpc(stub: Any) -> Callable[[], None]:
    """A function that sends one request over gRPC, with binary tensors."""
    message = service_pb2.ModelInferRequest(model_name=_MODEL)
    message.inputs.add(name="x", datatype="FP32", shape=[1, 12])
    message.raw_input_contents.append(_X.tobytes())
    return lambda: stub.ModelInfer(message, timeout=10)


def measure(before: str, rounds: int, seconds: float, seed: int) -> dict[str, Any]:
    """Measure both releases, and return the results for JSON.

    In the results, the entry `median` has the median of each ratio with its 95% confidence
    interval.

    Parameters
    ----------
    before: interpreter of the environment with the earlier release.
    seconds: how long requests are sent to each server over each protocol in a round.
    """
    machine = observe().as_dict()
    found: dict[str, list[float]] = defaultdict(list)
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        artifact = Path(folder, "perceptron.tar")
        root = Path(before).absolute().parents[2]
        subprocess.run([before, "-c", _COMPILE, str(artifact)], cwd=root, check=True)
        servers = {
            name: stack.enter_context(serving(python, artifact))
            for name, python in (("new", sys.executable), ("before", before), ("again", before))
        }
        for _ in range(rounds):
            for protocol in ("HTTP", "gRPC"):
                order = list(servers)
                draw.shuffle(order)
                rates = {}
                for name in order:
                    time.sleep(_REST_S)
                    rates[name] = servers[name].rate(protocol, seconds)
                for name in ("new", "again"):
                    found[f"{protocol}, {name}, requests a second"].append(
                        rates[name][0] / rates["before"][0]
                    )
                    found[f"{protocol}, {name}, processor time"].append(
                        rates[name][1] / rates["before"][1]
                    )
                found[f"{protocol}, before, requests a second"].append(rates["before"][0])
    return {
        "machine": machine,
        "rounds": rounds,
        "seconds": seconds,
        "median": {name: _median(values) for name, values in found.items()},
    }


def _median(values: list[float]) -> list[float]:
    """The median of numbers and both ends of its 95% confidence interval, by the bootstrap."""
    draw = random.Random(0)
    again = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(_DRAWS))
    return [statistics.median(values), again[_DRAWS // 40], again[-_DRAWS // 40]]


def main() -> None:
    """Measure, and print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, metavar="PYTHON")
    add_rounds(parser, 60)
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="seconds of requests to each server in a round"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random orders")
    add_json(parser)
    given = parser.parse_args()
    result = measure(given.before, given.rounds, given.seconds, given.seed)
    for name, (median, low, high) in result["median"].items():
        print(f"{name:40} {median:9.3f} ({low:.3f} to {high:.3f})")
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
