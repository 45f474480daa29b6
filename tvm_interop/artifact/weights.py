"""Lays out the weights of an artifact in one block of bytes, and reads them from the block.

Each weight begins at a multiple of `ALIGNMENT` bytes, as kernels require.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArtifactError
from ..plan.plan import PlannedValue
from ..program.host_memory import aligned_copy
from ..program.storage import ALIGNMENT


def offsets_of(weights: Mapping[int, np.ndarray]) -> dict[int, int]:
    """Where each weight begins in the block, in bytes.

    Each weight begins at the first aligned byte after the end of the previous weight.
    """
    offsets: dict[int, int] = {}
    end = 0
    for v, array in weights.items():
        offsets[v] = -(-end // ALIGNMENT) * ALIGNMENT
        end = offsets[v] + array.nbytes
    return offsets


def shared(
    models: Sequence[Mapping[int, np.ndarray]],
) -> tuple[dict[int, np.ndarray], list[dict[int, int]]]:
    """Put the weights of several models into one table; equal weights are stored once.

    Returns
    -------
    The table of all weights, by index from 0; and for each model, a mapping from the model's index
    of a weight to the weight's index in the table.
    """
    table: dict[int, np.ndarray] = {}
    known: dict[tuple[object, ...], int] = {}
    places: list[dict[int, int]] = []
    for weights in models:
        place = {}
        for v, array in weights.items():
            content = hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            key = (array.dtype.str, array.shape, content.digest())
            place[v] = known.setdefault(key, len(table))
            table.setdefault(place[v], array)
        places.append(place)
    return table, places


def chunks_of(weights: Mapping[int, np.ndarray]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of the block in order, in several chunks. `offsets_of` gives the layout."""
    end = 0
    for v, offset in offsets_of(weights).items():
        yield bytes(offset - end)
        yield np.ascontiguousarray(weights[v]).reshape(-1).view(np.uint8).data
        end = offset + weights[v].nbytes


def views(
    block: np.ndarray, offsets: Mapping[int, int], wanted: Mapping[int, PlannedValue]
) -> dict[int, np.ndarray]:
    """Return arrays of the weights in `wanted`, by index, that share the memory of the block.

    Raises
    ------
    ArtifactError
        A weight has no offset, lies outside the block, or is not aligned.
    """
    weights = {}
    for v, value in wanted.items():
        if v not in offsets:
            raise ArtifactError(f"there is no data for weight `{value.name}`")
        begin, end = offsets[v], offsets[v] + value.nbytes
        if begin < 0 or begin % ALIGNMENT or end > block.nbytes:
            raise ArtifactError(
                f"weight `{value.name}` of {value.nbytes} bytes cannot begin at byte {begin} of "
                f"{block.nbytes}: the place is not a multiple of {ALIGNMENT}, or the weight does "
                "not fit there"
            )
        weights[v] = block[begin:end].view(value.dtype).reshape(value.shape)
    return weights


def from_npz(data: bytes, wanted: Mapping[int, PlannedValue]) -> dict[int, np.ndarray]:
    """Read the weights `wanted` from the `.npz` file that artifacts of version 1 have.

    Raises
    ------
    ArtifactError
        A weight is missing, cannot be read, or has another shape or type.
    """
    if sum(value.nbytes for value in wanted.values()) > len(data):
        raise ArtifactError("`weights.npz` is smaller than the plan's weights")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {v: _from_npy(archive, f"{v}.npy", value) for v, value in wanted.items()}
    except ArtifactError:
        raise
    except Exception as error:  # `zipfile` and NumPy raise many kinds of errors on damaged data.
        raise ArtifactError(f"`weights.npz` cannot be read: {error}") from error


def _from_npy(archive: zipfile.ZipFile, name: str, value: PlannedValue) -> np.ndarray:
    with archive.open(name) as file:
        magic: Any = np.lib.format.read_magic(file)
        read_header = (
            np.lib.format.read_array_header_1_0
            if magic == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, is_fortran, dtype = read_header(file)
        if (shape, str(dtype)) != (value.shape, value.dtype):
            # Check the shape before the data is read, so that a wrong shape allocates no memory.
            raise ArtifactError(
                f"weight `{value.name}` is {dtype}{shape}, the plan says {value.dtype}{value.shape}"
            )
        flat = np.frombuffer(file.read(value.nbytes), dtype)
    return aligned_copy(flat.reshape(shape, order="F" if is_fortran else "C"))
