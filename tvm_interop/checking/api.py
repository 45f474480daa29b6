"""`tvm_interop.check`: the checker, as users call it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..errors import PlanError
from .races import check_program
from .recorder import Recorder
from .report import Report
from .stream_program import StreamProgram


class Check:
    """Proves a program of several streams safe, or says why it is not: `tvm_interop.check`.

    Examples
    --------
    >>> check = Check()
    >>> r = check.record()
    >>> a, b = r.op("a", writes=["x"], stream=0), r.op("b", reads=["x"], stream=1)
    >>> print(check(r).text)
    unsafe (race): `a` writes and `b` reads `x`, and nothing orders the two; let `b` wait for `a`
    <BLANKLINE>
      0    1
    > a
         > b
    <BLANKLINE>
    missing: b waits for a
    """

    def __call__(
        self,
        program: StreamProgram | Recorder | Mapping[str, Any] | str | os.PathLike[str],
    ) -> Report:
        """Check a program; its faults, and the first of them drawn, are in the report.

        Parameters
        ----------
        program: what to check: a `StreamProgram`; what was recorded; a document of the JSON form
            (see `checking.stream_program`), or the path of a file that holds one.

        Raises
        ------
        PlanError
            It is no program. (An unsafe one is reported, not raised: `Report.raise_for_faults`.)
        """
        if isinstance(program, Recorder):
            return program.report
        if isinstance(program, StreamProgram):
            return check_program(program)
        if isinstance(program, Mapping):
            return check_program(StreamProgram.from_json(_encoded(program)))
        if isinstance(program, (str, os.PathLike)):
            return check_program(StreamProgram.from_json(_text_of(Path(program))))
        raise PlanError(
            f"a {type(program).__name__} is no program of streams; give its JSON form, or what was "
            "recorded"
        )

    @staticmethod
    def record() -> Recorder:
        """Begin to record a program; as a context it is checked at the end, and raised if unsafe.

        Examples
        --------
        >>> with Check.record() as r:
        ...     a = r.op(writes=[("x", 0, 64)], stream="compute")
        ...     b = r.op(reads=[("x", 0, 64)], stream="copy", waits=[a])
        """
        return Recorder()


check = Check()
"""The checker: call it with a program, or `record` one."""


def _text_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: the name itself is none.
        raise PlanError(f"the program {str(path)!r} cannot be read: {error}") from error


def _encoded(document: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(dict(document))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise PlanError(f"the program is no JSON document: {error}") from None
