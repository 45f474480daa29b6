"""Measures the server under load: two models, every policy, and onnxruntime behind the same server.

    python -m benchmarks.serving_load --json benchmarks/results/serving/load.json
    python -m benchmarks.serving_load [--seconds S] [--only SERVER ...] [--quick]

Each contestant is a server in a process of its own. This process sends the requests to it over gRPC
on the loopback interface. Clients and server share the same cores, and the table says how many
cores each of the two used. Our contestants are the policies, with artifacts compiled for batches of
1, 2 and 4. The contestant `onnxruntime` has sessions of onnxruntime in place of our instances. It
has the same executor, protocol and number of threads, and serves requests first come first served.

The capacity of a contestant is the throughput of a closed loop of clients. Then requests arrive as
a Poisson process at 0.5, 0.8, 1.0 and 1.5 times this capacity, with the same rate for each model.
The bound of a request is five times the latency of its model on the same server without other
requests. A request counts as good if its answer comes within the bound. Each request has a timeout
for the server. The timeout is a little less than the bound, because the network and the client need
the rest.

All contestants together take about ten minutes. After that, `python -m benchmarks.figures` writes
the table into `docs/benchmarks.md`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import psutil
from tritonclient.grpc import service_pb2

import tvm_interop
from benchmarks.machine_state import observe
from benchmarks.options import add_json
from benchmarks.serving_load_table import draw, table
from tvm_interop import models
from tvm_interop.serving import Server
from tvm_interop.serving.server.any_model import AnyModel, Memory
from tvm_interop.serving.server.tensors import TensorSpec
from tvm_interop.serving.server.ticket import Ticket

NETWORKS: tuple[tuple[str, int | None], ...] = (("squeezenet", 128), ("resnet50", 128))
"""Networks and their image sizes in pixels."""
QUICK: tuple[tuple[str, int | None], ...] = (("squeezenet", 48), ("resnet50", 48))
BATCH_SIZES = (1, 2, 4)
LOADS = (0.5, 0.8, 1.0, 1.5)
CONTESTANTS = ("sequential", "streams", "batching", "auto", "onnxruntime")
CLIENTS = 4
"""Number of clients of each model in the closed loop."""
BOUND = 5.0
MARGIN_MS, MARGIN = 2.5, 0.15
"""Part of the bound that the timeout leaves to the network and the client: `MARGIN_MS`
milliseconds, but at most `MARGIN` of the bound."""
INSTANCES = 2
_METHOD = "/inference.GRPCInferenceService/ModelInfer"


class OrtModel(AnyModel):
    """A served model whose instances are sessions of onnxruntime. (In the base class `Model`, an
    instance runs one of our plans.)
    """

    def __init__(self, name: str, path: Path, instances: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = tvm_interop.num_threads()
        self._sessions = [
            onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
            for _ in range(instances)
        ]
        session = self._sessions[0]
        inputs, outputs = (
            tuple(TensorSpec(v.name, "float32", tuple(v.shape)) for v in values)
            for values in (session.get_inputs(), session.get_outputs())
        )
        super().__init__(name, inputs, outputs, Memory(0, 0))

    @property
    def num_instances(self) -> int:
        return len(self._sessions)

    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        (ticket,) = tickets
        began = time.perf_counter()
        ticket.outputs = self._sessions[slot].run(None, dict(ticket.inputs))
        ticket.ran_batch, ticket.infer_us = 1, (time.perf_counter() - began) * 1e6

    def run_once(self, slot: int, size: int) -> float:
        given = {spec.name: np.zeros(spec.shape, np.float32) for spec in self.inputs}
        began = time.perf_counter()
        self._sessions[slot].run(None, given)
        return time.perf_counter() - began


# The following functions run and control the process of a server.


def serve(folder: Path, contestant: str) -> None:
    """Serve the models that `prepare` wrote into the folder: the main function of a server process.

    The process prints its port. When it reads a line from standard input, it stops, and prints the
    policy's explanations of its decisions.
    """
    names = json.loads((folder / "names.json").read_text())
    sources: dict[str, Any] = {name: folder / f"{name}.tar" for name in names}
    policy = contestant
    if contestant == "onnxruntime":
        policy = "sequential"
        sources = {name: OrtModel(name, folder / f"{name}.onnx", 1) for name in names}
    options: dict[str, Any] = {"policy": policy, "instances": INSTANCES, "max_queue": 64}
    logging.getLogger("tvm_interop.serving.requests").setLevel(logging.ERROR)
    with Server(sources, http_port=None, grpc_port=0, **options) as server:
        print(server.grpc_port, flush=True)
        sys.stdin.readline()
        assert server.service is not None
        told = server.service.executor.explanation()
        print(json.dumps([[round(at / 1e6, 1), text] for at, text in told]), flush=True)


@dataclass
class Served:
    """A server in a process of its own.

    Attributes
    ----------
    port: port of gRPC.
    said: the policy's explanations of its decisions, each with its time in seconds; filled when the
        server has ended.
    """

    process: subprocess.Popen[str]
    port: int
    said: list[Any] = field(default_factory=list)

    def cpu_s(self) -> float:
        """Seconds of processor time that the server took so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


