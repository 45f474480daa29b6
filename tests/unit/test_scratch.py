"""Tests that kernels share their scratch memory, and that this changes no bits.

`tests/cpp/scratch_test.cc` tests that no two kernels have the same memory at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from tests.kind_variants import laid_out, variants
from tests.kinds import conformance
from tests.unit.test_kinds import CASES, runs_here
from tests.unit.test_onednn import needs_onednn, plain
from tests.unit.test_parts_of_products import program_of, run, run_again
from tvm_interop._native import cpu as _runtime
from tvm_interop._native.operators import BoundOperator
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.lowering.split_operators import split_operators
from tvm_interop.machine.kernel_libraries import why_unsupported
from tvm_interop.program.host_memory import aligned_empty
from tvm_interop.program.library_op import LibraryOp

pytestmark = needs_onednn

CHANNELS = 16
"""A number of channels that fills blocks on any CPU, so that blocks have no added channels."""


def convolution(pixels: int) -> LibraryOp:
    """A convolution of plain images. oneDNN copies the image and the result to blocked memory."""
    shape = (1, CHANNELS, 1, pixels)
    return plain(
        "conv2d", [shape, (CHANNELS, CHANNELS, 1, 1), shape],
        window=(1, 1), strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1,
    )  # fmt: skip


class Convolutions:
    """Independent kernels of `convolution` on streams. Their copies take 128 bytes for a pixel."""

    def __init__(self, pixels: int, count: int = 1, streams: int = 1) -> None:
        op = convolution(pixels)
        self.images, self.weights, self.results = (
            [aligned_empty(shape, np.float32) for _ in range(count)] for shape in op.shapes
        )
        rng = np.random.default_rng(0)
        for array in (*self.images, *self.weights):
            array[...] = rng.standard_normal(array.shape, np.float32)
        tensors, operators = [], []
        for i, arrays in enumerate(zip(self.images, self.weights, self.results, strict=True)):
            own = [as_tensor(array) for array in arrays]
            kernel = _runtime.prepare_kernel("onednn", op.fields(), 1, own, [False, True, False])
            assert _runtime.num_reorders(kernel) == 2
            used = range(len(tensors), len(tensors) + 3)
            operators.append(BoundOperator(f"op{i}", kernel, used, i % streams))
            tensors += own
        self._executor: Any = _runtime.make_executor(streams, 1, tensors, operators)

    def run(self) -> None:
        _runtime.run(self._executor)


@pytest.fixture(scope="module")
def fill() -> Callable[[], None]:
    """A function that fills the scratch memory of this thread with NaNs.

    Kernels share blocks by size class (`runtime/cpu/scratch.cc`). In a class, the largest size is
    almost four times the smallest. There is a kernel of the largest size of each class, so that all
    bytes of the blocks are filled.
    """
    kernels = [Convolutions(pixels=112 * 4**i) for i in range(6)]
    for kernel in kernels:
        kernel.images[0][...] = np.nan

    def run_all() -> None:
        for kernel in kernels:
            kernel.run()

    return run_all


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_what_other_kernels_leave_is_not_read(
    kind: str, case: str, fill: Callable[[], None]
) -> None:
    op = conformance()[kind].cases[case]
    inputs = conformance()[kind].inputs(op)
    for name, variant in variants(op):
        if why_unsupported("onednn", variant) or not runs_here(variant):
            continue
        given = [a.astype(t) for a, t in zip(inputs, variant.stored_types, strict=False)]
        lie = [laid_out(a, layout) for a, layout in zip(given, variant.layouts, strict=False)]
        program = split_operators(program_of(variant), 2)
        for constant in (True, False):
            wanted = run(program, lie, streams=1, constant=constant).tobytes()
            # The only stream runs on this thread, which takes the blocks of scratch memory that it
            # had last. So both runs take blocks that `fill` has filled with NaNs. In the second
            # run, the kernels have already run once.
            got = run_again(program, lie, *lie[1:2], streams=1, constant=constant, before_each=fill)
            assert all(each.tobytes() == wanted for each in got), name


def test_two_streams_have_memory_of_their_own() -> None:
    convolutions = Convolutions(20_000, count=4, streams=2)
    wanted = results_alone(convolutions)
    for _ in range(50):
        convolutions.run()
        for got, expected in zip(convolutions.results, wanted, strict=True):
            np.testing.assert_array_equal(got, expected)


def results_alone(convolutions: Convolutions) -> list[np.ndarray]:
    """The results of the kernels in runs on one stream, while nothing else runs."""
    alone = Convolutions(convolutions.images[0].shape[-1], count=len(convolutions.images))
    alone.run()
    return alone.results


def test_several_threads_have_memory_of_their_own() -> None:
    models = [Convolutions(20_000, count=1 + i) for i in range(4)]
    wanted = [results_alone(model) for model in models]

    def run_often(i: int) -> None:
        for _ in range(50):
            models[i].run()
            for got, expected in zip(models[i].results, wanted[i], strict=True):
                np.testing.assert_array_equal(got, expected)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run_often, range(4)))


def test_kernels_take_turns_with_one_block() -> None:
    pixels = 100_000
    nbytes = 128 * pixels
    convolutions = Convolutions(pixels, count=8)
    before = psutil.Process().memory_info().rss
    convolutions.run()
    grown = psutil.Process().memory_info().rss - before
    grown -= sum(result.nbytes for result in convolutions.results)
    assert grown < 2 * nbytes, f"{grown / 2**20:.0f} MiB for 8 kernels"
