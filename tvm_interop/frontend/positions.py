"""Lists the positions of the true elements of a mask, whose number is known only at run time."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx

from ..kernels import loops
from ..lowering.static_shape import static_shape


def true_positions(bb: relax.BlockBuilder, mask: Any) -> tuple[relax.Var, relax.Var]:
    """Return the positions of the true elements of a mask, and their number.

    Parameters
    ----------
    mask: booleans of any shape with at least one element. A position is an index into the flattened
        mask, in row-major order.

    Returns
    -------
    The positions in ascending order, int64 of shape (elements,), and their number, int64 of shape
    (1,). All elements after the positions are 0.
    """
    size = prod(static_shape(mask.ty) or ())
    flat = bb.emit(relax.op.reshape(mask, (size,)))
    kernel = bb.add_func(positions_kernel(size), "true_positions")
    types = [relax.TensorType((length,), "int64") for length in (size, 1)]
    both = bb.emit(relax.call_tir(kernel, [flat], types))
    positions, number = (bb.emit(relax.TupleGetItem(both, i)) for i in (0, 1))
    return positions, number


def positions_kernel(size: int) -> tirx.PrimFunc:
    """Return the kernel of `true_positions` for a mask of shape (size,)."""
    mask = tirx.decl_buffer((size,), "bool", "mask")
    positions = tirx.decl_buffer((size,), "int64", "positions")
    number = tirx.decl_buffer((1,), "int64", "number")
    zero, one = loops.index(0), loops.index(1)

    def enter(i: Any) -> tirx.Stmt:
        found = loops.in_turn(
            [
                tirx.BufferStore(positions, i, [number[0]]),
                tirx.BufferStore(number, number[0] + one, [0]),
            ]
        )
        return tirx.IfThenElse(mask[i], found, None)

    def clear(i: Any) -> tirx.Stmt:
        return tirx.IfThenElse(i >= number[0], tirx.BufferStore(positions, zero, [i]), None)

    body = loops.in_turn(
        [
            tirx.BufferStore(number, zero, [0]),
            loops.loop(size, enter),
            loops.loop(size, clear),
        ]
    )
    return loops.kernel([mask, positions, number], body, op_pattern=loops.OPAQUE)
