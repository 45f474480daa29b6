"""Kernels that compute an LSTM, a GRU or a plain recurrent layer over a whole sequence.

The products of the inputs with the input weights are computed beforehand, as one matrix product. At
each step, the kernel computes the product of the hidden state with the recurrent weights, and the
cell's few element-wise operations. In the array of weights, the last axis holds the outputs of the
gates. So a vector of sums reads contiguous weights. The kernel computes several vectors and several
rows of the batch at a time, to keep the CPU's floating-point units busy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tvm import s_tir, tirx

from ..kernels import loops

Activation: TypeAlias = Callable[[Any], Any]
"""An activation function: takes a TIR expression and returns one."""

_LANES = 16
"""The number of elements in a vector. LLVM splits the vector if the CPU's registers are smaller."""


@dataclass(frozen=True)
class Recurrence:
    """The layer that a kernel computes, and its sizes.

    Attributes
    ----------
    cell: `LSTM`, `GRU` or `RNN`.
    length: the number of steps of the sequence.
    batch: the number of rows of the batch.
    hidden: the number of elements in the hidden state of one row.
    activations: the activation functions. ONNX calls them `f`, `g` and, for an LSTM, `h`.
    reverse: whether the kernel goes from the last step to the first.
    clip: the inputs of activations are clipped to the range from `-clip` to `clip`.
    couple_gates: whether an LSTM's forget gate is one minus its input gate.
    linear_before_reset: whether a GRU's reset gate scales the product of the state and the weights.
        If False, it scales the state itself.
    has_peepholes: whether an LSTM's gates depend on its cell state.
    has_lengths: whether each row has its own number of steps.
    """

    cell: str
    length: int
    batch: int
    hidden: int
    dtype: str
    activations: tuple[Activation, ...]
    reverse: bool = False
    clip: float = math.inf
    couple_gates: bool = False
    linear_before_reset: bool = False
    has_peepholes: bool = False
    has_lengths: bool = False


def recurrent_kernel(recurrence: Recurrence) -> tirx.PrimFunc:
    """Return a kernel for the layer. Its loops are written by hand, so it needs no TVM schedule.

    The kernel has these inputs, in this order:

    - the products of the inputs with the input weights, (length, batch, gates * hidden);
    - the recurrent weights, (hidden, gates * hidden);
    - with `linear_before_reset`, the recurrent bias, (gates * hidden,);
    - the first hidden state, (batch, hidden);
    - for an LSTM, the first cell state, (batch, hidden);
    - with `has_peepholes`, the peephole weights, (3 * hidden,);
    - with `has_lengths`, the number of steps of each row, (batch,), int32.

    The kernel's outputs are the hidden states of all steps, (length, batch, hidden), the last
    hidden state, (batch, hidden), and for an LSTM the last cell state, (batch, hidden).
    """
    return {"LSTM": _Lstm, "GRU": _Gru, "RNN": _Rnn}[recurrence.cell](recurrence).build()


