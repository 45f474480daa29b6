"""Defines `tvm_interop.check`, the interface of the checker for users."""

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
    """Proves that a program of several streams is safe, or says why it is not.

    Users call the only instance of this class, `tvm_interop.check`.

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
        """Check a program, and return a report of its faults.

        Parameters
        ----------
        program: the program to check: a `StreamProgram`, a `Recorder`, a document of the JSON form
            (see `checking.stream_program`), or the path of a file with such a document.

        Raises
        ------
        PlanError
            `program` is not a valid program. If the program is valid but unsafe, nothing is raised.
            To get an error in that case, call `Report.raise_for_faults`.
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
            f"a {type(program).__name__} is not a program of streams; give a program in its JSON "
            "form, or a `Recorder`"
        )

    @staticmethod
    def record() -> Recorder:
        """Return a new recorder, with which a program of several streams is recorded.

        The recorder is also a context manager. It checks the program at the end of the block, and
        raises `PlanError` if the program is unsafe.

        Examples
        --------
        >>> with Check.record() as r:
        ...     a = r.op(writes=[("x", 0, 64)], stream="compute")
        ...     b = r.op(reads=[("x", 0, 64)], stream="copy", waits=[a])
        """
        return Recorder()


check = Check()
"""The checker: call it with a program, or record a program with `check.record()`."""


def _text_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: such as a null byte in the path.
        raise PlanError(f"the program {str(path)!r} cannot be read: {error}") from error


def _encoded(document: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(dict(document))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise PlanError(f"the program is not a JSON document: {error}") from None
