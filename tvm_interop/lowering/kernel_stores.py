"""Lists the statements of an unscheduled kernel that store an element in a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx


class UnprovenError(Exception):
    """A proof about a kernel fails, because it does not cover one of the kernel's statements."""


@dataclass(frozen=True)
class Store:
    """One statement of a kernel that stores an element, with the loops and conditions around it.

    Attributes
    ----------
    loops: the variable and the length of each loop around the statement, outermost first. Each
        variable begins at 0.
    """

    buffer: Any
    indices: list[Any]
    value: Any
    loops: list[tuple[Any, int]]
    conditions: list[Any]

    def with_values(self, values: Mapping[Any, Any]) -> Store:
        """Return a copy of this statement in which the expressions `values` replace variables."""
        return replace(
            self,
            indices=[with_values(index, values) for index in self.indices],
            value=with_values(self.value, values),
            conditions=[with_values(each, values) for each in self.conditions],
        )


def stores_of(
    statement: Any, loops: list[tuple[Any, int]], conditions: list[Any]
) -> Iterator[Store]:
    """Yield the stores of a statement, in order.

    Parameters
    ----------
    loops, conditions: the loops and conditions around the statement.

    Raises
    ------
    UnprovenError
        The statement contains something that this function does not support, such as a loop that
        ends when a condition is met.
    """
    if isinstance(statement, tirx.SeqStmt):
        bound: dict[Any, Any] = {}
        for each in statement.seq:
            if isinstance(each, tirx.Bind):
                bound[each.var] = with_values(each.value, bound)
                continue
            for store in stores_of(each, loops, conditions):
                yield store.with_values(bound)
    elif isinstance(statement, tirx.For):
        if not isinstance(statement.extent, tirx.IntImm) or not _is(statement.min, 0):
            raise UnprovenError("has a loop whose length depends on data")
        extent = int(statement.extent.value)
        yield from stores_of(statement.body, [*loops, (statement.loop_var, extent)], conditions)
    elif isinstance(statement, s_tir.SBlockRealize):
        block = statement.block
        if block.match_buffers:
            raise UnprovenError("uses a part of a tensor as a tensor")
        values = dict(zip((i.var for i in block.iter_vars), statement.iter_values, strict=True))
        given = [] if _is(statement.predicate, 1) else [statement.predicate]
        parts = [block.body] if block.init is None else [block.init, block.body]
        for part in parts:
            for store in stores_of(part, loops, [*conditions, *given]):
                yield store.with_values(values)
    elif isinstance(statement, tirx.IfThenElse):
        inside = [*conditions, statement.condition]
        yield from stores_of(statement.then_case, loops, inside)
        if statement.else_case is not None:
            yield from stores_of(statement.else_case, loops, inside)
    elif isinstance(statement, tirx.BufferStore):
        yield Store(statement.buffer, list(statement.indices), statement.value, loops, conditions)
    elif isinstance(statement, tirx.Evaluate) and isinstance(statement.value, tirx.IntImm):
        return  # The statement does nothing, such as a loop without steps.
    elif isinstance(statement, (tirx.AttrStmt,)) and statement.attr_key == "pragma_scope":
        yield from stores_of(statement.body, loops, conditions)
    else:
        raise UnprovenError(f"has a statement of kind {type(statement).__name__}")


def _is(node: Any, value: int) -> bool:
    return isinstance(node, tirx.IntImm) and int(node.value) == value


def with_values(expression: Any, values: Mapping[Any, Any]) -> Any:
    """Return the expression, in which `values` replace variables."""
    if not values:
        return expression
    return tvm_ffi.structural_map(
        expression,
        (tirx.Var, lambda var: next((v for k, v in values.items() if k.same_as(var)), var)),
        order="pre",
    )


def loop_variable(analyzer: sym.Analyzer, name: str, extent: int) -> Any:
    """Return a new variable whose range, 0 to `extent - 1`, is known to `analyzer`; 0 if `extent`
    is 1.
    """
    if extent == 1:
        return tirx.const(0, "int64")
    var = tirx.Var(name, "int64")
    analyzer.bind(var, ir.Range(0, extent))
    return var
