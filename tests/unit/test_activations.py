"""Tests that activations are recognised in any form of the model, and that libraries run them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tvm import relax

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed
from tests.unit.test_onednn import needs_onednn, plain, random, run
from tvm_interop.lowering.activations import Activation, find_activation
from tvm_interop.lowering.names import bindings_of

SHAPE = (1, 16, 4, 4)
OPS, NN = relax.op, relax.op.nn


def number(value: float) -> relax.Expr:
    return relax.const(value, "float32")


def found_in(build) -> tuple[Activation | None, int]:  # type: ignore[no-untyped-def]
    """Return the activation that follows the first operator, and how many operators compute it."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            source = builder.emit(OPS.negative(x))
            result = builder.emit_output(build(source, builder.emit))
        builder.emit_func_output(result)
    values = {b.var: b.value for b in bindings_of(builder.get()["main"])}
    users: dict[relax.Var, list[relax.Var]] = {}
    uses = dict.fromkeys(values, 0)
    for var, value in values.items():
        for arg in dict.fromkeys(a for a in value.args if a in values):
            users.setdefault(arg, []).append(var)
        for arg in value.args:
            if arg in values:
                uses[arg] += 1
    last = list(values)[-1]
    uses[last] += 1
    chain = find_activation(values, users, uses, next(iter(values)))
    return (None, 0) if chain is None else (chain.activation, len(chain.vars))


def hard_sigmoid(x, emit):  # type: ignore[no-untyped-def]
    return OPS.divide(emit(OPS.clip(emit(OPS.add(x, number(3.0))), 0, 6)), number(6.0))


def half_of(x, emit, inner):  # type: ignore[no-untyped-def]
    return OPS.multiply(emit(OPS.multiply(x, number(0.5))), emit(OPS.add(inner, number(1.0))))


def tanh_of_cube(x, emit):  # type: ignore[no-untyped-def]
    cube = emit(OPS.multiply(emit(OPS.power(x, number(3.0))), number(0.044715)))
    inner = emit(OPS.multiply(emit(OPS.add(x, cube)), number(math.sqrt(2 / math.pi))))
    return emit(OPS.tanh(inner))


