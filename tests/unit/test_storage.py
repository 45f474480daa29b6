"""Tests the sizes of tensors in each layout, and dependencies through parts of tensors."""

from __future__ import annotations

import pytest

from tvm_interop.program.program import Operator, Value
from tvm_interop.program.storage import Layout, dependencies, span, stored_nbytes, stored_shape

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shape", "layout", "stored"),
    [
        ((3, 5), "plain", (3, 5)),
        ((2, 20, 3, 4), "plain", (2, 20, 3, 4)),
        ((2, 32, 3, 4), "blocked16", (2, 32, 3, 4)),
        ((2, 20, 3, 4), "blocked16", (2, 2, 3, 4, 16)),
        ((1, 5, 3, 4), "blocked16", (1, 1, 3, 4, 16)),
        ((1, 17, 1, 1), "blocked16", (1, 2, 1, 1, 16)),
        ((2, 24, 3, 4), "blocked8", (2, 24, 3, 4)),
        ((2, 20, 3, 4), "blocked8", (2, 3, 3, 4, 8)),
    ],
)
def test_shapes_in_memory(shape: Shape, layout: Layout, stored: Shape) -> None:
    assert stored_shape(shape, layout) == stored


@pytest.mark.parametrize(
    ("shape", "dtype", "layout", "nbytes"),
    [
        ((), "float32", "plain", 4),
        ((3, 5), "int8", "plain", 15),
        ((3, 5), "float64", "plain", 120),
        ((1, 32, 3, 4), "float32", "blocked16", 4 * 32 * 12),
        ((1, 20, 3, 4), "float32", "blocked16", 4 * 32 * 12),
        ((2, 1, 3, 4), "float32", "blocked16", 4 * 2 * 16 * 12),
        ((2, 1, 3, 4), "float32", "blocked8", 4 * 2 * 8 * 12),
    ],
)
def test_bytes(shape: Shape, dtype: str, layout: Layout, nbytes: int) -> None:
    assert stored_nbytes(shape, dtype, layout) == nbytes
    assert Value("v", shape, dtype, layout=layout).nbytes == nbytes


def whole_and_parts() -> list[Value]:
    """The values `x` and `whole`, and five aliases of `whole`: three parts of 64 bytes, a reshape,
    and the first two parts together."""
    return [
        Value("x", (16,), "float32"),
        Value("whole", (48,), "float32"),
        Value("first", (16,), "float32", alias_of=1),
        Value("second", (16,), "float32", alias_of=1, offset=64),
        Value("third", (16,), "float32", alias_of=1, offset=128),
        Value("reshaped", (6, 8), "float32", alias_of=1),
        Value("two", (32,), "float32", alias_of=1, offset=0),
        Value("result", (1,), "float32"),
    ]


def test_spans() -> None:
    values = whole_and_parts()
    assert span(values, 0) == (0, 0, 64)
    assert span(values, 1) == (1, 0, 192)
    assert span(values, 3) == (1, 64, 128)
    assert span(values, 5) == (1, 0, 192)


def edges(reads: int) -> list[tuple[int, int]]:
    """Return the dependencies of a program in which operators 0, 1 and 2 write the three parts of
    `whole`, and operator 3 reads the value `reads`."""
    writers = [Operator(f"W{v}", "k", (0,), (v,)) for v in (2, 3, 4)]
    reader = Operator("R", "k", (reads,), (7,))
    return dependencies(whole_and_parts(), [*writers, reader])


def test_a_reader_depends_on_the_writers_of_what_it_reads() -> None:
    assert edges(0) == []
    assert edges(1) == edges(5) == [(0, 3), (1, 3), (2, 3)]
    assert edges(6) == [(0, 3), (1, 3)]


@pytest.mark.parametrize(("part", "writer"), [(2, 0), (3, 1), (4, 2)])
def test_parts_that_only_touch_are_no_dependency(part: int, writer: int) -> None:
    assert edges(part) == [(writer, 3)]


def test_a_reader_of_a_part_depends_on_who_writes_more() -> None:
    values = whole_and_parts()
    operators = [
        Operator("both", "k", (0,), (6,)),
        Operator("third", "k", (0,), (4,)),
        Operator("R", "k", (3,), (7,)),
    ]
    assert dependencies(values, operators) == [(0, 2)]


def test_parts_that_overlap_partly() -> None:
    """One operator reads bytes 64 to 192. Two other operators write bytes 0 to 128 and 128 to
    192."""
    values = [*whole_and_parts(), Value("later", (32,), "float32", alias_of=1, offset=64)]
    operators = [
        Operator("two", "k", (0,), (6,)),
        Operator("third", "k", (0,), (4,)),
        Operator("R", "k", (8,), (7,)),
    ]
    assert dependencies(values, operators) == [(0, 2), (1, 2)]


def test_repeats_are_kept_and_other_storage_is_nothing() -> None:
    values = [Value(name, (16,), "float32") for name in "xabc"]
    operators = [
        Operator("A", "k", (0,), (1,)),
        Operator("B", "k", (0, 0), (2,)),
        Operator("C", "k", (1, 1, 2), (3,)),
    ]
    assert dependencies(values, operators) == [(0, 2), (0, 2), (1, 2)]
