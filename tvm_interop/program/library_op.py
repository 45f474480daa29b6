"""Describes what an operator computes, so that a kernel library can compute it instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeVar

import msgspec

from ..errors import ArtifactError
from .cuts import Cut, RowCut, most_reads
from .endings import Ending
from .import_files import import_files
from .storage import Layout, StoredType

DType = Literal["float32", "float16", "bfloat16", "int8"]


_NOTHING = Ending()


class LibraryOp:
    """An operator, apart from any model and any kernel: of one of the kinds in `kinds/`.

    Each kind is a `DescribedOp` that is registered with `kind`. What differs between kinds is asked
    here: nothing else compares them.
    """

    __slots__ = ()

    op: ClassVar[str]
    """The kind's name."""
    multiplies: ClassVar[bool] = False
    """Whether it adds up products, whose factors may be rounded."""
    is_quantised: ClassVar[bool] = False
    """Whether it multiplies or moves integers of 8 bits."""
    computes: ClassVar[bool] = True
    """Whether it does more than to move numbers."""
    takes_large: ClassVar[bool] = True
    """Whether libraries compute it for numbers whose cubes are barely finite."""

    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    dtype: DType
    stored: tuple[StoredType, ...]
    cut: tuple[int, ...]

    @property
    def ends(self) -> Ending:
        """What it does at the end."""
        return _NOTHING

    @property
    def has_bias(self) -> bool:
        """Whether it takes a bias: a number for each channel, or for each column."""
        return self.ends.has_bias

    @property
    def has_sum(self) -> bool:
        """Whether it takes a tensor of the output's shape, and adds it before the activation."""
        return self.ends.has_sum

    @property
    def flops(self) -> int:
        """Floating-point operations; 0 where memory alone decides."""
        return 0

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """The arguments that may be of the layout `blocked16`."""
        return ()

    @property
    def channel_axis(self) -> int:
        """The axis of the result along which a bias has its numbers."""
        return 1

    def with_tf32(self) -> LibraryOp:
        """On a GPU: as it is where factors may be rounded to TF32, which keeps 10 of 23 bits."""
        return self

    # How it may be divided.

    def cuts(self) -> list[Cut] | None:
        """How each argument is divided between parts, the output last; None where it is not."""
        return None

    @property
    def row_axis(self) -> int | None:
        """Where parts make some rows of the result each, the axis of the rows; else None.

        Parts then read the rows that their windows reach, so that neighbours read some of the same.
        """
        return None

    @property
    def reads_rows_of_whole(self) -> bool:
        """Whether parts by rows take the whole image, and read their rows out of it (see `cut`)."""
        return False

    @property
    def most_parts(self) -> int:
        """The parts of which each is worth being one."""
        return most_reads(self)

    def row_cuts(self, parts: int) -> list[RowCut]:
        """Up to so many parts by rows, where there is a `row_axis`; fewer than 2 for none."""
        return []

    def ends_too_narrow(self, cut: Cut) -> bool:
        """Whether, with its data cut so, the last step is no part by itself."""
        return False

    def part(self, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]) -> LibraryOp:
        """The part of these shapes."""
        return self.with_fields(shapes=shapes, cut=cut)

    def part_by_rows(
        self, rows: RowCut, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]
    ) -> LibraryOp:
        """The part that makes these rows, of these shapes."""
        return self.part(shapes, cut)

    # As a document.

    def fields(self) -> dict[str, Any]:
        """What it is, flat and by name, as artifacts and the native code have it.

        Fields of other kinds are there too, with their defaults, as they always were.
        """
        kind: Any = type(self)
        own = {name: _at(self, path) for name, path in _paths(kind).items()}
        return {"op": self.op, **dict.fromkeys(("shapes", "layouts")), **_DEFAULTS, **own}

    def with_fields(self, **changes: Any) -> LibraryOp:
        """The same but for these fields, by the names that they have in documents."""
        return library_op(**self.fields() | changes)

    def to_json(self) -> str:
        """As JSON text, for `from_json`; equal operators give equal text."""
        fields = self.fields()
        for name in _LATER:
            if fields[name] == _DEFAULTS[name]:
                del fields[name]
        return msgspec.json.encode(fields).decode()

    @staticmethod
    def from_json(text: str | bytes) -> LibraryOp:
        """Read what `to_json` wrote.

        Raises
        ------
        ArtifactError
            It is no such text.
        """
        try:
            return from_document(msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
            raise ArtifactError(f"this describes no operator of a library: {error}") from error

    @property
    def given_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tensors that are given: as `shapes`, but the whole of one that is cut."""
        if not self.cut:
            return self.shapes
        argument, axis, _, size = self.cut
        whole = list(self.shapes[argument])
        whole[axis] = size
        return (*self.shapes[:argument], tuple(whole), *self.shapes[argument + 1 :])

    @property
    def stored_types(self) -> tuple[str, ...]:
        """Of each argument, the type its numbers are kept in memory as."""
        return self.stored or (self.dtype,) * len(self.shapes)


class DescribedOp(LibraryOp, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every kind knows of its operators.

    Attributes
    ----------
    shapes: of the arguments in order, the output last; those of plain tensors, whatever the layout.
    layouts: how each lies in memory; `blocked16` keeps 16 channels of a pixel side by side.
    dtype: what the factors of products are rounded to; those of float16 and bfloat16 add up in
        float32. Of what has no products, the type it computes in. Of what is quantised, int8.
    stored: of each argument, the type its numbers are kept in memory as; empty where all are kept
        as `dtype`.
    cut: where one argument is cut out of the tensor that is given for it: the argument, the axis,
        where on that axis it begins, and the tensor's size along it; empty where none is. `shapes`
        has what is cut out. For oneDNN alone: the data of convolutions by rows, and the right side
        of products by columns, all plain.
    """

    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    dtype: DType = "float32"
    stored: tuple[StoredType, ...] = ()
    cut: tuple[int, ...] = ()


_Kind = TypeVar("_Kind", bound=type[DescribedOp])

_KINDS: dict[str, type[DescribedOp]] = {}


def kind(name: str) -> Callable[[_Kind], _Kind]:
    """Register a class as the kind of operators called `name`."""

    def register(cls: _Kind) -> _Kind:
        cls.op = name
        _KINDS[name] = cls
        return cls

    return register


def kinds() -> Mapping[str, type[DescribedOp]]:
    """All kinds by name."""
    import_files(f"{__package__}.kinds")
    return _KINDS


def library_op(**fields: Any) -> LibraryOp:
    """An operator by its fields, of the names that they have in documents; `op` is its kind.

    Raises
    ------
    ValueError
        There is no such kind or field, or a field is of another type; says which.
    """
    return from_document(fields)


def from_document(given: Any) -> LibraryOp:
    """An operator, from what `LibraryOp.fields` gives or JSON makes of it.

    Raises
    ------
    ValueError
        There is no such kind or field, or a field is of another type; says which.
    """
    if not isinstance(given, dict):
        raise ValueError(f"Expected `object`, got `{type(given).__name__}`")
    name = given.get("op")
    found = kinds().get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"`{name}` is no kind of operator that this version knows")
    paths = _paths(found)
    nested: dict[str, Any] = {}
    for field, value in given.items():
        if field in paths:
            within = nested
            for outer in paths[field][:-1]:
                within = within.setdefault(outer, {})
            within[field] = value
        elif field != "op" and not _is_default(field, value):
            raise ValueError(f"`{name}` takes no field `{field}` of {value!r}")
    try:
        return msgspec.convert(nested, type=found)
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}, of `{name}`") from error


