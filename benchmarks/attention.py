"""Compares attention as one operator with attention as three operators of oneDNN.

    python -m benchmarks.attention

For each size, attention is computed in two forms on one core, in interleaved rounds. One form is
the operator `attention`. The other form is three operators in sequence: a matrix product, a softmax
and a second matrix product. This form takes part twice, and the ratio of its two times is the
noise. The errors are the largest differences from attention in double precision, relative to the
largest result, for normally distributed numbers.

The limits `FEWEST_SCORES` and `MOST_NUMBERS` in `lowering/recognise/attention.py` were chosen from
the table that this program prints.
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
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.program.host_memory import aligned_empty
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.scheduling.paired_rounds import paired_ratio

from . import machine_state
from .options import add_force, add_json, add_rounds

SIZES = {
    "a tiny encoder": (4, 32, 32, 16), "BERT, 16 tokens": (12, 16, 16, 64),
    "BERT, 64 tokens": (12, 64, 64, 64), "BERT, 128 tokens": (12, 128, 128, 64),
    "BERT, 384 tokens": (12, 384, 384, 64), "ViT-B/16": (12, 197, 197, 64),
    "Swin, 64 windows": (192, 49, 49, 32), "DETR, 100 queries": (8, 100, 100, 32),
    "SegFormer, first stage": (1, 9216, 144, 32), "SegFormer, third stage": (5, 576, 144, 32),
    "diffusion, 32x32": (16, 1024, 1024, 8), "diffusion, 32x32, text": (16, 1024, 77, 8),
    "diffusion, 64x64": (8, 4096, 4096, 40), "Whisper's encoder": (6, 1500, 1500, 64),
}  # fmt: skip
"""For each size: number of heads, of queries and of keys, and width of a head in numbers.

The width is how many numbers each query, each key and each value has.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_rounds(parser, 20)
    add_json(parser)
    add_force(parser)
    given = parser.parse_args()
    machine = machine_state.observe_quiet(given.force)
    library_version("onednn")  # Loads it.
    rows = []
    print("attention                 scores  three us    one us  ratio  noise  errors")
    for name, size in SIZES.items():
        rows.append(row := {"name": name, "size": size, **_compared(*size, given.rounds)})
        print(
            f"{name:22} {row['scores']:9} {row['three_us']:9.0f} {row['one_us']:9.0f}"
            f" {row['ratio']:6.2f} {row['noise']:6.2f}  {row['three_error']:.1e} and"
            f" {row['one_error']:.1e}",
            flush=True,
        )
    if given.json is not None:
        document = {"machine": asdict(machine), "attention": rows}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


def _compared(heads: int, queries: int, positions: int, depth: int, rounds: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = [(heads, queries, depth), (heads, depth, positions), (heads, positions, depth)]
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    given[0] /= np.float32(np.sqrt(depth))
    scores, result = (heads, queries, positions), shapes[0]
    first = _described("matmul", shapes[0], shapes[1], scores)
    softmax = _described("softmax", scores, scores)
    second = _described("matmul", scores, shapes[2], result)
    # Tensors 0 to 5: queries, keys, values, scores, softmax of the scores, and the result.
    tensors = (*shapes, scores, scores, result)
    three = [(first, [0, 1, 3]), (softmax, [3, 4]), (second, [4, 2, 5])]
    one = [(_described("attention", *shapes, result), [0, 1, 2, 5])]
    made = [_executor(operators, tensors, given) for operators in (three, three, one)]
    executors = [executor for executor, _ in made]
    times = np.array(list(islice(interleaved_rounds(executors, _native), rounds))).T
    exact = _exact(*given)
    errors = [float(np.abs(got - exact).max() / np.abs(exact).max()) for _, got in made]
    return {
        "scores": heads * queries * positions,
        "three_us": float(np.median(times[0])),
        "one_us": float(np.median(times[2])),
        "ratio": paired_ratio(times[2], times[0]).ratio,
        "noise": paired_ratio(times[1], times[0]).ratio,
        "three_error": errors[0],
        "one_error": errors[2],
    }


def _described(op: str, *shapes: tuple[int, ...]) -> LibraryOp:
    return library_op(op=op, shapes=shapes, layouts=("plain",) * len(shapes))


def _executor(
    operators: list[tuple[LibraryOp, list[int]]],
    shapes: tuple[tuple[int, ...], ...],
    given: list[np.ndarray],
) -> tuple[Any, np.ndarray]:
    """An executor that runs operators one after the other, and the array with their result."""
    arrays = [aligned_empty(shape, "float32") for shape in shapes]
    for array, numbers in zip(arrays, given, strict=False):
        array[...] = numbers
    tensors = [as_tensor(array) for array in arrays]
    bound = []
    for op, numbers in operators:
        arguments = [tensors[i] for i in numbers]
        kernel = _native.prepare_kernel(
            "onednn", op.fields(), 1, arguments, [False] * len(arguments)
        )
        bound.append(BoundOperator(op.op, kernel, numbers, 0))
    return _native.make_executor(1, 1, tensors, bound), arrays[-1]


def _exact(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    # One head at a time needs less memory; numbers in double precision take twice the bytes.
    heads = zip(*(array.astype(np.float64) for array in (queries, keys, values)), strict=True)
    results = []
    for q, k, v in heads:
        scores = q @ k
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        results.append(powers @ v / powers.sum(-1, keepdims=True))
    return np.stack(results)


if __name__ == "__main__":
    main()
