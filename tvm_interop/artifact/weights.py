"""How weights lie in an artifact: one block, each at an address that kernels may read it from."""

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
    """Where each weight begins in the block, in bytes: one behind the other, each aligned."""
    offsets: dict[int, int] = {}
    end = 0
    for v, array in weights.items():
        offsets[v] = -(-end // ALIGNMENT) * ALIGNMENT
        end = offsets[v] + array.nbytes
    return offsets


def shared(
    models: Sequence[Mapping[int, np.ndarray]],
) -> tuple[dict[int, np.ndarray], list[dict[int, int]]]:
    """One table for the weights of several models, equal ones once.

    Returns
    -------
    The table, by its own index; and for each model the index of each of its weights.
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
    """The block, as `offsets_of` lays it out, piece by piece."""
    end = 0
    for v, offset in offsets_of(weights).items():
        yield bytes(offset - end)
        yield np.ascontiguousarray(weights[v]).reshape(-1).view(np.uint8).data
        end = offset + weights[v].nbytes


def views(
    block: np.ndarray, offsets: Mapping[int, int], wanted: Mapping[int, PlannedValue]
) -> dict[int, np.ndarray]:
    """The weights `wanted`, by index, each where it lies in the block: nothing is copied.

    Raises
    ------
    ArtifactError
        One has no place, or one outside the block or off its alignment.
    """
    weights = {}
    for v, value in wanted.items():
        if v not in offsets:
            raise ArtifactError(f"there is no data for weight `{value.name}`")
        begin, end = offsets[v], offsets[v] + value.nbytes
        if begin < 0 or begin % ALIGNMENT or end > block.nbytes:
            raise ArtifactError(
                f"weight `{value.name}` of {value.nbytes} bytes is to begin at byte {begin} of "
                f"{block.nbytes}, which is no place for it"
            )
        weights[v] = block[begin:end].view(value.dtype).reshape(value.shape)
    return weights


def from_npz(data: bytes, wanted: Mapping[int, PlannedValue]) -> dict[int, np.ndarray]:
    """The weights `wanted` out of the `.npz` file that artifacts of version 1 have.

    Raises
    ------
    ArtifactError
        One is missing, cannot be read, or is of another shape or type.
    """
    if sum(value.nbytes for value in wanted.values()) > len(data):
        raise ArtifactError("`weights.npz` is smaller than the plan's weights")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {v: _from_npy(archive, f"{v}.npy", value) for v, value in wanted.items()}
    except ArtifactError:
        raise
    except Exception as error:  # `zipfile` and NumPy have a dozen kinds for what is damaged.
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
            # Said before any of it is read: so much memory need not be there.
            raise ArtifactError(
                f"weight `{value.name}` is {dtype}{shape}, the plan says {value.dtype}{value.shape}"
            )
        flat = np.frombuffer(file.read(value.nbytes), dtype)
    return aligned_copy(flat.reshape(shape, order="F" if is_fortran else "C"))
