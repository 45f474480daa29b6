"""Compares convolutions by Winograd's algorithm with oneDNN's direct sums, size by size.

    python -m benchmarks.winograd

Both kernels run on one core, on images in a blocked layout, in interleaved rounds. The direct
kernel takes part twice, and the ratio of its two times is the noise. The errors are the largest
differences from sums in double precision, relative to the largest result, for normally distributed
numbers.

The limits `_FASTER`, `_FEWEST_CHANNELS` and `_FEWEST_FLOPS` in `compiler/winograd_choice.py` were
chosen from the table that this program prints. In this program the weights stay in the caches,
which favours Winograd's kernel if weights are large. `_BYTES_PER_US` in the same file corrects for
that.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from itertools import islice
from typing import Any

import numpy as np

from tvm_interop._native import cpu as _native
from tvm_interop._native.operators import BoundOperator
from tvm_interop.compiler.speed_check import interleaved_rounds
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.machine.kernel_libraries import blocked_layout, library_version
from tvm_interop.program.host_memory import aligned_empty
from tvm_interop.program.kinds.winograd_conv2d import as_winograd
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.storage import block_of, stored_shape
from tvm_interop.scheduling.paired_rounds import paired_ratio

from . import machine_state
from .options import add_force, add_json, add_rounds

SIZES = [
    (8, 8, 112), (16, 16, 112), (32, 32, 80), (64, 64, 56), (128, 128, 28), (256, 256, 14),
    (512, 512, 7), (320, 320, 32), (64, 16, 160), (16, 64, 40),
]  # fmt: skip
"""The measured sizes: channels of the data, channels of the result, height and width."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_rounds(parser, 30)
    add_json(parser)
    add_force(parser)
    given = parser.parse_args()
    machine = machine_state.observe_quiet(given.force)
    library_version("onednn")  # Loads it.
    rows = []
    print("channels      size  direct us  winograd us  ratio  noise  errors")
    for channels, made, size in SIZES:
        rows.append(row := _compared(channels, made, size, given.rounds))
        print(
            f"{channels:4} to {made:3} {size:6} {row['direct_us']:10.0f} {row['winograd_us']:12.0f}"
            f" {row['ratio']:6.2f} {row['noise']:6.2f}  {row['direct_error']:.1e} and"
            f" {row['winograd_error']:.1e}",
            flush=True,
        )
    if given.json is not None:
        document = {"machine": asdict(machine), "convolutions": rows}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


def _compared(channels: int, made: int, size: int, rounds: int) -> dict[str, Any]:
    layout = blocked_layout("onednn")
    direct = library_op(
        op="conv2d",
        shapes=((1, channels, size, size), (made, channels, 3, 3), (1, made, size, size)),
        layouts=tuple(layout if c >= block_of(layout) else "plain" for c in (channels, 0, made)),
        window=(3, 3),
        strides=(1, 1),
        padding=(1,) * 4,
        dilation=(1, 1),
    )
    winograd = as_winograd(direct)
    assert winograd is not None
    rng = np.random.default_rng(0)
    data, weight = (rng.standard_normal(shape).astype(np.float32) for shape in direct.shapes[:2])
    executors, results = zip(
        *(_executor(op, data, weight) for op in (direct, direct, winograd)), strict=True
    )
    times = np.array(list(islice(interleaved_rounds(list(executors), _native), rounds))).T
    exact = _exact(data, weight)
    errors = [float(np.abs(got() - exact).max() / np.abs(exact).max()) for got in results]
    return {
        "channels": [channels, made],
        "size": size,
        "direct_us": float(np.median(times[0])),
        "winograd_us": float(np.median(times[2])),
        "ratio": paired_ratio(times[2], times[0]).ratio,
        "noise": paired_ratio(times[1], times[0]).ratio,
        "direct_error": errors[0],
        "winograd_error": errors[2],
    }


def _executor(op: LibraryOp, data: np.ndarray, weight: np.ndarray) -> tuple[Any, Any]:
    """An executor of one operator, and a function that returns its result as a plain array."""
    arrays = []
    for shape, layout, given in zip(op.shapes, op.layouts, (data, weight, None), strict=True):
        block = block_of(layout)
        n, channels, *size = shape
        in_memory = (n, -(-channels // block), *size, block) if block > 1 else shape
        array = aligned_empty(in_memory, "float32")
        if given is not None:
            array[...] = _blocked(given, block) if block > 1 else given
        arrays.append(array)
    tensors = [
        as_tensor(array.reshape(stored_shape(shape, layout)))
        for array, shape, layout in zip(arrays, op.shapes, op.layouts, strict=True)
    ]
    kernel = _native.prepare_kernel("onednn", op.fields(), 1, tensors, [False, True, False])
    executor = _native.make_executor(1, 1, tensors, [BoundOperator("conv", kernel, [0, 1, 2], 0)])

    def result() -> np.ndarray:
        shape, made = op.shapes[-1], arrays[-1]
        if op.layouts[-1] == "plain":
            return made
        return made.transpose(0, 1, 4, 2, 3).reshape(1, -1, *shape[2:])[:, : shape[1]]

    return executor, result


def _blocked(image: np.ndarray, block: int) -> np.ndarray:
    blocks = -(-image.shape[1] // block)
    padded = np.pad(image, ((0, 0), (0, blocks * block - image.shape[1]), (0, 0), (0, 0)))
    return padded.reshape(1, blocks, block, *image.shape[2:]).transpose(0, 1, 3, 4, 2)


def _exact(data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    padded = np.pad(data[0].astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("chwyx,ocyx->ohw", windows, weight.astype(np.float64), optimize=True)[None]


if __name__ == "__main__":
    main()
