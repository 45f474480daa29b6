"""Records a program of several streams for the checker, while another project's code runs.

The other project's code, or a test of this code, calls a method of `Recorder` for each operator
that it launches.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np

from ..errors import PlanError
from ..plain_data import is_text, is_whole
from .races import check_program
from .report import Report
from .stream_program import Access, StreamOperator, StreamProgram

Touched: TypeAlias = Any
"""The bytes that an operator touches. There are four forms: an `Access`; a buffer's name; a tuple
(name, begin, end) in bytes; or an array. An array is one of NumPy or PyTorch, or any object with
`data_ptr`, `element_size`, `shape` and `stride`.
"""

MEMORY = "memory"
"""The name of the buffer that stands for the host's memory with all recorded arrays. In this
buffer, an array begins at the position that equals its address. For an array on a GPU or another
device, the buffer's name is followed by ` of ` and the device.
"""


class Recorder:
    """Records operators in the order in which a program launches them.

    Examples
    --------
    >>> with Recorder() as r:
    ...     a = r.op(writes=["x"], stream=0)
    ...     b = r.op(reads=["x"], stream=1, waits=[a])
    >>> r.report.is_safe
    True
    """

    def __init__(self) -> None:
        self._operators: list[StreamOperator] = []
        self._names: set[str] = set()
        self._outputs: list[Access] = []
        # Recorded arrays are kept in memory, so that no later array gets the address of an earlier
        # one.
        self._kept: list[object] = []

    def op(
        self,
        name: str | None = None,
        *,
        reads: Iterable[Touched] = (),
        writes: Iterable[Touched] = (),
        stream: str | int = "0",
        waits: Iterable[str] = (),
        restrict: bool = False,
    ) -> str:
        """Record an operator, and return its name for later operators to wait for.

        Call this method once for each operator, in the order in which the operators are launched.

        Parameters
        ----------
        name: a unique name; by default `op0`, `op1`, ..., by the operator's index.
        reads, writes: the bytes that the operator reads and writes (see `Touched`).
        stream: the name or number of the stream.
        waits: names of operators launched before, which this operator waits for.
        restrict: whether the kernel assumes that the bytes it writes overlap no other bytes that it
            touches.

        Raises
        ------
        PlanError
            Another operator has the name, a wait names an operator that was not launched before, or
            the bytes of a read or write cannot be determined.
        """
        name = f"op{len(self._operators)}" if name is None else name
        if not is_text(name):
            raise PlanError(f"an operator is called {name!r}; a name is text")
        for given in (reads, writes, waits):
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise PlanError(f"`{name}` reads, writes or waits for {given!r}; give a list")
        if name in self._names:
            raise PlanError(f"two operators are called `{name}`; names must be unique")
        sources = tuple(waits)
        for source in sources:
            if not isinstance(source, str) or source not in self._names:
                raise PlanError(
                    f"`{name}` waits for {source!r}, which was not launched before it; `waits` "
                    "holds names of earlier operators"
                )
        self._operators.append(
            StreamOperator(
                name,
                str(stream),
                tuple(map(self._access, reads)),
                tuple(map(self._access, writes)),
                sources,
                restrict,
            )
        )
        self._names.add(name)
        return name

    def outputs(self, *touched: Touched) -> None:
        """Record the bytes that the host reads after all operators have ended."""
        self._outputs += map(self._access, touched)

    @property
    def program(self) -> StreamProgram:
        """The program that was recorded so far."""
        return StreamProgram(operators=tuple(self._operators), outputs=tuple(self._outputs))

    @property
    def report(self) -> Report:
        """The checker's report on the recorded program."""
        return check_program(self.program)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Check the recorded program, unless the block raised an error.

        Raises
        ------
        PlanError
            The program is not safe.
        """
        if error is None:
            self.report.raise_for_faults()

    def _access(self, touched: Touched) -> Access:
        if isinstance(touched, Access):
            return touched
        if isinstance(touched, str):
            return Access(touched)
        if isinstance(touched, tuple):
            if len(touched) == 3 and is_whole(touched[1]) and is_whole(touched[2]):
                return Access(touched[0], int(touched[1]), int(touched[2]))
            raise PlanError(f"{touched!r} is not a range of bytes; give (buffer, begin, end)")
        self._kept.append(touched)
        return _at_address(touched)


def _at_address(array: Any) -> Access:
    """The range of memory from an array's first byte to its last."""
    if isinstance(array, np.ndarray):
        begin, end = np.lib.array_utils.byte_bounds(array)
        return Access(MEMORY, int(begin), int(end))
    try:
        begin, device = int(array.data_ptr()), str(getattr(array, "device", ""))
        nbytes = _reach(array) * int(array.element_size())
    except (AttributeError, TypeError) as error:
        raise PlanError(
            f"the address of a {type(array).__name__} that is read or written cannot be determined "
            f"({error}); give its buffer's name, begin and end"
        ) from None
    # PyTorch calls the host `cpu`. Its tensors may share memory with arrays of NumPy.
    is_host = device in ("", "cpu")
    return Access(MEMORY if is_host else f"{MEMORY} of {device}", begin, begin + nbytes)


def _reach(tensor: Any) -> int:
    """The distance from a tensor's first element in memory to just after its last, in elements."""
    if 0 in tensor.shape:
        return 0
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((int(size) - 1) * int(stride) for size, stride in steps)
