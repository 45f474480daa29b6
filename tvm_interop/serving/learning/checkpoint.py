"""Checkpoints: files from which a training continues.

A checkpoint is one file of NumPy's format npz. It holds no pickled objects.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...atomic_file import replacing
from ...errors import InputError

Arrays = dict[str, npt.NDArray[Any]]


def save(path: str | Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as an npz file. A failed write leaves no partial file."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def load(path: str | Path) -> Arrays:
    """Return the arrays in a checkpoint that `save` wrote.

    Raises
    ------
    InputError: the file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"the checkpoint `{path}` cannot be read: {error}") from None


def pack_text(value: Any) -> npt.NDArray[Any]:
    """Encode data as JSON in an array of bytes."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def unpack_text(array: npt.NDArray[Any]) -> Any:
    """Decode the data that `pack_text` encoded."""
    return json.loads(array.tobytes().decode())


def pack_module(name: str, module: Any) -> Arrays:
    """Return the parameters of a torch module as arrays, keyed by `name` and parameter name."""
    return {f"{name}/{key}": value.numpy() for key, value in module.state_dict().items()}


def unpack_module(name: str, module: Any, arrays: Arrays) -> None:
    """Load the parameters that `pack_module` returned into a module of the same shape."""
    import torch

    found = {key: torch.from_numpy(arrays[f"{name}/{key}"]) for key in module.state_dict()}
    module.load_state_dict(found)


def pack_adam(name: str, optimiser: Any) -> Arrays:
    """Return Adam's state of each parameter as arrays, keyed by `name` and parameter number."""
    found: Arrays = {}
    for number, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            found[f"{name}/{number}/{key}"] = value.numpy()
    return found


def unpack_adam(name: str, optimiser: Any, arrays: Arrays) -> None:
    """Load the state that `pack_adam` returned into an optimiser of the same parameters."""
    import torch

    whole = optimiser.state_dict()
    for key, value in arrays.items():
        if key.startswith(f"{name}/"):
            number, part = key.removeprefix(f"{name}/").split("/")
            whole["state"].setdefault(int(number), {})[part] = torch.from_numpy(value.copy())
    optimiser.load_state_dict(whole)


def require_configuration(path: str | Path, saved: dict[str, Any], config: Any, step: int) -> None:
    """Check that a training with `config` can continue from a checkpoint.

    The configuration in the checkpoint and `config` may differ only in the number of steps.

    Parameters
    ----------
    saved: fields of the saved configuration.
    config: configuration of the training, a dataclass with a field `steps`.
    step: number of steps done so far, which must not exceed the steps of `config`.

    Raises
    ------
    InputError: the training cannot continue from the checkpoint.
    """
    # JSON has no tuples. A saved tuple is read back as a list, so compare both sides as lists.
    ours = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}
    if {**saved, "steps": 0} != {**ours, "steps": 0} or step > config.steps:
        raise InputError(
            f"the checkpoint `{path}` is of another configuration: {saved}; remove the file, or "
            "train with that configuration"
        )
