"""Describes what an operator computes, so that a kernel library can compute it in place of TVM."""

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
    """The description of an operator of one kind, independent of any model and any kernel.

    Each kind of operator is a subclass of `DescribedOp` in `kinds/`, registered with `kind`. Kinds
    differ only in the results of this class's methods. Other code never asks for the kind of an
    operator.
    """

    __slots__ = ()

    op: ClassVar[str]
    """The kind's name."""
    multiplies: ClassVar[bool] = False
    """Whether the operator adds up products, whose factors may be rounded."""
    is_quantised: ClassVar[bool] = False
    """Whether the operator multiplies or moves integers of 8 bits."""
    computes: ClassVar[bool] = True
    """Whether the operator computes something. If not, it only moves numbers."""
    takes_large: ClassVar[bool] = True
    """Whether libraries' kernels are correct for large numbers, even if their cubes almost
    overflow."""
    layer: ClassVar[str] = ""
    """The operator's type in the paper on TOP, one of `layers.KINDS`; empty if the paper has no
    such type."""
    pools: ClassVar[str] = ""
    """How the operator pools: `max`, `avg`, or empty if it does not pool."""

    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    dtype: DType
    stored: tuple[StoredType, ...]
    cut: tuple[int, ...]

    @property
    def tvm_may_win(self) -> bool:
        """Whether TVM's kernel may be faster than a library's, so that both must be measured."""
        return True

    @property
    def tvm_may_win_on_cpu(self) -> bool:
        """Whether TVM's kernel may be faster than a library's on a CPU.

        If not, TVM's kernel is compiled for a CPU only if the library has no kernel.
        """
        return self.tvm_may_win

    @property
    def tvm_usually_wins(self) -> bool:
        """Whether TVM's kernel on plain tensors is probably the fastest kernel on a CPU.

        This property decides between TVM's kernel and a library's kernel only if they are not
        measured.
        """
        return False

    @property
    def ends(self) -> Ending:
        """The operator's last steps: bias, sum and activation."""
        return _NOTHING

    @property
    def has_bias(self) -> bool:
        """Whether the operator adds a bias: a number for each channel, or for each column."""
        return self.ends.has_bias

    @property
    def has_sum(self) -> bool:
        """Whether the operator adds a tensor of the output's shape before the activation."""
        return self.ends.has_sum

    @property
    def flops(self) -> int:
        """Floating-point operations; 0 if memory alone decides the latency."""
        return 0

    @property
    def product_sizes(self) -> tuple[int, int, int] | None:
        """The number of matrix products that the operator consists of, and their rows and columns.

        The result is None if libraries for GPUs do not compute this kind by multiplying matrices.
        """
        return None

    @property
    def may_be_blocked(self) -> tuple[int, ...]:
        """Indices of the arguments that may have a blocked layout."""
        return ()

    @property
    def channel_axis(self) -> int:
        """The axis of the result along which a bias has one number for each index."""
        return 1

    def with_tf32(self) -> LibraryOp:
        """A copy of the operator whose factors may be rounded to TF32 on a GPU.

        TF32 keeps 10 of the 23 bits of a float32's fraction. An operator that does not multiply
        matrices is returned unchanged.
        """
        return self

    # The methods below say how the operator may be divided.

    def cuts(self) -> list[Cut] | None:
        """How each argument is divided, the output last; None if the operator is not divided."""
        return None

    @property
    def has_shares(self) -> bool:
        """Whether the operator is divided into shares of its result.

        A share is an operator that gets all tensors and the description of the divided operator,
        but computes only some elements of the result.
        """
        return False

    @property
    def row_axis(self) -> int | None:
        """The axis of the rows if each part makes some rows of the result; else None.

        A part reads all rows that its windows reach. So neighbouring parts both read some rows.
        """
        return None

    @property
    def reads_rows_of_whole(self) -> bool:
        """Whether each part of an operator that is divided by rows gets the whole image, and reads
        its rows from the image (see `cut`).
        """
        return False

    @property
    def most_parts(self) -> int:
        """The largest number of parts into which it is worth dividing the operator."""
        return most_reads(self)

    def row_cuts(self, parts: int) -> list[RowCut]:
        """Divide the operator by rows into at most `parts` parts; fewer than 2 mean no division."""
        return []

    def ends_too_narrow(self, cut: Cut) -> bool:
        """Whether `cut` would make the last part of the operator too small to be fast."""
        return False

    def part(self, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]) -> LibraryOp:
        """A part of the operator. `shapes` and `cut` are the part's fields."""
        return self.with_fields(shapes=shapes, cut=cut)

    def part_by_rows(
        self, rows: RowCut, shapes: tuple[tuple[int, ...], ...], cut: tuple[int, ...]
    ) -> LibraryOp:
        """The part that computes the rows `rows.made`. `shapes` and `cut` are the part's fields."""
        return self.part(shapes, cut)

    # The methods below write and read the operator's fields.

    def fields(self) -> dict[str, Any]:
        """The fields and their values, by the names that artifacts and the native code use.

        No field is nested.

        Fields that this kind does not have are included with their defaults.
        """
        kind: Any = type(self)
        own = {name: _at(self, path) for name, path in _paths(kind).items()}
        return {"op": self.op, **dict.fromkeys(("shapes", "layouts")), **_DEFAULTS, **own}

    def with_fields(self, **changes: Any) -> LibraryOp:
        """A copy of the operator with some fields changed. The fields have the same names as in the
        method `fields`.
        """
        return library_op(**self.fields() | changes)

    def to_json(self) -> str:
        """The operator as JSON text, for `from_json`; equal operators give equal text."""
        fields = self.fields()
        for name in _LATER:
            if fields[name] == _DEFAULTS[name]:
                del fields[name]
        return msgspec.json.encode(fields).decode()

    @staticmethod
    def from_json(text: str | bytes) -> LibraryOp:
        """Read text that `to_json` wrote.

        Raises
        ------
        ArtifactError
            The text does not describe an operator.
        """
        try:
            return from_document(msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
            raise ArtifactError(
                f"this does not describe an operator of a library: {error}"
            ) from error

    @property
    def given_shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors that the operator is given.

        The result is `shapes` with one exception: an argument that is cut out of a larger tensor
        has the shape of the larger tensor.
        """
        if not self.cut:
            return self.shapes
        argument, axis, _, size = self.cut
        whole = list(self.shapes[argument])
        whole[axis] = size
        return (*self.shapes[:argument], tuple(whole), *self.shapes[argument + 1 :])

    @property
    def stored_types(self) -> tuple[str, ...]:
        """The type in memory of each argument's numbers."""
        return self.stored or (self.dtype,) * len(self.shapes)


class DescribedOp(LibraryOp, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields that operators of every kind have.

    Attributes
    ----------
    shapes: shapes of the arguments in order, the output last. The shape of an argument in any
        layout is the shape that it has as a plain tensor.
    layouts: layout of each argument in memory.
    dtype: the type to which factors of products may be rounded. (Products of float16 and bfloat16
        are added up in float32.) An operator without products computes in this type. For a
        quantised operator it is int8.
    stored: type in memory of each argument's numbers; empty if all of them are `dtype`.
    cut: four numbers for an argument that is cut out of a larger tensor: the index of the argument,
        the axis along which it is cut, the beginning of the argument on this axis, and the size of
        the larger tensor along this axis. Empty if no argument is cut out. `shapes` has the shape
        of the argument. Only oneDNN takes cut arguments: the data of a convolution that is divided
        by rows, and the right factor of a product that is divided by columns. The right factor is
        plain.
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
    """Make an operator of the kind `op` from its fields, which are named as in `LibraryOp.fields`.

    Raises
    ------
    ValueError
        The kind or a field does not exist, or a field has another type; the message says which.
    """
    return from_document(fields)


def from_document(given: Any) -> LibraryOp:
    """Make an operator from the result of `LibraryOp.fields`, or from its JSON form.

    Raises
    ------
    ValueError
        The kind or a field does not exist, or a field has another type; the message says which.
    """
    if not isinstance(given, dict):
        raise ValueError(f"Expected `object`, got `{type(given).__name__}`")
    name = given.get("op")
    found = kinds().get(name) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"`{name}` is not a kind of operator that this version knows")
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
"""The fields that every description of an operator has in artifacts and databases, in this order.
If a kind lacks a field of this table, its descriptions have the default from the table. New fields
are not added to the table. They are written only for their own kinds."""

_LATER = ("epsilon", "dtype", "allow_tf32", "stored", "data_zero", "weight_zero", "cut", "steps")
"""The fields that `to_json` leaves out if they have their defaults. So operators have the same JSON
as in databases that were written before these fields existed."""


def _is_default(field: str, value: Any) -> bool:
    if field not in _DEFAULTS:
        return False
    default = _DEFAULTS[field]
    return bool((tuple(value) if isinstance(value, list) else value) == default)


@cache
def _paths(cls: Any) -> dict[str, tuple[str, ...]]:
    """For each field, by its JSON name, the path of attributes that leads from `cls` to it."""
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
