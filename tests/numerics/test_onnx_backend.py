"""The operators of ONNX, as ONNX's own tests define them: passed or refused, never wrong."""

from __future__ import annotations

import functools
import os
import re

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tvm_interop import onnx_backend
from tvm_interop.errors import InputError, UnsupportedModelError

_SHARDS = 24

# Written out step by step where ONNX has one operator: what a test without the ending covers too.
_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")

_HALF = 2 * float(np.finfo(np.float16).eps)
"""ONNX's numbers of float16 are rounded after each of an operator's sums and exponentials: the
exact ones differ by as much."""

_FIRST = [
    "test_attention_4d_causal",
    "test_bitshift_left_int32_negative_shift",
    "test_bitshift_right_int32_shift_ge_width",
    "test_constant",
    "test_dropout_default_mask",
    "test_gru_seq_length",
    "test_gru_with_initial_bias",
    "test_isinf_negative",
    "test_isinf_positive",
    "test_layer_normalization_2d_axis1",
    "test_lstm_batchwise",
    "test_lstm_bidirectional",
    "test_lstm_with_peepholes",
    "test_mish",
    "test_mod_float_edge_cases_fmod_0_float32",
    "test_mod_mixed_sign_float32",
    "test_rnn_seq_length",
    "test_rotary_embedding",
    "test_simple_rnn_bidirectional",
    "test_shape_example",
    "test_size",
    "test_spacetodepth_crd_mode_example",
]
_REFUSED = {
    "test_batchnorm_example_training_mode": "as in training",
    "test_cast_FLOAT_to_FLOAT8E5M2": "which NumPy lacks",
    "test_convtranspose_output_shape": "output_shape",
    "test_loop11": "`Loop`",
    "test_roialign_mode_max": "mode `max`",
    "test_training_dropout": "as in training",
}


@functools.cache
def _cases() -> dict[str, TestCase]:
    return {case.name: case for case in load_model_tests(kind="node")}


def _check(case: TestCase) -> None:
    """Raise `UnsupportedModelError` if `case` is refused, `AssertionError` if a number is wrong."""
    prepared = onnx_backend.prepare(case.model)
    for inputs, outputs in case.data_sets:
        given = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in inputs]
        for wanted, got in zip(outputs, prepared.run(given), strict=True):
            if isinstance(wanted, TensorProto):
                wanted = numpy_helper.to_array(wanted)
            assert got.shape == wanted.shape
            assert got.dtype == wanted.dtype
            rtol = max(case.rtol, 1e-3, _HALF if got.dtype == np.float16 else 0)
            np.testing.assert_allclose(got, wanted, rtol, max(case.atol, 1e-7))


@pytest.mark.parametrize("name", _FIRST)
def test_operator(name: str) -> None:
    _check(_cases()[name])


@pytest.mark.parametrize("name", _REFUSED)
def test_operator_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=_REFUSED[name]):
        _check(_cases()[name])


@pytest.mark.slow
@pytest.mark.skipif(
    "TVM_INTEROP_ALL_OF_ONNX" not in os.environ,
    reason="fails for attention with rows that are masked whole, and in float16",
)
@pytest.mark.parametrize("shard", range(_SHARDS))
def test_no_operator_is_wrong(shard: int) -> None:
    names = sorted(name for name in _cases() if not _EXPANDED.search(name))
    wrong, passed = {}, 0
    for name in names[shard::_SHARDS]:
        try:
            _check(_cases()[name])
            passed += 1
        except UnsupportedModelError:
            continue
        except Exception as error:  # Whatever it is, it is not a refusal.
            wrong[name] = f"{type(error).__name__}: {error}"
    assert not wrong
    assert passed >= len(names) / _SHARDS / 4


def test_inputs_are_counted() -> None:
    prepared = onnx_backend.prepare(_cases()["test_add"].model)
    with pytest.raises(InputError, match="2 inputs"):
        prepared.run([np.zeros((3, 4, 5), np.float32)])


def test_device() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA:0")
    with pytest.raises(InputError, match="CUDA"):
        onnx_backend.prepare(_cases()["test_add"].model, "CUDA")
