"""Kernels for classifiers that compare pairs of classes.

One kernel computes the scores of all pairs of classes. The other kernel computes the probability of
each class from those of the pairs. Source: Wu, Lin and Weng, "Probability estimates for multi-class
classification by pairwise coupling", JMLR 5 (2004), algorithm 2. The result depends on the number
of rounds of the algorithm, so this number is the same as in onnxruntime.
"""

from __future__ import annotations

import itertools
from typing import Any

from tvm import tirx

from ..kernels import loops

_MOST_ROUNDS = 100
_CLOSE = 0.005
"""The iteration ends when its error is below this number divided by the number of classes."""


def scores_kernel(rows: int, vectors: int, pairs: int) -> tirx.PrimFunc:
    """Return a kernel, with loops written by hand, that computes the score of each pair of classes.

    The kernel's inputs have the shapes (rows, vectors), (vectors, pairs) and (pairs,), and its
    result has the shape (rows, pairs). The sums are computed in float64, because large positive and
    negative terms nearly cancel.
    """
    values = tirx.decl_buffer((rows, vectors), "float32", "values")
    factors = tirx.decl_buffer((vectors, pairs), "float32", "factors")
    added = tirx.decl_buffer((pairs,), "float32", "added")
    result = tirx.decl_buffer((rows, pairs), "float32", "result")
    sums = tirx.decl_buffer((pairs,), "float64", "sums")

    def of_row(row: Any) -> tirx.Stmt:
        def add(vector: Any) -> tirx.Stmt:
            def of_pair(pair: Any) -> tirx.Stmt:
                term = (factors[vector, pair] * values[row, vector]).astype("float64")
                return _put(sums, sums[pair] + term, pair)

            return loops.loop(pairs, of_pair)

        def finish(pair: Any) -> tirx.Stmt:
            total = sums[pair] + added[pair].astype("float64")
            return _put(result, total.astype("float32"), row, pair)

        begin = loops.loop(pairs, lambda pair: _put(sums, tirx.const(0.0, "float64"), pair))
        return loops.in_turn([begin, loops.loop(vectors, add), loops.loop(pairs, finish)])

    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, -1, -1, 0]}
    parameters = [values, factors, added, result]
    return loops.kernel(parameters, loops.loop(rows, of_row), [sums], **attrs)


def coupling_kernel(rows: int, classes: int) -> tirx.PrimFunc:
    """Return a kernel, with loops written by hand, that computes the probabilities of classes.

    The kernel's input has the probability that the first class of each pair wins, shape (rows,
    pairs), for the pairs (0, 1), (0, 2), ..., (1, 2), ... The result has the shape (rows, classes).
    """
    return _Coupling(rows, classes).kernel()


class _Coupling:
    """Holds the buffers of the coupling kernel, and builds the steps of its loop over the rows.

    In the paper by Wu, Lin and Weng, the result is called p, the wins r, the matrix Q, the products
    Qp and the total pQp.
    """

    def __init__(self, rows: int, classes: int) -> None:
        def buffer(name: str, *shape: int, dtype: str = "float32") -> Any:
            return tirx.decl_buffer(shape, dtype, name)

        self._classes = classes
        self._pairs = list(itertools.combinations(range(classes), 2))
        self._shares = buffer("shares", rows, len(self._pairs))
        self._result = buffer("result", rows, classes)
        self._wins = buffer("wins", classes, classes)
        self._matrix = buffer("matrix", classes, classes)
        self._products = buffer("products", classes)
        self._total = buffer("total", 1)
        self._error = buffer("error", 1)
        self._step = buffer("step", 1)
        self._round = buffer("round", 1, dtype="int32")

    def kernel(self) -> tirx.PrimFunc:
        scratch = [self._wins, self._matrix, self._products]
        scratch += [self._total, self._error, self._step, self._round]
        attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, 0]}
        body = loops.loop(int(self._result.shape[0]), self._of_row)
        return loops.kernel([self._shares, self._result], body, scratch, **attrs)

    def _of_row(self, row: Any) -> tirx.Stmt:
        is_far = tirx.all(
            self._round[0] < tirx.const(_MOST_ROUNDS, "int32"),
            self._error[0] >= _float(_CLOSE / self._classes),
        )
        counted = _put(self._round, self._round[0] + 1, 0)
        again = loops.in_turn([self._improve(row), counted, *self._measure(row)])
        return loops.in_turn([*self._begin(row), *self._measure(row), tirx.While(is_far, again)])

    def _begin(self, row: Any) -> list[tirx.Stmt]:
        """Fill the matrix, and begin with equal probabilities for all classes."""
        wins, matrix = self._wins, self._matrix
        stores = []
        for k, (i, j) in enumerate(self._pairs):
            share = self._shares[row, k]
            stores += [_put(wins, share, i, j), _put(wins, _float(1) - share, j, i)]
        for i in range(self._classes):
            others = [j for j in range(self._classes) if j != i]
            square = sum((wins[j, i] * wins[j, i] for j in others), _float(0))
            stores += [_put(matrix, square, i, i)]
            stores += [_put(matrix, -(wins[j, i] * wins[i, j]), i, j) for j in others]
            stores += [_put(self._result, _float(1 / self._classes), row, i)]
        return [*stores, _put(self._round, tirx.const(0, "int32"), 0)]

    def _measure(self, row: Any) -> list[tirx.Stmt]:
        """Multiply the matrix by the probabilities, and measure how much the products differ."""
        products, total, error = self._products, self._total, self._error

        def multiply(i: Any) -> tirx.Stmt:
            def add(j: Any) -> tirx.Stmt:
                return _put(products, products[i] + self._matrix[i, j] * self._result[row, j], i)

            whole = _put(total, total[0] + self._result[row, i] * products[i], 0)
            return loops.in_turn(
                [_put(products, _float(0), i), loops.loop(self._classes, add), whole]
            )

        def compare(i: Any) -> tirx.Stmt:
            return _put(error, tirx.max(error[0], tirx.abs(products[i] - total[0])), 0)

        return [
            _put(total, _float(0), 0),
            loops.loop(self._classes, multiply),
            _put(error, _float(0), 0),
            loops.loop(self._classes, compare),
        ]

    def _improve(self, row: Any) -> tirx.Stmt:
        """Update the probabilities class by class; after each update, divide all of them by their
        sum.
        """
        products, total, step = self._products, self._total, self._step

        def of_class(i: Any) -> tirx.Stmt:
            own = self._matrix[i, i]
            grown = _float(1) + step[0]
            more = step[0] * (step[0] * own + _float(2) * products[i])

            def shrink(j: Any) -> tirx.Stmt:
                moved = (products[j] + step[0] * self._matrix[i, j]) / grown
                share = self._result[row, j] / grown
                return loops.in_turn([_put(products, moved, j), _put(self._result, share, row, j)])

            return loops.in_turn(
                [
                    _put(step, (total[0] - products[i]) / own, 0),
                    _put(self._result, self._result[row, i] + step[0], row, i),
                    _put(total, (total[0] + more) / grown / grown, 0),
                    loops.loop(self._classes, shrink),
                ]
            )

        return loops.loop(self._classes, of_class)


def _float(value: float) -> Any:
    return tirx.const(value, "float32")


def _put(buffer: Any, value: Any, *places: Any) -> tirx.Stmt:
    return tirx.BufferStore(buffer, value, list(places))
