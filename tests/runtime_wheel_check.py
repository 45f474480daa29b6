"""Checks the wheel `tvm-interop-runtime` alone, in an environment that has nothing else.

    python tests/runtime_wheel_check.py FOLDER

`wheel_check.py` has written an artifact, an input and the expected output to FOLDER.
"""

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tvm_interop

INSTALLED = {"numpy", "onednn-cpu-gomp", "pip", "setuptools", "tvm-interop-runtime"}


def refusal(what: Callable[[], object], kind: type[Exception] = tvm_interop.DeviceError) -> str:
    """The text of the error that a call raises."""
    try:
        what()
    except kind as error:
        return str(error)
    raise AssertionError("nothing was refused")


def main() -> None:
    """Run the artifact by each interface, and call functions that only the whole package has."""
    checkout = Path(__file__).resolve().parent.parent
    assert checkout not in Path(tvm_interop.__file__).resolve().parents, "not the installed package"
    found = {each.metadata["Name"] for each in importlib.metadata.distributions()}
    assert found <= INSTALLED, found - INSTALLED
    folder = Path(sys.argv[1])
    arrays = np.load(folder / "arrays.npz")
    path = folder / "ios.tar"
    module = tvm_interop.GraphModule(path)
    (output,) = module(arrays["x"])
    assert np.array_equal(output.numpy(), arrays["y"])
    session = tvm_interop.Session(path)
    (output,) = session.run(None, {"x": arrays["x"]})
    assert np.array_equal(output, arrays["y"])
    assert "inputs x float32[1, 4, 16, 16]" in repr(module)
    assert tvm_interop.num_threads() >= 1
    assert tvm_interop.__version__ != "0+unknown"
    for what in (
        lambda: tvm_interop.compile("model.onnx"),
        lambda: tvm_interop.schedule,
        lambda: tvm_interop.Session(b"a model"),
        lambda: tvm_interop.load(path).plan,
        module.profile,
        lambda: tvm_interop.measure_interleaved({"it": module}, 1),
    ):
        assert "`pip install tvm-interop`" in refusal(what)
    said = refusal(lambda: tvm_interop.load(folder / "arrays.npz"), tvm_interop.ArtifactError)
    assert "arrays.npz`: " in said
    assert "pip" not in said
    print(f"tvm-interop-runtime {tvm_interop.__version__}: ok")


if __name__ == "__main__":
    main()
