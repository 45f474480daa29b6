"""Small models for tests of the server. Each is compiled once."""

from __future__ import annotations

import dataclasses
import functools
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tvm_ffi import libinfo

import tvm_interop
from tests.nets import Net
from tvm_interop.serving.server.model import Model


@functools.cache
def perceptron(batch_sizes: tuple[int, ...] | None = (1, 2, 4)) -> tvm_interop.Artifact:
    """The model `y = softmax(relu(x A) B)`, with 12 numbers in x and 5 in y.

    The model is compiled for each of `batch_sizes`, or for one row if they are None.
    """
    net = Net()
    x = net.input("x", ["n", 12] if batch_sizes else [1, 12])
    hidden = net.op("Relu", [net.op("MatMul", [x, net.weight(12, 32)], "h")], "r")
    net.op("Softmax", [net.op("MatMul", [hidden, net.weight(32, 5)], "z")], "y", axis=1)
    return tvm_interop.compile(
        net.model("y"), scheduler="sequential", streams=1, batch_sizes=batch_sizes,
        providers=["tvm"], latency_db=":memory:",
    )  # fmt: skip


@functools.cache
def two_types() -> tvm_interop.Artifact:
    """A model whose inputs `a` and `k` have different types, with the outputs `s` and `t`."""
    net = Net()
    a = net.input("a", [2, 3])
    k = net.input("k", [2, 3], 7)  # int64
    net.op("Add", [a, a], "s")
    net.op("Mul", [k, k], "t")
    return tvm_interop.compile(
        net.model("s", "t"), scheduler="sequential", streams=1, providers=["tvm"],
        latency_db=":memory:",
    )  # fmt: skip


@functools.cache
def heavy() -> tvm_interop.Artifact:
    """The model `y = x W W W W` of size 192 by 192.

    A run of this model takes some milliseconds, and its output has 150 kB.
    """
    net = Net()
    y = net.input("x", [192, 192])
    weight = net.weight(192, 192, scale=0.07)
    for i in range(4):
        y = net.op("MatMul", [y, weight], f"y{i}")
    return tvm_interop.compile(
        net.model(y), scheduler="sequential", streams=1, providers=["tvm"], latency_db=":memory:"
    )


_PICKY = """
#include <tvm/ffi/c_api.h>
extern "C" __attribute__((visibility("default")))
int __tvm_ffi_KERNEL(void*, const TVMFFIAny* arguments, int32_t, TVMFFIAny*) {
  const auto of = [&](int i) {
    return static_cast<float*>(static_cast<DLTensor*>(arguments[i].v_ptr)->data);
  };
  if (of(0)[0] == 13) {
    const char* parts[] = {"thirteen"};
    TVMFFIErrorSetRaisedFromCStrParts("RuntimeError", parts, 1);
    return -1;
  }
  for (int i = 0; i < 12; ++i) of(1)[i] = of(0)[i] > 0 ? of(0)[i] : 0;
  return 0;
}
"""


@functools.cache
def picky() -> tvm_interop.Artifact:
    """The model `y = relu(x)` of 12 numbers. Its kernel fails if the first number is 13."""
    net = Net()
    net.op("Relu", [net.input("x", [1, 12])], "y")
    made = tvm_interop.compile(
        net.model("y"), scheduler="sequential", streams=1, providers=["tvm"],
        latency_db=":memory:",
    )  # fmt: skip
    (operator,) = made.plan.operators
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "picky.cc", Path(name) / "picky.so"
        source.write_text(_PICKY.replace("KERNEL", operator.kernel))
        paths = [libinfo.find_include_path(), libinfo.find_dlpack_include_path()]
        command = ["g++", "-shared", "-fPIC", "-O1", "-std=c++17", *(f"-I{path}" for path in paths)]
        subprocess.run([*command, str(source), "-o", str(library)], check=True)
        return dataclasses.replace(made, kernels=library.read_bytes())


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Inputs of `perceptron`."""
    return np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32)


def direct(artifact: tvm_interop.Artifact, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs that `GraphModule` computes."""
    module = tvm_interop.GraphModule(artifact)
    module.run(**inputs)
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


class Slow(Model):
    """A model whose runs wait for a gate.

    Attributes
    ----------
    gate: called in each run with the rows of the run.
    """

    gate: Callable[[list[int]], Any] = staticmethod(lambda ids: None)

    def run(self, slot: int, tickets: Sequence[Any]) -> None:
        self.gate([ticket.id for ticket in tickets])
        super().run(slot, tickets)
