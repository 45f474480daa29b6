"""Compares every kind of operator with NumPy in double precision, in each layout, whole and
divided."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kind_variants import TABLE, laid_out, plain, table, variants
from tests.kinds import conformance
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tests.unit.test_parts_of_products import program_of, run
from tvm_interop.compiler.cpu import BF16_FEATURE, INT8_FEATURE
from tvm_interop.errors import ArtifactError
from tvm_interop.frontend import load_model
from tvm_interop.lowering.split_operators import split_operators
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import why_missing, why_unsupported
from tvm_interop.program.library_op import LibraryOp, from_document, kinds
from tvm_interop.transform import LowerToUnits, extract

needs_onednn = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)

CASES = [(kind, case) for kind, checked in conformance().items() for case in checked.cases]
MODELS = [(kind, name) for kind, checked in conformance().items() for name in checked.models]
PARTS = (1, 2, 3)
NO_LIBRARY = {"concat", "part"}
"""Kinds that no library computes."""


def test_every_kind_has_cases() -> None:
    assert set(conformance()) == set(kinds())


@pytest.mark.parametrize("kind", kinds())
def test_types_are_small(kind: str) -> None:
    assert 3 <= len(kinds()[kind].__struct_fields__) <= 9


@pytest.mark.parametrize(("kind", "case"), CASES)
def test_documents(kind: str, case: str) -> None:
    for name, op in variants(conformance()[kind].cases[case]):
        assert LibraryOp.from_json(op.to_json()) == op, name
        assert from_document(op.fields()) == op, name
        with pytest.raises(ArtifactError, match=f"`{kind}` takes no field `mood` of 1"):
            LibraryOp.from_json(op.to_json().replace("{", '{"mood": 1, ', 1))


@needs_onednn
@pytest.mark.parametrize(("kind", "case"), CASES)
def test_results(kind: str, case: str) -> None:
    """A library computes every operator that it accepts correctly, whole and in parts.

    If a library accepts an operator, it accepts each part of the operator.
    """
    checked = conformance()[kind]
    op = checked.cases[case]
    inputs = checked.inputs(op)
    done = 0
    for name, variant in variants(op):
        if why_unsupported("onednn", variant) or not runs_here(variant):
            continue
        given = [a.astype(t) for a, t in zip(inputs, variant.stored_types, strict=False)]
        lie = [laid_out(a, layout) for a, layout in zip(given, variant.layouts, strict=False)]
        wanted = checked.reference(op, [rounded(variant, i, a) for i, a in enumerate(given)])
        for parts in PARTS:
            program = split_operators(program_of(variant), parts)
            got = run(program, lie)
            result = plain(got, variant.shapes[-1], variant.layouts[-1]).astype(np.float64)
            assert_near(variant, result, wanted, f"{name}, {len(program.operators)} parts")
            done += 1
    assert (done == 0) == (kind in NO_LIBRARY) or not runs_here(op)


def runs_here(op: LibraryOp) -> bool:
    """Whether this CPU has the features that the types of the operator need."""
    features = host_features()
    narrow = op.dtype == "bfloat16" or "bfloat16" in op.stored_types
    return (not narrow or BF16_FEATURE in features) and (
        not op.is_quantised or INT8_FEATURE in features
    )


def rounded(op: LibraryOp, argument: int, array: np.ndarray) -> np.ndarray:
    """An argument in double precision. A factor of a bfloat16 operator is rounded to bfloat16."""
    is_factor = op.multiplies and op.dtype == "bfloat16" and argument < 2
    return (array.astype("bfloat16") if is_factor else array).astype(np.float64)


def assert_near(op: LibraryOp, got: np.ndarray, wanted: np.ndarray, what: str) -> None:
    """Check that results are as near to NumPy's as rounding allows.

    Results may be rounded at the end. If the operator uses bfloat16, intermediate results may be
    rounded too.
    """
    if op.stored_types[-1] in ("int8", "uint8"):
        assert np.abs(got - wanted).max() <= 1, what
        return
    tolerance = 2.0**-7 if "bfloat16" in op.stored_types or op.dtype == "bfloat16" else 1e-4
    size = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance * size, err_msg=what)


@needs_onednn
@pytest.mark.parametrize(("kind", "name"), MODELS)
def test_what_is_found_in_models(kind: str, name: str) -> None:
    """Libraries run the operator of this kind if `is_taken` of the case is set, and only then.

    Their results are right.
    """
    model, feeds, is_taken = conformance()[kind].models[name]
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(model)))
    found = [op.description.op for op in program.operators if op.description is not None]
    assert (kind in found) == is_taken
    if is_taken:
        (got,) = computed(model, feeds, providers=["onednn"])
        (wanted,) = run_onnxruntime(model, feeds).values()
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("kind", sorted(set(kinds()) - NO_LIBRARY))
def test_empty_tensors_are_refused(kind: str) -> None:
    op = next(iter(conformance()[kind].cases.values()))
    empty = op.with_fields(shapes=((0, *op.shapes[0][1:]), *op.shapes[1:]))
    assert why_unsupported("onednn", empty) == f"`{kind}` has an empty tensor"


@needs_onednn
def test_the_table_in_the_docs() -> None:
    assert TABLE.read_text() == table(), "run `python -m tests.kind_variants`"