@contextlib.contextmanager
def served(folder: Path, contestant: str) -> Iterator[Served]:
    """Run a server for as long as the context lasts. A server that does not end is killed."""
    command = [sys.executable, "-m", "benchmarks.serving_load", "--serve", contestant]
    process = subprocess.Popen(
        [*command, "--folder", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env=os.environ,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        server = Served(process, int(process.stdout.readline()))
        yield server
        process.stdin.write("\n")
        process.stdin.flush()
        server.said += json.loads(process.stdout.readline())
        process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def prepare(folder: Path, networks: Sequence[tuple[str, int | None]]) -> dict[str, bytes]:
    """Compile the networks into the folder, and return a serialised request for each, by name.

    The requests have no timeout.
    """
    requests = {}
    for name, size in networks:
        model = models.build(name, image_size=size)
        onnx.save(model, folder / f"{name}.onnx")
        tvm_interop.compile(
            model, scheduler="sequential", batch_sizes=BATCH_SIZES, providers=["tvm", "onednn"],
            out=folder / f"{name}.tar",
        )  # fmt: skip
        message = service_pb2.ModelInferRequest(model_name=name)
        for value in model.graph.input:
            shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
            message.inputs.add(name=value.name, datatype="FP32", shape=shape)
            array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
            message.raw_input_contents.append(array.tobytes())
        requests[name] = message.SerializeToString()
    (folder / "names.json").write_text(json.dumps(list(requests)))
    return requests


def with_timeout(request: bytes, timeout_us: float) -> bytes:
    """A copy of a serialised request with a timeout in microseconds."""
    message = service_pb2.ModelInferRequest.FromString(request)
    message.parameters["timeout"].int64_param = max(1, round(timeout_us))
    return bytes(message.SerializeToString())


# The following classes and functions are the clients of the server.


@dataclass
class Seen:
    """The observations of the clients in one cell.

    Attributes
    ----------
    took_ms: milliseconds of each answered request, by model.
    outcomes: number of requests, by the status code with which they ended.
    lag_ms: milliseconds by which each request was sent too late; empty for a closed loop.
    seconds: time until the last request had ended.
    server_s, client_s: seconds of processor time that the server and the clients took.
    """

    took_ms: dict[str, list[float]] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    lag_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0
    server_s: float = 0.0
    client_s: float = 0.0

    def answered(self) -> int:
        return sum(len(each) for each in self.took_ms.values())

    def good(self, bounds_ms: dict[str, float]) -> int:
        return sum(sum(t <= bounds_ms[name] for t in each) for name, each in self.took_ms.items())


class Clients:
    """The clients of one server. They share one connection."""

    def __init__(self, server: Served) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._server = server
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options)
        self._call = self._channel.unary_unary(_METHOD)

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def alone_ms(self, request: bytes, count: int) -> float:
        """Median milliseconds of `count` requests, sent one after the other."""
        took = []
        for _ in range(count):
            began = time.perf_counter()
            await self._call(request)
            took.append(time.perf_counter() - began)
        return float(np.median(took)) * 1e3

    async def closed_loop(self, requests: dict[str, bytes], each: int, seconds: float) -> Seen:
        """Run some clients for each model; `each` is their number.

        A client sends its next request as soon as the request before it is answered.
        """
        until = time.perf_counter() + seconds

        async def client(name: str, seen: Seen) -> None:
            while time.perf_counter() < until:
                await self._one(name, requests[name], seen)

        with self._timed() as seen:
            await asyncio.gather(*(client(name, seen) for name in requests for _ in range(each)))
        return seen

    async def open_loop(
        self, requests: dict[str, bytes], rate: float, seconds: float, seed: int = 0
    ) -> Seen:
        """Send requests as a Poisson process, with the same rate for each model.

        Parameters
        ----------
        rate: requests a second of all models together.
        """
        draw = np.random.default_rng(seed)
        at_s = np.sort(draw.random(draw.poisson(rate * seconds)) * seconds)
        names = draw.choice(list(requests), len(at_s))
        tasks = []
        with self._timed() as seen:
            began = time.perf_counter()
            for due_s, name in zip(at_s, names, strict=True):
                if (left := began + due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(left)
                seen.lag_ms.append((time.perf_counter() - began - due_s) * 1e3)
                tasks.append(asyncio.create_task(self._one(str(name), requests[str(name)], seen)))
            await asyncio.gather(*tasks)
        return seen

    @contextlib.contextmanager
    def _timed(self) -> Iterator[Seen]:
        seen = Seen()
        began, server_s, client_s = time.perf_counter(), self._server.cpu_s(), time.process_time()
        yield seen
        seen.seconds = time.perf_counter() - began
        seen.server_s = self._server.cpu_s() - server_s
        seen.client_s = time.process_time() - client_s

    async def _one(self, name: str, request: bytes, seen: Seen) -> None:
        began = time.perf_counter()
        try:
            await self._call(request)
        except grpc.aio.AioRpcError as error:
            seen.outcomes[error.code().name] += 1
        else:
            seen.outcomes["OK"] += 1
            seen.took_ms.setdefault(name, []).append((time.perf_counter() - began) * 1e3)


# The following functions run the benchmark.


def row_of(seen: Seen, bounds_ms: dict[str, float]) -> dict[str, Any]:
    """The results of a cell as a row for JSON.

    Parameters
    ----------
    bounds_ms: latency in milliseconds up to which an answer is good, by model.
    """
    every = np.array([t for each in seen.took_ms.values() for t in each] or [np.nan])
    return {
        "sent": sum(seen.outcomes.values()),
        "seconds": seen.seconds,
        "throughput": seen.answered() / seen.seconds,
        "goodput": seen.good(bounds_ms) / seen.seconds,
        "p50_ms": float(np.percentile(every, 50)),
        "p99_ms": float(np.percentile(every, 99)),
        "by_model": {
            name: {
                "answered": len(t), "in_time": sum(ms <= bounds_ms[name] for ms in t),
                "p50_ms": float(np.percentile(t, 50)), "p99_ms": float(np.percentile(t, 99)),
            }
            for name, t in seen.took_ms.items()
        },
        "rejected": seen.outcomes["RESOURCE_EXHAUSTED"],
        "late": seen.outcomes["DEADLINE_EXCEEDED"],
        "outcomes": dict(seen.outcomes),
        "client_lag_p99_ms": float(np.percentile(seen.lag_ms or [0.0], 99)),
        "server_cores": seen.server_s / seen.seconds,
        "client_cores": seen.client_s / seen.seconds,
    }  # fmt: skip


async def measure(
    server: Served, plain: dict[str, bytes], seconds: float, tell: Callable[[str], None]
) -> tuple[dict[str, float], dict[str, Any], list[dict[str, Any]]]:
    """Measure one server.

    Parameters
    ----------
    plain: a serialised request without a timeout, by model.
    seconds: seconds to measure each load; the closed loop takes half as long.
    tell: function that prints progress.

    Returns
    -------
    The latency of each model alone in milliseconds, the row of the closed loop, and a row for each
    load.
    """
    async with Clients(server) as clients:
        alone_ms = {name: await clients.alone_ms(request, 40) for name, request in plain.items()}
        bounds_ms = {name: BOUND * ms for name, ms in alone_ms.items()}
        timed = {}
        for name, request in plain.items():
            margin_ms = min(MARGIN_MS, MARGIN * bounds_ms[name])
            timed[name] = with_timeout(request, (bounds_ms[name] - margin_ms) * 1e3)
        tell("alone " + ", ".join(f"{name} {ms:.2f} ms" for name, ms in alone_ms.items()))
        closed = row_of(await clients.closed_loop(plain, CLIENTS, seconds / 2), bounds_ms)
        capacity = closed["throughput"]
        tell(f"capacity {capacity:.1f}/s")
        rows = []
        for load in LOADS:
            row = row_of(await clients.open_loop(timed, load * capacity, seconds), bounds_ms)
            rows.append({"load": load, **row})
            tell(f"load {load}: in time {row['goodput'] / capacity:.2f} of the capacity")
    return alone_ms, closed, rows


def run(
    networks: Sequence[tuple[str, int | None]], seconds: float, contestants: Sequence[str]
) -> dict[str, Any]:
    """Measure all contestants, and return the results for JSON. Progress goes to standard error."""
    machine = observe().as_dict()
    rows: list[dict[str, Any]] = []
    alone_ms, closed, decisions = {}, {}, {}
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tell("compiling")
        plain = prepare(folder, networks)
        for contestant in contestants:

            def tell_of(text: str, contestant: str = contestant) -> None:
                tell(f"{contestant}: {text}")

            with served(folder, contestant) as server:
                alone_ms[contestant], closed[contestant], own = asyncio.run(
                    measure(server, plain, seconds, tell_of)
                )
            rows += [{"contestant": contestant, **row} for row in own]
            decisions[contestant] = server.said
    return {
        "machine": machine,
        "networks": [list(network) for network in networks],
        "seconds": seconds,
        "clients": CLIENTS,
        "alone_ms": alone_ms,
        "bound": BOUND,
        "margin_ms": [MARGIN_MS, MARGIN],
        "closed": closed,
        "rows": rows,
        "decisions": decisions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_json(parser, "all results")
    parser.add_argument("--seconds", type=float, default=22.0, help="seconds to measure each load")
    parser.add_argument("--only", choices=CONTESTANTS, nargs="+", default=CONTESTANTS)
    parser.add_argument(
        "--quick", action="store_true", help="small networks, and 3 seconds for each load"
    )
    parser.add_argument("--serve", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.folder, options.serve)
        return
    networks, seconds = (QUICK, 3.0) if options.quick else (NETWORKS, options.seconds)
    found = run(networks, seconds, options.only)
    print(table(found))
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
        if len(found["closed"]) == len(CONTESTANTS):
            draw(found, options.json.with_suffix(".svg"))


if __name__ == "__main__":
    main()
