"""Load, build, run and time an ONNX model, with the interfaces of TVM 0.19.

The first argument of the command is the ONNX file.
"""

import sys

import numpy as np
import onnx
import tvm
from tvm_interop import relay
from tvm_interop.contrib import graph_executor

model = onnx.load(sys.argv[1])
shape_dict = {"x": (1, 8, 14, 14)}
mod, params = relay.frontend.from_onnx(model, shape_dict)

target = "llvm -mattr=+avx2" if sys.argv[2:] == ["x86"] else "llvm"
with tvm.transform.PassContext(opt_level=3):
    lib = relay.build(mod, target=target, params=params)
lib.export_library("net.tar")

dev = tvm.cpu(0)
module = graph_executor.GraphModule(lib["default"](dev))
data = np.random.default_rng(0).uniform(-1, 1, shape_dict["x"])
module.set_input("x", data)
module.run()
output = module.get_output(0).numpy()
np.save("output.npy", output)

timing = module.benchmark(dev, repeat=3, number=10, end_to_end=True)
print(f"{output.shape}: class {output.argmax()}, median {timing.median * 1e3:.3f} ms")
