"""Refuses sizes whose tensors are too large for this machine, before anything is compiled."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..errors import InputError
from ..program.host_memory import memory_nbytes
from ..program.program import Program

Shapes = Mapping[str, tuple[int, ...]]


def check_inputs_fit(shapes: Shapes) -> None:
    """Refuse inputs of these shapes if they exceed this machine's memory even with one byte per
    number.

    Raises
    ------
    InputError
        The message names the largest input.
    """
    least = sum(map(math.prod, shapes.values()))
    if least > memory_nbytes():
        raise _too_large(shapes, least)


def check_fits(program: Program, shapes: Shapes) -> None:
    """Refuse a program if it needs more memory than this machine has, with any memory plan.

    The program needs memory for inputs, outputs and weights during the whole run, and for the
    tensors of each operator while it runs.

    Raises
    ------
    InputError
        The message names the largest input, and the operator whose tensors need the most memory.
    """
    values = program.values
    always = {program.storage_of(v) for v in (*program.inputs, *program.outputs, *program.weights)}
    held = sum(values[v].nbytes for v in always)
    most, name = max(
        (
            (sum(values[v].nbytes for v in _storage_of(program, i) - always), op.name)
            for i, op in enumerate(program.operators)
        ),
        default=(0, ""),
    )
    if held + most > memory_nbytes():
        ports = {values[v].name: values[v].shape for v in program.inputs}
        raise _too_large(shapes or ports, held + most, name if most > held else "")


def _storage_of(program: Program, op: int) -> set[int]:
    found = program.operators[op]
    return {program.storage_of(v) for v in (*found.inputs, *found.outputs)}


def _too_large(shapes: Shapes, nbytes: int, operator: str = "") -> InputError:
    name = max(shapes, key=lambda each: math.prod(shapes[each]), default="")
    of = f", most of it for operator `{operator}`" if operator else ""
    given = f" where input `{name}` has the shape {shapes[name]}" if name else ""
    return InputError(
        f"the model needs at least {nbytes / 2**30:.1f} GiB of memory{given}{of}, and this machine "
        f"has {memory_nbytes() / 2**30:.1f} GiB: give smaller sizes, or compile the model on a "
        "machine with more memory"
    )
