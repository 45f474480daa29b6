"""Reads the inputs of a model from an .npz file, or fills them with numbers."""

from __future__ import annotations

import enum
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ..errors import InputError
from ..plain_data import is_float
from .flags import Flags


class FillMode(str, enum.Enum):
    """The numbers that inputs are filled with if no file gives them."""

    random = "random"
    zeros = "zeros"
    ones = "ones"


@dataclass(frozen=True)
class InputFlags(Flags):
    """The options that say where the contents of the inputs come from."""

    inputs: Annotated[
        Path | None,
        typer.Option(
            "-i",
            "--inputs",
            help="An .npz file with an array for each input, which "
            "`numpy.savez(FILE, NAME=array)` writes. For inputs of bfloat16, give float32.",
        ),
    ] = None
    fill_mode: Annotated[
        FillMode,
        typer.Option(
            "--fill-mode", help="The numbers that fill the inputs if --inputs is not given."
        ),
    ] = FillMode.random

    def arrays(
        self, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
    ) -> dict[str, np.ndarray]:
        """Return an array for each input of a module, by the name of the input."""
        if self.inputs is not None:
            return complete_inputs(self.inputs, shapes, dtypes)
        return filled_inputs(shapes, dtypes, self.fill_mode)


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """Read arrays by name from an .npz file.

    Raises
    ------
    InputError
        The file is missing, or is not an .npz file of plain arrays.
    """
    try:
        if not path.is_file() or zipfile.is_zipfile(path):
            with np.load(path, allow_pickle=False) as arrays:
                return dict(arrays)
    except OSError as error:
        raise InputError(f"cannot read inputs from `{path}`: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"`{path}` is not an .npz file of plain arrays ({error}); write it with numpy.savez"
        ) from error
    raise InputError(f"`{path}` is not an .npz file; write it with numpy.savez")


def complete_inputs(
    path: Path, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str]
) -> dict[str, np.ndarray]:
    """Read the arrays in the file `path`, which must have one array for each input.

    Raises
    ------
    InputError
        The file lacks an input or has an array of another name; the message lists the inputs.
    """
    arrays = read_inputs(path)
    wanted = ", ".join(f"`{name}` ({dtypes[name]} of shape {shapes[name]})" for name in shapes)
    for name in arrays:
        if name not in shapes:
            raise InputError(
                f"`{path}` has `{name}`, which is not an input of the model; the inputs are "
                f"{wanted}"
            )
    for name in shapes:
        if name not in arrays:
            raise InputError(f"`{path}` has no array for input `{name}`; the inputs are {wanted}")
    return {name: _as_bfloat16(arrays[name], dtypes[name]) for name in shapes}


def _as_bfloat16(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return the array for an input of bfloat16; return the array of any other input unchanged.

    NumPy has no type bfloat16, so the file has one of two other types. Float32 numbers are rounded
    to bfloat16. For an array of bfloat16, `numpy.savez` writes elements of two bytes without a
    type. They are read as bfloat16.
    """
    if dtype != "bfloat16":
        return array
    import ml_dtypes

    if array.dtype == np.float32:
        return array.astype(ml_dtypes.bfloat16)
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


def filled_inputs(
    shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], fill_mode: FillMode
) -> dict[str, np.ndarray]:
    """An array for each input, filled by `fill_mode`. Random numbers are the same in each call."""
    rng = np.random.default_rng(0)

    def fill(shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if fill_mode is FillMode.ones:
            return np.ones(shape, dtype)
        # Inputs of integers are filled with zeros, because the integers may be indices. A random
        # index could be out of range, but 0 never is.
        if fill_mode is FillMode.zeros or not is_float(dtype):
            return np.zeros(shape, dtype)
        return rng.uniform(-1, 1, shape).astype(dtype)

    return {name: fill(shape, dtypes[name]) for name, shape in shapes.items()}
