"""Looks numbers up in a constant table of keys and values, by bisection."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from tvm import relax, tirx

from ..kernels import loops
from ..lowering.static_shape import known_shape


def looked_up(
    bb: relax.BlockBuilder,
    x: Any,
    keys: npt.NDArray[Any],
    values: npt.NDArray[Any],
    default: float,
) -> Any:
    """Return the value of each number's key, or `default` for a number that is not a key.

    Parameters
    ----------
    x: numbers of any shape, of the type of `keys`.
    keys, values: both of shape (size,). If keys are equal, the first of them is used. No key is
        NaN.
    """
    ordered, first = np.unique(keys, return_index=True)
    shape = known_shape(x)
    sizes = (shape[0], prod(shape[1:])) if shape else (1, 1)
    made = lookup_kernel(sizes, len(ordered), str(keys.dtype), str(values.dtype), default)
    kernel = bb.add_func(made, "look_up")
    given = [
        bb.emit(relax.op.reshape(x, sizes)),
        relax.const(ordered, str(keys.dtype)),
        relax.const(values[first], str(values.dtype)),
    ]
    found = bb.emit(relax.call_tir(kernel, given, relax.TensorType(sizes, str(values.dtype))))
    return bb.emit(relax.op.reshape(found, shape))


def lookup_kernel(
    sizes: tuple[int, int], number: int, of_keys: str, of_values: str, default: float
) -> tirx.PrimFunc:
    """Return the kernel of `looked_up` for numbers of shape `sizes` and `number` keys in ascending
    order.
    """
    data = tirx.decl_buffer(sizes, of_keys, "data")
    keys = tirx.decl_buffer((number,), of_keys, "keys")
    values = tirx.decl_buffer((number,), of_values, "values")
    result = tirx.decl_buffer(sizes, of_values, "result")
    place = tirx.decl_buffer((1,), "int64", "place")
    zero, last = loops.index(0), loops.index(number - 1)

    def each(i: Any, j: Any) -> tirx.Stmt:
        def move(step: int) -> tirx.Stmt:
            # The last key that is not above the number lies at `place` or after it.
            after = tirx.min(place[0] + loops.index(step), last)
            is_beyond = keys[after] > data[i, j]
            return tirx.BufferStore(place, tirx.Select(is_beyond, place[0], after), [zero])

        steps = [1 << bit for bit in reversed(range(number.bit_length()))]
        chosen = tirx.Select(
            keys[place[0]] == data[i, j], values[place[0]], tirx.const(default, of_values)
        )
        begin = tirx.BufferStore(place, zero, [zero])
        end = tirx.BufferStore(result, chosen, [i, j])
        return loops.in_turn([begin, *map(move, steps), end])

    body = loops.loop(sizes[0], lambda i: loops.loop(sizes[1], lambda j: each(i, j)))
    attrs = {"op_pattern": loops.OPAQUE, loops.ROWS: [0, -1, -1, 0]}
    return loops.kernel([data, keys, values, result], body, [place], **attrs)
