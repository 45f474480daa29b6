"""A kernel that reads far beyond its input, for compute-sanitizer to find.

`python -m tests.gpu.out_of_bounds` compiles the kernel and runs it. If the command gets the path of
a library that `build` made, it runs the kernel of this library, without TVM's compiler.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tvm_interop._native import cuda as _cuda
from tvm_interop._native.kernels import load_kernels
from tvm_interop._native.operators import BoundOperator
from tvm_interop.execution.cuda import require_gpu
from tvm_interop.execution.kernels import kernel_functions
from tvm_interop.plan.plan import Plan, Stream

FAR = 1 << 28
"""How far beyond its input the kernel reads: this many numbers, which take a gigabyte.

No other tensor can be so far away.
"""


def build(path: Path, archs: Sequence[str]) -> Path:
    """Compile the kernel for some architectures to the library at `path`."""
    import tvm
    from tvm import te

    from tvm_interop.kernels.build_cuda import build_cuda_kernels, cuda_target
    from tvm_interop.kernels.cuda_schedule import DefaultCUDASchedule

    x = te.placeholder((100,), "float32", name="x")
    y = te.compute((100,), lambda i: x[i + FAR], name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "far")
    scheduled = DefaultCUDASchedule(cuda_target(archs))(tvm.IRModule({"far": func}))
    return build_cuda_kernels(scheduled, path, archs)


def run(library: Path) -> None:
    """Run the kernel once."""
    require_gpu(Plan((Stream("cuda:0", 1),), (), (), (), (), 0, False))
    kernels = load_kernels(library)
    tensors = [_cuda.tensor_within(_cuda.make_memory(0, 400), 0, (100,), "float32") for _ in "xy"]
    far = kernel_functions(kernels, ["far"])["far"]
    executor = _cuda.make_executor(
        _cuda.make_streams([0]), tensors, [BoundOperator("far", far, (0, 1))], "streams"
    )
    _cuda.run(executor)


def main(arguments: Sequence[str] = ()) -> None:
    """Run the kernel of the library that `arguments` names. Without a name, compile it for this
    GPU."""
    if arguments:
        run(Path(arguments[0]))
        return
    from tvm_interop.compiler.cuda import native_arch

    with tempfile.TemporaryDirectory() as folder:
        run(build(Path(folder) / "kernels.so", (native_arch(),)))


if __name__ == "__main__":
    main(sys.argv[1:])
