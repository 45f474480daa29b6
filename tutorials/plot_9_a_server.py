"""
A server for two models
=======================

One process serves several compiled models to clients that speak the Open Inference Protocol v2, as
KServe and Triton do. This starts one with two models, asks it with a real client, and looks at what
its statistics say. It needs ``pip install 'tvm-interop[serve]'``.

What a server needs is artifacts. The first network is compiled for batches of 1, 2 and 4, so that
requests of several clients can run as one; by that we say that the rows of a batch do not depend on
each other.
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
# On the command line it would be ``tvm-interop serve heads.tar squeezenet.tar``. In a program, a
# server runs in a thread; port 0 is any that is free. ``auto`` measures the models, simulates
# several policies on the load that it sees, and serves by the best.

server = Server(artifacts, http_port=None, grpc_port=0, policy="auto", max_delay_us=500).start()
client = client_library.InferenceServerClient(server.grpc_url)
for name in artifacts:
    metadata = client.get_model_metadata(name)
    told = [f"{x.name} {x.datatype} {list(x.shape)}" for x in metadata.inputs]
    print(f"{name}: {', '.join(told)} -> {len(metadata.outputs)} outputs")


# %%
# A client sends arrays by name, and gets those that `GraphModule` computes, bit for bit.


def request(name: str, seed: int) -> list:
    """Inputs for one row, or one image."""
    draw = np.random.default_rng(seed)
    inputs = []
    for key, shape in artifacts[name].input_shapes[0].items():
        array = draw.standard_normal(shape).astype(np.float32)
        inputs.append(client_library.InferInput(key, list(shape), "FP32"))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def direct(name: str, seed: int) -> np.ndarray:
    """The same without a server."""
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
# Now more and more clients ask at once, each again as soon as it is answered. A request may say how
# long it can wait (``timeout``, in microseconds) and how important it is (``priority``, 1 is the
# highest); one that could not be answered in time is never started.


def ask(number: int) -> None:
    """One client: a few requests, one after the other."""
    name = ["heads", "squeezenet"][number % 2]
    for seed in range(15):
        client.infer(name, request(name, seed), timeout=20_000_000, priority=1 + number % 2)


def totals() -> dict[str, tuple[int, int, float, float]]:
    """Of each model so far: requests, runs, and milliseconds waited and run in all."""
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
# The statistics that any Triton client can read say what happened. With more clients requests wait
# longer, and those of ``heads`` run together more often, where the policy joins them.

print(f"{'clients':>8} {'model':>11} {'requests a run':>15} {'waited ms':>10} {'run ms':>8}")
for i, clients in enumerate(numbers):
    for name, curve in curves.items():
        joined, waited, ran = curve[i]
        print(f"{clients:8} {name:>11} {joined:15.2f} {waited:10.2f} {ran:8.2f}")

# %%
# The same as curves, where matplotlib is installed.

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
# What the policy decided, and why:

for at_us, text in server.service.executor.explanation():
    print(f"{at_us / 1e6:6.1f} s: {text}")

# %%
# A server that ends answers what it has taken first.

print("everything was served:", server.stop())
