"""Tests that oneDNN packs a weight once for all kernels that want the same layout."""

from __future__ import annotations

import ctypes
import gc
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper, numpy_helper

from tests import nets
from tests.native_runtime import NativeModel, library
from tests.unit.test_onednn import needs_onednn, plain
from tests.unit.test_runtime_library import inputs_of, same, saved
from tests.weighted_kernel import WeightedKernel
from tvm_interop.compiler.api import compile
from tvm_interop.execution.open_instance import open_instance
from tvm_interop.program.host_memory import aligned_empty

pytestmark = needs_onednn

SIZE = 1536
"""The side of a square matrix of 9 MiB."""


def product(weight: np.ndarray, rows: int = 32) -> WeightedKernel:
    """A kernel that multiplies by a constant weight."""
    size = len(weight)
    op = plain(
        "conv2d", [(1, size, 1, rows), (size, size, 1, 1), (1, size, 1, rows)],
        window=(1, 1), strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1,
    )  # fmt: skip
    return WeightedKernel(op, weight)


def weights(seed: int, size: int = 64) -> np.ndarray:
    array = aligned_empty((size, size), np.float32)
    array[...] = np.random.default_rng(seed).standard_normal((size, size))
    return array


def test_further_kernels_take_no_memory_for_weights() -> None:
    weight = weights(0, SIZE)
    products = [product(weight)]
    before = psutil.Process().memory_info().rss
    products += [product(weight) for _ in range(8)]
    grown = psutil.Process().memory_info().rss - before
    assert grown < 3 * weight.nbytes, f"{grown / 2**20:.0f} MiB for 8 kernels"
    first = products[0].run()
    for each in products[1:]:
        np.testing.assert_array_equal(each.run(), first)
    # The last kernel that uses the packed weight keeps it alive.
    last = products.pop()
    products.clear()
    gc.collect()
    np.testing.assert_array_equal(last.run(), first)


def test_each_computes_with_its_own_weights() -> None:
    one, other = weights(0), weights(1)
    products = [product(one), product(other), product(one)]
    results = [each.run() for each in products]
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[1])
    products[0].bind(other)
    np.testing.assert_array_equal(products[0].run(), results[1])
    np.testing.assert_array_equal(products[2].run(), results[0])


def test_weights_that_change_in_place_are_packed_anew() -> None:
    weight = weights(0)
    products = [product(weight), product(weight)]
    before = products[0].run()
    weight[...] = weights(1)
    products[0].bind(weight)
    changed = products[0].run()
    np.testing.assert_array_equal(changed, product(weights(1)).run())
    # A kernel that has not bound the new weight still uses its packed weight.
    np.testing.assert_array_equal(products[1].run(), before)
    np.testing.assert_array_equal(product(weight).run(), changed)


def test_memory_that_another_weight_has_had_is_no_trap() -> None:
    array = weights(0)
    results = {}
    for seed in (0, 1, 0, 2):
        array[...] = weights(seed)
        got = product(array).run()
        np.testing.assert_array_equal(got, results.setdefault(seed, got))
    assert not np.array_equal(results[0], results[1])


def test_kernels_are_made_by_many_threads_at_once() -> None:
    shared = [weights(seed) for seed in range(3)]
    wanted = [product(weight).run() for weight in shared]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda i: product(shared[i % 3]).run(), range(60)))
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


def convolution(seed: int) -> onnx.ModelProto:
    """A model of one convolution, whose weights oneDNN packs and nothing else reads."""
    shape = (1, 64, 14, 14)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    weight = np.random.default_rng(seed).standard_normal((64, 64, 3, 3), np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    graph = helper.make_graph([node], "net", [x], [y], [numpy_helper.from_array(weight, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def overwrite_weights(path: Path) -> None:
    """Write zeros over the weights in the file of an artifact."""
    with tarfile.open(path) as tar:
        member = tar.getmember("weights.bin")
    with path.open("r+b") as file:
        file.seek(member.offset_data)
        file.write(bytes(member.size))


def test_later_instances_of_a_loaded_model_do_not_read_the_weights(tmp_path: Path) -> None:
    """The test overwrites the file of a loaded model, which shows whether kernels still read it.

    A user should never overwrite the file of a loaded model.
    """
    path = saved(convolution(0), tmp_path / "model.tar", providers=["onednn"])
    model = NativeModel(path)
    array = inputs_of(model)
    wanted = model.run(*array)
    overwrite_weights(path)
    first, model.instance = model.instance, ctypes.c_void_p()
    model.open()
    same(model.run(*array), wanted)
    library().tvi_instance_free(first)


def test_models_whose_weights_lie_at_the_same_address(tmp_path: Path) -> None:
    paths = [
        saved(convolution(seed), tmp_path / f"{seed}.tar", providers=["onednn"]) for seed in (0, 1)
    ]
    array = inputs_of(NativeModel(paths[0]))
    wanted = [NativeModel(path).run(*array) for path in paths]
    assert wanted[0][0].tobytes() != wanted[1][0].tobytes()
    for _ in range(5):
        for path, expected in zip(paths, wanted, strict=True):
            same(NativeModel(path).run(*array), expected)


def test_models_of_files_with_the_same_weights_share_them(tmp_path: Path) -> None:
    """A session that compiles size by size has a file for each size. Files share packed weights."""
    path = saved(convolution(0), tmp_path / "model.tar", providers=["onednn"])
    copied = Path(shutil.copy(path, tmp_path / "copied.tar"))
    first, second = NativeModel(path), NativeModel(copied)
    array = inputs_of(first)
    wanted = first.run(*array)
    overwrite_weights(copied)
    library().tvi_instance_free(second.instance)
    second.instance = ctypes.c_void_p()
    second.open()
    same(second.run(*array), wanted)


def test_weights_of_a_file_that_was_overwritten_are_not_shared(tmp_path: Path) -> None:
    path = saved(convolution(0), tmp_path / "model.tar", providers=["onednn"])
    copied = Path(shutil.copy(path, tmp_path / "copied.tar"))
    first = NativeModel(path)
    array = inputs_of(first)
    wanted = first.run(*array)
    overwrite_weights(path)
    library().tvi_instance_free(first.instance)  # No packed weight is left. The model stays loaded.
    first.instance = ctypes.c_void_p()
    same(NativeModel(copied).run(*array), wanted)
