"""Inputs of a model: from a file, or made up."""

from __future__ import annotations

import enum
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..errors import InputError


class FillMode(str, enum.Enum):
    """What inputs hold that no file gives."""

    random = "random"
    zeros = "zeros"
    ones = "ones"


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """Read arrays by name from an .npz file.

    Raises
    ------
    InputError
        Not there, or no .npz file.
    """
    try:
        if not path.is_file() or zipfile.is_zipfile(path):
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
    except OSError as error:
        raise InputError(f"cannot read inputs from `{path}`: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile) as error:
        raise InputError(
            f"`{path}` is no .npz file of plain arrays ({error}); write it with numpy.savez"
        ) from error
    raise InputError(f"`{path}` is no .npz file; write it with numpy.savez")


def complete_inputs(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """The arrays in `path`, one for each input and none besides; names the inputs otherwise."""
    arrays = read_inputs(path)
    wanted = ", ".join(f"`{name}` ({dtypes[name]} of shape {shapes[name]})" for name in shapes)
    for name in arrays:
        if name not in shapes:
            raise InputError(
                f"`{path}` has `{name}`, which is no input of the model; the inputs are {wanted}"
            )
    for name in shapes:
        if name not in arrays:
            raise InputError(f"`{path}` has no array for input `{name}`; the inputs are {wanted}")
    return {name: arrays[name] for name in shapes}


def filled_inputs(
    shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], fill_mode: FillMode
) -> dict[str, np.ndarray]:
    """An array for each input, all of the same numbers or of random ones, the same each time."""
    rng = np.random.default_rng(0)

    def fill(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if fill_mode is FillMode.ones:
            return np.ones(shape, dtype)
        # Random integers could be indices out of range: zeros are always valid ones.
        if fill_mode is FillMode.zeros or np.dtype(dtype).kind != "f":
            return np.zeros(shape, dtype)
        return rng.uniform(-1, 1, shape).astype(dtype)

    return {name: fill(shape, dtypes[name]) for name, shape in shapes.items()}
