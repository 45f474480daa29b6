"""Small models to serve, compiled once."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import tvm_interop
from tests.nets import Net
from tvm_interop.serving.server.model import Model


@functools.cache
def perceptron(batch_sizes: tuple[int, ...] | None = (1, 2, 4)) -> tvm_interop.Artifact:
    """`y = softmax(relu(x A) B)`, x of 12 numbers, y of 5; for several batch sizes, or for one."""
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
    """Inputs `a` and `k` of other types, outputs `s` and `t`."""
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
    """`y = x W W W W` of 192 by 192: some milliseconds, and answers of 150 kB."""
    net = Net()
    y = net.input("x", [192, 192])
    weight = net.weight(192, 192, scale=0.07)
    for i in range(4):
        y = net.op("MatMul", [y, weight], f"y{i}")
    return tvm_interop.compile(
        net.model(y), scheduler="sequential", streams=1, providers=["tvm"], latency_db=":memory:"
    )


def rows(count: int, seed: int = 0) -> np.ndarray:
    """Inputs of `perceptron`."""
    return np.random.default_rng(seed).standard_normal((count, 12)).astype(np.float32)


def direct(artifact: tvm_interop.Artifact, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """What `GraphModule` computes."""
    module = tvm_interop.GraphModule(artifact)
    module.run(**inputs)
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


class Slow(Model):
    """A model whose runs wait until they may go on.

    Attributes
    ----------
    gate: called in each run with the rows that it is for.
    """

    gate: Callable[[list[int]], Any] = staticmethod(lambda ids: None)

    def run(self, slot: int, tickets: Sequence[Any]) -> None:
        self.gate([ticket.id for ticket in tickets])
        super().run(slot, tickets)