class _Kernel:
    """The base class of the three kinds of cells. It has the loop over the steps and the matrix
    product with the state.
    """

    gates: int
    has_cell_state = False

    def __init__(self, recurrence: Recurrence) -> None:
        self.r = r = recurrence
        wide = self.gates * r.hidden
        self.projected = self._buffer((r.length, r.batch, wide), "projected")
        self.weights = self._buffer((r.hidden, wide), "weights")
        self.bias = self._buffer((wide,), "bias")
        self.first_hidden = self._buffer((r.batch, r.hidden), "first_hidden")
        self.first_cell = self._buffer((r.batch, r.hidden), "first_cell")
        self.peepholes = self._buffer((3 * r.hidden,), "peepholes")
        self.lengths = tirx.decl_buffer((r.batch,), "int32", "lengths")
        self.sequence = self._buffer((r.length, r.batch, r.hidden), "sequence")
        self.hidden = self._buffer((r.batch, r.hidden), "hidden")
        self.cell = self._buffer((r.batch, r.hidden), "cell")
        self.sums = self._buffer((r.batch, wide), "sums")
        self._scratch: list[Any] = [self.sums]

    def build(self) -> tirx.PrimFunc:
        r = self.r
        parameters = [self.projected, self.weights]
        parameters += [self.bias] * r.linear_before_reset + [self.first_hidden]
        parameters += [self.first_cell] * self.has_cell_state + [self.peepholes] * r.has_peepholes
        parameters += [self.lengths] * r.has_lengths
        parameters += [self.sequence, self.hidden] + [self.cell] * self.has_cell_state
        start = [self._copy(self.first_hidden, self.hidden)]
        if self.has_cell_state:
            start.append(self._copy(self.first_cell, self.cell))
        walk = loops.loop(r.length, lambda step: loops.in_turn(self.step(step)))
        rows = [self._axis_of_rows(parameter) for parameter in parameters]
        body = loops.in_turn([*start, walk])
        attrs = {loops.ROWS: rows}
        if not r.reverse:
            attrs[loops.STEPS] = [self._axis_of_steps(parameter) for parameter in parameters]
        return loops.kernel(parameters, body, self._scratch, **attrs)

    def _axis_of_rows(self, parameter: Any) -> int:
        """The axis of a parameter along which the batch lies. Each row of the batch is computed
        separately.
        """
        if any(parameter.same_as(each) for each in (self.projected, self.sequence)):
            return 1
        whole = (self.weights, self.bias, self.peepholes)
        return -1 if any(parameter.same_as(each) for each in whole) else 0

    def _axis_of_steps(self, parameter: Any) -> int:
        """The axis of a parameter along which the steps lie, if the kernel begins with the first
        step.
        """
        if any(parameter.same_as(each) for each in (self.projected, self.sequence)):
            return 0
        is_last = any(parameter.same_as(each) for each in (self.hidden, self.cell))
        return loops.AFTER_LAST_STEP if is_last else loops.NO_STEPS

    def step(self, step: Any) -> list[tirx.Stmt]:
        """Return the statements of one step, which read the state and update it."""
        raise NotImplementedError

    def add_products(self, state: Any, first: int, last: int) -> tirx.Stmt:
        """Store `state` times the weights in the columns `first` to `last - 1` of `sums`."""
        rows = min(4, self.r.batch)
        vectors = 4 if rows == 1 else 2
        widths = [vectors * _LANES, _LANES, 1]
        return _tiled(
            0,
            self.r.batch,
            [rows, 1],
            lambda row, height: _tiled(
                first, last, widths, lambda column, w: self._tile(state, row, height, column, w)
            ),
        )

    def _tile(self, state: Any, row: Any, rows: int, column: Any, width: int) -> tirx.Stmt:
        """Return statements that compute a tile of `rows` by `width` sums in registers."""
        lanes = min(width, _LANES)
        spots = [(i, j) for i in range(rows) for j in range(0, width, lanes)]
        held = [self._buffer((lanes,), f"sum{n}") for n in range(len(spots))]
        zero = tirx.const(0, self.r.dtype)

        def clear(s: Any) -> tirx.Stmt:
            return loops.vector(lanes, lambda v: tirx.BufferStore(s, zero, [v]))

        def add(s: Any, i: int, j: int, k: Any) -> tirx.Stmt:
            def product(v: Any) -> Any:
                return state[row + i, k] * self.weights[k, column + j + v]

            return loops.vector(lanes, lambda v: tirx.BufferStore(s, s[v] + product(v), [v]))

        def store(s: Any, i: int, j: int) -> tirx.Stmt:
            return loops.vector(
                lanes, lambda v: tirx.BufferStore(self.sums, s[v], [row + i, column + j + v])
            )

        each = [(s, i, j) for s, (i, j) in zip(held, spots, strict=True)]
        products = loops.loop(
            self.r.hidden, lambda k: loops.in_turn(add(s, i, j, k) for s, i, j in each)
        )
        body = loops.in_turn([*map(clear, held), products, *(store(s, i, j) for s, i, j in each)])
        block = s_tir.SBlock([], [], [], "tile", body, alloc_buffers=held)
        return s_tir.SBlockRealize([], True, block)

    def for_elements(
        self, step: Any, update: Callable[[Any, Any, Any], Sequence[tirx.Stmt]]
    ) -> tirx.Stmt:
        """Return loops that run `update(row, element, time)` for each element of each row's state.

        If the sequence of a row has ended, the row keeps its state, and its output for this step is
        0.
        """
        r = self.r

        def row(b: Any) -> tirx.Stmt:
            last = loops.index(r.length)
            if r.has_lengths:
                # The lengths come with the data. A length above the number of steps would let the
                # reverse direction read and write outside of the sequence.
                last = tirx.min(self.lengths[b].astype("int64"), last)
            time = last - 1 - step if r.reverse else step
            update_all = _elements(r.hidden, lambda j: update(b, j, time))
            if not r.has_lengths:
                return update_all
            zero = tirx.const(0, r.dtype)
            blank = _elements(
                r.hidden, lambda j: [tirx.BufferStore(self.sequence, zero, [step, b, j])]
            )
            return tirx.IfThenElse(step < last, update_all, blank)

        return loops.loop(r.batch, row)

    def set_hidden(self, b: Any, j: Any, time: Any, value: Any) -> list[tirx.Stmt]:
        """Store `value` as the hidden state, and as the output of the step `time`."""
        return [
            tirx.BufferStore(self.hidden, value, [b, j]),
            tirx.BufferStore(self.sequence, self.hidden[b, j], [time, b, j]),
        ]

    def gate(self, number: int, b: Any, j: Any, time: Any) -> Any:
        """Return the sum to which the activation of a gate is applied."""
        at = number * self.r.hidden + j
        return self.projected[time, b, at] + self.sums[b, at]

    def activate(self, number: int, value: Any) -> Any:
        """Clip `value` and apply the activation at index `number` to it."""
        if self.r.clip < math.inf:
            most = tirx.const(self.r.clip, self.r.dtype)
            value = tirx.max(tirx.min(value, most), -most)
        return self.r.activations[number](value)

    def scratch(self, shape: tuple[int, ...], name: str) -> Any:
        """Return a new buffer that the kernel allocates for itself."""
        buffer = self._buffer(shape, name)
        self._scratch.append(buffer)
        return buffer

    def _buffer(self, shape: tuple[int, ...], name: str) -> Any:
        return tirx.decl_buffer(shape, self.r.dtype, name)

    def _copy(self, source: Any, target: Any) -> tirx.Stmt:
        r = self.r
        return loops.loop(
            r.batch,
            lambda b: _elements(
                r.hidden, lambda j: [tirx.BufferStore(target, source[b, j], [b, j])]
            ),
        )


