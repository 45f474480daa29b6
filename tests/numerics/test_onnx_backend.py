"""Runs ONNX's own tests of operators. Each test must pass or be refused. No result may be wrong."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tvm_interop import onnx_backend
from tvm_interop.errors import InputError, UnsupportedModelError

_SHARDS = 24
_LIST = Path(__file__).parent.parent / "data" / "onnx_refused.txt"
"""The file that lists the refused tests by reason."""

# A test whose name ends in `_expanded` runs ONNX's decomposition of an operator. It is left out,
# because another test runs the operator itself.
_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")

_HALF = 2 * float(np.finfo(np.float16).eps)
"""The tolerance for float16.

ONNX rounds after each sum and exponential of an operator, so its numbers differ by this much from
exact numbers.
"""
_BFLOAT16 = 2 * float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)  # type: ignore[no-untyped-call]
"""The tolerance for bfloat16. ONNX rounds after each sum and exponential to bfloat16, and our
operators compute in float32."""
_ROUNDINGS = {"float16": _HALF, "bfloat16": _BFLOAT16}
_SUMMED = float(np.finfo(np.float32).eps)
"""The tolerance for Fourier transforms, whose expected numbers are sums in float32.

A number near zero is off by the rounding of the largest number.
"""

_FIRST = [
    "test_attention_23_boolmask_fullymasked_row_nan_robustness",
    "test_attention_24_qk_matmul_output_mode3_softmax_precision",
    "test_attention_4d_causal",
    "test_attention_4d_causal_fp16",
    "test_batchnorm_example_training_mode",
    "test_bitshift_left_int32_negative_shift",
    "test_bitshift_right_int32_shift_ge_width",
    "test_ai_onnx_ml_label_encoder_string_int",
    "test_ai_onnx_ml_label_encoder_tensor_mapping",
    "test_attention_local_window_with_past",
    "test_constant",
    "test_convtranspose_output_shape",
    "test_col2im_strides",
    "test_deform_conv_with_mask_bias",
    "test_det_nd",
    "test_dft_inverse",
    "test_dft_irfft",
    "test_dropout_default_mask",
    "test_equal_bcast",
    "test_equal_string",
    "test_gru_seq_length",
    "test_gru_with_initial_bias",
    "test_if",
    "test_isinf_negative",
    "test_isinf_positive",
    "test_layer_normalization_2d_axis1",
    "test_lstm_batchwise",
    "test_lstm_bidirectional",
    "test_lstm_with_peepholes",
    "test_linear_attention_decode_step",
    "test_maxpool_with_argmax_2d_precomputed_pads",
    "test_maxunpool_export_with_output_shape",
    "test_melweightmatrix",
    "test_mish",
    "test_mod_float_edge_cases_fmod_0_float32",
    "test_mod_mixed_sign_float32",
    "test_nonmaxsuppression_center_point_box_format",
    "test_nonmaxsuppression_flipped_coordinates",
    "test_nonmaxsuppression_identical_boxes",
    "test_nonmaxsuppression_iou_threshold_boundary",
    "test_nonmaxsuppression_limit_output_size",
    "test_nonmaxsuppression_single_box",
    "test_nonmaxsuppression_suppress_by_IOU",
    "test_nonmaxsuppression_suppress_by_IOU_and_scores",
    "test_nonmaxsuppression_two_batches",
    "test_nonmaxsuppression_two_classes",
    "test_nonzero_example",
    "test_compress_0",
    "test_compress_default_axis",
    "test_pow_types_float32_int32",
    "test_pow_types_int64_float32",
    "test_quantizelinear_blocked_asymmetric",
    "test_reduce_max_bool_inputs",
    "test_resize_downsample_scales_cubic",
    "test_resize_downsample_sizes_linear_antialias",
    "test_resize_upsample_sizes_nearest",
    "test_reversesequence_time",
    "test_rms_normalization_2d_axis0",
    "test_rnn_seq_length",
    "test_roialign_mode_max",
    "test_rotary_embedding",
    "test_simple_rnn_bidirectional",
    "test_scan9_sum",
    "test_sequence_model3",
    "test_shape_example",
    "test_size",
    "test_spacetodepth_crd_mode_example",
    "test_stft_with_window",
    "test_swiglu",
    "test_top_k",
    "test_top_k_negative_axis",
    "test_top_k_same_values_2d",
    "test_top_k_same_values_largest",
    "test_top_k_smallest",
    "test_top_k_uint64",
]
_REFUSED = {
    "test_cast_FLOAT_to_FLOAT8E5M2": "which NumPy lacks",
    "test_training_dropout": "as in training",
}


@functools.cache
def _cases() -> dict[str, TestCase]:
    kinds = ("node", "simple", "pytorch-converted", "pytorch-operator")
    return {case.name: case for kind in kinds for case in load_model_tests(kind=kind)}


def _check(case: TestCase) -> None:
    """Run a test of ONNX.

    In ONNX's tests, even sizes and axes are inputs of the model. No exporter writes such models. If
    a test is refused for this reason, it is tried again with constants for all inputs except the
    first, and then with constants for all inputs.

    Raises
    ------
    UnsupportedModelError: the test is refused.
    AssertionError: a number is wrong.
    """
    for model, inputs, outputs in _data_sets(case):
        # In the first try, no input is a constant. In the second try, all inputs but the first are
        # constants. In the third try, all inputs are constants, because the first input may be a
        # size.
        for fed in dict.fromkeys((len(inputs), min(len(inputs), 1), 0)):
            try:
                prepared = onnx_backend.prepare(_with_constants(model, inputs, fed))
                got = prepared.run(inputs[:fed])
            except UnsupportedModelError:
                if not fed or not all(isinstance(x, np.ndarray | np.generic) for x in inputs):
                    raise
                continue
            _check_outputs(case, got, outputs)
            break


def _check_outputs(case: TestCase, outputs: Sequence[np.ndarray], wanted: Sequence[Any]) -> None:
    for got, want in zip(outputs, wanted, strict=True):
        if isinstance(want, list):
            assert isinstance(got, list)
            _check_outputs(case, got, want)
            continue
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        if got.dtype == object:
            assert got.tolist() == want.tolist()
            continue
        rtol = max(case.rtol, 1e-3, _ROUNDINGS.get(str(got.dtype), 0))
        atol = max(case.atol, 1e-7)
        if case.name.startswith("test_dft"):
            atol = max(atol, _SUMMED * float(np.abs(want).max()))
        np.testing.assert_allclose(got, want, rtol, atol)


def _with_constants(model: onnx.ModelProto, inputs: Sequence[Any], fed: int) -> onnx.ModelProto:
    """`model` with constants in place of all inputs except the first `fed`."""
    if fed == len(inputs):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    weights = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in changed.graph.input if value.name not in weights]
    for value, array in list(zip(values, inputs, strict=True))[fed:]:
        tensor = numpy_helper.from_array(np.asarray(array), value.name)
        changed.graph.initializer.append(tensor)
        changed.graph.input.remove(value)
    return changed


def _data_sets(case: TestCase) -> Iterator[tuple[onnx.ModelProto, list[Any], list[Any]]]:
    """Yield the model, the inputs and the outputs of each data set."""
    if case.model is not None:
        for inputs, outputs in case.data_sets:
            yield case.model, [_array(x) for x in inputs], [_array(x) for x in outputs]
        return
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    for data in sorted(folder.glob("test_data_set_*")):
        yield (
            model,
            _read(data, "input", model.graph.input),
            _read(data, "output", model.graph.output),
        )


def _read(folder: Path, kind: str, values: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    found: list[Any] = []
    for path in sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1])):
        data = path.read_bytes()
        if values[len(found)].type.HasField("sequence_type"):
            found.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        else:
            found.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return found


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


@pytest.mark.parametrize("name", _FIRST)
def test_operator(name: str) -> None:
    _check(_cases()[name])


@pytest.mark.parametrize("name", _REFUSED)
def test_operator_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=_REFUSED[name]):
        _check(_cases()[name])


def _listed_as_refused() -> dict[str, str]:
    """The reason of each refused test, by the test's name."""
    found, reason = {}, ""
    for line in _LIST.read_text().splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif line and not line.startswith("#"):
            found[line] = reason
    return found


