"""Tests classifiers whose results are dictionaries or strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.classical import DOMAIN, X
from tests.masked_nets import theirs
from tests.one_node import computed

ROWS = np.nan_to_num(X)
WORDS = ["no", "perhaps", "yes"]


def classifier(labels: dict[str, Any], *, has_opset: bool = True) -> onnx.ModelProto:
    """A linear classifier of three classes, exported with `ZipMap`."""
    key = "classlabels_strings" if "classlabels_strings" in labels else "classlabels_int64s"
    values = next(iter(labels.values()))
    rows = np.random.default_rng(0).standard_normal(12).tolist()
    nodes = [
        helper.make_node(
            "LinearClassifier",
            ["x"],
            ["label", "scores"],
            domain=DOMAIN,
            coefficients=rows,
            intercepts=[0.5, 0.0, -0.5],
            post_transform="SOFTMAX",
            **labels,
        ),
        helper.make_node("ZipMap", ["scores"], ["shares"], domain=DOMAIN, **{key: values}),
    ]
    word = "classlabels_strings" in labels
    label = onnx.TensorProto.STRING if word else onnx.TensorProto.INT64
    keys = helper.make_map_type_proto(label, helper.make_tensor_type_proto(1, []))
    outputs = [
        helper.make_tensor_value_info("label", label, [len(X)]),
        onnx.ValueInfoProto(name="shares", type=helper.make_sequence_type_proto(keys)),
    ]
    x = helper.make_tensor_value_info("x", 1, list(X.shape))
    opsets = [helper.make_opsetid(DOMAIN, 1), *([helper.make_opsetid("", 13)] * has_opset)]
    graph = helper.make_graph(nodes, "g", [x], outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("has_opset", [True, False])
def test_a_table_stands_for_dictionaries(has_opset: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A model that CatBoost exports imports no opset of ONNX's own operators (`has_opset`)."""
    model = classifier({"classlabels_ints": [4, 5, 6]}, has_opset=has_opset)
    label, shares = computed(model, {"x": ROWS})
    wanted_label, wanted = theirs(model, {"x": ROWS})
    assert label.tolist() == wanted_label.tolist()
    np.testing.assert_allclose(shares, [[row[k] for k in (4, 5, 6)] for row in wanted], 1e-5)
    assert "output `shares` is a table" in caplog.text
    assert "`4`, `5`, `6`" in caplog.text


def test_labels_may_be_strings() -> None:
    model = classifier({"classlabels_strings": WORDS})
    label, shares = computed(model, {"x": ROWS})
    wanted_label, wanted = theirs(model, {"x": ROWS})
    assert label.dtype == object
    assert label.tolist() == wanted_label.tolist()
    assert len(set(label.tolist())) > 1
    np.testing.assert_allclose(shares, [[row[word] for word in WORDS] for row in wanted], 1e-5)


def test_scores_are_computed_without_labels_that_are_strings() -> None:
    model = classifier({"classlabels_strings": WORDS})
    del model.graph.output[0]
    (shares,) = computed(model, {"x": ROWS})
    (wanted,) = theirs(model, {"x": ROWS})
    np.testing.assert_allclose(shares, [[row[word] for word in WORDS] for row in wanted], 1e-5)


def chosen() -> onnx.ModelProto:
    """A classifier that takes its label from a constant, as naive Bayes is exported."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["shares"]),
        helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
        helper.make_node("ArrayFeatureExtractor", ["classes", "place"], ["found"], domain=DOMAIN),
        helper.make_node("Reshape", ["found", "flat"], ["label"]),
    ]
    constants = [
        helper.make_tensor("classes", onnx.TensorProto.STRING, [4], ["a", "b", "c", "d"]),
        numpy_helper.from_array(np.array([-1]), "flat"),
    ]
    outputs = [
        helper.make_tensor_value_info("label", onnx.TensorProto.STRING, [len(X)]),
        helper.make_tensor_value_info("shares", 1, list(X.shape)),
    ]
    x = helper.make_tensor_value_info("x", 1, list(X.shape))
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    opsets = [helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("", 13)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_labels_may_be_taken_from_a_constant() -> None:
    label, _ = computed(chosen(), {"x": ROWS})
    assert label.tolist() == theirs(chosen(), {"x": ROWS})[0].tolist()


def test_what_only_labels_need_is_left_out() -> None:
    model = chosen()
    del model.graph.output[0]
    (shares,) = computed(model, {"x": ROWS})
    np.testing.assert_allclose(shares, theirs(model, {"x": ROWS})[0], 1e-5)


def test_a_sequence_of_tables() -> None:
    """scikit-learn's classifiers of several labels are exported with such a sequence."""
    model = classifier({"classlabels_ints": [4, 5, 6]})
    node = helper.make_node("SequenceConstruct", ["scores", "scores"], ["both"])
    model.graph.node[1].CopyFrom(node)
    table = helper.make_tensor_type_proto(1, None)
    kind = helper.make_sequence_type_proto(table)
    model.graph.output[1].CopyFrom(onnx.ValueInfoProto(name="both", type=kind))
    label, *tables = computed(model, {"x": ROWS})
    wanted = theirs(model, {"x": ROWS})
    assert label.tolist() == wanted[0].tolist()
    for got, want in zip(tables, wanted[1], strict=True):
        np.testing.assert_allclose(got, want, 1e-5)