class _Rnn(_Kernel):
    """A plain recurrent layer: `h = f(x + h R)`."""

    gates = 1

    def step(self, step: Any) -> list[tirx.Stmt]:
        def update(b: Any, j: Any, time: Any) -> list[tirx.Stmt]:
            return self.set_hidden(b, j, time, self.activate(0, self.gate(0, b, j, time)))

        return [
            self.add_products(self.hidden, 0, self.r.hidden),
            self.for_elements(step, update),
        ]


class _Lstm(_Kernel):
    """An LSTM. Its gates have ONNX's order: input, output, forget, cell."""

    gates = 4
    has_cell_state = True

    def step(self, step: Any) -> list[tirx.Stmt]:
        one = tirx.const(1, self.r.dtype)

        def update(b: Any, j: Any, time: Any) -> list[tirx.Stmt]:
            def gate(number: int, peephole: int) -> Any:
                value = self.gate(number, b, j, time)
                if self.r.has_peepholes:
                    weight = self.peepholes[peephole * self.r.hidden + j]
                    value = value + weight * self.cell[b, j]
                return self.activate(0, value)

            candidate = self.activate(1, self.gate(3, b, j, time))
            enter = gate(0, 0)
            keep = one - enter if self.r.couple_gates else gate(2, 2)
            # The output gate depends on the new cell state, so the cell state is stored first.
            return [
                tirx.BufferStore(self.cell, keep * self.cell[b, j] + enter * candidate, [b, j]),
                *self.set_hidden(b, j, time, gate(1, 1) * self.r.activations[2](self.cell[b, j])),
            ]

        return [
            self.add_products(self.hidden, 0, 4 * self.r.hidden),
            self.for_elements(step, update),
        ]


