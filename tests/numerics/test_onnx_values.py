"""Tests operators on NaN, infinity, zero and ties. Inputs of operators are data or constants.

`docs/numbers.rst` says what users may rely on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.numerics.onnx_oracle import run_onnxruntime
from tests.one_node import computed, one_node

NAN, INF = np.nan, np.inf
X = np.array([NAN, -INF, INF, -2, -0.5, -0.0, 0, 0.5, 3, 1e-40, -7], "float32")
Y = np.array([1, NAN, -1, NAN, 2, 0, NAN, -INF, INF, 0, 3], "float32")
RNG = np.random.default_rng(0)


def ways(count: int, always: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """The sets of inputs to make constant: only the inputs `always`, and all `count` inputs."""
    return [always, tuple(range(count))]


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype("float32")


def assert_like_onnxruntime(
    op: str, inputs: list[Any], constants: tuple[int, ...], **attributes: Any
) -> None:
    model, feeds = one_node(op, inputs, constants, **attributes)
    got = computed(model, feeds)
    wanted = run_onnxruntime(model, feeds, rewrites=False).values()
    for ours, theirs in zip(got, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


OF_EACH: dict[str, dict[str, Any]] = {
    "Relu": {},
    "LeakyRelu": {},
    "Elu": {},
    "Selu": {},
    "Celu": {},
    "ThresholdedRelu": {},
    "HardSigmoid": {},
    "HardSwish": {},
    "Sign": {},
    "Softplus": {},
    "Sigmoid": {},
    "Tanh": {},
    "Erf": {},
    "Exp": {},
    "Floor": {},
    "Round": {},
    "Softmax": {},
    "ReduceMax": {},
    "ReduceMin": {},
    "ArgMax": {},
    "ArgMin": {},
}


@pytest.mark.parametrize("op", OF_EACH)
@pytest.mark.parametrize("constants", ways(1))
def test_not_a_number_stays_one(op: str, constants: tuple[int, ...]) -> None:
    assert_like_onnxruntime(op, [X], constants, **OF_EACH[op])


@pytest.mark.parametrize("op", ["Max", "Min", "Add", "Mul", "Div", "Sub"])
@pytest.mark.parametrize("other", [Y, np.float32(0), np.float32(-1)], ids=["tensor", "0", "-1"])
def test_not_a_number_beside_another(op: str, other: Any) -> None:
    for inputs in ([X, other], [other, X]):
        constant = () if other is Y else (inputs.index(other),) if inputs[0] is not X else (1,)
        assert_like_onnxruntime(op, inputs, constant)


@pytest.mark.parametrize("op", ["Max", "Min", "Sub", "Div", "Mul"])
def test_a_number_beside_itself(op: str) -> None:
    model, feeds = one_node(op, [X, X])
    model.graph.node[0].input[1] = "x0"
    del model.graph.input[1]
    del feeds["x1"]
    (wanted,) = run_onnxruntime(model, feeds, rewrites=False).values()
    np.testing.assert_array_equal(computed(model, feeds)[0], wanted)


@pytest.mark.parametrize(
    ("constants", "attributes"), [((1, 2), {}), ((), {}), (None, {"min": -1.0, "max": 1.0})]
)
def test_bounds_keep_nan(constants: tuple[int, ...] | None, attributes: dict[str, float]) -> None:
    if constants is None:  # Before opset 11, the bounds of `Clip` are attributes.
        assert_like_onnxruntime("Clip", [X], (), opset=6, **attributes)
    else:
        assert_like_onnxruntime("Clip", [X, np.float32(-1), np.float32(1)], constants)


def test_a_size_whose_quotient_is_rounded() -> None:
    """A resize from 7 to 29 pixels. In float32, 7 times the quotient 29/7 is less than 29."""
    assert_like_onnxruntime(
        "Resize", [f32(1, 1, 7, 7), None, None, np.array([1, 1, 29, 29])], (3,), mode="linear"
    )


def test_axes_that_are_a_scalar() -> None:
    """JAX's exporter writes axes as a scalar, and onnxruntime accepts this."""
    assert_like_onnxruntime("Unsqueeze", [f32(2, 3), np.int64(1)], (1,))


