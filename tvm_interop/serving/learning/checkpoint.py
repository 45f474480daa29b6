"""What a training is at some step, in one file without pickle, so that it can go on from there."""

from __future__ import annotations

import json
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
    """Write arrays as an npz file, whole or not at all."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **dict(arrays))


def load(path: str | Path) -> Arrays:
    """What `save` wrote.

    Raises
    ------
    InputError: the file cannot be read.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {key: arrays[key] for key in arrays.files}
    except (OSError, ValueError) as error:
        raise InputError(f"the checkpoint `{path}` cannot be read: {error}") from None


def pack_text(value: Any) -> npt.NDArray[Any]:
    """Plain data as an array."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def unpack_text(array: npt.NDArray[Any]) -> Any:
    """What `pack_text` packed."""
    return json.loads(array.tobytes().decode())


def pack_module(name: str, module: Any) -> Arrays:
    """The parameters of a torch module."""
    return {f"{name}/{key}": value.numpy() for key, value in module.state_dict().items()}


def unpack_module(name: str, module: Any, arrays: Arrays) -> None:
    """Give them back to a module of the same shape."""
    import torch

    found = {key: torch.from_numpy(arrays[f"{name}/{key}"]) for key in module.state_dict()}
    module.load_state_dict(found)


def pack_adam(name: str, optimiser: Any) -> Arrays:
    """What Adam remembers of each parameter, in their order."""
    found: Arrays = {}
    for number, state in optimiser.state_dict()["state"].items():
        for key, value in state.items():
            found[f"{name}/{number}/{key}"] = value.numpy()
    return found


def unpack_adam(name: str, optimiser: Any, arrays: Arrays) -> None:
    """Give it back."""
    import torch

    whole = optimiser.state_dict()
    for key, value in arrays.items():
        if key.startswith(f"{name}/"):
            number, part = key.removeprefix(f"{name}/").split("/")
            whole["state"].setdefault(int(number), {})[part] = torch.from_numpy(value.copy())
    optimiser.load_state_dict(whole)


def require_configuration(
    path: str | Path, saved: dict[str, Any], config: Any, step: int = 0
) -> None:
    """Check that a checkpoint can go on with `config`; only the number of steps may differ.

    Parameters
    ----------
    saved: the fields of the configuration that was saved.
    config: a dataclass, with `steps` among its fields.
    step: how many steps were done, which `config` must allow.

    Raises
    ------
    InputError: it cannot.
    """
    # JSON has no tuples: what was one comes back as a list.
    ours = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}
    if {**saved, "steps": 0} != {**ours, "steps": 0} or step > config.steps:
        raise InputError(
            f"the checkpoint `{path}` is of another configuration: {saved}; remove it, or "
            "train with that one"
        )
