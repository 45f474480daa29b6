"""Lists, replaces and renames Relax bindings, and recognises names that Relax made up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import tvm_ffi
from tvm import relax

OUTPUT_NAMES = "tvm_interop.output_names"
"""The attribute of a Relax function that holds the names of its outputs, in order."""

COUNTED_OUTPUTS = "tvm_interop.counted_outputs"
"""The attribute of `main` that lists the outputs whose size the model computes.

Each entry has the output's position, the axis, and the position of another output, which holds the
size.
"""

STRING_INPUTS = "tvm_interop.string_inputs"
STRING_OUTPUTS = "tvm_interop.string_outputs"
"""The attributes of `main` that list the inputs and outputs that stand for strings, as JSON.

Each entry has the tensor's position and its strings. The tensor has positions in this list. An
input has -1 for a string that is not in the list.
"""

_MADE_UP = re.compile(r"(lv|gv)(\d*|_\d+)(_\d+)?")


def is_meaningful(name: str) -> bool:
    """Whether a person or a model chose `name`; Relax makes up names such as `lv7` and `gv`."""
    return bool(name) and _MADE_UP.fullmatch(name) is None


class UniqueNames:
    """Makes names unique: the second `conv` becomes `conv_1`."""

    def __init__(self, taken: set[str] | None = None) -> None:
        self._taken = set(taken or ())

    def take(self, name: str) -> str:
        """`name` if it is free, else the first free name of `name_1`, `name_2`, ..."""
        name = str(name)  # TVM's names are of a subclass of `str`, which some functions refuse.
        candidate, suffix = name, 0
        while candidate in self._taken:
            suffix += 1
            candidate = f"{name}_{suffix}"
        self._taken.add(candidate)
        return candidate


def bindings_of(func: relax.Function) -> Iterator[relax.Binding]:
    """The bindings of `func`, in order, across its blocks."""
    for block in func.body.blocks:
        # Iterating over a slice takes half as long as iterating over TVM's array itself.
        yield from block.bindings[:]


def values_of(func: relax.Function) -> dict[relax.Var, relax.Expr]:
    """The expression that each variable of `func` is bound to, in order."""
    return {b.var: b.value for b in bindings_of(func) if isinstance(b, relax.VarBinding)}


def readers_of(func: relax.Function) -> dict[relax.Var, list[relax.Var | None]]:
    """For each variable, the variables whose values read it. None stands for the result of `func`.

    A value that reads a variable twice is listed once.
    """
    readers: dict[relax.Var, list[relax.Var | None]] = {}
    for var, value in values_of(func).items():
        for used in relax.analysis.free_vars(value)[:]:
            readers.setdefault(used, []).append(var)
    for used in relax.analysis.free_vars(func.body.body):
        readers.setdefault(used, []).append(None)
    return readers


def replace_bindings(
    func: relax.Function, replace: Callable[[relax.Binding], Iterable[relax.Binding]]
) -> relax.Function:
    """`func` with each binding replaced by the list of bindings, perhaps empty, from `replace`."""
    blocks = [
        type(block)([new for binding in block.bindings[:] for new in replace(binding)])
        for block in func.body.blocks
    ]
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs)


class NewBindings:
    """The bindings that replace another binding, in order."""

    def __init__(self) -> None:
        self._builder = relax.BlockBuilder()
        self._made: list[relax.Binding] = []

    def bind(self, value: relax.Expr, name: str) -> relax.Var:
        """Bind `value` to a new variable, and return the variable."""
        value = self._builder.normalize(value)
        self._made.append(relax.VarBinding(relax.DataflowVar(name, value.ty), value))
        return self._made[-1].var

    def all(self) -> list[relax.Binding]:
        """All bindings."""
        return list(self._made)

    def defining(self, var: relax.Var) -> list[relax.Binding]:
        """All bindings. The last of them defines `var`. There must be at least one binding."""
        return [*self._made[:-1], relax.VarBinding(var, self._made[-1].value)]


def rename_bindings(func: relax.Function, names: Mapping[relax.Var, str]) -> relax.Function:
    """`func` with each variable in `names` renamed; two variables may get the same name.

    The types of all values are kept, so that TVM need not infer them again.
    """
    renamed: dict[relax.Var, relax.Var] = {}

    def rename(var: relax.Var) -> relax.Var:
        name = names.get(var)
        if name is None or name == var.name:
            return var
        if var not in renamed:
            renamed[var] = type(var)(name, var.ty)
        return renamed[var]

    return relax.BlockBuilder().normalize(tvm_ffi.structural_map(func, (relax.Var, rename)))
