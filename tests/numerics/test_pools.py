"""Compares pooling by every provider with a simple implementation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import tvm_interop
from tests import nets
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.machine.kernel_libraries import library_version

IMAGE = (2, 19, 13, 10)


@dataclass(frozen=True)
class Pool:
    """A pooling. Pairs are height and width, and padding is top, left, bottom, right."""

    window: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    rounds_up: bool = False

    def attributes(self) -> dict[str, object]:
        """The attributes of the ONNX operator."""
        return {
            "kernel_shape": self.window,
            "strides": self.strides,
            "pads": self.padding,
            "dilations": self.dilation,
            "ceil_mode": int(self.rounds_up),
        }

    def windows(self, size: int, axis: int) -> list[tuple[list[int], int]]:
        """For each result along an axis: the indices in the image that its window covers, and the
        number of all indices of the window, including the padding."""
        begin, end = self.padding[axis], self.padding[axis + 2]
        reach = (self.window[axis] - 1) * self.dilation[axis] + 1
        room, stride = size + begin + end - reach, self.strides[axis]
        count = (-(-room // stride) if self.rounds_up else room // stride) + 1
        if (count - 1) * stride >= size + begin:
            count -= 1  # A window must begin in the image, or in the padding before it.
        found = []
        for i in range(count):
            at = [i * stride - begin + k * self.dilation[axis] for k in range(self.window[axis])]
            found.append(([p for p in at if 0 <= p < size], sum(p < size + end for p in at)))
        return found


POOLS = {
    "3x3 same": Pool((3, 3), padding=(1, 1, 1, 1)),
    "stem": Pool((3, 3), (2, 2), (1, 1, 1, 1)),
    "rounded up": Pool((3, 3), (2, 2), rounds_up=True),
    "rounded up, padded": Pool((3, 2), (2, 3), (1, 1, 0, 0), rounds_up=True),
    "window beyond the edge": Pool((2, 2), (3, 3), (1, 1, 1, 1), rounds_up=True),
    "uneven": Pool((2, 5), (1, 3), (0, 2, 1, 1)),
    "much padding": Pool((5, 5), (4, 4), (4, 4, 4, 4)),
    "dilated": Pool((3, 2), (2, 1), (2, 1, 2, 1), (2, 3)),
    "all of it": Pool(IMAGE[2:]),
    "one pixel": Pool((1, 1), (2, 2)),
}


def pooled(x: np.ndarray, pool: Pool, kind: str) -> np.ndarray:
    """The result of the pooling. A window with only padding has a mean of zero."""
    rows, columns = pool.windows(x.shape[2], 0), pool.windows(x.shape[3], 1)
    result = np.zeros((*x.shape[:2], len(rows), len(columns)), x.dtype)
    for i, (ys, tall) in enumerate(rows):
        for j, (xs, wide) in enumerate(columns):
            seen = x[:, :, ys][:, :, :, xs].reshape(*x.shape[:2], -1)
            if kind == "max":
                result[:, :, i, j] = seen.max(-1)
            else:
                numbers = tall * wide if kind == "mean with padding" else seen.shape[-1]
                result[:, :, i, j] = seen.sum(-1) / max(numbers, 1)
    return result


@pytest.mark.parametrize("provider", ["tvm", "onednn"])
@pytest.mark.parametrize("kind", ["max", "mean", "mean with padding"])
def test_pools(kind: str, provider: str) -> None:
    if provider != "tvm" and library_version(provider) is None:
        pytest.skip(f"{provider} is not installed")
    net = nets.Net()
    x = net.input("x", IMAGE)
    for name, pool in POOLS.items():
        counts = {"count_include_pad": 1} if kind == "mean with padding" else {}
        op = "MaxPool" if kind == "max" else "AveragePool"
        net.op(op, [x], name, **pool.attributes(), **counts)
    model = net.model(*POOLS, opset=19)
    image = np.random.default_rng(0).standard_normal(IMAGE).astype(np.float32) - 3
    artifact = tvm_interop.compile(
        model, scheduler="sequential", providers=[provider], latency_db=":memory:"
    )
    module = tvm_interop.GraphModule(artifact)
    module.run(x=image)
    for i, (name, pool) in enumerate(POOLS.items()):
        got, wanted = module.get_output(i).numpy(), pooled(image, pool, kind)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=name)


def test_poolings_of_floats_have_a_library_to_choose() -> None:
    if library_version("onednn") is None:
        pytest.skip("onednn is not installed")
    net = nets.Net()
    x = net.input("x", (1, 32, 12, 12))
    net.op("AveragePool", [x], "mean", kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=0)
    net.op("MaxPool", [x], "most", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
    net.op("GlobalAveragePool", [x], "all")
    model = net.model("mean", "most", "all", opset=19)
    made = Compilation(model, CompileOptions(latency_db=":memory:")).program.operators
    described = {op.whole or op.name: op.description for op in made}
    kinds = sorted(d.op for d in described.values() if d is not None)
    assert kinds == ["avg_pool2d", "avg_pool2d", "max_pool2d"]
