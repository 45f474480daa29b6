"""The parts of the Open Inference Protocol, version 2, that HTTP and gRPC share.

Sources: KServe's `docs/predict-api/v2`, and Triton's extensions for binary tensor data, statistics,
model configuration, model repository and schedule policy (`priority`, `timeout`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  The import makes `bfloat16` known to NumPy.
import msgspec
import numpy as np

from ...errors import InputError, cut, did_you_mean
from ...plain_data import LARGEST, is_whole
from .any_model import VERSION, AnyModel
from .json_tensors import checked, read_numbers
from .strings import BYTES, strings_from_bytes, strings_from_json, strings_from_values
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
    "BF16": "bfloat16",
    BYTES: "object",
}
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}

MOST_DIMENSIONS = 32
"""The maximum number of dimensions of a tensor. NumPy before version 2 supports no more."""
MOST_TENSORS = 1024
"""The maximum number of inputs of a request, and of outputs that a request names."""
LONGEST_NAME = 1024
"""The maximum number of characters of a name, a version or an id in a request."""
_AT_ONCE = 2**14
"""To save memory, only this many values are converted to Python numbers at a time."""

NO_SHARED_MEMORY = (
    "this server has no shared memory with its clients: send tensors in the request, and take them "
    "from the answer"
)

PRIORITY_LEVELS = 10
"""The number of priority levels. 1 is the highest; 0 in a request stands for the default."""
DEFAULT_PRIORITY = 5


@dataclass(frozen=True)
class InferCall:
    """A decoded inference request, from HTTP or gRPC.

    Attributes
    ----------
    model: name of the model.
    version: version of the model; "" if the client named none.
    inputs: input arrays, keyed by name.
    outputs: names of the requested outputs; None for all.
    priority: priority as policies use it: requests with the highest number are served first.
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
    """The answer to an inference request.

    Attributes
    ----------
    outputs: specification and array of each requested output, in the order of the request.
    batch_size: batch size of the run that served the request.
    queue_us: microseconds from the arrival of the request to the start of its run.
    run_us: microseconds of the run, including the copies of inputs and outputs.
    """

    outputs: list[tuple[TensorSpec, np.ndarray]] = field(default_factory=list)
    batch_size: int = 1
    queue_us: float = 0.0
    run_us: float = 0.0


def datatype_of(spec: TensorSpec, model: str) -> str:
    """Return the protocol's name of the type of a tensor.

    Raises
    ------
    InputError
        The protocol has no name for the tensor's type.
    """
    if spec.dtype not in _DATATYPES:
        raise InputError(
            f"`{spec.name}` of model `{model}` is {spec.dtype}, and the protocol has no such type; "
            "let the model cast it"
        )
    return _DATATYPES[spec.dtype]


def check_types(model: AnyModel) -> None:
    """Check that the protocol supports the types of all inputs and outputs of a model.

    Raises
    ------
    InputError
        The protocol has no type for an input or output.
    """
    for spec in (*model.inputs, *model.outputs):
        datatype_of(spec, model.name)


def dtype_of(name: str, datatype: str) -> np.dtype[Any]:
    """Return the NumPy type of an input.

    Raises
    ------
    InputError
        The protocol has no datatype of this name.
    """
    if datatype not in _DTYPES:
        raise InputError(
            f"input `{name}` has datatype `{cut(datatype)}`; the datatypes are {', '.join(_DTYPES)}"
        )
    return np.dtype(_DTYPES[datatype])


def array_from_bytes(
    name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview
) -> np.ndarray:
    """Create an input array from little-endian, row-major bytes.

    The bytes are not copied, except for BOOL and BYTES.

    Raises
    ------
    InputError
        The number of bytes does not fit the type and the shape.
    """
    dtype = dtype_of(name, datatype)
    if datatype == BYTES:
        count = _count(name, shape, dtype.itemsize)
        return strings_from_bytes(name, count, data).reshape(tuple(shape))
    needed = _count(name, shape, dtype.itemsize) * dtype.itemsize
    if len(data) != needed:
        raise InputError(
            f"input `{name}`, {datatype} of shape {list(shape)}, needs {needed} bytes, got "
            f"{len(data)}"
        )
    if datatype == "BOOL":
        bits: np.ndarray = np.frombuffer(data, np.uint8) != 0
        return bits.reshape(tuple(shape))
    return np.frombuffer(data, dtype.newbyteorder("<")).reshape(tuple(shape))


def array_from_json(
    name: str, datatype: str, shape: Sequence[int], data: msgspec.Raw
) -> np.ndarray:
    """Create an input array from numbers or strings in JSON, in a nested or flat list.

    Raises
    ------
    InputError
        The number of values does not fit the shape, or a value is not of the type.
    """
    dtype = dtype_of(name, datatype)
    count = _count(name, shape, dtype.itemsize)
    if datatype == BYTES:
        return strings_from_json(name, shape, data)
    return read_numbers(name, datatype, dtype, count, data).reshape(tuple(shape))