_DEFAULTS: dict[str, Any] = {
    "window": (),
    "strides": (),
    "padding": (),
    "dilation": (),
    "groups": 1,
    "has_bias": False,
    "has_sum": False,
    "activation": "none",
    "clip_low": 0.0,
    "clip_high": 0.0,
    "counts_padding": False,
    "lrn_size": 0,
    "lrn_alpha": 0.0,
    "lrn_beta": 0.0,
    "lrn_bias": 0.0,
    "epsilon": 0.0,
    "dtype": "float32",
    "allow_tf32": False,
    "stored": (),
    "data_zero": 0,
    "weight_zero": 0,
    "cut": (),
    "steps": (),
}
"""What documents have of every kind, in this order, with the defaults of kinds that have no such
field. It does not grow: a field that a later kind brings is in documents of that kind alone."""

_LATER = ("epsilon", "dtype", "allow_tf32", "stored", "data_zero", "weight_zero", "cut", "steps")
"""Those that `to_json` leaves out where they have their defaults, so that texts in latency
databases of users stay equal."""


def _is_default(field: str, value: Any) -> bool:
    if field not in _DEFAULTS:
        return False
    default = _DEFAULTS[field]
    return bool((tuple(value) if isinstance(value, list) else value) == default)


@cache
def _paths(cls: Any) -> dict[str, tuple[str, ...]]:
    """By its name in documents: where a kind has each field, perhaps within another."""
    return dict(_walk(cls))


def _walk(cls: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    for field in msgspec.structs.fields(cls):
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from ((name, (field.name, *path)) for name, path in _walk(field.type))
        else:
            yield field.encode_name, (field.name,)


def _at(op: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        op = getattr(op, name)
    return op
