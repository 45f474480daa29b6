"""
Speed up a network in five minutes
==================================

A network goes in, an artifact comes out that runs its independent operators side by side. The
network here is SqueezeNet as the ``onnx`` package ships it, with random weights; a path to an
ONNX file works just as well.
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
# ``compile`` lowers the model to fused kernels, measures them on this machine, lets IOS find the
# best stages, and then runs the result against sequential execution of the same kernels. Only if
# it is faster does it ship; otherwise the artifact runs sequentially. Measurements are kept, so
# the next model with the same kernels starts from them.

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
# ``GraphModule`` has the names that TVM's graph executor had.

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
# Whatever the schedule, the bits are those of sequential execution.

sequential = tvm_interop.GraphModule(tvm_interop.compile(model, scheduler="sequential"))
sequential.run(**{name: image})
assert np.array_equal(sequential.get_output(0).numpy(), output)

# %%
# Look
# ----
# ``profile`` runs once and tells when each operator ran, and on which stream.

for row in module.profile()[:6]:
    print(f"stream {row.stream}  {row.start_us:8.1f} .. {row.end_us:8.1f} us  {row.name}")
