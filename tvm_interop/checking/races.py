"""Decides whether a program of several streams is safe under any timing, and names its faults."""

from __future__ import annotations

import numpy as np

from .._native import passes as native
from ..errors import PlanError
from ..plain_data import LARGEST
from .report import HOST, Fault, Kind, Report
from .stream_program import Access, StreamOperator, StreamProgram

_KINDS: tuple[Kind, ...] = ("race", "overwritten", "overlap")

MOST_OPERATORS = 100_000
"""The largest number of operators in a program that can be checked. The checker has a table that
says, for each pair of operators, which of the two must run first. With this limit, the table takes
at most 256 MiB.
"""


def check_program(program: StreamProgram) -> Report:
    """Check that a program is safe under any timing.

    Two operators may run at once unless a stream or waits order them. A program is safe if:

    - no two operators that may run at once touch the same bytes while one of them writes;
    - if a read names a tensor that an operator writes, the read comes after that operator, and no
      other operator overwrites the tensor before the read;
    - no operators wait for each other in a circle;
    - no operator whose field `restrict` is True writes bytes that it also reads, or that two of its
      writes have in common. The kernel of such an operator assumes that the bytes it writes overlap
      no other bytes that it touches.

    The check finds out from the streams and the waits which operators must run before which. It
    does not run the program, so it also finds races that no run has shown yet.

    Raises
    ------
    PlanError
        The program is malformed (see `StreamProgram.check_form`), or has more than `MOST_OPERATORS`
        operators.
    """
    program.check_form()
    if len(program.operators) > MOST_OPERATORS:
        raise PlanError(
            f"the program has {len(program.operators)} operators, and at most {MOST_OPERATORS} are "
            "checked; check parts of the program"
        )
    operators = [*program.operators, *_reader_of_outputs(program)]
    accesses = [
        (i, access, writes)
        for i, op in enumerate(operators)
        for kind, writes in ((op.reads, False), (op.writes, True))
        for access in kind
    ]
    circle, faults = _ask(program, operators, accesses)
    if circle:
        return Report(program, (_deadlock([operators[op].name for op in circle]),))
    found = [
        _fault(_KINDS[kind], operators, accesses[first], accesses[second], begin, end)
        for kind, first, second, begin, end in faults
    ]
    return Report(program, tuple(found))


_Row = tuple[int, Access, bool]
"""One access: the operator's index, the bytes that it touches, and whether it writes them."""


def _reader_of_outputs(program: StreamProgram) -> list[StreamOperator]:
    """Describe the host as one more operator, which waits for all operators and reads the outputs.

    Returns
    -------
    A list with the operator that stands for the host; an empty list if the program has no outputs.
    """
    if not program.outputs:
        return []
    names = {op.name for op in program.operators}
    taken = {*names, *(op.stream for op in program.operators)}
    name = next(HOST + "'" * i for i in range(len(taken) + 1) if HOST + "'" * i not in taken)
    return [StreamOperator(name, name, reads=program.outputs, waits=tuple(sorted(names)))]


def _ask(
    program: StreamProgram, operators: list[StreamOperator], accesses: list[_Row]
) -> tuple[list[int], list[list[int]]]:
    ids = {op.name: i for i, op in enumerate(operators)}
    streams = _numbered([op.stream for op in operators])
    buffers = _numbered([access.buffer for _, access, _ in accesses])
    tensors = _numbered([access.tensor for _, access, _ in accesses if access.tensor is not None])
    rows = [
        (
            op,
            buffers[access.buffer],
            access.begin,
            program.end_of(access),
            int(writes),
            -1 if access.tensor is None else tensors[access.tensor],
            *(access.share or (0, 1)),
        )
        for op, access, writes in accesses
    ]
    waits = [(i, ids[source]) for i, op in enumerate(operators) for source in op.waits]
    circle, faults = native.check_stream_program(
        _packed([streams[op.stream] for op in operators]),
        _packed(waits),
        _packed([int(op.restrict) for op in operators]),
        _packed(rows),
    )
    found = np.frombuffer(faults, dtype=np.int64).reshape(-1, 5).tolist()
    found.sort(key=lambda row: _importance(accesses[row[1]], accesses[row[2]]))
    return np.frombuffer(circle, dtype=np.int64).tolist(), found


def _importance(first: _Row, second: _Row) -> tuple[int, bool]:
    """Return the key by which faults between two accesses are sorted.

    A fault concerns two operators. Faults are sorted by the index of the operator that is launched
    later. If two faults have the same later operator, a fault whose two accesses name the same
    tensor comes first.
    """
    is_read = first[1].tensor is not None and first[1].tensor == second[1].tensor
    return max(first[0], second[0]), not is_read


def _numbered(names: list[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _packed(numbers: object) -> bytes:
    return np.asarray(numbers, dtype=np.int64).tobytes()


def _deadlock(names: list[str]) -> Fault:
    path = " -> ".join(f"`{name}`" for name in [*names, names[0]])
    text = f"deadlock: {path} wait for each other in a circle; take one of the waits away"
    return Fault("deadlock", tuple(names), None, 0, 0, None, text)


def _fault(
    kind: Kind, operators: list[StreamOperator], first: _Row, second: _Row, begin: int, end: int
) -> Fault:
    (a, touched, a_writes), (b, other, b_writes) = first, second
    one, two = operators[a].name, operators[b].name
    where = f"`{touched.buffer}`"
    if end != LARGEST:
        where = f"bytes {begin} to {end} of {where}"
    wait = None
    if kind == "overlap":
        names: tuple[str, ...] = (one,)
        text = (
            f"`{one}` writes {where} and also touches them through another tensor; keep the two "
            "tensors apart"
        )
    elif kind == "overwritten":
        names = (one, two)
        text = (
            f"`{two}` reads tensor `{other.tensor}` in {where}, but finds what `{one}` wrote "
            "there; move one of the two tensors"
        )
    else:
        names = (one, two)
        # The reader of a tensor must wait for its writer, even if the reader is launched first.
        is_backwards = b_writes and not a_writes and None is not touched.tensor == other.tensor
        wait = (one, two) if is_backwards else (two, one)
        text = (
            f"`{one}` {_verb(a_writes)} and `{two}` {_verb(b_writes)} {where}, and nothing orders "
            f"the two; let `{wait[0]}` wait for `{wait[1]}`"
        )
    return Fault(kind, names, touched.buffer, begin, end, wait, text)


def _verb(writes: bool) -> str:
    return "writes" if writes else "reads"
