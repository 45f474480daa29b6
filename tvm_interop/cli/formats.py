"""tvmc's formats: the ones there are, and a word about the others."""

from __future__ import annotations

from ..errors import InputError, UnsupportedModelError

_NO_OUTPUT = {
    "so": "an artifact is more than a library: its `kernels.so` can be taken out with `tar -xf`",
    "mlf": "the Model Library Format left TVM with microTVM",
}
_NO_MODEL = ("keras", "paddle", "pb", "pytorch", "relay", "tflite")


def check_output_format(name: str) -> None:
    """Refuse every format of tvmc's but `tar`.

    Raises
    ------
    InputError
        Says what is there in its place.
    """
    if name != "tar":
        why = _NO_OUTPUT.get(name, "there is no such format")
        raise InputError(f"--output-format `{name}`: {why}; the format is `tar`, one file")


def check_model_format(name: str) -> None:
    """Refuse every format of tvmc's but `onnx`.

    Raises
    ------
    UnsupportedModelError
        Says how to get there.
    """
    if name in _NO_MODEL:
        raise UnsupportedModelError(
            f"--model-format `{name}` is not read here; export the model to ONNX"
        )
    if name != "onnx":
        raise UnsupportedModelError(f"--model-format `{name}`: no such format; there is `onnx`")
