"""What a request over gRPC takes beyond a direct call, in turns.

    python -m benchmarks.serving_overhead [--network resnet50] [--size 224] [--policy auto]
                                          [--rounds 200] [--json FILE]

In each round, in an order drawn anew, one client calls `GraphModule.run` of an artifact and copies
the output, and asks a server of the same artifact, in a process of its own, by `tritonclient` over
gRPC with binary tensors. The overhead is the difference of the two, round by round. Between calls
the client rests, so that threads of the one have gone to sleep when the other begins.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as client

import tvm_interop
from benchmarks.machine_state import observe
from benchmarks.serving_load import CONTESTANTS, served
from tvm_interop import models

_REST_S = 0.005
_WARM_UP = 10


def measure(network: str, size: int | None, policy: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of each round, and what the server counts of its part."""
    machine = observe().as_dict()
    model = models.build(network, image_size=size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        artifact = tvm_interop.compile(
            model, scheduler="sequential", streams=1, providers=["tvm", "onednn"],
            out=folder / f"{network}.tar",
        )  # fmt: skip
        (folder / "names.json").write_text(json.dumps([network]))
        ((tensor, shape),) = artifact.input_shapes[0].items()
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        module = tvm_interop.GraphModule(tvm_interop.load(folder / f"{network}.tar"))
        with (
            served(folder, policy) as server,
            client.InferenceServerClient(f"127.0.0.1:{server.port}") as asked,
        ):

            def direct() -> np.ndarray:
                module.run(**{tensor: x})
                return np.array(module.get_output(0).numpy())

            def over_grpc() -> np.ndarray:
                given = client.InferInput(tensor, list(x.shape), "FP32")
                given.set_data_from_numpy(x)
                answer = asked.infer(network, [given])
                return np.asarray(answer.as_numpy(answer.get_response().outputs[0].name))

            took = _in_turns({"direct": direct, "grpc": over_grpc}, rounds)
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


def _in_turns(contestants: dict[str, Any], rounds: int) -> dict[str, list[float]]:
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
    first, *others = results.values()
    for other in others:
        np.testing.assert_array_equal(first, other)
    return took


def text(found: dict[str, Any]) -> str:
    """What was found, in a few lines."""
    took = {name: np.array(each) for name, each in found["took_ms"].items()}
    over = took["grpc"] - took["direct"]
    quarters = np.percentile(over, [25, 50, 75])
    server = ", ".join(f"{name} {ms:.3f}" for name, ms in found["server_ms"].items())
    load = ", ".join(f"{value:.1f}" for value in found["machine"]["load"])
    return (
        f"{found['network']} {found['shape']}, policy {found['policy']}, {len(over)} rounds\n"
        f"direct {np.median(took['direct']):.3f} ms, gRPC {np.median(took['grpc']):.3f} ms "
        f"(medians)\n"
        f"overhead {quarters[1]:.3f} ms (quartiles {quarters[0]:.3f} to {quarters[2]:.3f}); of the "
        f"fastest of each {took['grpc'].min() - took['direct'].min():.3f} ms\n"
        f"in the server, means: {server} ms\n"
        f"load averages before: {load}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--size", type=int, help="of images; the network's own by default")
    parser.add_argument("--policy", choices=CONTESTANTS[:-1], default="auto")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write everything here")
    options = parser.parse_args()
    found = measure(options.network, options.size, options.policy, options.rounds)
    print(text(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
