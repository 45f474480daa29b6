"""Checks and converts the arguments that a user gives to a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import DeviceError, InputError, did_you_mean
from ..execution.strings import DTYPE
from ..plain_data import is_whole
from .ort_memory import array_of_ortvalue, is_ortvalue
from .source import Source
from .tensor_info import TensorInfo

_IGNORED = ("disabled_optimizers", "enable_fallback", "read_config_from_model")
"""Arguments of onnxruntime's `InferenceSession` that have no meaning here."""


def model_and_options(model: Any, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the model, and the options for `compile`.

    The model may be among the options as `path_or_bytes`, which is onnxruntime's name for it.

    Raises
    ------
    InputError
        The model is given by both names.
    """
    kept = {name: value for name, value in options.items() if name not in _IGNORED}
    if "path_or_bytes" not in kept:
        return model, kept
    given = kept.pop("path_or_bytes")
    if model is not None:
        raise InputError("`model` and `path_or_bytes` are two names of one argument: give one")
    return given, kept


def is_open(source: Source, options: Mapping[str, Any]) -> bool:
    """Whether an input has open dimensions for which `options` gives no shape.

    Such a model can be compiled only when `run` gets inputs, because only then all shapes are
    known.
    """
    given = options.get("input_shapes") or {}
    ranges = options.get("batch_sizes"), options.get("shapes")
    if ranges != (None, None) or not isinstance(given, Mapping):
        return False
    return any(info.is_open and info.name not in given for info in source.inputs)


def check_counts(instances: Any, threads: Any) -> None:
    """Check that `threads` and `instances` are whole numbers from 1 on; `threads` may be None."""
    for name, count in (("instances", instances), ("threads", 1 if threads is None else threads)):
        if not is_whole(count) or count < 1:
            raise InputError(f"`{name}` is {count!r}; give a whole number, 1 or more")


def threads_of(sess_options: Any) -> int | None:
    """The number of threads that an `onnxruntime.SessionOptions` asks for; None for the default."""
    wanted = getattr(sess_options, "intra_op_num_threads", 0)
    return wanted if is_whole(wanted) and wanted > 0 else None


def check_artifact_options(options: Mapping[str, Any], wanted: int, threads: int | None) -> None:
    """Check the arguments for a session of an artifact, which was compiled for `wanted` threads."""
    if options:
        raise InputError(
            f"`{'`, `'.join(options)}`: options are for models that are compiled, and this is an "
            "artifact, which is compiled already; leave them out"
        )
    if threads is not None and threads < wanted:
        raise InputError(
            f"the artifact was compiled for {wanted} threads, and `threads` is {threads}: give the "
            "model instead of the artifact, or limit this process with "
            "tvm_interop.set_num_threads"
        )


def positions_of(names: Iterable[str] | None, outputs: Sequence[TensorInfo]) -> list[int]:
    """Return the positions of the outputs that `names` names.

    None and an empty list stand for all outputs, as in onnxruntime.
    """
    if isinstance(names, str):
        raise InputError(f"`output_names` is {names!r}; give a list of names, or None for all")
    known = [info.name for info in outputs]
    names = list(names or ())  # A generator can be read only once.
    for name in names:
        if name not in known:
            raise InputError(
                f"the model has no output `{name}`{did_you_mean(str(name), known)}; its outputs "
                f"are: {', '.join(map(str, outputs))}"
            )
    return [known.index(name) for name in names or known]


def checked_feed(feed: Mapping[str, Any], inputs: Sequence[TensorInfo]) -> dict[str, Any]:
    """Return the inputs, with lists of numbers as arrays; refuse missing or unknown inputs."""
    if not isinstance(feed, Mapping):
        raise InputError(
            f"the inputs are a `{type(feed).__name__}`; give a dictionary of arrays by name"
        )
    known = {info.name: info for info in inputs}
    for name in feed:
        if name not in known:
            meant = did_you_mean(str(name), list(known))
            # A name unlike those of all inputs may be the name of a weight.
            weights = (
                ". The weights of a compiled model are fixed: to give one as an input, remove its "
                "initializer from the model"
            )
            raise InputError(
                f"the model has no input `{name}`{meant}; it has {_listed(inputs)}"
                f"{'' if meant else weights}"
            )
    missing = [name for name in known if name not in feed]
    if missing:
        raise InputError(
            f"input `{missing[0]}` is missing; the model's inputs are {_listed(inputs)}"
        )
    return {name: with_type(feed[name], info) for name, info in known.items()}


def check_shapes(shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[TensorInfo]) -> None:
    """Check the sizes that a model fixes before it is compiled for `shapes`, which takes a while.

    Raises
    ------
    InputError
        An input has another number of dimensions than the model's input, or another size.
    """
    for info in inputs:
        shape = shapes.get(info.name)
        if shape is None or not info.has_shape:
            continue
        fits = len(shape) == len(info.shape) and all(
            size == known or not isinstance(known, int)
            for size, known in zip(shape, info.shape, strict=True)
        )
        if not fits:
            raise InputError(f"input {info} is given an array of shape {shape}")


def check_types(feed: Mapping[str, Any], inputs: Sequence[TensorInfo]) -> None:
    """Check the types of arrays before a model is compiled for their shapes, which takes a while.

    Values whose type NumPy does not know are checked when they are read.

    Raises
    ------
    InputError
        An array has another type than the model's input.
    """
    for info in inputs:
        value = feed[info.name]
        dtype = str(getattr(value, "dtype", info.dtype)).removeprefix("torch.")
        if info.dtype == DTYPE or dtype == info.dtype or dtype not in np.sctypeDict:
            continue
        raise InputError(f"input {info} is given an array of {dtype}: convert it to {info.dtype}")


def _listed(inputs: Sequence[TensorInfo]) -> str:
    return ", ".join(map(str, inputs)) or "none"


def with_type(value: Any, info: TensorInfo) -> Any:
    """Convert a list of numbers to an array of the input's dtype, and an `OrtValue` to an array.

    An array of the other byte order, such as `>f4`, is converted to that of this machine. Other
    values stay as they are.

    Raises
    ------
    InputError
        The type cannot hold the numbers, such as a fraction in a list for an input of integers.
    """
    if is_ortvalue(value):
        return array_of_ortvalue(info.name, value)
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    if hasattr(value, "__dlpack__") or hasattr(value, "__array__") or value is None:
        return value
    try:
        array = np.asarray(value, info.dtype)
        if array.dtype.kind in "iub":
            plain = np.asarray(value)
            if plain.dtype.kind == "f" and not np.array_equal(plain, array):
                raise ValueError("a number is not whole")
        return array
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"input {info} cannot be made from the given value: {error}") from error


def provider_names(providers: Sequence[Any] | None) -> list[str]:
    """Return the names in a list of execution providers, without the providers' options."""
    given = [providers] if isinstance(providers, str) else providers or ()
    return [name if isinstance(name, str) else name[0] for name in given]


def check_providers(providers: Sequence[Any] | None, target: Any) -> None:
    names = provider_names(providers)
    if names and "CPUExecutionProvider" not in names and str(target).startswith("llvm"):
        raise DeviceError(
            f"`providers` is {names}, and a session runs on the CPU unless `target` says "
            'otherwise: add "CPUExecutionProvider", or give target="cuda"'
        )