class _Gru(_Kernel):
    """A GRU. Its gates have ONNX's order: update, reset, hidden."""

    gates = 3

    def step(self, step: Any) -> list[tirx.Stmt]:
        wide = 3 * self.r.hidden
        if self.r.linear_before_reset:
            return [
                self.add_products(self.hidden, 0, wide),
                self.for_elements(step, lambda b, j, time: self._update(b, j, time, self._reset)),
            ]
        reset = self.scratch((self.r.batch, self.r.hidden), "reset")

        def scale(b: Any, j: Any, time: Any) -> list[tirx.Stmt]:
            scaled = self.activate(0, self.gate(1, b, j, time)) * self.hidden[b, j]
            return [tirx.BufferStore(reset, scaled, [b, j])]

        return [
            self.add_products(self.hidden, 0, 2 * self.r.hidden),
            self.for_elements(step, scale),
            self.add_products(reset, 2 * self.r.hidden, wide),
            self.for_elements(step, lambda b, j, time: self._update(b, j, time, self._plain)),
        ]

    def _update(
        self, b: Any, j: Any, time: Any, candidate: Callable[[Any, Any, Any], Any]
    ) -> list[tirx.Stmt]:
        update = self.activate(0, self.gate(0, b, j, time))
        new = self.activate(1, candidate(b, j, time))
        mixed = (tirx.const(1, self.r.dtype) - update) * new + update * self.hidden[b, j]
        return self.set_hidden(b, j, time, mixed)

    def _plain(self, b: Any, j: Any, time: Any) -> Any:
        return self.gate(2, b, j, time)

    def _reset(self, b: Any, j: Any, time: Any) -> Any:
        """Return the input of the candidate state's activation.

        The reset gate scales the product of the state with the weights, and the recurrent bias.
        """
        at = 2 * self.r.hidden + j
        reset = self.activate(0, self.gate(1, b, j, time))
        return self.projected[time, b, at] + reset * (self.sums[b, at] + self.bias[at])

    def gate(self, number: int, b: Any, j: Any, time: Any) -> Any:
        value = super().gate(number, b, j, time)
        if self.r.linear_before_reset:
            value = value + self.bias[number * self.r.hidden + j]
        return value


def _tiled(
    first: int, last: int, sizes: Sequence[int], body: Callable[[Any, int], tirx.Stmt]
) -> tirx.Stmt:
    """Return loops that run `body(start, size)` for tiles of the range `first` to `last - 1`.

    `sizes` holds the sizes of tiles, the largest first. The largest tiles that fit are used.
    """
    tiles = []
    for size in sizes:
        number = (last - first) // size
        if number:
            tiles.append(_tiles(first, number, size, body))
        first += number * size
    return loops.in_turn(tiles)


def _tiles(first: int, number: int, size: int, body: Callable[[Any, int], tirx.Stmt]) -> tirx.Stmt:
    return loops.loop(number, lambda i: body(i * size + first, size))


def _elements(extent: int, body: Callable[[Any], Sequence[tirx.Stmt]]) -> tirx.Stmt:
    """Return vectorised loops that run `body` for each index below `extent`."""

    def vector(start: Any, size: int) -> tirx.Stmt:
        return loops.vector(size, lambda v: loops.in_turn(body(start + v)))

    return _tiled(0, extent, [_LANES, 1], vector)
