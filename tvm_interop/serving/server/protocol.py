"""The Open Inference Protocol, version 2, as far as HTTP and gRPC share it.

Sources: KServe's `docs/predict-api/v2`, and Triton's extensions for binary tensor data, statistics,
model configuration, model repository and schedule policy (`priority`, `timeout`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import InputError, did_you_mean
from ...plain_data import is_whole
from .any_model import VERSION, AnyModel
from .tensors import TensorSpec

PLATFORM = "tvm_interop"

_DTYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}

PRIORITY_LEVELS = 10
"""Levels of priority: 1 is the highest; 0 in a request stands for the default."""
DEFAULT_PRIORITY = 5


@dataclass(frozen=True)
class InferCall:
    """A request, whatever it came by.

    Attributes
    ----------
    model, version: of the model; "" for the only version.
    inputs: by name.
    outputs: the names that are wanted; None for all.
    priority: higher ones first, as policies have it.
    timeout_us: see `Executor.submit`.
    """

    model: str
    version: str
    inputs: Mapping[str, np.ndarray]
    outputs: Sequence[str] | None = None
    priority: int = -DEFAULT_PRIORITY
    timeout_us: float | None = None


@dataclass
class Answer:
    """What a request gets, in the order in which it asked.

    Attributes
    ----------
    batch_size: the batch size of the run that it was in.
    queue_us, run_us: how long it waited, and what the run took with its copies.
    """

    outputs: list[tuple[TensorSpec, np.ndarray]] = field(default_factory=list)
    batch_size: int = 1
    queue_us: float = 0.0
    run_us: float = 0.0


def datatype_of(spec: TensorSpec, model: str) -> str:
    """The protocol's name of a type.

    Raises
    ------
    InputError
        It has none.
    """
    if spec.dtype not in _DATATYPES:
        raise InputError(
            f"`{spec.name}` of model `{model}` is {spec.dtype}, and the protocol has no such type; "
            "let the model cast it"
        )
    return _DATATYPES[spec.dtype]


def check_types(model: AnyModel) -> None:
    """Refuse a model with inputs or outputs that the protocol has no type for."""
    for spec in (*model.inputs, *model.outputs):
        datatype_of(spec, model.name)


def dtype_of(name: str, datatype: str) -> np.dtype[Any]:
    """NumPy's type of an input."""
    if datatype not in _DTYPES:
        raise InputError(
            f"input `{name}` has datatype `{datatype}`; there are {', '.join(_DTYPES)}"
        )
    return np.dtype(_DTYPES[datatype])


def array_from_bytes(
    name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview
) -> np.ndarray:
    """An input from its bytes, little-endian and row-major; they are not copied.

    Raises
    ------
    InputError
        There are not as many as its type and shape need.
    """
    dtype = dtype_of(name, datatype)
    needed = _count(name, shape) * dtype.itemsize
    if len(data) != needed:
        raise InputError(
            f"input `{name}`, {datatype} of shape {list(shape)}, needs {needed} bytes, got "
            f"{len(data)}"
        )
    if datatype == "BOOL":
        bits: np.ndarray = np.frombuffer(data, np.uint8) != 0
        return bits.reshape(tuple(shape))
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(tuple(shape))


def array_from_values(name: str, datatype: str, shape: Sequence[int], data: Any) -> np.ndarray:
    """An input from numbers in a list, nested or flat.

    Raises
    ------
    InputError
        There are not as many as its shape needs, or one is not of its type.
    """
    dtype = dtype_of(name, datatype)
    count = _count(name, shape)
    try:
        values = np.asarray(data)
    except ValueError:
        raise InputError(f"the data of input `{name}` are nested unevenly") from None
    if values.size == 0 and count == 0:
        return np.empty(tuple(shape), dtype)
    if values.size != count:
        raise InputError(
            f"input `{name}` of shape {list(shape)} needs {count} values, got {values.size}"
        )
    allowed = {"b": "b", "f": "iuf"}.get(dtype.kind, "iu")
    if values.dtype.kind not in allowed:
        raise InputError(f"the data of input `{name}` are no numbers of type {datatype}")
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if int(values.min()) < limits.min or int(values.max()) > limits.max:
            raise InputError(f"a number of input `{name}` is out of the range of {datatype}")
    with np.errstate(over="ignore"):
        made = values.astype(dtype).reshape(tuple(shape))
    if dtype.kind == "f" and not np.isfinite(made).all():
        raise InputError(f"a number of input `{name}` is out of the range of {datatype}")
    return made


def read_schedule(parameters: Mapping[str, Any]) -> tuple[int, float | None]:
    """The priority, as policies have it, and the timeout of a request in microseconds.

    Raises
    ------
    InputError
        One is no such number; the request is part of a sequence.
    """
    if parameters.get("sequence_id"):
        raise InputError("models have no state between requests; leave `sequence_id` out")
    level = parameters.get("priority", 0)
    if not is_whole(level) or not 0 <= level <= PRIORITY_LEVELS:
        raise InputError(
            f"`priority` is {level!r}; give 1 (the highest) to {PRIORITY_LEVELS}, or 0 for the "
            f"default, {DEFAULT_PRIORITY}"
        )
    timeout = parameters.get("timeout", 0)
    if not is_whole(timeout) or timeout < 0:
        raise InputError(f"`timeout` is {timeout!r}; give whole microseconds, or 0 for none")
    return -(level or DEFAULT_PRIORITY), float(timeout) or None


def chosen_outputs(model: AnyModel, wanted: Sequence[str] | None) -> list[int]:
    """The indices of the outputs that a request wants.

    Raises
    ------
    InputError
        The model has none of that name.
    """
    names = [spec.name for spec in model.outputs]
    for name in wanted or ():
        if name not in names:
            raise InputError(
                f"model `{model.name}` has no output `{name}`{did_you_mean(name, names)}; its "
                f"outputs are {', '.join(map(str, model.outputs))}"
            )
    return [names.index(name) for name in wanted] if wanted else list(range(len(names)))


def model_metadata(model: AnyModel) -> dict[str, Any]:
    """What the protocol's model metadata hold."""

    def told(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {"name": s.name, "datatype": datatype_of(s, model.name), "shape": list(s.shape)}
            for s in specs
        ]

    return {
        "name": model.name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": told(model.inputs),
        "outputs": told(model.outputs),
    }


def model_config(model: AnyModel, max_queue: int, max_delay_us: float) -> dict[str, Any]:
    """What Triton's model configuration says of this model."""
    batched = model.is_batched

    def told(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {
                "name": s.name,
                "data_type": "TYPE_" + datatype_of(s, model.name),
                "dims": list(s.shape[1:] if batched else s.shape),
            }
            for s in specs
        ]

    config: dict[str, Any] = {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": model.sizes[-1] if batched else 0,
        "input": told(model.inputs),
        "output": told(model.outputs),
        "instance_group": [{"name": model.name, "kind": "KIND_CPU", "count": model.num_instances}],
    }
    if batched:
        config["dynamic_batching"] = {
            "preferred_batch_size": list(model.sizes),
            "max_queue_delay_microseconds": round(max_delay_us),
            "priority_levels": PRIORITY_LEVELS,
            "default_priority_level": DEFAULT_PRIORITY,
            "default_queue_policy": {"allow_timeout_override": True, "max_queue_size": max_queue},
        }
    return config


def _count(name: str, shape: Sequence[int]) -> int:
    for size in shape:
        if not is_whole(size) or size < 0:
            raise InputError(f"input `{name}` has the shape {list(shape)}; sizes are 0 or more")
    return math.prod(shape)
