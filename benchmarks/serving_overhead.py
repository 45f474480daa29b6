"""Measures how much longer a request over gRPC takes than a direct call.

    python -m benchmarks.serving_overhead [--network resnet50] [--size 224] [--policy auto]
                                          [--rounds 200] [--json FILE]

Each round times two calls, in a new random order. `direct` calls `GraphModule.run` of an artifact
and copies the output. `grpc` sends a request to a server of the same artifact, in a process of its
own, by `tritonclient` over gRPC with binary tensors. The overhead is the difference between the two
in each round. Before each call the client rests, so that the threads of the call before have gone
to sleep.

Two more contestants tell where the overhead comes from. `packing` is the work of the client before
it sends anything. `echo` sends the same bytes to another gRPC server, also in a process of its own.
That server ignores the content and sends an answer of the same length. So `echo` is the time of the
client and of gRPC, with packing. The rest of the overhead comes from our server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc as client
from tritonclient.grpc import service_pb2

import tvm_interop
from benchmarks.machine_state import observe
from benchmarks.options import add_json, add_rounds
from benchmarks.serving_load import CONTESTANTS, served
from tvm_interop import models

_REST_S = 0.005
_WARM_UP = 10


def measure(network: str, size: int | None, policy: str, rounds: int) -> dict[str, Any]:
    """Measure all contestants.

    Returns
    -------
    The results for JSON: for each contestant the milliseconds of each round, and for each step in
    the server the mean milliseconds according to the server's own statistics.
    """
    machine = observe().as_dict()
    model = models.build(network, image_size=size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = tvm_interop.compile(
            model, scheduler="sequential", providers=["tvm", "onednn"],
            out=folder / f"{network}.tar",
        )  # fmt: skip
        (folder / "names.json").write_text(json.dumps([network]))
        ((tensor, shape),) = artifact.input_shapes[0].items()
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        module = tvm_interop.GraphModule(tvm_interop.load(folder / f"{network}.tar"))
        output_bytes = module.get_output(0).numpy().nbytes

        def direct() -> np.ndarray:
            module.run(**{tensor: x})
            return np.array(module.get_output(0).numpy())

        def packing() -> client.InferInput:
            given = client.InferInput(tensor, list(x.shape), "FP32")
            given.set_data_from_numpy(x)
            return given

        with (
            served(folder, policy) as server,
            echoing(output_bytes) as echo_port,
            client.InferenceServerClient(f"127.0.0.1:{server.port}") as asked,
            client.InferenceServerClient(f"127.0.0.1:{echo_port}") as echoed,
        ):

            def over_grpc() -> np.ndarray:
                answer = asked.infer(network, [packing()])
                return np.asarray(answer.as_numpy(answer.get_response().outputs[0].name))

            def echo() -> np.ndarray:
                answer = echoed.infer(network, [packing()])
                return np.asarray(answer.as_numpy(_ECHOED))

            contestants = {"direct": direct, "grpc": over_grpc, "echo": echo, "packing": packing}
            took, results = _in_turns(contestants, rounds)
            np.testing.assert_array_equal(results["direct"], results["grpc"])
            assert results["echo"].nbytes == output_bytes
            told = asked.get_inference_statistics(network, as_json=True)
    parts = told["model_stats"][0]["inference_stats"]
    return {
        "machine": machine,
        "network": network,
        "shape": list(x.shape),
        "policy": policy,
        "took_ms": took,
        "server_ms": {
            name: int(part.get("ns", 0)) / int(part["count"]) / 1e6
            for name, part in parts.items()
            if int(part.get("count", 0))
        },
    }


_ECHOED = "echo"


@contextlib.contextmanager
def echoing(output_bytes: int) -> Iterator[int]:
    """Run an echo server in a process of its own, and yield its port.

    Parameters
    ----------
    output_bytes: length of its answers.
    """
    command = [sys.executable, "-m", "benchmarks.serving_overhead", "--echo", str(output_bytes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def echo_server(output_bytes: int) -> None:
    """Print the port, and answer every request with `output_bytes` bytes until the process ends."""
    message = service_pb2.ModelInferResponse(raw_output_contents=[bytes(output_bytes)])
    message.outputs.add(name=_ECHOED, datatype="UINT8", shape=[output_bytes])
    answer = message.SerializeToString()

    async def infer(request: bytes, context: Any) -> bytes:
        return answer

    handler = grpc.unary_unary_rpc_method_handler(infer)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService", {"ModelInfer": handler}
            ),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def _in_turns(
    contestants: dict[str, Any], rounds: int
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Call each contestant once in each round.

    Returns
    -------
    The milliseconds of each round and the last result, both by contestant.
    """
    draw = random.Random(0)
    took: dict[str, list[float]] = {name: [] for name in contestants}
    results = {}
    for i in range(_WARM_UP + rounds):
        for name in draw.sample(list(contestants), len(contestants)):
            time.sleep(_REST_S)
            began = time.perf_counter()
            results[name] = contestants[name]()
            if i >= _WARM_UP:
                took[name].append((time.perf_counter() - began) * 1e3)
    return took, results


def text(found: dict[str, Any]) -> str:
    """The results as a few lines of text."""
    took = {name: np.array(each) for name, each in found["took_ms"].items()}
    server = ", ".join(f"{name} {ms:.3f}" for name, ms in found["server_ms"].items())
    load = ", ".join(f"{value:.1f}" for value in found["machine"]["load"])
    over = took["grpc"] - took["direct"]
    return (
        f"{found['network']} {found['shape']}, policy {found['policy']}, {len(over)} rounds\n"
        f"direct {np.median(took['direct']):.3f} ms, gRPC {np.median(took['grpc']):.3f} ms "
        f"(medians)\n"
        f"overhead {_quartiles(over)}; of the "
        f"fastest of each {took['grpc'].min() - took['direct'].min():.3f} ms\n"
        f"of it: packing in the client {_quartiles(took['packing'])}\n"
        f"       client and gRPC, packing included (echo) {_quartiles(took['echo'])}\n"
        f"       the server, the rest {_quartiles(over - took['echo'])}\n"
        f"in the server, means: {server} ms\n"
        f"load averages before: {load}"
    )


def _quartiles(ms: np.ndarray) -> str:
    low, median, high = np.percentile(ms, [25, 50, 75])
    return f"{median:.3f} ms (quartiles {low:.3f} to {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument(
        "--size", type=int, help="image size in pixels; by default the network's own"
    )
    parser.add_argument("--policy", choices=CONTESTANTS[:-1], default="auto")
    add_rounds(parser, 200)
    add_json(parser, "all results")
    parser.add_argument("--echo", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.echo is not None:
        asyncio.run(echo_server(options.echo))
        return
    found = measure(options.network, options.size, options.policy, options.rounds)
    print(text(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
