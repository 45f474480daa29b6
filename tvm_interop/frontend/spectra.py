"""Converts ONNX's operators for spectra: `DFT`, `STFT` and `MelWeightMatrix`.

Source: the definitions of these operators in the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from tvm import relax, te

from ..errors import UnsupportedModelError
from ..lowering.static_shape import known_shape
from .constants import constant_number
from .empty import empty_constant
from .fourier import real_signal, transformed
from .misfit import MisfitError


def import_dft(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the discrete Fourier transform along an axis, or its inverse.

    The inputs are as in opset 20: the numbers, and optionally the length and the axis.

    Raises
    ------
    UnsupportedModelError
        The axis or the length is out of range, or the last axis has another size than 1 or 2.
    """
    x, length_given, axis_given = (*inputs, None, None)[:3]
    shape = _shape_of_numbers(x)
    rank = len(shape)
    axis = -2 if axis_given is None else constant_number(axis_given)
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise MisfitError(
            f"its axis {axis} is out of range: axes from 0 to {rank - 2} hold numbers, and the "
            "last axis holds their real and imaginary parts"
        )
    axis %= rank
    inverse, onesided = bool(attrs.get("inverse", 0)), bool(attrs.get("onesided", 0))
    to_signal = inverse and onesided
    length = 2 * (shape[axis] - 1) if to_signal else shape[axis]
    if length_given is not None:
        length = constant_number(length_given)
    if length < 0:
        raise UnsupportedModelError(f"its length is {length}: give a length of at least 1")
    half = length // 2 + 1
    sizes = (length, 1) if to_signal else (half if onesided else length, 2)
    others = [i for i in range(rank - 1) if i != axis]
    order, outside = [*others, axis, rank - 1], [shape[i] for i in others]
    places = [order.index(i) for i in range(rank)]
    result_shape = [[*outside, *sizes][i] for i in places]
    if 0 in result_shape:
        return empty_constant(result_shape, str(x.ty.dtype))
    if 0 in shape:
        return relax.op.zeros(result_shape, str(x.ty.dtype))
    rows = bb.emit(relax.op.permute_dims(x, order)) if order != sorted(order) else x
    rows = bb.emit(relax.op.reshape(rows, (prod(outside), shape[axis], shape[-1])))
    taken = min(shape[axis], half if to_signal else length)
    if taken < shape[axis]:
        rows = bb.emit(relax.op.strided_slice(rows, [1], [0], [taken]))
    if to_signal:
        found = real_signal(bb, rows, length)
    else:
        found = transformed(bb, rows, length, inverse, sizes[0])
    found = bb.emit(relax.op.reshape(found, (*outside, *sizes)))
    return relax.op.permute_dims(found, places) if order != sorted(order) else found


def import_stft(bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]) -> Any:
    """Return the Fourier transforms of the overlapping frames of signals.

    Raises
    ------
    UnsupportedModelError
        The length or the step of the frames is missing or wrong.
    """
    x, step_given, window, length_given = (*inputs, None, None)[:4]
    # onnxruntime also accepts real signals without a last axis of size 1.
    if int(x.ty.ndim) == 2:
        x = bb.emit(relax.op.expand_dims(x, axis=2))
    signals, samples, parts = _shape_of_numbers(x, rank=3)
    step, length = constant_number(step_given), _frame_length(window, length_given)
    if step < 1:
        raise UnsupportedModelError(f"its `frame_step` is {step}: it must be at least 1")
    if not 1 <= length <= samples:
        raise UnsupportedModelError(
            f"its frames have {length} samples, and its signals have {samples}: a frame must have "
            "at least one sample, and no more samples than the signal"
        )
    number = (samples - length) // step + 1
    frames = bb.emit(
        bb.call_te(
            lambda data: te.compute(
                (signals, number, length, parts),
                lambda signal, frame, i, part: data[signal, frame * step + i, part],
            ),
            x,
            primfunc_name_hint="frames",
        )
    )
    if window is not None:
        weights = bb.emit(relax.op.reshape(window, (length, 1)))
        frames = bb.emit(relax.op.multiply(frames, weights))
    kept = length // 2 + 1 if attrs.get("onesided", 1) else length
    rows = bb.emit(relax.op.reshape(frames, (signals * number, length, parts)))
    found = transformed(bb, rows, length, inverse=False, kept=kept)
    return relax.op.reshape(found, (signals, number, kept, 2))


def _frame_length(window: Any, given: Any) -> int:
    """Return the number of samples in a frame of an `STFT`."""
    weights = None if window is None else int(window.ty.shape[0])
    length = weights if given is None else constant_number(given)
    if length is None:
        raise UnsupportedModelError(
            "it has neither a `window` nor a `frame_length`: export the model with one of them"
        )
    if weights is not None and weights != length:
        raise UnsupportedModelError(
            f"its `window` has {weights} weights, and its `frame_length` is {length}: they must be "
            "equal"
        )
    return length


def import_mel_weights(
    bb: relax.BlockBuilder, inputs: Sequence[Any], attrs: Mapping[str, Any]
) -> Any:
    """Return the constant matrix of a `MelWeightMatrix`.

    A product of a spectrum with the matrix gives weighted sums of its frequencies. The weights of
    each sum form a triangle over the frequencies. Neighbouring triangles overlap, and their corners
    have equal distances on the mel scale.

    Raises
    ------
    UnsupportedModelError
        A corner lies outside of the spectrum.
    """
    bins, length, rate = (int(constant_number(value)) for value in inputs[:3])
    low, high = (2595 * np.log10(1 + float(constant_number(value)) / 700) for value in inputs[3:5])
    frequencies = length // 2 + 1
    with np.errstate(all="ignore"):
        mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
        corners = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate)
    if not ((corners >= 0) & (corners < frequencies)).all():
        raise UnsupportedModelError(
            "its edges lie outside of the spectrum: `lower_edge_hertz` must be at least 0, and "
            "`upper_edge_hertz` at most half of `sample_rate`"
        )
    at = np.arange(frequencies)[:, None]
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    rising = np.where(left == centre, 1, (at - left) / np.maximum(centre - left, 1))
    falling = (right - at) / np.maximum(right - centre, 1)
    weights = np.where((left <= at) & (at <= centre), rising, 0)
    weights = np.where((centre <= at) & (at < right), falling, weights)
    number = int(attrs.get("output_datatype", onnx.TensorProto.FLOAT))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    return relax.const(weights.astype(dtype), str(dtype))


def _shape_of_numbers(x: Any, rank: int | None = None) -> tuple[int, ...]:
    """Return the shape of a tensor whose last axis holds the real and imaginary part, or the real
    part.
    """
    shape = known_shape(x)
    if len(shape) < 2 or shape[-1] not in (1, 2) or rank not in (None, len(shape)):
        raise MisfitError(
            f"its input has the shape {shape}: the last axis must hold the real part of a number, "
            "or the real and the imaginary part"
        )
    return shape
