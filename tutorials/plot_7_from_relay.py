"""
From Relay to here
==================

Relay, the graph executor and tvmc left TVM in version 0.20. This tutorial runs a script that was
written for them. It shows which lines stay the same, and lists the differences.
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
# The script loads, builds, runs and times a model. Apart from the two imports above, such a script
# looked like this in 2022.

model = onnx.load(folder / "model.onnx")
shape_dict = {"image": (1, 3, 32, 32)}
mod, params = relay.frontend.from_onnx(model, shape_dict)

# %%
# A schedule is chosen by a pass over the module, added like any other pass. Without this pass,
# ``relay.build`` schedules as ``compile`` does by default.

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
# The exported library is one file. ``tvm_interop.load`` reads it, and ``tvm.runtime.load_module``
# does not.

lib.export_library(folder / "model.tar")

# %%
# The command lines of tvmc still work, with ``python -m tvm_interop.tvmc`` instead of ``tvmc``. The
# next call runs tvmc's ``run`` in this process, on the file just written. ``translate`` shows the
# command line of ``tvm-interop`` that does the same as a command line of tvmc.

tvmc.main(["run", "--print-time", "--repeat", "3", str(folder / "model.tar")])
line = "compile --target llvm --opt-level 3 --output module.tar model.onnx"
print("tvm-interop", *tvmc.translate(line.split()))

# %%
# What is not the same
# --------------------
# - **There is no Relay.** ``mod`` is a Relax module, and prints as one. A pass over Relay's
#   expressions finds no expressions in it. Relay's other names are gone, and their errors say which
#   name to use instead:

for name in ("nn", "quantize", "transform.FoldConstant", "frontend.from_pytorch"):
    owner, _, last = name.rpartition(".")
    try:
        getattr(getattr(relay, owner) if owner else relay, last)
    except ImportError as error:
        print(error)

# %%
# - **Only ONNX is imported** under Relay's names. Relay read a dozen formats. Export models in
#   other formats to ONNX first; ``tvm_interop.compile`` also takes programs of ``torch.export``.
# - **Weights are constants.** ``params`` is empty, as it was by default in Relay's last years
#   (``freeze_params``). So there is nothing to pass to ``set_input(**params)``.
# - **Shapes are static.** If a model leaves a dimension open, give its size in ``shape``.
# - **Targets are spelled in JSON** in today's TVM. ``relay.build`` and the command line still read
#   ``llvm -mcpu=core-avx2``; ``tvm.target.Target`` itself refuses it. ``tvm.nd`` is ``tvm.runtime``
#   now: ``tvm.nd.array(x)`` became ``tvm.runtime.tensor(x)``.
# - **AutoTVM and Ansor logs mean nothing here.** Kernels are chosen by their measured times on this
#   machine. ``--tuning-records`` takes a folder of records that ``tvm-interop tune --kernels``
#   wrote.
# - **RPC measures and runs** models on servers that have this package (extra ``farm``). There is no
#   RPC session in which to build modules.
# - **No microTVM, no AoT executor, no debug executor.** ``GraphModule.profile()`` gives the times
#   that the debug executor gave.
# - **Operators run side by side.** Outputs have the same bits as sequential execution of the same
#   kernels. The last bits may differ from those of Relay's outputs, because Relay made other
#   kernels.
