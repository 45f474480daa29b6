"""Checks the names of model and output formats, and says why tvmc's other formats are refused."""

from __future__ import annotations

from ..errors import InputError, UnsupportedModelError

_NO_OUTPUT = {
    "so": "an artifact is more than a library: its `kernels.so` can be taken out with `tar -xf`",
    "mlf": "the Model Library Format left TVM with microTVM",
}
_NO_MODEL = ("keras", "paddle", "pb", "pytorch", "relay", "tflite")


def check_output_format(name: str) -> None:
    """Check that an output format is `tar`, the only format that exists.

    Raises
    ------
    InputError
        The format is not `tar`; the message says what to use instead.
    """
    if name != "tar":
        why = _NO_OUTPUT.get(name, "there is no such format")
        raise InputError(f"--output-format `{name}`: {why}; the format is `tar`, one file")


def check_model_format(name: str) -> None:
    """Check that a model format is `onnx`, the only one there is.

    Raises
    ------
    UnsupportedModelError
        The format is not `onnx`; the message says to export the model to ONNX.
    """
    if name in _NO_MODEL:
        raise UnsupportedModelError(
            f"--model-format `{name}` is not read here; export the model to ONNX"
        )
    if name != "onnx":
        raise UnsupportedModelError(f"--model-format `{name}`: no such format; there is `onnx`")