def array_from_values(
    name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]
) -> np.ndarray:
    """Create an input array from a flat sequence, such as a field of a message.

    The sequence holds numbers, or bytes for strings.

    Raises
    ------
    InputError
        The number of values does not fit the shape, or a value is not of the type.
    """
    dtype = dtype_of(name, datatype)
    count = _count(name, shape, dtype.itemsize)
    if datatype == BYTES:
        return strings_from_values(name, count, values).reshape(tuple(shape))
    if len(values) != count:
        raise InputError(
            f"input `{name}` of shape {list(shape)} needs {count} values, got {len(values)}"
        )
    made = np.empty(count, dtype)
    for begin in range(0, count, _AT_ONCE):
        some = list(values[begin : begin + _AT_ONCE])
        made[begin : begin + _AT_ONCE] = checked(name, datatype, dtype, some)
    return made.reshape(tuple(shape))


def read_schedule(parameters: Mapping[str, Any]) -> tuple[int, float | None]:
    """Return the priority and the timeout of a request.

    In the result, the highest number is the highest priority, as policies expect. In the protocol,
    1 is the highest priority. The timeout is in microseconds, or None if the request has none.

    Raises
    ------
    InputError
        The priority or the timeout is invalid, or the request is part of a sequence.
    """
    if not parameters:
        return -DEFAULT_PRIORITY, None
    if parameters.get("sequence_id"):
        raise InputError("models have no state between requests; leave `sequence_id` out")
    level = parameters.get("priority", 0)
    if not is_whole(level) or not 0 <= level <= PRIORITY_LEVELS:
        raise InputError(
            f"`priority` is {cut(repr(level))}; give 1 (the highest) to {PRIORITY_LEVELS}, or 0 "
            f"for the default, {DEFAULT_PRIORITY}"
        )
    timeout = parameters.get("timeout", 0)
    if not is_whole(timeout) or not 0 <= timeout <= LARGEST:
        raise InputError(
            f"`timeout` is {cut(repr(timeout))}; give whole microseconds, or 0 for none"
        )
    return -(level or DEFAULT_PRIORITY), float(timeout) or None


def chosen_outputs(model: AnyModel, wanted: Sequence[str] | None) -> list[int]:
    """Return the indices of the outputs that a request names, or of all outputs.

    If the request names no outputs, the indices of all outputs are returned.

    Raises
    ------
    InputError
        The model has no output of a requested name.
    """
    names = [spec.name for spec in model.outputs]
    for name in wanted or ():
        if name not in names:
            raise InputError(
                f"model `{model.name}` has no output `{cut(name)}`{did_you_mean(name, names)}; its "
                f"outputs are {', '.join(map(str, model.outputs))}"
            )
    return [names.index(name) for name in wanted] if wanted else list(range(len(names)))


def model_metadata(model: AnyModel) -> dict[str, Any]:
    """Return the metadata of a model, in the format of the protocol."""

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
    """Return the configuration of a model, in the format of Triton's extension."""
    batched = model.is_batched

    def told(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
        return [
            {
                "name": s.name,
                "data_type": _triton_type(datatype_of(s, model.name)),
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


def _triton_type(datatype: str) -> str:
    """Return Triton's name of a type; for strings it differs from the protocol's."""
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


def refuse_shared_memory(tensor: str, parameters: Iterable[str]) -> None:
    """Refuse an input or output that is in shared memory of the client.

    Parameters
    ----------
    tensor: description of the tensor for the error message.
    parameters: names of the parameters of the tensor.

    Raises
    ------
    InputError
        A parameter refers to shared memory.
    """
    if any(name.startswith("shared_memory") for name in parameters):
        raise InputError(f"{tensor}: {NO_SHARED_MEMORY}")


def check_counts(num_inputs: int, num_outputs: int) -> None:
    """Refuse a request with more than `MOST_TENSORS` inputs or outputs.

    Raises
    ------
    InputError
        There are too many inputs or outputs; the message says how many are allowed.
    """
    for kind, num in (("inputs", num_inputs), ("outputs", num_outputs)):
        if num > MOST_TENSORS:
            raise InputError(f"the request has {num} {kind}; at most {MOST_TENSORS} are allowed")


def check_names(names: Iterable[str]) -> None:
    """Refuse names that are longer than `LONGEST_NAME`.

    Raises
    ------
    InputError
        A name is too long; the message says which length is allowed.
    """
    for name in names:
        if len(name) > LONGEST_NAME:
            raise InputError(
                f"`{cut(name)}` is too long; a name may have at most {LONGEST_NAME} characters"
            )


def _count(name: str, shape: Sequence[int], itemsize: int) -> int:
    """Return the number of values of a tensor.

    Each size is checked before the sizes are multiplied, because a client may send integers of any
    length. For the limit on the product of all sizes, a size of 0 counts as 1: NumPy refuses even
    an empty array if the product of its other sizes is too large.
    """
    if len(shape) > MOST_DIMENSIONS:
        raise InputError(
            f"input `{name}` has {len(shape)} dimensions; at most {MOST_DIMENSIONS} are allowed"
        )
    for size in shape:
        if not is_whole(size) or not 0 <= size <= LARGEST:
            raise InputError(
                f"input `{name}` has the shape {cut(list(shape))}; sizes are 0 or more, and below "
                "2**63"
            )
    if math.prod(size or 1 for size in shape) * itemsize > LARGEST:
        raise InputError(
            f"input `{name}` has the shape {cut(list(shape))}, which no memory is large enough for"
        )
    return math.prod(shape)