def test_what_is_refused_is_among_onnx_tests() -> None:
    listed = _listed_as_refused()
    assert listed.keys() <= _cases().keys()
    assert not listed.keys() & set(_FIRST)
    assert listed.keys() >= _REFUSED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(_SHARDS))
def test_no_operator_is_wrong(shard: int) -> None:
    if shard % 2 and "TVM_INTEROP_ALL_OF_ONNX" not in os.environ:
        pytest.skip("this shard takes minutes: set TVM_INTEROP_ALL_OF_ONNX=1 to run it")
    names = sorted(name for name in _cases() if not _EXPANDED.search(name))[shard::_SHARDS]
    wrong, refused, listed = {}, set(), _listed_as_refused()
    for name in names:
        try:
            _check(_cases()[name])
        except UnsupportedModelError:
            refused.add(name)
        except Exception as error:  # All errors but refusals are faults.
            wrong[name] = f"{type(error).__name__}: {error}"
    passed = len(names) - len(refused) - len(wrong)
    print(f"ONNX's tests: {passed} passed, {len(refused)} refused, {len(wrong)} wrong")
    assert not wrong
    # If a listed test passes now, it must be removed from the list.
    assert refused == listed.keys() & set(names)


def test_inputs_are_counted() -> None:
    prepared = onnx_backend.prepare(_cases()["test_add"].model)
    with pytest.raises(InputError, match="2 inputs"):
        prepared.run([np.zeros((3, 4, 5), np.float32)])


def test_device() -> None:
    assert onnx_backend.supports_device("CPU")
    assert not onnx_backend.supports_device("CUDA:0")
    with pytest.raises(InputError, match="CUDA"):
        onnx_backend.prepare(_cases()["test_add"].model, "CUDA")
