"""
Against TensorRT
================

Is a compiled network fast? To find out, this tutorial runs it against another runtime, in turns, on
the same data, and compares the outputs. If TensorRT and a GPU are at hand, the other runtime is
TensorRT. Otherwise it is onnxruntime on the CPU, and the script says so.
"""

import importlib.util
import time

import numpy as np
import tvm

import tvm_interop
from tvm_interop.models import build

MODEL, SIZE, ROUNDS = "squeezenet", 32, 20

model = build(MODEL, image_size=SIZE)
image = np.random.default_rng(0).standard_normal((1, 3, SIZE, SIZE)).astype("float32")
has_tensorrt = importlib.util.find_spec("tensorrt") is not None
with_tensorrt = has_tensorrt and tvm.cuda(0).exist
if not with_tensorrt:
    missing = "no package `tensorrt`" if not has_tensorrt else "no GPU"
    print(f"{missing} here: this compares with onnxruntime on the CPU instead")

# %%
# Us
# --
# ``target="cuda"`` compiles for this machine's GPU. Both engines are timed from arrays in the
# host's memory to arrays in the host's memory. This is the time that a caller waits.


def ours():
    """Run one inference."""
    module.run(image=image)
    return module.get_output(0).numpy()


artifact = tvm_interop.compile(model, target="cuda" if with_tensorrt else "llvm", scheduler="lios")
module = tvm_interop.GraphModule(artifact)
print(f"ours: {artifact.schedule.scheduler}, {len(artifact.plan.streams)} stream(s)")

# %%
# Them
# ----
# TensorRT runs in fp32 without TF32, because this package computes in fp32. Its engine is built
# once. onnxruntime runs with its default number of threads.


def tensorrt_runner():
    """Build a TensorRT engine; return a function that runs it once."""
    import tensorrt as trt
    import torch

    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    assert parser.parse(model.SerializeToString()), parser.get_error(0)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    engine = trt.Runtime(logger).deserialize_cuda_engine(
        builder.build_serialized_network(network, config)
    )
    context, stream = engine.create_execution_context(), torch.cuda.Stream()
    source, data = torch.from_numpy(image).pin_memory(), torch.from_numpy(image).cuda()
    result = torch.empty(tuple(engine.get_tensor_shape("logits")), device="cuda")
    context.set_tensor_address("image", data.data_ptr())
    context.set_tensor_address("logits", result.data_ptr())

    def run():
        with torch.cuda.stream(stream):
            data.copy_(source, non_blocking=True)
            context.execute_async_v3(stream.cuda_stream)
            return result.cpu().numpy()

    return run


def onnxruntime_runner():
    """Open an onnxruntime session; return a function that runs it once."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"image": image})[0]


them, theirs = (
    ("TensorRT", tensorrt_runner()) if with_tensorrt else ("onnxruntime", onnxruntime_runner())
)

# %%
# The same answer?
# ----------------
# A comparison of speed makes sense only if both engines compute the same result.

difference = np.abs(ours() - theirs()).max()
print(f"largest difference of an output: {difference:.1e}")
assert difference < 1e-3

# %%
# In turns
# --------
# Both engines run in every round, in a new random order. So if the machine slows down, it slows
# both of them. This package runs twice in each round, and its ratio to itself is the noise.

contestants = {"ours": ours, "ours again": ours, them: theirs}
times_ms = {name: [] for name in contestants}
rng = np.random.default_rng(0)
for round_ in range(ROUNDS + 3):
    for name in rng.permutation(list(contestants)):
        began = time.perf_counter()
        contestants[str(name)]()
        if round_ >= 3:  # The first rounds only warm up.
            times_ms[str(name)].append((time.perf_counter() - began) * 1e3)
for name, times in times_ms.items():
    median, base = np.median(times), np.median(times_ms["ours"])
    print(f"{name:12} {median:7.3f} ms, ratio to ours {median / base:.2f}")

# %%
# On a small network on a CPU, do not be surprised if this package is slower. A schedule decides
# when operators run, not how fast each operator is, and onnxruntime's kernels are very good. The
# scripts in ``benchmarks/`` compare the networks of the papers, and the page "Benchmarks" of the
# documentation has their results.