SPELLINGS = {
    "relu": (lambda x, emit: OPS.maximum(x, number(0.0)), Activation("relu"), 1),
    "relu 6 by two bounds": (
        lambda x, emit: OPS.minimum(emit(OPS.maximum(x, number(0.0))), number(6.0)),
        Activation("clip", 0.0, 6.0),
        2,
    ),
    "swish": (lambda x, emit: OPS.multiply(x, emit(OPS.sigmoid(x))), Activation("swish"), 2),
    "swish by a quotient": (
        lambda x, emit: OPS.divide(
            x, emit(OPS.add(number(1.0), emit(OPS.exp(emit(OPS.negative(x))))))
        ),
        Activation("swish"),
        4,
    ),
    "SiLU": (lambda x, emit: NN.silu(x), Activation("swish"), 1),
    "hard sigmoid": (hard_sigmoid, Activation("hardsigmoid"), 3),
    "hard swish": (
        lambda x, emit: OPS.multiply(emit(hard_sigmoid(x, emit)), x),
        Activation("hardswish"),
        4,
    ),
    "GELU": (
        lambda x, emit: half_of(x, emit, emit(OPS.erf(emit(OPS.divide(x, number(math.sqrt(2))))))),
        Activation("gelu"),
        5,
    ),
    "GELU by tanh": (
        lambda x, emit: half_of(x, emit, tanh_of_cube(x, emit)),
        Activation("gelu_tanh"),
        8,
    ),
    "the longest": (
        lambda x, emit: OPS.minimum(emit(NN.relu(x)), number(1.0)),
        Activation("clip", 0.0, 1.0),
        2,
    ),
    "an operator after the activation": (
        lambda x, emit: OPS.exp(emit(OPS.tanh(x))),
        Activation("tanh"),
        1,
    ),
    "half of it": (lambda x, emit: OPS.multiply(x, number(0.5)), None, 0),
    "a small number after a sigmoid": (
        lambda x, emit: OPS.add(emit(OPS.sigmoid(x)), number(1e-6)),
        Activation("sigmoid"),
        1,
    ),
    "a sigmoid that is never 0": (
        lambda x, emit: OPS.maximum(emit(OPS.sigmoid(x)), number(1e-6)),
        Activation("sigmoid"),
        1,
    ),
    "a sigmoid that is never 1": (
        lambda x, emit: OPS.minimum(emit(OPS.sigmoid(x)), number(1 - 1e-6)),
        Activation("sigmoid"),
        1,
    ),
    "a small number after a ReLU": (
        lambda x, emit: OPS.add(emit(NN.relu(x)), number(1e-6)),
        Activation("relu"),
        1,
    ),
    "a small number": (lambda x, emit: OPS.add(x, number(1e-12)), None, 0),
    "less a small number": (lambda x, emit: OPS.subtract(x, number(1e-7)), None, 0),
    "a number just below 1": (lambda x, emit: OPS.multiply(x, number(0.9999999)), None, 0),
    "the bounds of float16": (
        lambda x, emit: OPS.minimum(emit(OPS.maximum(x, number(-65504.0))), number(65504.0)),
        Activation("clip", -65504.0, 65504.0),
        2,
    ),
    "a ReLU with a far bound": (
        lambda x, emit: OPS.minimum(emit(NN.relu(x)), number(1e5)),
        Activation("clip", 0.0, 1e5),
        2,
    ),
    "a clip with a far bound": (
        lambda x, emit: OPS.minimum(emit(OPS.maximum(x, number(-20000.0))), number(6.0)),
        Activation("clip", -20000.0, 6.0),
        2,
    ),
    "a slope of 1.7": (
        lambda x, emit: OPS.multiply(x, emit(OPS.sigmoid(emit(OPS.multiply(x, number(1.702)))))),
        None,
        0,
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_is_recognised_however_it_is_spelled(spelling):  # type: ignore[no-untyped-def]
    build, activation, length = SPELLINGS[spelling]
    assert found_in(build) == (activation, length)


@needs_onednn
@pytest.mark.parametrize("ending", ["add", "clip"])
def test_a_small_number_after_a_sigmoid_is_kept(ending: str) -> None:
    net = nets.Net()
    x = net.input("x", [1, 4, 2, 2])
    net.conv(x, "conv", (4, 4), 1)
    net.op("Sigmoid", ["conv"], "sigmoid")
    low, high = (net.constant(np.array(bound, "float32")) for bound in (1e-6, 1 - 1e-6))
    if ending == "add":
        net.op("Add", ["sigmoid", low], "safe")
    else:
        net.op("Clip", ["sigmoid", low, high], "safe")
    net.op("Log", ["safe"], "y")
    model = net.model("y")
    feeds = {"x": np.linspace(-900, 900, 16, dtype="float32").reshape(1, 4, 2, 2)}
    (got,) = computed(model, feeds, providers=["onednn"])
    wanted = run_onnxruntime(model, feeds)["y"]
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_what_others_read_too_is_no_activation():  # type: ignore[no-untyped-def]
    def build(x, emit):  # type: ignore[no-untyped-def]
        sigmoid = emit(OPS.sigmoid(x))
        return OPS.multiply(emit(OPS.exp(sigmoid)), emit(OPS.multiply(x, sigmoid)))

    assert found_in(build) == (None, 0)


@needs_onednn
@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("tanh", np.tanh),
        ("swish", lambda x: x / (1 + np.exp(-x))),
        ("hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1)),
        ("hardswish", lambda x: x * np.clip(x / 6 + 0.5, 0, 1)),
        ("gelu", lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))),
        (
            "gelu_tanh",
            lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        ),
    ],
)
def test_onednn_ends_with_it(name, function):  # type: ignore[no-untyped-def]
    left, right = random((4, 8), (8, 16))
    op = plain("matmul", [(4, 8), (8, 16), (4, 16)], activation=name)
    wanted = function(left.astype(np.float64) @ right)
    np.testing.assert_allclose(run(op, [left, right]), wanted, rtol=1e-5, atol=2e-6)


@needs_onednn
@pytest.mark.parametrize("channels", [16, 24])
@pytest.mark.parametrize("layout", ["plain", "blocked16"])
def test_onednn_scales_channels(channels, layout):  # type: ignore[no-untyped-def]
    shape = (1, channels, 3, 5)
    data, factor, bias = random(shape, (1, channels, 1, 1), (channels,))
    op = plain("scale", [shape, factor.shape, (channels,), shape], has_bias=True, activation="relu")
    wanted = np.maximum(data * factor + bias[:, None, None], 0)
    if layout == "plain":
        np.testing.assert_allclose(run(op, [data, factor, bias]), wanted, rtol=1e-6, atol=1e-6)
    elif channels % 16 == 0:
        op = op.with_fields(layouts=("blocked16", "plain", "plain", "blocked16"))
        blocked = data.reshape(1, channels // 16, 16, 3, 5).transpose(0, 1, 3, 4, 2).copy()
        got = run(op, [blocked.reshape(shape), factor, bias])
        got = got.reshape(1, channels // 16, 3, 5, 16).transpose(0, 1, 4, 2, 3).reshape(shape)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 33), (2, 3, 5, 49), (1, 197)])
def test_onednn_softmax(shape):  # type: ignore[no-untyped-def]
    (data,) = random(shape)
    grown = np.exp(data.astype(np.float64))
    wanted = grown / grown.sum(-1, keepdims=True)
    np.testing.assert_allclose(run(plain("softmax", [shape, shape]), [data]), wanted, rtol=1e-5)


@needs_onednn
@pytest.mark.parametrize("shape", [(7, 33), (1, 5, 96)])
def test_onednn_layer_norm(shape):  # type: ignore[no-untyped-def]
    data, scale, shift = random(shape, shape[-1:], shape[-1:])
    op = plain("layer_norm", [shape, shape[-1:], shape[-1:], shape], epsilon=1e-5)
    wide = data.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * scale + shift
    got = run(op, [data, scale, shift])
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
