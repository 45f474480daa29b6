"""Small models that TVM's own ONNX importer and kernels get wrong, without `tvm_interop`.

    python docs/upstream/tvm_onnx_importer.py

Each printed line gives the result of TVM and the result of onnxruntime. `tvm_onnx_importer.md`
describes the errors, and names the files of this package that work around them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


class Case(NamedTuple):
    """A model in ONNX's text form, with its only input `x`."""

    name: str
    graph: str
    x: np.ndarray
    opset: int = 18


def floats(*numbers: float) -> np.ndarray:
    """Return the numbers as a vector of float32."""
    return np.asarray(numbers, np.float32)


ROW = np.arange(1, 5, dtype=np.float32)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
CASES = [
    *(
        Case(
            f"{op} that reduces nothing",
            f"g (float[4] x) => (float[4] y) {{ y = {op} <noop_with_empty_axes = 1> (x) }}",
            -ROW if op in ("ReduceL1", "ReduceL2") else ROW,
        )
        for op in ("ReduceSumSquare", "ReduceLogSum", "ReduceL1", "ReduceL2")
    ),
    Case(
        "the type of OneHot",
        """g (int64[3] x) => (float[3, 4] y) <int64 depth = {4}, float[2] values = {0, 1}>
           { y = OneHot (x, depth, values) }""",
        np.asarray([0, 2, 3]),
    ),
    Case(
        "a depth of OneHot that is a vector",
        """g (int64[3] x) => (float[3, 4] y) <int64[1] depth = {4}, float[2] values = {0, 1}>
           { y = OneHot (x, depth, values) }""",
        np.asarray([0, 2, 3]),
    ),
    Case(
        "ArgMax of minus infinity",
        "g (float[3] x) => (int64[1] y) { y = ArgMax <axis = 0> (x) }",
        floats(-np.inf, -np.inf, -np.inf),
    ),
    *(
        Case(
            f"NaN in {op}",
            f"g (float[2] x) => (float[2] y) {{ y = {op} (x) }}",
            floats(np.nan, -1),
        )
        for op in ("Relu", "Selu", "Sign", "HardSigmoid")
    ),
    Case(
        "NaN in Max",
        "g (float[2] x) => (float[2] y) <float one = {1}> { y = Max (x, one) }",
        floats(np.nan, 2),
    ),
    Case(
        "infinity times 0",
        "g (float[2] x) => (float[2] y) <float zero = {0}> { y = Mul (x, zero) }",
        floats(np.inf, 1),
    ),
    Case(
        "a part of Split that is empty",
        """g (float[4] x) => (float[0] y, float[4] z) <int64[2] parts = {0, 4}>
           { y, z = Split <axis = 0> (x, parts) }""",
        ROW,
    ),
    Case(
        "Atanh of a small number",
        "g (float[2] x) => (float[2] y) { y = Atanh (x) }",
        floats(1e-8, 1e-3),
    ),
    Case(
        "Upsample of an old opset",
        """g (float[1, 1, 2, 2] x) => (float[1, 1, 3, 3] y) <float[4] scales = {1, 1, 1.5, 1.5}>
           { y = Upsample <mode = "nearest"> (x, scales) }""",
        IMAGE[:, :, :2, :2],
        9,
    ),
]


def by_tvm(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray] | str:
    """Return the outputs of TVM alone, or the text of the error that it raised."""
    try:
        module = relax.transform.LegalizeOps()(from_onnx(model, keep_params_in_input=False))
        machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
        found = machine["main"](tvm.runtime.tensor(x))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1][:120]}"
    outputs = [found] if isinstance(found, tvm.runtime.Tensor) else list(found)
    return [output.numpy() for output in outputs]


def by_onnxruntime(model: onnx.ModelProto, x: np.ndarray) -> list[Any]:
    """Return the outputs of onnxruntime, which are right."""
    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x}))


def main() -> None:
    """Print the cases in which TVM and onnxruntime differ."""
    for case in CASES:
        text = f'<ir_version: 8, opset_import: ["" : {case.opset}]> {case.graph}'
        model = onnx.parser.parse_model(text)
        wanted, got = by_onnxruntime(model, case.x), by_tvm(model, case.x)
        if isinstance(got, str):
            print(f"{case.name}: {got}")
            continue
        for have, want in zip(got, wanted, strict=True):
            same = have.dtype == want.dtype and have.shape == want.shape
            if not same or not np.allclose(have, want, 1e-5, 0, equal_nan=True):
                print(
                    f"{case.name}: {have.dtype}{list(have.shape)} {have.ravel()[:9]} for "
                    f"{want.dtype}{list(want.shape)} {want.ravel()[:9]}"
                )


if __name__ == "__main__":
    main()
