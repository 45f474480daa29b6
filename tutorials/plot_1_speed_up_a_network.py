"""
Speed up a network in five minutes
==================================

This tutorial compiles a network into an artifact that runs independent operators side by side. The
network is SqueezeNet as the ``onnx`` package ships it, with random weights. A path to an ONNX file
works just as well.
"""

import tempfile
from pathlib import Path

import numpy as np

import tvm_interop
from tvm_interop.models import light

model = light.build("squeezenet")
folder = Path(tempfile.mkdtemp())

# %%
# Compile
# -------
# ``compile`` lowers the model to fused kernels and measures them on this machine. Then IOS searches
# for the best stages. The schedule that it finds runs against sequential execution of the same
# kernels. If the schedule is faster, it ships: the artifact contains it. Otherwise the artifact
# runs sequentially. Measurements are kept, so the next model with the same kernels reuses them.

artifact = tvm_interop.compile(model, scheduler="ios", out=folder / "squeezenet.tar")
checked = artifact.manifest.speed_check
if checked is None:
    print("one stream: there was nothing to compare")
else:
    print(f"scheduled / sequential: {checked.ratio:.2f}; it ships {checked.shipped}")
    print(f"sequential / sequential, the noise of this machine: {checked.noise_ratio:.2f}")

# %%
# Run
# ---
# ``GraphModule`` has the method names of TVM's former graph executor.

module = tvm_interop.GraphModule(tvm_interop.load(folder / "squeezenet.tar"))
shapes, dtypes = module.get_input_info()
name, shape = next(iter(shapes.items()))
image = np.random.default_rng(0).standard_normal(shape).astype(dtypes[name])
module.run(**{name: image})
output = module.get_output(0).numpy()
print(f"output of shape {output.shape}, most likely class {output.argmax()}")

# %%
# Check
# -----
# The output of every schedule has the same bits as the output of sequential execution.

sequential = tvm_interop.GraphModule(tvm_interop.compile(model, scheduler="sequential"))
sequential.run(**{name: image})
assert np.array_equal(sequential.get_output(0).numpy(), output)

# %%
# Look
# ----
# ``profile`` runs the model once. It returns the start, the end and the stream of each operator.

for row in module.profile()[:6]:
    print(f"stream {row.stream}  {row.start_us:8.1f} .. {row.end_us:8.1f} us  {row.name}")
