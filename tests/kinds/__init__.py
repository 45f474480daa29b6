"""The expected results of each kind of operator. `tests/unit/test_kinds.py` checks them.

Each file of this folder has the name of a kind and registers the cases of this kind. If a kind has
no file, the tests fail.
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
    """The cases and expected results of a kind.

    Attributes
    ----------
    cases: plain operators by name, of float32 or of integers. They include sizes of 1, primes, and
        one size that is large enough to be divided.
    reference: returns the result of an operator for plain inputs in float64.
    inputs: returns random plain inputs of the operator's types.
    models: models of one node, by name. Each has the model, its inputs, and whether libraries run
        the node.
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
    """Register the cases and expected results of a kind."""
    _FOUND[kind] = Conformance(cases, reference, inputs or normal_inputs, models or {})


def conformance() -> Mapping[str, Conformance]:
    """The registered kinds, by name."""
    import_files(__name__)
    return _FOUND


def normal_inputs(op: LibraryOp) -> Arrays:
    """Random inputs with normally distributed numbers."""
    rng = np.random.default_rng(0)
    types = op.stored_types[:-1]
    return [rng.standard_normal(s).astype(t) for s, t in zip(op.shapes, types, strict=False)]


def byte_inputs(op: LibraryOp) -> Arrays:
    """Inputs of small integers, with biases and with scales that bring sums into 8 bits."""
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