def test_a_resize_whose_unused_inputs_are_empty() -> None:
    nothing = np.zeros(0, np.float32)
    given = [f32(1, 1, 4, 4), nothing, nothing, np.array([1, 1, 8, 8])]
    assert_like_onnxruntime("Resize", given, (1, 2, 3), mode="linear", opset=11)


def test_a_scale_that_is_a_rounded_quotient() -> None:
    """Resizes from 5 to 9 pixels, and from 10 to 46, with a scale that is rounded to float32."""
    attributes = {"mode": "linear", "nearest_mode": "floor"}
    for old, new in ((5, 9), (10, 46)):
        scales = np.array([1, 1, 1, new / old], np.float32)
        given = [f32(1, 1, 2, old), None, scales]
        assert_like_onnxruntime("Resize", given, (2,), **attributes)
        assert_like_onnxruntime("Resize", given, (2,), **attributes | {"mode": "nearest"})


@pytest.mark.parametrize("mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize(("old", "new"), [(2, 7), (7, 49), (6, 2), (3, 9), (10, 4), (4, 8)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8"])
def test_the_nearest_of_two_that_are_as_near(mode: str, old: int, new: int, dtype: str) -> None:
    """TVM multiplies by a rounded inverse of the scale, so a quotient may be just above or below
    a tie."""
    x = np.arange(old * old).reshape(1, 1, old, old).astype(dtype)
    for coordinates in ("half_pixel", "asymmetric"):
        assert_like_onnxruntime(
            "Resize",
            [x, None, None, np.array([1, 1, new, new])],
            (3,),
            mode="nearest",
            nearest_mode=mode,
            coordinate_transformation_mode=coordinates,
        )


def test_celu_of_a_scalar_is_one() -> None:
    assert_like_onnxruntime("Celu", [np.float32(-1.5)], ())


def test_bounds_that_cross_give_the_upper_one() -> None:
    assert_like_onnxruntime("Clip", [X[1:], np.float32(2), np.float32(1)], (1, 2))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("last", [0, 1])
def test_the_place_of_the_largest_of_minus_infinity(axis: int, last: int) -> None:
    rows = np.full((2, 3), -INF, "float32")
    assert_like_onnxruntime("ArgMax", [rows], (), axis=axis, select_last_index=last)
    assert_like_onnxruntime("ArgMin", [-rows], (), axis=axis, select_last_index=last)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("last", [0, 1])
def test_the_place_of_the_first_or_last_of_equals(dtype: str, last: int) -> None:
    tied = np.array([[3, 1, 3, 1], [2, 2, 0, 0]], dtype)
    for op in ("ArgMax", "ArgMin"):
        assert_like_onnxruntime(op, [tied], (), axis=1, keepdims=0, select_last_index=last)


def test_a_row_of_infinities_adds_up_in_logarithms() -> None:
    rows = np.array([[-INF, -INF], [INF, 1], [0, 0]], "float32")
    model, feeds = one_node("ReduceLogSumExp", [rows], axes=[1], keepdims=0, opset=13)
    np.testing.assert_allclose(computed(model, feeds)[0], [-INF, INF, np.log(2)], rtol=1e-6)


REDUCTIONS = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("constants", ways(1))
def test_reductions_of_no_axes(kind: str, constants: tuple[int, ...]) -> None:
    """A reduction over no axes adds up nothing, but still squares or takes logarithms."""
    x = abs(f32(2, 3)) + 0.5
    op = f"Reduce{kind}"
    assert_like_onnxruntime(op, [x], constants, noop_with_empty_axes=1)
    assert_like_onnxruntime(op, [x], constants)
    none = np.array([], "int64")
    assert_like_onnxruntime(op, [x, none], (*constants, 1), noop_with_empty_axes=1)
    assert_like_onnxruntime(op, [x, np.array([-1, 0])], (*constants, 1), keepdims=0)


def test_reductions_keep_the_type() -> None:
    whole = np.arange(1, 7, dtype="int32").reshape(2, 3)
    for kind in REDUCTIONS:
        assert_like_onnxruntime(f"Reduce{kind}", [whole], ())
    for kind in ("Sum", "Prod", "Max"):
        assert_like_onnxruntime(f"Reduce{kind}", [whole], (0,))


