"""Tests that code compares the kind of an operator only in the file of the kind."""

from __future__ import annotations

import pytest

from tests.kind_comparisons import comparisons, kinds, of_cpp, of_python
from tvm_interop.program import library_op

NAMES = frozenset(("conv2d", "max_pool2d"))


def test_kinds_are_named_as_their_files() -> None:
    assert kinds() == frozenset(library_op.kinds())


def test_nothing_else_compares_kinds() -> None:
    found = comparisons(kinds())
    assert found == {}, "ask the kind instead: see `tvm_interop.program.library_op.LibraryOp`"


@pytest.mark.parametrize(
    "text",
    [
        'if op.op == "conv2d": pass',
        'if op.op in ("relu", "conv2d"): pass',
        'KIND = "conv2d"\nfound = op.op != KIND',
        'table = {"conv2d": 1, "max_pool2d": 2}',
        "isinstance(op, Conv2d)",
        "isinstance(op, (int, MaxPool2d))",
        'match op.op:\n    case "max_pool2d": pass',
    ],
)
def test_comparisons_in_python_are_seen(text: str) -> None:
    assert len(of_python(text, NAMES)) == 1


def test_what_is_no_comparison_in_python() -> None:
    for text in ('library_op(op="conv2d")', "isinstance(op, OfWindows)", '"""conv2d"""'):
        assert of_python(text, NAMES) == []


def test_comparisons_in_cpp_are_seen() -> None:
    text = (
        'if (op.op == "conv2d") {}\ndynamic_cast<const MaxPool2d&>(op);\n// "conv2d"\nConv2d op;\n'
    )
    assert of_cpp(text, NAMES) == [1, 2]
