"""Tests Fourier transforms, determinants and deformable convolutions: errors and special cases.

The operator matrix (`tests/operators`) compares the numbers with two oracles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from tests import nets
from tests.one_node import computed, one_node
from tests.random_graphs.oracles import by_onnxruntime
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import load_model


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


_SIGNALS = _floats(2, 6, 1)
_IMAGES = _floats(1, 4, 5, 5)
_WEIGHTS = _floats(3, 4, 2, 2)
_HERTZ = [np.array(edge, np.float32) for edge in (0, 4000)]
_WHOLE_OF_SPEECH = [np.array(number) for number in (80, 512, 16000)]
_WHOLE = [np.array(number) for number in (4, 16, 8000)]

_REFUSED: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("DFT", [_SIGNALS, None, np.array(2)], {}, "axis 2 is out of range"),
    ("DFT", [_SIGNALS, None, np.array(-4)], {}, "axis -4 is out of range"),
    ("DFT", [_SIGNALS, np.array(-1)], {}, "length is -1"),
    ("DFT", [_floats(2, 6, 3)], {}, "the last axis must hold"),
    ("STFT", [_SIGNALS, np.array(0), None, np.array(4)], {}, "`frame_step` is 0"),
    ("STFT", [_SIGNALS, np.array(1), None, np.array(7)], {}, "frames have 7 samples"),
    ("STFT", [_SIGNALS, np.array(1), _floats(4), np.array(5)], {}, "has 4 weights"),
    ("STFT", [_SIGNALS, np.array(1)], {}, "neither a `window` nor a `frame_length`"),
    ("MelWeightMatrix", [*_WHOLE, _HERTZ[0], np.float32(9000)], {}, "outside of the spectrum"),
    ("MelWeightMatrix", [*_WHOLE, np.float32(-9), _HERTZ[1]], {}, "outside of the spectrum"),
    ("Det", [_floats(2, 3)], {}, "square"),
    ("DeformConv", [_floats(1, 4, 5), _floats(3, 4, 2), _floats(1, 2, 4)], {}, "only images"),
    ("DeformConv", [_IMAGES, _WEIGHTS, _floats(1, 8, 4, 3)], {}, "input `offset` has the shape"),
    ("DeformConv", [_IMAGES, _WEIGHTS, _floats(1, 8, 4, 4)], {"group": 2}, "has 4 channels"),
    (
        "DeformConv",
        [_IMAGES, _WEIGHTS, _floats(1, 8, 4, 4), None, _floats(1, 3, 4, 4)],
        {},
        "input `mask` has the shape",
    ),
]


@pytest.mark.parametrize(("op", "inputs", "attributes", "words"), _REFUSED)
def test_a_wrong_node_is_named(
    op: str, inputs: list[Any], attributes: dict[str, Any], words: str
) -> None:
    whole = [i for i, x in enumerate(inputs) if x is not None and (i > 0 or op[0] == "M")]
    fixed = [] if op in ("Det", "DeformConv") else whole
    model, _ = one_node(op, inputs, fixed, **attributes)
    with pytest.raises(UnsupportedModelError, match=f"the_node.*{words}"):
        load_model(model)


@pytest.mark.parametrize(
    ("op", "inputs", "name"),
    [
        ("DFT", [_SIGNALS, np.array(4)], "dft_length"),
        ("DFT", [_SIGNALS, None, np.array(1)], "axis"),
        ("STFT", [_SIGNALS, np.array(1), _floats(4)], "frame_step"),
        ("STFT", [_SIGNALS, np.array(1), None, np.array(4)], "frame_length"),
        ("MelWeightMatrix", [*_WHOLE, *_HERTZ], "num_mel_bins"),
    ],
)
def test_an_input_that_must_be_constant_is_named(op: str, inputs: list[Any], name: str) -> None:
    others = [1] if name == "frame_length" else []
    with pytest.raises(UnsupportedModelError, match=f"the_node.*`{name}` is computed"):
        load_model(one_node(op, inputs, others)[0])


@pytest.mark.parametrize("length", [1024, 1 << 16, 99991])
def test_the_tables_of_a_long_transform_stay_small(length: int) -> None:
    main = load_model(one_node("DFT", [_floats(1, length, 1)])[0])["main"]
    found: list[int] = []

    def note(expr: Any) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            found.append(expr.value.numpy().nbytes)

    relax.analysis.post_order_visit(main, note)
    assert max(found) <= 16 << 20
    assert sum(found) <= 40 << 20


def test_a_long_transform_keeps_its_digits() -> None:
    for length in (1 << 14, 10007):
        x = _floats(1, length, 1)
        model, feeds = one_node("DFT", [x], onesided=1)
        (found,) = computed(model, feeds)
        wanted = np.fft.rfft(x[..., 0].astype(np.float64))
        error = np.abs(found[..., 0] + 1j * found[..., 1] - wanted)
        assert error.max() < 1e-5 * np.abs(wanted).max()


def test_parts_that_are_zero_are_exactly_zero() -> None:
    model, feeds = one_node("DFT", [_floats(2, 12, 1)], onesided=1)
    (found,) = computed(model, feeds)
    assert not found[:, [0, -1], 1].any()


def test_the_front_of_a_speech_model() -> None:
    """Frames of a padded signal, their power, sums on the mel scale, and the logarithm."""
    net = nets.Net()
    signal = net.input("signal", [2, 4000])
    widths = net.constant(np.array([0, 256, 0, 256]))
    padded = net.op("Pad", [signal, widths], "padded", mode="reflect")
    column = net.op("Unsqueeze", [padded, net.constant(np.array([2]))], "column")
    window = net.op("HannWindow", [net.constant(np.array(512))], "window")
    frames = net.op("STFT", [column, net.constant(np.array(160)), window], "frames")
    power = net.op("ReduceSumSquare", [frames], "power", axes=[3], keepdims=0)
    given = [net.constant(number) for number in (*_WHOLE_OF_SPEECH, *_HERTZ)]
    mel = net.op("MatMul", [power, net.op("MelWeightMatrix", given, "weights")], "mel")
    above_zero = net.op("Add", [mel, net.constant(np.array(1e-6, np.float32))], "above_zero")
    net.op("Log", [above_zero], "y")
    # ONNX cannot infer the types of results if a node computes the window of the `STFT`.
    model = net.model("y", check=False)
    feeds = {"signal": _floats(2, 4000)}
    (found,) = computed(model, feeds)
    (wanted,) = (by_onnxruntime(model, feeds) or {}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_offsets_out_of_all_bounds_read_nothing() -> None:
    """The offsets include NaN and infinity, and all of them lead out of the image."""
    images = np.ones((1, 1, 2, 2), np.float32)
    far = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1e10, -1e10, -2.5, 5]
    offsets = np.stack([np.full((1, 2, 2), value, np.float32) for value in far], axis=1)
    images, offsets = np.repeat(images, len(far), 1), offsets.repeat(2, 1).reshape(1, -1, 2, 2)
    weights = np.ones((1, len(far), 1, 1), np.float32)
    model, feeds = one_node("DeformConv", [images, weights, offsets], offset_group=len(far))
    (found,) = computed(model, feeds)
    assert (found == 0).all()
