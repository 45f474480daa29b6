"""`relay.frontend`, which imports an ONNX model as a Relax module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ..errors import InputError
from ..frontend import load_model
from .counterparts import FRONTEND, refuse

__all__ = ["from_onnx"]


def from_onnx(
    model: onnx.ModelProto,
    shape: Mapping[str, Sequence[int]] | None = None,
    dtype: str | Mapping[str, str] = "float32",
    opset: int | None = None,
    freeze_params: bool = True,
) -> tuple[Any, dict[str, Any]]:
    """Import an ONNX model as a Relax module, under the name of Relay's function.

    Parameters
    ----------
    model: an ONNX model, the path of an ONNX file, or the name of a network.
    shape: shapes of the inputs whose shapes the model leaves open, by name.
    dtype: the type of each input, by name; each must be the type that the model declares. A single
        type for all inputs is ignored, as in Relay, because an ONNX model declares its types.
    opset: the opset that the model declares; None if it need not be checked.
    freeze_params: whether weights become constants. Only True is supported, which is Relay's
        default.

    Returns
    -------
    mod
        A Relax IRModule, whose weights are constants.
    params
        An empty dict, because the weights are in the module. Relay's `from_onnx` also returned an
        empty dict if `freeze_params` was True.

    Raises
    ------
    UnsupportedModelError, InputError
        The same cases as for `tvm_interop.compile`. Also InputError if a type or the opset differs
        from the model's, or if `freeze_params` is False.
    """
    if not freeze_params:
        raise InputError(
            "freeze_params=False is not supported, because weights become constants of the module; "
            "to keep weights apart use tvm.relax.frontend.onnx.from_onnx(model, "
            "keep_params_in_input=True)"
        )
    if opset is not None and isinstance(model, onnx.ModelProto):
        _check_opset(model, opset)
    mod = load_model(model, shape)
    if not isinstance(dtype, str):
        _check_dtypes(mod, dtype)
    return mod, {}


def _check_opset(model: onnx.ModelProto, opset: int) -> None:
    own = {entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")}
    if own and opset not in own:
        raise InputError(
            f"the model is of opset {max(own)}, not {opset}; convert it with onnx.version_converter"
        )


def _check_dtypes(mod: Any, wanted: Mapping[str, str]) -> None:
    own = {param.name: str(param.ty.dtype) for param in mod["main"].params}
    for name, dtype in wanted.items():
        if name in own and np.dtype(dtype) != np.dtype(own[name]):
            raise InputError(f"input `{name}` of the model is {own[name]}, not {dtype}")


def __getattr__(name: str) -> Any:
    refuse("relay.frontend", name, FRONTEND, "export the model to ONNX and use from_onnx")
