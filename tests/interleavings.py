"""An oracle for programs of streams, which runs every interleaving of the operators.

The function `is_safe` is an oracle for tests of our checker, and does not use the checker's method,
happens-before. It simulates memory: a byte has two halves, and each half remembers its last write.
An operator that is share 0 of 2 of a kernel writes the first halves of bytes, and share 1 of 2
writes the second halves. Any other operator writes both halves.
"""

from __future__ import annotations

from tvm_interop.checking.stream_program import Access, StreamOperator, StreamProgram

Half = tuple[str, int, int]


def is_safe(program: StreamProgram) -> bool:
    """Whether each operator reads the right data, in every order of starts and ends."""
    return _Oracle(program).runs_all(frozenset(), frozenset(), {})


class _Oracle:
    def __init__(self, program: StreamProgram) -> None:
        self._program = program
        self._operators = {op.name: op for op in program.operators}
        last: dict[str, str] = {}
        self._needs: dict[str, set[str]] = {}
        for op in program.operators:
            self._needs[op.name] = {*op.waits} | ({last[op.stream]} if op.stream in last else set())
            last[op.stream] = op.name
        self._seen: set[object] = set()

    def runs_all(
        self, ended: frozenset[str], running: frozenset[str], memory: dict[Half, object]
    ) -> bool:
        """Whether all reads find the right data from a state on, in every possible order."""
        state = (ended, running, frozenset(memory.items()))
        if state in self._seen:
            return True
        self._seen.add(state)
        if len(ended) == len(self._operators):
            return all(_finds(self._program, access, memory) for access in self._program.outputs)
        ready = [
            op
            for name, op in self._operators.items()
            if name not in ended and name not in running and self._needs[name] <= ended
        ]
        if not ready and not running:
            return False  # The remaining operators wait for each other.
        for op in ready:
            others = (self._operators[name] for name in running)
            if any(_collide(self._program, op, other) for other in others):
                return False
            if not all(_finds(self._program, access, memory) for access in op.reads):
                return False
            if not self.runs_all(ended, running | {op.name}, memory):
                return False
        for name in running:
            after = memory | _written(self._program, self._operators[name])
            if not self.runs_all(ended | {name}, running - {name}, after):
                return False
        return True


def _halves(program: StreamProgram, access: Access) -> set[Half]:
    lanes = (0, 1) if access.share is None else (access.share[0],)
    span = range(access.begin, program.end_of(access))
    return {(access.buffer, byte, lane) for byte in span for lane in lanes}


def _written(program: StreamProgram, op: StreamOperator) -> dict[Half, object]:
    """The data that an operator leaves in memory.

    The order of an operator's writes is unknown. So if an operator writes two tensors to one half
    of a byte, the half holds the data of neither tensor.
    """
    left: dict[Half, object] = {}
    for access in op.writes:
        what = access.tensor if access.tensor is not None else ("by", op.name)
        for half in _halves(program, access):
            left[half] = what if left.get(half, what) == what else ("by", op.name)
    return left


def _collide(program: StreamProgram, a: StreamOperator, b: StreamOperator) -> bool:
    """Whether two operators touch the same half of a byte, and at least one of them writes it."""
    written = [{h for w in op.writes for h in _halves(program, w)} for op in (a, b)]
    read = [{h for r in op.reads for h in _halves(program, r)} for op in (a, b)]
    return bool(written[0] & (written[1] | read[1]) or written[1] & read[0])


def _finds(program: StreamProgram, access: Access, memory: dict[Half, object]) -> bool:
    """Whether a read finds the data of its tensor in memory.

    A read without a tensor accepts any bytes. Memory that no operator has written yet holds the
    tensor that is read.
    """
    if access.tensor is None:
        return True
    return all(memory.get(h, access.tensor) == access.tensor for h in _halves(program, access))
