"""Tests masks that exclude not only keys but also queries, as in DeBERTa. Such a mask may be 0 only
at padded positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import tvm_interop
from tests.masked_nets import LOWEST, Build, Masked, model, proof, theirs
from tests.native_runtime import NativeModel, RuntimeLibraryError
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.artifact.manifest import RowMask
from tvm_interop.errors import InputError
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def _pairs(net: Masked, how: str = "Mul") -> str:
    """Whether the mask keeps both the query and the key, for each pair of positions."""
    one, other = (net.do("Unsqueeze", "mask", net.ints(axis)) for axis in (1, 2))
    return net.do("Cast", net.do(how, one, other), to=TensorProto.BOOL)


def _weights(net: Masked, x: str, lowest: float = LOWEST, how: str = "Mul") -> str:
    scores = net.do("Where", _pairs(net, how), net.scores(x), net.number(lowest))
    return net.do("Softmax", scores, axis=-1)


def _layers(net: Masked, count: int, lowest: float = LOWEST, how: str = "Mul") -> str:
    x = "x"
    for _ in range(count):
        mixed = net.do("MatMul", _weights(net, x, lowest, how), x)
        x = net.do("Add", net.do("Mul", mixed, net.number(0.3)), x)
    return x


def two_layers(net: Masked) -> str:
    return _layers(net, 2)


@pytest.mark.parametrize("layers", [1, 2])
def test_attention_that_leaves_out_queries_is_proven(layers: int) -> None:
    found = proof(model(lambda net: _layers(net, layers)))
    assert found == Masks(("mask",), "all")


def test_a_weaker_condition_is_preferred() -> None:
    assert proof(model(lambda net: net.attention())) == Masks(("mask",), "any")


def test_filled_queries_without_numbers_do_not_matter_in_one_layer() -> None:
    """If the mask excludes all keys of a given query, the result is NaN with or without padding."""
    found = proof(model(lambda net: _layers(net, 1, -np.inf)))
    assert found == Masks(("mask",), "nowhere")


def filled_queries_without_numbers(net: Masked) -> str:
    """The first layer gives NaN at padded positions. The second layer multiplies the NaN by 0."""
    return _layers(net, 2, -np.inf)


def either_of_both(net: Masked) -> str:
    """The masks of query and key are added, so a given query sees padded keys too."""
    return _layers(net, 1, how="Add")


def queries_alone(net: Masked) -> str:
    wide = net.do("Cast", net.do("Unsqueeze", "mask", net.ints(2)), to=TensorProto.BOOL)
    return net.mixed(net.do("Where", wide, net.scores(), net.number(LOWEST)))


def sums_over_queries(net: Masked) -> str:
    """A query at a padded position gives the same weight to all keys, so padding changes the
    sum."""
    return net.do("ReduceSum", _weights(net, "x"), net.ints(1))


def sums_over_pairs(net: Masked) -> str:
    return net.do("ReduceSum", _weights(net, "x"), net.ints(1, 2))


def greatest_of_pairs(net: Masked) -> str:
    return net.do("ReduceMax", _weights(net, "x"), axes=[1, 2])


def sums_what_is_not_given(net: Masked) -> str:
    left = net.do("Sub", net.number(1), net.do("Unsqueeze", net.float_mask(), net.ints(2)))
    return net.do("ReduceSum", net.do("Mul", left, net.biased()), net.ints(1))


def counts_positions(net: Masked) -> str:
    """A mean that divides by the length, padding included."""
    return net.do("ReduceMean", net.columns("x"), axes=[1])


REFUSED: dict[str, Build] = {
    build.__name__: build
    for build in (
        filled_queries_without_numbers, either_of_both, queries_alone, sums_over_queries,
        sums_over_pairs, greatest_of_pairs, sums_what_is_not_given, counts_positions,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_filled_queries_could_change_is_refused(name: str) -> None:
    with pytest.raises(RowsDependError):
        proof(model(REFUSED[name]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("queries") / "layers.tar"
    return tvm_interop.compile(
        model(two_layers, batch="batch"), shapes={"batch": (1, 3), "seq": (2, 20)}, most_sizes=4,
        out=path, **QUICK,
    )  # fmt: skip


def _feed(batch: int, length: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([batch, length])
    return {
        "x": rng.standard_normal((batch, length, 6)).astype(np.float32),
        "mask": np.ones((batch, length), np.int64),
    }


def _wanted(feed: dict[str, np.ndarray]) -> np.ndarray:
    made: onnx.ModelProto = model(two_layers, batch="batch")
    return theirs(made, feed)[0]


def test_any_size_is_right(made: Artifact) -> None:
    rows = made.manifest.row_sizes
    assert rows is not None
    assert rows.masks == (RowMask("mask", "all"),)
    assert made.path is not None
    session = tvm_interop.Session(made.path)
    for batch in (1, 2, 3):
        for length in (2, 3, 7, 13, 19, 20):
            feed = _feed(batch, length)
            np.testing.assert_allclose(
                session.run(None, feed)[0], _wanted(feed), rtol=1e-4, atol=1e-5
            )


def test_what_stands_in_the_filled_part_changes_nothing(made: Artifact) -> None:
    module, feed, long = GraphModule(made), _feed(3, 13), _feed(3, 20)
    alone = np.array(module(feed)[0])
    long["x"][:, :13] = feed["x"]
    long["x"][:, 13:] = 1e3
    long["mask"][:, 13:] = 0
    np.testing.assert_array_equal(alone, np.asarray(module(long)[0])[:, :13])


def test_a_mask_with_a_0_needs_a_compiled_length(made: Artifact) -> None:
    module = GraphModule(made)
    feed = _feed(2, 20)
    feed["mask"][1, 4] = 0
    np.testing.assert_allclose(np.asarray(module(feed)[0]), _wanted(feed), rtol=1e-4, atol=1e-5)
    for at in ((1, 0), (0, 18), (1, 9)):
        feed = _feed(2, 19)
        feed["mask"][at] = 0
        with pytest.raises(InputError, match=r"a run of 19 seq is padded: .* and 1 at all seq"):
            module(feed)


def test_in_c(made: Artifact) -> None:
    assert made.path is not None
    (shape,) = (i for i, each in enumerate(made.input_shapes) if each["x"] == (3, 20, 6))
    native = NativeModel(made.path, shape=shape)
    feed = _feed(2, 19)
    output = np.zeros((2, 19, 6), np.float32)
    native.run_sizes((2, 19), *feed.values(), outputs=[output])
    np.testing.assert_allclose(output, _wanted(feed), rtol=1e-4, atol=1e-5)
    for at in ((1, 0), (0, 18), (1, 9)):
        feed = _feed(2, 19)
        feed["mask"][at] = 0
        with pytest.raises(RuntimeLibraryError, match=r"mask `mask` does not .* 1 in all rows"):
            native.run_sizes((2, 19), *feed.values(), outputs=[output])


def test_a_session_compiles_a_size_whose_mask_cannot_be_filled_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    shapes = {"batch": (1, 3), "seq": (2, 20)}
    options: dict[str, Any] = {"scheduler": "sequential", "latency_db": ":memory:"}
    made = model(two_layers, batch="batch")
    with tvm_interop.Session(made, shapes=shapes, time_budget=0, **options) as session:
        for length, at in ((19, (1, 0)), (18, (0, 17)), (19, (0, 3))):
            feed = _feed(2, length)
            wanted = _wanted(feed)
            np.testing.assert_allclose(session.run(None, feed)[0], wanted, rtol=1e-4, atol=1e-5)
            feed["mask"][at] = 0
            wanted = _wanted(feed)
            np.testing.assert_allclose(session.run(None, feed)[0], wanted, rtol=1e-4, atol=1e-5)
        told = [r.message for r in caplog.records if "runs at its own size" in r.message]
        assert len(told) == 2
        assert "input `mask` is a mask" in told[0]
        assert session.why_not_filled_up is None
        feed["mask"] = feed["mask"][:, :4]
        with pytest.raises(InputError, match="`x` has seq 19, and input `mask` has seq 4"):
            session.run(None, feed)
