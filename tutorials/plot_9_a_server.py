"""
A server for two models
=======================

A server is one process that serves several compiled models to clients. The clients speak the Open
Inference Protocol v2, as KServe and Triton do. This tutorial starts a server with two models, sends
it requests with a real client, and looks at its statistics. It needs
``pip install 'tvm-interop[serve]'``.

A server needs artifacts. The first network is compiled for batches of 1, 2 and 4, so that requests
of several clients can run as one batch. This is right only because the rows of a batch do not
depend on each other.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import tvm_interop
from tvm_interop import models
from tvm_interop.serving import Server

try:
    import tritonclient.grpc as client_library
except ImportError:
    print("This tutorial needs a client and a server: pip install 'tvm-interop[serve]'")
    sys.exit()

heads = tvm_interop.compile(
    models.build("task_heads", image_size=32), batch_sizes=[1, 2, 4], scheduler="sequential"
)
squeezenet = tvm_interop.compile(models.build("squeezenet", image_size=48), scheduler="sequential")
artifacts = {"heads": heads, "squeezenet": squeezenet}

# %%
# On the command line, ``tvm-interop serve heads.tar squeezenet.tar`` starts this server. In a
# program, a server runs in a thread. Port 0 stands for any free port. The policy ``auto`` measures
# the models, simulates several policies on the load that it sees, and serves by the best one.

server = Server(artifacts, http_port=None, grpc_port=0, policy="auto", max_delay_us=500).start()
client = client_library.InferenceServerClient(server.grpc_url)
for name in artifacts:
    metadata = client.get_model_metadata(name)
    told = [f"{x.name} {x.datatype} {list(x.shape)}" for x in metadata.inputs]
    print(f"{name}: {', '.join(told)} -> {len(metadata.outputs)} outputs")


# %%
# A client sends arrays by name. It gets the arrays that `GraphModule` computes, bit for bit.


def request(name: str, seed: int) -> list:
    """Make random inputs for one request: one row, or one image."""
    draw = np.random.default_rng(seed)
    inputs = []
    for key, shape in artifacts[name].input_shapes[0].items():
        array = draw.standard_normal(shape).astype(np.float32)
        inputs.append(client_library.InferInput(key, list(shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def direct(name: str, seed: int) -> np.ndarray:
    """Compute the model's first output for the same inputs without the server."""
    draw = np.random.default_rng(seed)
    module = tvm_interop.GraphModule(artifacts[name])
    shapes = artifacts[name].input_shapes[0]
    module.run(**{k: draw.standard_normal(s).astype(np.float32) for k, s in shapes.items()})
    return module.get_output(0).numpy()


first_output = {name: client.get_model_metadata(name).outputs[0].name for name in artifacts}
for name in artifacts:
    answer = client.infer(name, request(name, seed=1)).as_numpy(first_output[name])
    print(name, answer.shape, "the same bits:", np.array_equal(answer, direct(name, seed=1)))

# %%
# Now more and more clients send requests at once. Each client sends its next request as soon as it
# has its answer. A request may say how long it can wait (``timeout``, in microseconds) and how
# important it is (``priority``, 1 is the highest). If the answer would come too late, the request
# never starts.


def ask(number: int) -> None:
    """Send a few requests of one client, one after the other."""
    name = ["heads", "squeezenet"][number % 2]
    for seed in range(15):
        client.infer(name, request(name, seed), timeout=20_000_000, priority=1 + number % 2)


def totals() -> dict[str, tuple[int, int, float, float]]:
    """Return each model's totals: requests, runs, and milliseconds in the queue and running."""
    found = {}
    for row in client.get_inference_statistics().model_stats:
        parts = row.inference_stats
        waited, ran = parts.queue.ns / 1e6, parts.compute_infer.ns / 1e6
        found[row.name] = (parts.success.count, row.execution_count, waited, ran)
    return found


curves = {name: [] for name in artifacts}
numbers = [2, 4, 8, 16]
for clients in numbers:
    before = totals()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))
    for name, after in totals().items():
        requests, runs, waited, ran = (b - a for a, b in zip(before[name], after, strict=True))
        curves[name].append((requests / runs, waited / requests, ran / requests))

# %%
# Any Triton client can read the server's statistics. With more clients, requests wait longer. If
# the policy joins requests, then with more clients it also joins more requests of ``heads`` in a
# run.

print(f"{'clients':>8} {'model':>11} {'requests a run':>15} {'waited ms':>10} {'run ms':>8}")
for i, clients in enumerate(numbers):
    for name, curve in curves.items():
        joined, waited, ran = curve[i]
        print(f"{clients:8} {name:>11} {joined:15.2f} {waited:10.2f} {ran:8.2f}")

# %%
# If matplotlib is installed, the next cell draws the statistics as curves.

try:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
except ImportError:
    print("matplotlib is not installed: no picture")
else:
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for name, curve in curves.items():
        axes[0].plot(numbers, [waited for _, waited, _ in curve], "o-", label=name)
        axes[1].plot(numbers, [joined for joined, _, _ in curve], "o-", label=name)
    axes[0].set(xlabel="clients", ylabel="ms in the queue", xscale="log")
    axes[1].set(xlabel="clients", ylabel="requests a run", xscale="log")
    axes[0].legend()
    figure.savefig("server.png")
    print("wrote server.png")

# %%
# The server can explain the decisions of its policy:

for at_us, text in server.service.executor.explanation():
    print(f"{at_us / 1e6:6.1f} s: {text}")

# %%
# When a server stops, it first answers the requests that it has accepted.

print("everything was served:", server.stop())
