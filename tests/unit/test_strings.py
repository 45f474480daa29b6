"""Tests models that compute with strings, against onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.masked_nets import theirs
from tests.one_node import computed
from tests.string_nets import LABELS, classifier, features, graph, ml, texts
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend.load import load_model

STRING, FLOAT, INT64 = TensorProto.STRING, TensorProto.FLOAT, TensorProto.INT64
WHOLE = np.array([[1, 5, 0], [2, 2, 7]])
WORDS = ["a", "b", "c"]


def check(model: onnx.ModelProto, x: np.ndarray) -> None:
    """Compare with onnxruntime: strings and integers exactly."""
    feed = {"x": x}
    for ours, other in zip(computed(model, feed), theirs(model, feed), strict=True):
        assert (ours.shape, ours.dtype) == (other.shape, other.dtype)
        if ours.dtype == object:
            assert ours.tolist() == other.tolist()
        else:
            np.testing.assert_allclose(ours, other, 1e-5, 1e-6)


def of_one(node: onnx.NodeProto, x: np.ndarray, version: int = 3) -> onnx.ModelProto:
    return graph([node], x, {"y": STRING}, version=version)


def tensors(keys: Sequence[Any], values: Sequence[str], default: str | None) -> dict[str, Any]:
    named = {
        "keys_tensor": numpy_helper.from_array(np.array(keys)),
        "values_tensor": texts("v", values),
    }
    return named if default is None else {**named, "default_tensor": texts("d", [default])}


def test_labels_of_a_classifier() -> None:
    x = features(40)
    check(classifier(40), x)
    assert {*theirs(classifier(40), {"x": x})[0]} == {*LABELS}


@pytest.mark.parametrize(
    ("version", "named"),
    [
        (1, {"classes_strings": ["p", "q", "r"]}),
        (1, {"classes_strings": ["p", "q", "r"], "default_string": "none"}),
        (2, {"keys_int64s": [1, 5, 2], "values_strings": ["b", "a", "b"]}),
        (2, {"keys_int64s": [1, 5, 1], "values_strings": ["b", "a", "c"], "default_string": "a"}),
        (4, tensors([1, 5, 2], WORDS, None)),
        (4, tensors([1, 5, 2], WORDS, "zzz")),
        (4, tensors([1, 5, 1], WORDS, "zzz")),
    ],
)
def test_an_encoder_gives_strings(version: int, named: dict[str, Any]) -> None:
    """A number that is not listed becomes the default."""
    check(of_one(ml("LabelEncoder", ["x"], ["y"], **named), WHOLE, version), WHOLE)


def test_an_encoder_of_floats_gives_strings() -> None:
    """A NaN is found among the keys. In opset 2, onnxruntime does not find it, and ONNX does."""
    x = np.array([[0.5, np.nan], [-0.0, 2.0]], np.float32)
    named = {"keys_floats": [0.5, 0.0, np.nan], "values_strings": WORDS}
    check(of_one(ml("LabelEncoder", ["x"], ["y"], **named), x, 4), x)


@pytest.mark.parametrize("default", [{}, {"default_string": "?"}])
def test_a_mapper_gives_strings(default: dict[str, str]) -> None:
    named = {"cats_int64s": [1, 5, 2], "cats_strings": ["b", "a", "c"], **default}
    check(of_one(ml("CategoryMapper", ["x"], ["y"], **named), WHOLE), WHOLE)


def test_strings_are_moved_compared_selected_and_encoded() -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=0),
        ml("ArrayFeatureExtractor", ["words", "place"], ["row"]),
        helper.make_node("Reshape", ["row", "flat"], ["label"]),
        helper.make_node("Cast", ["label"], ["text"], to=STRING),
        helper.make_node("Constant", [], ["b"], value_string="b"),
        helper.make_node("Constant", [], ["many"], value_strings=["no", "b"]),
        helper.make_node("Equal", ["text", "b"], ["is_b"]),
        helper.make_node("Where", ["is_b", "many0", "text"], ["chosen"]),
        helper.make_node("Gather", ["many", "zero"], ["many0"]),
        helper.make_node("Concat", ["text", "chosen"], ["both"], axis=0),
        helper.make_node("Unsqueeze", ["both", "zero1"], ["wide"]),
        helper.make_node("Transpose", ["wide"], ["turned"]),
        ml("LabelEncoder", ["text"], ["number"], keys_strings=["c", "a"], values_floats=[0.5, 2.0]),
        ml("LabelEncoder", ["text"], ["other"], keys_strings=["b"], values_strings=["x"]),
        ml("CategoryMapper", ["text"], ["mapped"], cats_strings=WORDS, cats_int64s=[7, 8, 9]),
        ml("OneHotEncoder", ["text"], ["ones"], cats_strings=["b", "c"], zeros=1),
    ]
    nodes[7], nodes[8] = nodes[8], nodes[7]
    constants = [
        texts("words", ["a", "b", "c", "a"]),
        numpy_helper.from_array(np.array([-1]), "flat"),
        numpy_helper.from_array(np.array(0), "zero"),
        numpy_helper.from_array(np.array([0]), "zero1"),
    ]
    outputs = {
        "text": STRING, "is_b": TensorProto.BOOL, "turned": STRING, "number": FLOAT,
        "other": STRING, "mapped": INT64, "ones": FLOAT,
    }  # fmt: skip
    x = features(12)
    check(graph(nodes, x, outputs, constants), x)


def test_labels_of_several_dimensions_and_of_one_element() -> None:
    named = {"keys_int64s": [3], "values_strings": ["three"]}
    for shape in ((), (1,), (2, 1, 3), (0, 4)):
        x = np.full(shape, 3)
        check(of_one(ml("LabelEncoder", ["x"], ["y"], **named), x, 2), x)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (helper.make_node("StringConcat", ["label", "label"], ["y"]), r"`y` \(`StringConcat`\)"),
        (helper.make_node("Cast", ["label"], ["y"], to=FLOAT), r"`y` \(`Cast`\)"),
        (helper.make_node("Cast", ["scores"], ["y"], to=STRING), "that are not integers into"),
        (
            ml("LabelEncoder", ["label"], ["y"], keys_int64s=[1], values_int64s=[2]),
            "compares strings with numbers",
        ),
    ],
)
def test_other_operators_on_strings_are_refused(node: onnx.NodeProto, message: str) -> None:
    model = classifier()
    model.graph.node.append(node)
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    with pytest.raises(UnsupportedModelError, match=rf"{message}.*Remove the node"):
        load_model(model)


def test_an_output_whose_node_gives_numbers_is_refused() -> None:
    """skl2onnx exports some combinations of classifiers in this form, which onnxruntime refuses."""
    model = classifier()
    (scores,) = (value for value in model.graph.output if value.name == "scores")
    scores.type.tensor_type.elem_type = STRING
    with pytest.raises(UnsupportedModelError, match=r"output `scores` of .* should be strings"):
        load_model(model)


def reads(
    nodes: Sequence[onnx.NodeProto],
    outputs: dict[str, int],
    constants: Sequence[onnx.TensorProto] = (),
    version: int = 3,
) -> onnx.ModelProto:
    """A model whose input `x` is strings."""
    model = graph(nodes, list(GIVEN.shape), outputs, constants, version=version)
    model.graph.input[0].type.tensor_type.elem_type = STRING
    return model


GIVEN = np.array([["a", "b"], ["Käse 🧀", "nowhere"], ["b", ""]], object)
"""Strings that a model reads. It does not know one of them."""
WITHOUT = ["b", "a", "Käse 🧀", "z", ""]


@pytest.mark.parametrize(
    ("version", "named"),
    [
        (1, {"classes_strings": WITHOUT}),
        (1, {"classes_strings": WITHOUT, "default_int64": 9}),
        (2, {"keys_strings": WITHOUT, "values_int64s": [5, 4, 3, 2, 1]}),
        (2, {"keys_strings": WITHOUT, "values_floats": [5.0, 4, 3, 2, 1], "default_float": 0.5}),
        (2, {"keys_strings": WITHOUT, "values_strings": ["p", "q", "p", "r", "s"]}),
        (
            4,
            {
                "keys_tensor": texts("k", WITHOUT),
                "values_tensor": numpy_helper.from_array(np.arange(5.0)),
                "default_tensor": numpy_helper.from_array(np.array([0.25])),
            },
        ),
    ],
)
def test_an_encoder_reads_strings(version: int, named: dict[str, Any]) -> None:
    """A string that is not listed becomes the default."""
    kind = INT64 if "classes_strings" in named or "values_int64s" in named else FLOAT
    kind = STRING if "values_strings" in named else kind
    kind = TensorProto.DOUBLE if "keys_tensor" in named else kind
    check(reads([ml("LabelEncoder", ["x"], ["y"], **named)], {"y": kind}, version=version), GIVEN)


def test_of_equal_keys_the_one_of_onnxruntime_counts() -> None:
    words, numbers = ["a", "b", "a"], [1, 2, 3]
    named = {"keys_strings": words, "values_int64s": numbers}
    check(reads([ml("LabelEncoder", ["x"], ["y"], **named)], {"y": INT64}, version=2), GIVEN)
    check(reads([ml("LabelEncoder", ["x"], ["y"], **named)], {"y": INT64}, version=4), GIVEN)
    named = {"classes_strings": words}
    check(reads([ml("LabelEncoder", ["x"], ["y"], **named)], {"y": INT64}, version=1), GIVEN)
    named = {"cats_strings": words, "cats_int64s": numbers}
    check(reads([ml("CategoryMapper", ["x"], ["y"], **named)], {"y": INT64}), GIVEN)
    named = {"cats_strings": WORDS, "cats_int64s": [1, 5, 1]}
    check(of_one(ml("CategoryMapper", ["x"], ["y"], **named), WHOLE), WHOLE)
    named = {"cats_strings": words, "zeros": 1}
    check(reads([ml("OneHotEncoder", ["x"], ["y"], **named)], {"y": FLOAT}), GIVEN)


def test_strings_of_an_input_are_moved_compared_and_encoded() -> None:
    nodes = [
        ml("ArrayFeatureExtractor", ["x", "second"], ["column"]),
        helper.make_node("Slice", ["x", "second", "two", "second"], ["cut"]),
        helper.make_node("Concat", ["column", "cut"], ["both"], axis=1),
        ml("OneHotEncoder", ["both"], ["ones"], cats_strings=["b", "c", ""], zeros=1),
        ml("CategoryMapper", ["x"], ["mapped"], cats_strings=["a", "b"], cats_int64s=[7, 8]),
        helper.make_node("Equal", ["x", "b"], ["is_b"]),
    ]
    constants = [
        texts("b", ["b"]),
        numpy_helper.from_array(np.array([1]), "second"),
        numpy_helper.from_array(np.array([2]), "two"),
    ]
    outputs = {"ones": FLOAT, "mapped": INT64, "is_b": TensorProto.BOOL}
    check(reads(nodes, outputs, constants), GIVEN)


def test_strings_of_an_input_that_nothing_reads() -> None:
    x = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.ones(2)))
    model = reads([x], {"y": TensorProto.DOUBLE})
    np.testing.assert_array_equal(computed(model, {"x": GIVEN})[0], np.ones(2))


@pytest.mark.parametrize(
    ("node", "kind", "message"),
    [
        (helper.make_node("Identity", ["x"], ["y"]), STRING, "output `y` .* strings of an input"),
        (
            helper.make_node("Equal", ["x", "x"], ["y"]),
            TensorProto.BOOL,
            r"node `y` \(`Equal`\).*compares strings of inputs with each other",
        ),
        (helper.make_node("StringNormalizer", ["x"], ["y"]), STRING, r"`y` \(`StringNormalizer`\)"),
    ],
)
def test_other_uses_of_strings_of_an_input_are_refused(
    node: onnx.NodeProto, kind: int, message: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(reads([node], {"y": kind}))


@pytest.mark.parametrize(("label", "message"), [(b"\xff", "not UTF-8"), (b"a\0", "a zero byte")])
def test_strings_that_cannot_be_kept_are_refused(label: bytes, message: str) -> None:
    model = classifier()
    for attribute in model.graph.node[0].attribute:
        if attribute.name == "classlabels_strings":
            attribute.strings[1] = label
    with pytest.raises(UnsupportedModelError, match=rf"node `label`.*{message}"):
        load_model(model)


def test_the_number_of_a_label_is_the_index_of_its_class() -> None:
    """Programs in C read the numbers. A string of another node comes after the labels."""
    model = classifier()
    first = ml("LabelEncoder", ["z"], ["w"], keys_int64s=[1], values_strings=["other"])
    cast = helper.make_node("Cast", ["x"], ["z"], to=INT64)
    nodes = [cast, first, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.output.append(onnx.ValueInfoProto(name="w"))
    main = load_model(model)["main"]
    found = json.loads(str(main.attrs["tvm_interop.string_outputs"]))
    assert found[0] == {"output": 0, "strings": LABELS[:3]}
    assert found[1] == {"output": 2, "strings": [*LABELS[:3], "other", "_Unused"]}


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_that_are_turned_into_strings(dtype: str) -> None:
    """scikit-learn's exporter turns integers into strings if other columns hold strings."""
    cast = helper.make_node("Cast", ["x"], ["text"], to=STRING)
    encoder = ml("OneHotEncoder", ["text"], ["y"], cats_strings=["2", "05", "-7", "a", "5"])
    x = np.array([[2, 5], [-7, 1]], dtype)
    check(graph([cast, encoder], x, {"y": FLOAT}), x)
    encoder = ml("LabelEncoder", ["text"], ["y"], keys_strings=["5", "b"], values_int64s=[3, 4])
    check(graph([cast, encoder], x, {"y": INT64}), x)


def test_floats_that_are_turned_into_strings_are_refused() -> None:
    cast = helper.make_node("Cast", ["x"], ["text"], to=STRING)
    encoder = ml("OneHotEncoder", ["text"], ["y"], cats_strings=["2", "5"])
    x = np.array([[2, 5]], np.float32)
    with pytest.raises(UnsupportedModelError, match="numbers that are not integers into strings"):
        load_model(graph([cast, encoder], x, {"y": FLOAT}))
