"""Small artifacts of each kind, compiled once into a folder that all fuzz processes share.

`python -m tests.fuzz.compiled FOLDER` compiles the missing artifacts. Two compilations give
different machine code. So an input can be replayed only with the folder of artifacts from which it
was made.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tests import nets

FOLDER = "TVM_INTEROP_FUZZ_ARTIFACTS"
"""The environment variable that names the folder of the compiled artifacts."""


@functools.cache
def compiled() -> dict[str, bytes]:
    """The content of the artifact files, by kind. Missing artifacts are compiled first."""
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    return {name: _kept(folder / f"{name}.tar", make) for name, make in _KINDS.items()}


def _kept(path: Path, make: Callable[[], Any]) -> bytes:
    if not path.exists():
        make().save(path)
    return path.read_bytes()


def _quantised() -> onnx.ModelProto:
    """A quantised convolution and a quantised matrix product; input and output are floats."""
    net, rng = nets.Net(), np.random.default_rng(0)

    def step(number: float, zero: int, dtype: Any = np.uint8) -> list[str]:
        return [net.constant(np.asarray(number, np.float32)), net.constant(np.asarray(zero, dtype))]

    def integers(*shape: int) -> str:
        return net.constant(rng.integers(-60, 61, shape).astype(np.int8))

    words = net.op("QuantizeLinear", [net.input("x", [1, 8, 6, 6]), *step(0.02, 128)], "words")
    right = [integers(8, 8, 3, 3), *step(0.003, 0, np.int8)]
    net.op("QLinearConv", [words, *step(0.02, 128), *right, *step(0.05, 128)], "conv")
    net.op("Flatten", ["conv"], "flat")
    right = [integers(128, 10), *step(0.003, 0, np.int8)]
    net.op("QLinearMatMul", ["flat", *step(0.05, 128), *right, *step(0.1, 100)], "product")
    net.op("DequantizeLinear", ["product", *step(0.1, 100)], "y")
    return net.model("y")


def _compile(model: onnx.ModelProto, scheduler: str, **options: Any) -> Any:
    import tvm_interop

    return tvm_interop.compile(
        model, scheduler=scheduler, keep_slower=True, latency_db=":memory:", **options
    )


_TVM: dict[str, Any] = {"providers": ["tvm"]}
_KINDS: dict[str, Callable[[], Any]] = {
    "staged": lambda: _compile(nets.branches(), "greedy", streams=2, **_TVM),
    "streamed": lambda: _compile(nets.attention(), "opara", streams=3, threads=1, **_TVM),
    "of_libraries": lambda: _compile(nets.branches(), "nimble", streams=2),
    "quantised": lambda: _compile(_quantised(), "sequential"),
    "of_several_shapes": lambda: _compile(
        nets.chain(2, batch="n"), "sequential", batch_sizes=[1, 3], **_TVM
    ),
    "of_views": lambda: _compile(nets.split(), "opara", streams=2, threads=1, **_TVM),
}


if __name__ == "__main__":
    os.environ[FOLDER] = sys.argv[1]
    for kind, data in compiled().items():
        print(f"{kind}: {len(data)} bytes")
