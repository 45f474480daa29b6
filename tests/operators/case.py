"""A case of the operator tests: one node with its inputs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tests.one_node import one_node

NEWEST = 24
"""The newest opset that both oracles know completely."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One node and its inputs.

    Attributes
    ----------
    inputs: the arrays of the inputs; None for an input that is left out.
    fixed: the indices of inputs that are always constants, such as sizes and axes.
    opset: the opset of the model.
    sums: whether the operator adds numbers up. Errors are then relative to the largest number in
        the output.
    tolerance: replaces the tolerance of the type.
    """

    op: str
    inputs: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    opset: int = NEWEST
    outputs: int = 1
    sums: bool = False
    tolerance: float | None = None

    def __str__(self) -> str:
        shown = " ".join("-" if x is None else f"{x.dtype}{list(x.shape)}" for x in self.inputs)
        settings = ", ".join(f"{k}={_short(v)}" for k, v in self.attributes.items())
        return f"{self.op}-{self.opset} {shown} {settings}".strip()

    def ways(self) -> Iterator[tuple[int, ...]]:
        """The sets of constant inputs to try: only the fixed inputs, all inputs, and each single
        input."""
        free = [i for i, x in enumerate(self.inputs) if x is not None and i not in self.fixed]
        yield self.fixed
        if free:
            yield (*self.fixed, *free)
        if len(free) > 1:
            for i in {free[0], free[-1]}:
                yield (*self.fixed, i)

    def model(self, constants: Collection[int]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """A model whose only node is this node, and its inputs by name."""
        return one_node(
            self.op,
            self.inputs,
            constants,
            outputs=self.outputs,
            opset=self.opset,
            **self.attributes,
        )


def _short(value: Any) -> str:
    return str(value) if len(str(value)) < 40 else f"{str(value)[:37]}..."


def versions(op: str, first: int = 7, last: int = NEWEST) -> list[int]:
    """The opsets from `first` to `last` that change the definition of `op`. The opset `first` is
    included too if the operator already exists there: it stands for the definition that is in force
    at `first`.
    """
    known = _definitions().get(op, set())
    started = [version for version in known if version <= first]
    inside = {version for version in known if first <= version <= last}
    if started and max(started) < first:
        inside.add(first)
    return sorted(inside)


@functools.cache
def _definitions() -> dict[str, set[int]]:
    """The opsets that define each operator. Reading all of them from ONNX takes a while."""
    known: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and not schema.deprecated:
            known.setdefault(schema.name, set()).add(schema.since_version)
    return known


EDGES = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 1e-7]
EDGES += [1e-3, -1e-3, 3.0, -3.0, 7.0, -7.0, 12.0, -12.0, 30.0, -30.0, 100.0, -100.0, 6e4, -6e4]
FLOATS = ("float32", "float16", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
TYPES = (*FLOATS, *INTEGERS, "bool")


def edges(dtype: str) -> np.ndarray:
    """Numbers at the limits of a type, and some numbers between the limits."""
    if dtype == "bool":
        return np.array([True, False, False, True, True])
    if "int" in dtype:
        ends = np.iinfo(dtype)
        values = [ends.min, ends.max, 0, 1, 2, 3, 5, 7, 100, 0 if ends.min == 0 else -1]
        return np.array([*values, *([] if ends.min == 0 else [-2, -3, -7, -100])], dtype)
    wide = [] if dtype == "float16" else [1e-40, -1e-40, 1e30, -1e30, 3e38]
    return np.array([*EDGES, *wide], dtype)


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Usual numbers: normally distributed, or small integers of which some are equal."""
    draw = np.random.default_rng([seed, *shape])
    if dtype == "bool":
        return draw.random(shape) < 0.5
    if "int" in dtype:
        low = 0 if dtype.startswith("u") else -9
        return draw.integers(low, 10, shape).astype(dtype)
    return np.asarray(draw.standard_normal(shape)).astype(dtype)


def ties(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Few different numbers, so that many are equal."""
    draw = np.random.default_rng([seed, *shape])
    return draw.integers(0, 3, shape).astype(dtype)
