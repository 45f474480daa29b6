"""Layouts and sizes of tensors in memory, and the dependencies between operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import ml_dtypes  # noqa: F401  The import makes `bfloat16` known to NumPy.
import numpy as np

from .host_memory import ALIGNMENT as ALIGNMENT

Layout = Literal["plain", "blocked8", "blocked16"]
"""`plain` is row-major. The other layouts are for images (N,C,H,W).

`blocked16` keeps 16 channels of a pixel side by side, as (N,C/16,H,W,16), and fills up the last
block with zeros. `blocked8` keeps 8 channels side by side in the same way. A CPU with AVX-512
computes on 16 channels at a time, and an older CPU on 8."""

StoredType = Literal["float32", "float16", "bfloat16", "int8", "uint8"]
"""Types in memory of the tensors that libraries take."""

_BLOCKS: dict[Layout, int] = {"plain": 1, "blocked8": 8, "blocked16": 16}

MOST_CHANNELS = max(_BLOCKS.values())
"""The number of channels in the largest block."""

GPU_PART_ALIGNMENT = 32
"""On a GPU, a part of a tensor begins at a multiple of this many bytes.

CUDA requires an address to be a multiple of the number of bytes that one access reads or writes. In
TVM's kernels this number is at most 16. A GPU's memory consists of sectors of 32 bytes. With this
limit, two operators that write neighbouring parts never write to the same sector.
"""

PEER_COPY = "peer copy"
"""The kernel name of an operator that copies a tensor from one GPU to another."""


class Stored(Protocol):
    """A tensor with a place in storage: a program's `Value` or a plan's `PlannedValue`."""

    @property
    def alias_of(self) -> int | None: ...
    @property
    def nbytes(self) -> int: ...


class Writer(Protocol):
    """The fields of an operator that this file needs: the tensors that it reads and writes."""

    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...


def block_of(layout: Layout) -> int:
    """The number of channels of a pixel that are contiguous in memory; 1 for a plain tensor."""
    return _BLOCKS[layout]


def stored_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """The shape in memory of a tensor of `shape`.

    For a plain tensor, and for a blocked tensor whose blocks are all full, the result is `shape`. A
    blocked tensor with full blocks has the same numbers as the plain tensor in another order, which
    makes no difference to element-wise kernels.
    """
    block = block_of(layout)
    if layout == "plain" or shape[1] % block == 0:
        return shape
    batch, channels, height, width = shape
    return (batch, -(-channels // block), height, width, block)


def stored_nbytes(shape: tuple[int, ...], dtype: str, layout: Layout) -> int:
    """Bytes of the tensor in memory, including the zeros that fill up its last block."""
    return math.prod(stored_shape(shape, layout)) * np.dtype(dtype).itemsize


def span(values: Sequence[Stored], value: int) -> tuple[int, int, int]:
    """The value whose storage `value` uses, and the begin and end of `value` in this storage."""
    stored = values[value]
    if stored.alias_of is None:
        return value, 0, stored.nbytes
    begin = getattr(stored, "offset", None) or 0
    return stored.alias_of, begin, begin + stored.nbytes


def dependencies(values: Sequence[Stored], operators: Sequence[Writer]) -> list[tuple[int, int]]:
    """The pair (producer, consumer) for each tensor that an operator reads from another operator. A
    tensor that is read twice has two pairs.

    An operator that reads a tensor of several parts depends on the writers of all parts.
    """
    return [(read.producer, read.consumer) for read in reads(values, operators)]


class Read(NamedTuple):
    """`consumer` reads bytes that `producer` wrote: `begin` to `end` of the storage of `root`."""

    producer: int
    consumer: int
    root: int
    begin: int
    end: int


def reads(values: Sequence[Stored], operators: Sequence[Writer]) -> list[Read]:
    """All reads of other operators' results, by consumer. If an input occurs twice, it is read
    twice.
    """
    written: dict[int, list[tuple[int, int, int]]] = {}
    for i, op in enumerate(operators):
        for value in op.outputs:
            root, begin, end = span(values, value)
            written.setdefault(root, []).append((begin, end, i))
    found = []
    for i, op in enumerate(operators):
        for value in op.inputs:
            root, begin, end = span(values, value)
            for other_begin, other_end, producer in written.get(root, ()):
                if other_begin < end and begin < other_end:
                    read = (max(begin, other_begin), min(end, other_end))
                    found.append(Read(producer, i, root, *read))
    return found
