"""Describes a program of several streams as data, for the checker.

A `StreamProgram` says what each operator reads and writes, and which operators it waits for. Its
JSON form, version 1, is an object with the following fields. Other fields are refused::

    {
      "format": "tvm_interop.stream_program",
      "version": 1,
      "operators": [
        {"name": "conv1", "stream": "main",
         "reads": [{"buffer": "input"}],
         "writes": [{"buffer": "arena", "begin": 0, "end": 4096, "tensor": "conv1:0"}]},
        {"name": "conv2", "stream": "side", "waits": ["conv1"],
         "reads": [{"buffer": "arena", "begin": 0, "end": 4096, "tensor": "conv1:0"}],
         "writes": [{"buffer": "arena", "begin": 4096, "end": 8192}]}
      ],
      "outputs": [{"buffer": "arena", "begin": 4096, "end": 8192}],
      "buffers": {"arena": 8192}
    }

`operators` are in the order in which the host launches them. A stream runs its operators in that
order, one after the other. An operator starts when the operator before it on its stream has ended
and all operators named in its `waits` have ended. The attributes of the classes below say what the
fields mean.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from ..errors import PlanError
from ..plain_data import LARGEST, is_text

FORMAT = "tvm_interop.stream_program"
_T = TypeVar("_T")


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bytes that an operator reads or writes.

    Attributes
    ----------
    buffer: the buffer's name. Different buffers share no bytes.
    begin, end: the positions of the first byte and of the byte just after the last one. If `end` is
        missing, the range goes to the end of the buffer.
    tensor: the name of the tensor that the bytes hold, or hold a part of. A read that names a
        tensor must find the bytes as they were last written under that name. A tensor that no
        operator writes is in memory before the first operator starts. A read without a name accepts
        any bytes. A write without a name overwrites every tensor in the range.
    share: None if one operator writes all the bytes. If several operators write the bytes together,
        each writes a share of them. Then `share` has the index of this operator's share, and the
        number of shares. Operators that write different shares do not conflict.
    """

    buffer: str
    begin: int = 0
    end: int | None = None
    tensor: str | None = None
    share: tuple[int, int] | None = None


class StreamOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One operator: a kernel or a copy. An operator without reads and writes is an event to wait
    for.

    Attributes
    ----------
    name: the operator's name, unique in its program.
    stream: the name of the stream that the operator runs on.
    reads, writes: the bytes that the operator touches while it runs, in any order.
    waits: the names of operators that must have ended before this operator starts.
    restrict: whether the kernel assumes, as C's keyword `restrict` says, that the bytes it writes
        overlap no other bytes that it touches. If False, the operator may work in place.
    """

    name: str
    stream: str
    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    waits: tuple[str, ...] = ()
    restrict: bool = False


class StreamProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Operators on streams, in the order in which the host launches them.

    Attributes
    ----------
    operators: the operators, in the order of launches.
    outputs: the bytes that the host reads when all operators have ended.
    buffers: the sizes of buffers in bytes, by name. A buffer that is not listed has no size limit.
        An access beyond a buffer's size is refused.

    Examples
    --------
    >>> a = StreamOperator("a", "0", writes=(Access("x"),))
    >>> b = StreamOperator("b", "1", reads=(Access("x"),), waits=("a",))
    >>> StreamProgram.from_json(StreamProgram(operators=(a, b)).to_json()).operators == (a, b)
    True
    """

    operators: tuple[StreamOperator, ...]
    outputs: tuple[Access, ...] = ()
    buffers: dict[str, int] = {}
    format: Literal["tvm_interop.stream_program"] = "tvm_interop.stream_program"
    version: Literal[1] = 1

    def to_json(self) -> str:
        """The program in its JSON form, with one line for each operator."""
        self.check_form()
        lines = ",\n".join(f"    {msgspec.json.encode(op).decode()}" for op in self.operators)
        rest = {"outputs": self.outputs, "buffers": self.buffers}
        fields = [
            f'"format": "{self.format}"',
            f'"version": {self.version}',
            f'"operators": [\n{lines}\n  ]',
            *(f'"{name}": {msgspec.json.encode(value).decode()}' for name, value in rest.items()),
        ]
        return "{\n  " + ",\n  ".join(fields) + "\n}\n"

    @staticmethod
    def from_json(text: str | bytes) -> StreamProgram:
        """Read a program from its JSON form.

        Raises
        ------
        PlanError
            The text is not JSON, is of another version, or has a field that is missing, unknown or
            of the wrong type; or `check_form` refuses the program.
        """
        head = _decoded(text, _Head)
        if head.format != FORMAT:
            raise PlanError(
                f"this is not a program of streams: its `format` is {head.format!r}, not `{FORMAT}`"
            )
        if head.version != 1:
            raise PlanError(
                f"the program is of version {head.version!r}, and this tvm_interop reads only "
                "version 1"
            )
        program = _decoded(text, StreamProgram)
        program.check_form()
        return program

    def check_form(self) -> None:
        """Check that the program is well formed, but not whether it is safe.

        Raises
        ------
        PlanError
            A name is empty or not text, or two operators have the same name. Or a wait names an
            operator that does not exist, or a buffer's size is out of bounds. Or a range ends
            before it begins, or lies outside its buffer. Or a write is a share whose index is too
            large, or there are more shares than operators.
        """
        names = [op.name for op in self.operators]
        known = set(names)
        for name in (*names, *(op.stream for op in self.operators), *self.buffers):
            if not is_text(name) or not name:
                raise PlanError(f"an operator, stream or buffer is called {name!r}; give it a name")
        if len(known) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise PlanError(f"two operators are called `{twice}`; names must be unique")
        for name, nbytes in self.buffers.items():
            if not 0 <= nbytes <= LARGEST:
                raise PlanError(f"buffer `{name}` has {nbytes} bytes; give 0 to {LARGEST}")
        for op in self.operators:
            for source in op.waits:
                if source not in known:
                    raise PlanError(
                        f"operator `{op.name}` waits for `{source}`, which is not an operator; "
                        "name an operator of the program"
                    )
            for access in (*op.reads, *op.writes):
                self._check_access(access, f"operator `{op.name}`")
        for access in self.outputs:
            self._check_access(access, "an output")

    def end_of(self, access: Access) -> int:
        """The position in the buffer of the byte just after the last byte of an access."""
        return self.buffers.get(access.buffer, LARGEST) if access.end is None else access.end

    def _check_access(self, access: Access, who: str) -> None:
        if not is_text(access.buffer) or not access.buffer:
            raise PlanError(
                f"{who} names buffer {access.buffer!r}; a buffer's name is text, and not empty"
            )
        size = self.buffers.get(access.buffer, LARGEST)
        if not 0 <= access.begin <= self.end_of(access) <= size:
            raise PlanError(
                f"{who} touches bytes {access.begin} to {self.end_of(access)} of "
                f"`{access.buffer}`, which has {size}; a range begins at 0 or later and ends "
                "within its buffer"
            )
        share = access.share
        if share is not None and not 0 <= share[0] < share[1] <= max(len(self.operators), 1):
            raise PlanError(
                f"{who} writes share {share[0]} of {share[1]}; shares are numbered from 0, and "
                "there are at most as many shares as operators"
            )


class _Head(msgspec.Struct):
    """The fields of a JSON document that identify its format and its version."""

    format: object = None
    version: object = None


def _decoded(text: str | bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise PlanError(f"the program cannot be read: {error}; correct the program there") from None
