"""Cases of products of a few rows and a matrix."""

from __future__ import annotations

from typing import Any

from tests.kinds import conforms
from tests.kinds.matmul import product, reference
from tvm_interop.program.kinds.row_matmul import as_row_matmul
from tvm_interop.program.library_op import LibraryOp


def row(terms: int, columns: int, *outer: int, **fields: Any) -> LibraryOp:
    return rows(terms, columns, *outer, 1, **fields)


def rows(terms: int, columns: int, *outer: int, **fields: Any) -> LibraryOp:
    made = as_row_matmul(product((*outer, terms), (terms, columns), **fields))
    assert made is not None
    return made


CASES = {
    "of one": row(1, 1, bias=False),
    "prime": row(13, 17, activation="relu"),
    "a vector": row(40, 16, 1, added=True),
    "two vectors": row(7, 31, activation="sigmoid"),
    "three vectors": row(300, 47, 1, 1, bias=False, added=True, activation="swish"),
    "many terms": row(3001, 64, activation="hardswish"),
    "large": row(384, 517, 1, added=True),
    "clipped": row(64, 80, activation="clip", clip_low=-0.5, clip_high=1.5),
    "GELU": row(20, 300, activation="gelu"),
    "approximate GELU": row(20, 300, 1, bias=False, activation="gelu_tanh"),
    "two rows": rows(31, 70, 2, added=True, activation="relu"),
    "seven rows": rows(600, 130, 7, 1, activation="gelu"),
    "rows of matrices": rows(513, 45, 3, 5, bias=False, added=True, activation="swish"),
    "sixteen rows": rows(270, 200, 16, activation="clip", clip_low=-0.5, clip_high=1.5),
    "hard sigmoid": row(64, 200, bias=False, activation="hardsigmoid"),
}

conforms("row_matmul", CASES, reference)
