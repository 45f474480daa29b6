"""
From Relay to here
==================

Relay, the graph executor and tvmc left TVM in version 0.20. Scripts and habits that speak them find
a home here; this is what stays the same and, just as important, what does not.
"""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import tvm

# Was: from tvm import relay
# Was: from tvm.contrib import graph_executor
from tvm_interop import relay, tvmc
from tvm_interop.contrib import graph_executor
from tvm_interop.models import build

folder = Path(tempfile.mkdtemp())
onnx.save(build("squeezenet", image_size=32), folder / "model.onnx")

# %%
# The same lines
# --------------
# Load, build, run, time. But for the two imports above this is a script of 2022.

model = onnx.load(folder / "model.onnx")
shape_dict = {"image": (1, 3, 32, 32)}
mod, params = relay.frontend.from_onnx(model, shape_dict)

# %%
# A pass is added as any other was. Without it ``relay.build`` schedules as ``compile`` does by
# default.

mod = relay.transform.InterOpSchedule("lios")(mod)

with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target="llvm", params=params)

dev = tvm.cpu(0)
module = graph_executor.GraphModule(lib["default"](dev))
module.set_input("image", np.random.default_rng(0).uniform(size=shape_dict["image"]))
module.run()
print("most likely class", module.get_output(0).numpy().argmax())
print(module.benchmark(dev, repeat=3, number=5))

# %%
# The library is one file, which ``tvm_interop.load`` reads; ``tvm.runtime.load_module`` does not.

lib.export_library(folder / "model.tar")

# %%
# tvmc's lines are read as they were, with ``python -m tvm_interop.tvmc`` for ``tvmc``: here in this
# process, on the file just written. ``translate`` shows what a line becomes.

tvmc.main(["run", "--print-time", "--repeat", "3", str(folder / "model.tar")])
line = "compile --target llvm --opt-level 3 --output module.tar model.onnx"
print("tvm-interop", *tvmc.translate(line.split()))

# %%
# What is not the same
# --------------------
# - **There is no Relay.** ``mod`` is a Relax module. It prints as one, and a pass over Relay's
#   expressions finds none. Relay's other names are gone, and each says what to use:

for name in ("nn", "quantize", "transform.FoldConstant", "frontend.from_pytorch"):
    owner, _, last = name.rpartition(".")
    try:
        getattr(getattr(relay, owner) if owner else relay, last)
    except ImportError as error:
        print(error)

# %%
# - **Only ONNX is imported.** Relay read a dozen formats; export to ONNX from the others.
# - **Weights are constants.** ``params`` is empty, as it was by default in Relay's last years
#   (``freeze_params``), so there is nothing to pass to ``set_input(**params)``.
# - **Shapes are static.** A model that leaves a dimension open needs it in ``shape``.
# - **Targets are spelled in JSON** in TVM today. ``llvm -mcpu=core-avx2`` is still read here, by
#   ``relay.build`` and the command line; ``tvm.target.Target`` itself refuses it. ``tvm.nd`` is
#   ``tvm.runtime`` now: ``tvm.nd.array(x)`` became ``tvm.runtime.tensor(x)``.
# - **AutoTVM and Ansor logs mean nothing here.** Kernels are chosen by their times on this machine.
#   ``--tuning-records`` takes a folder of records that ``tvm-interop tune --kernels`` wrote.
# - **RPC measures and runs**, on servers that have this package (extra ``farm``); there is no RPC
#   session to build modules in.
# - **No microTVM, no AoT executor, no debug executor.** For the debug executor's times there is
#   ``GraphModule.profile()``.
# - **It runs side by side.** Outputs are bit-equal to sequential execution of the same kernels, not
#   to what Relay's kernels gave: those were other kernels.