@pytest.mark.parametrize("values", ["float32", "int32", "uint8", "float64"])
@pytest.mark.parametrize("depth", [np.array(4), np.array([4]), np.array(4.0)], ids=str)
def test_one_hot_has_the_type_of_its_values(values: str, depth: np.ndarray) -> None:
    indices = np.array([[0, -1], [7, 2]])
    wanted = np.full((2, 2, 4), 2, values)
    # The index 7 is out of range, so its row has only the off value 2.
    wanted[0, 0, 0] = wanted[0, 1, 3] = wanted[1, 1, 2] = 5
    for constants in ((1,), (1, 2), (0, 1, 2)):
        model, feeds = one_node("OneHot", [indices, depth, np.array([2, 5], values)], constants)
        (got,) = computed(model, feeds)
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


IMAGES = f32(1, 3, 8, 9)
AS_CONSTANT: dict[str, tuple[str, list[Any], tuple[int, ...], dict[str, Any]]] = {
    "maximum of rows": ("GlobalMaxPool", [f32(1, 3, 7)], (), {}),
    "maximum of volumes": ("GlobalMaxPool", [f32(1, 3, 4, 4, 4)], (), {}),
    "mean of volumes": ("GlobalAveragePool", [f32(1, 3, 4, 4, 4)], (), {}),
    "pool": (
        "MaxPool",
        [IMAGES],
        (),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1},
    ),
    "mean pool": (
        "AveragePool",
        [IMAGES],
        (),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 0, 1, 1], "ceil_mode": 1},
    ),
    "cubic": (
        "Resize",
        [IMAGES, None, None, np.array([1, 3, 11, 5])],
        (3,),
        {"mode": "cubic"},
    ),
    "convolution": ("Conv", [IMAGES, f32(4, 3, 3, 3)], (1,), {}),
    "normal": ("LayerNormalization", [f32(2, 5), f32(5), f32(5)], (1, 2), {}),
    "softmax": ("Softmax", [f32(3, 4)], (), {}),
    "hard swish": ("HardSwish", [f32(3, 4)], (), {}),
    "samples": ("GridSample", [f32(1, 2, 4, 4), f32(1, 3, 3, 2)], (), {}),
}


@pytest.mark.parametrize("name", AS_CONSTANT)
def test_a_constant_gives_what_an_input_gives(name: str) -> None:
    op, inputs, always, attributes = AS_CONSTANT[name]
    found = []
    for constants in ways(len(inputs), always):
        model, feeds = one_node(op, inputs, constants, **attributes)
        found.append(computed(model, feeds)[0])
    # The kernel for a constant has other loops, and may add up in another order.
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)
    assert_like_onnxruntime(op, inputs, always, **attributes)


INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint32"]


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    ("op", "attributes"), [("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})], ids=str
)
def test_no_divisor_stops_the_program(dtype: str, op: str, attributes: dict[str, int]) -> None:
    ends = np.iinfo(dtype)
    x = np.array([0, 1, 7, 8 if ends.min == 0 else -7, ends.min, ends.max, 5], dtype)
    y = np.array([0, 0, 2, 2, ends.max if ends.min == 0 else -1, 1, 3], dtype)
    for constants in ((), (1,), (0,)):
        model, feeds = one_node(op, [x, y], constants, **attributes)
        (got,) = computed(model, feeds)
        np.testing.assert_array_equal(got, divided(x, y, op, bool(attributes)))


def divided(x: np.ndarray, y: np.ndarray, op: str, is_fmod: bool) -> np.ndarray:
    """The quotients of `x` and `y`, rounded towards zero, or their remainders, by `op`.

    Where `y` is 0, the result is 0. Results that are too large for the type wrap around.
    """
    results = []
    for a, b in zip(x.tolist(), y.tolist(), strict=True):
        if b == 0:
            results.append(0)
            continue
        quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        rest = a - quotient * b if is_fmod else a % b
        results.append(quotient if op == "Div" else rest)
    return np.array([result % 2**64 for result in results], "uint64").astype(x.dtype)


def test_a_quotient_of_inputs_compiles_where_measuring_divides_zeros() -> None:
    """Kernels are measured on zeros, so the kernel of `Div` divides 0 by 0. A signal raised by this
    division would end the process that compiles."""
    x, y = np.array([7, -7, 9], "int32"), np.array([2, 2, 0], "int32")
    model, feeds = one_node("Div", [x, y])
    np.testing.assert_array_equal(computed(model, feeds, providers=None)[0], [3, -3, 0])
