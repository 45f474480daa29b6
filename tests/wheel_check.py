"""Checks that the installed wheels work. Runs in an empty environment, outside of the checkout.

    python tests/wheel_check.py FOLDER

The artifact, an input and the output stay in the given folder, for `runtime_wheel_check.py`.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_interop
from tvm_interop._native.runtime_files import runtime_file
from tvm_interop.viz.page import to_page
from tvm_interop.viz.record import record


def two_branches() -> onnx.ModelProto:
    """A model of two convolutions of one input, and their concatenation."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((8, 4, 3, 3)).astype("float32"), name)
        for name in ("left_w", "right_w")
    ]
    nodes = [
        helper.make_node("Conv", ["x", "left_w"], ["left"], name="left", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["x", "right_w"], ["right"], name="right", pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["left", "right"], ["y"], name="join", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "two_branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 16, 16])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_runtime_library(path: Path, data: np.ndarray) -> np.ndarray:
    """Run a model as a program in C does, with the library that the wheel installed."""
    library = ctypes.CDLL(str(runtime_file("library")))
    library.tvi_last_error.restype = ctypes.c_char_p
    model, instance = ctypes.c_void_p(), ctypes.c_void_p()
    result = np.zeros((1, 16, 16, 16), np.float32)
    inputs = (ctypes.c_void_p * 1)(data.ctypes.data)
    outputs = (ctypes.c_void_p * 1)(result.ctypes.data)
    size = ctypes.c_size_t(0)
    for status in (
        library.tvi_model_load(str(path).encode(), None, ctypes.byref(model)),
        library.tvi_instance_create(model, size, ctypes.byref(instance)),
        library.tvi_run(instance, inputs, outputs),
    ):
        assert status == 0, library.tvi_last_error().decode()
    library.tvi_instance_free(instance)
    library.tvi_model_free(model)
    return result


def main() -> None:
    """Compile, save, load and run a model.

    The function fails unless sequential and scheduled runs of the model give the same bits.
    """
    checkout = Path(__file__).resolve().parent.parent
    assert checkout not in Path(tvm_interop.__file__).resolve().parents, "not the installed package"
    data = np.random.default_rng(1).standard_normal((1, 4, 16, 16)).astype("float32")
    results = {}
    folder = Path(sys.argv[1])
    for scheduler in ("sequential", "ios"):
        out = folder / f"{scheduler}.tar"
        tvm_interop.compile(
            two_branches(),
            scheduler=scheduler,
            out=out,
            # Both compilations use one database, so that they choose the same kernels.
            latency_db=folder / "latency.db",
            keep_slower=True,
        )
        module = tvm_interop.GraphModule(tvm_interop.load(out))
        module.run(x=data)
        results[scheduler] = module.get_output(0).numpy()
    results["without Python"] = by_runtime_library(out, data)
    np.savez(folder / "arrays.npz", x=data, y=results["ios"])
    page = to_page([record(module.artifact, "two branches", runs=1)], "here")
    assert "left" in page  # The page is made from a template, which the wheel must contain.
    assert (Path(tvm_interop.__file__).parent / "py.typed").is_file()
    assert np.isfinite(results["ios"]).all()
    assert np.array_equal(results["ios"], results["sequential"])
    assert np.array_equal(results["ios"], results["without Python"])
    print(f"tvm_interop {tvm_interop.__version__} from {Path(tvm_interop.__file__).parent}: ok")


if __name__ == "__main__":
    main()
