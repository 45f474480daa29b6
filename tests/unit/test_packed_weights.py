"""Tests that oneDNN packs a weight once for all kernels that want the same layout."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil

from tests import nets
from tests.unit.test_onednn import needs_onednn, plain
from tvm_interop._native import cpu as _runtime
from tvm_interop._native.operators import BoundOperator
from tvm_interop.compiler.api import compile
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.execution.open_instance import open_instance
from tvm_interop.program.host_memory import aligned_empty

pytestmark = needs_onednn

SIZE = 1536
"""The side of a square matrix of 9 MiB."""


class Product:
    """A kernel of the product with a weight, which is a constant."""

    def __init__(self, weight: np.ndarray, rows: int = 32) -> None:
        size = len(weight)
        op = plain(
            "conv2d", [(1, size, 1, rows), (size, size, 1, 1), (1, size, 1, rows)],
            window=(1, 1), strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1,
        )  # fmt: skip
        self.data, self.out = (aligned_empty((1, size, 1, rows), np.float32) for _ in range(2))
        self.data[...] = np.random.default_rng(1).standard_normal(self.data.shape)
        arrays = (self.data, weight.reshape(size, size, 1, 1), self.out)
        tensors = [as_tensor(array) for array in arrays]
        kernel = _runtime.prepare_kernel("onednn", op.fields(), 1, tensors, [False, True, False])
        self._executor: Any = _runtime.make_executor(
            1, 1, tensors, [BoundOperator("op", kernel, range(3))]
        )

    def run(self) -> np.ndarray:
        _runtime.run(self._executor)
        return self.out.copy()

    def bind(self, weight: np.ndarray) -> None:
        size = len(weight)
        _runtime.bind(self._executor, 1, as_tensor(weight.reshape(size, size, 1, 1)))


def weights(seed: int, size: int = 64) -> np.ndarray:
    array = aligned_empty((size, size), np.float32)
    array[...] = np.random.default_rng(seed).standard_normal((size, size))
    return array


def test_further_kernels_take_no_memory_for_weights() -> None:
    weight = weights(0, SIZE)
    products = [Product(weight)]
    before = psutil.Process().memory_info().rss
    products += [Product(weight) for _ in range(8)]
    grown = psutil.Process().memory_info().rss - before
    assert grown < 3 * weight.nbytes, f"{grown / 2**20:.0f} MiB for 8 kernels"
    first = products[0].run()
    for product in products[1:]:
        np.testing.assert_array_equal(product.run(), first)
    # The last kernel that uses the packed weight keeps it alive.
    last = products.pop()
    products.clear()
    gc.collect()
    np.testing.assert_array_equal(last.run(), first)


def test_each_computes_with_its_own_weights() -> None:
    one, other = weights(0), weights(1)
    products = [Product(one), Product(other), Product(one)]
    results = [product.run() for product in products]
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[1])
    products[0].bind(other)
    np.testing.assert_array_equal(products[0].run(), results[1])
    np.testing.assert_array_equal(products[2].run(), results[0])


def test_weights_that_change_in_place_are_packed_anew() -> None:
    weight = weights(0)
    products = [Product(weight), Product(weight)]
    before = products[0].run()
    weight[...] = weights(1)
    products[0].bind(weight)
    changed = products[0].run()
    np.testing.assert_array_equal(changed, Product(weights(1)).run())
    # A kernel that has not bound the new weight still uses its packed weight.
    np.testing.assert_array_equal(products[1].run(), before)
    np.testing.assert_array_equal(Product(weight).run(), changed)


def test_memory_that_another_weight_has_had_is_no_trap() -> None:
    array = weights(0)
    results = {}
    for seed in (0, 1, 0, 2):
        array[...] = weights(seed)
        got = Product(array).run()
        np.testing.assert_array_equal(got, results.setdefault(seed, got))
    assert not np.array_equal(results[0], results[1])


def test_kernels_are_made_by_many_threads_at_once() -> None:
    shared = [weights(seed) for seed in range(3)]
    wanted = [Product(weight).run() for weight in shared]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda i: Product(shared[i % 3]).run(), range(60)))
    for i, got in enumerate(made):
        np.testing.assert_array_equal(got, wanted[i % 3])


def test_instances_of_a_model_agree() -> None:
    artifact = compile(
        nets.inception_like(), scheduler="sequential", providers=["onednn", "tvm"],
        latency_db=":memory:",
    )  # fmt: skip
    kernels = artifact.load_kernels()
    instances = [open_instance(artifact, lambda: kernels) for _ in range(3)]
    plan = artifact.plan
    shape = plan.values[plan.inputs[0]].shape
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for instance in instances:
        instance.write(plan.inputs[0], data)
        instance.run()
    first = instances[0].read(plan.outputs[0])
    for instance in instances[1:]:
        np.testing.assert_array_equal(instance.read(plan.outputs[0]), first)
