"""What each kind of operator is to compute, one file a kind; `tests/unit/test_kinds.py` checks it.

A file has the kind's name and registers its cases. A kind without a file fails the suite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from tvm_interop.program.import_files import import_files
from tvm_interop.program.library_op import LibraryOp

Arrays = list[np.ndarray]
OneNode = tuple[onnx.ModelProto, dict[str, np.ndarray], bool]


@dataclass(frozen=True)
class Conformance:
    """How a kind is checked.

    Attributes
    ----------
    cases: plain operators of float32, or of integers where the kind is of those, by what is special
        about them: sizes of 1 and primes among them, and one that is large enough to be divided.
    reference: what an operator makes of its inputs, plain and in float64.
    inputs: random inputs, plain, of the operator's types.
    models: models of one node, by what is special about them: the model, what to feed it, and
        whether libraries take it.
    """

    cases: Mapping[str, LibraryOp]
    reference: Callable[[LibraryOp, Arrays], np.ndarray]
    inputs: Callable[[LibraryOp], Arrays]
    models: Mapping[str, OneNode]


_FOUND: dict[str, Conformance] = {}


def conforms(
    kind: str,
    cases: Mapping[str, LibraryOp],
    reference: Callable[[LibraryOp, Arrays], np.ndarray],
    inputs: Callable[[LibraryOp], Arrays] | None = None,
    models: Mapping[str, OneNode] | None = None,
) -> None:
    """Register how a kind is checked."""
    _FOUND[kind] = Conformance(cases, reference, inputs or normal_inputs, models or {})


def conformance() -> Mapping[str, Conformance]:
    """By kind, for each that has a file here."""
    import_files(__name__)
    return _FOUND


def normal_inputs(op: LibraryOp) -> Arrays:
    """Normally distributed numbers."""
    rng = np.random.default_rng(0)
    types = op.stored_types[:-1]
    return [rng.standard_normal(s).astype(t) for s, t in zip(op.shapes, types, strict=False)]


def byte_inputs(op: LibraryOp) -> Arrays:
    """Small integers; scales that bring their sums into 8 bits, and biases."""
    rng = np.random.default_rng(0)
    terms = np.prod(op.shapes[1][1:]) if len(op.shapes[1]) == 4 else op.shapes[0][-1]
    arrays = []
    for i, (shape, dtype) in enumerate(zip(op.shapes[:-1], op.stored_types, strict=False)):
        if dtype == "float32":
            scale = rng.uniform(0.5, 1.5, shape) * 60 / (74 * 147 * np.sqrt(terms))
            arrays.append((scale if i == 2 else rng.normal(scale=10, size=shape)).astype(dtype))
        else:
            low, high = (0, 255) if dtype == "uint8" else (-127, 127)
            arrays.append(rng.integers(low, high, shape).astype(dtype))
    return arrays
