"""Reads and writes the tar file that holds an artifact, each in one pass.

Only plain headers and plain files are allowed. Sparse files, links, and headers that hold long
names or sizes are refused, because a few bytes of such a header can claim that a file has
terabytes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import IO

import numpy as np

from ..atomic_file import replacing
from ..errors import ArtifactError

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 2**20

COPY_AGAIN = "copy the file again, or make an artifact with `tvm-interop compile`"
GIVE_THE_RIGHT_FILE = "give the file that has this SHA-256"


@dataclass(frozen=True)
class Member:
    """A file in the tar.

    Attributes
    ----------
    offset: where the member's data begins in the tar file, in bytes; a multiple of 512.
    nbytes: the size of the data, in bytes.
    sha256: the SHA-256 of the data, in hexadecimal.
    data: the data; None if the caller asked only for the digest.
    """

    offset: int
    nbytes: int
    sha256: str
    data: bytes | None


def write_tar(
    path: str | os.PathLike[str], members: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """Write a tar file.

    An older file at `path` is replaced only when the new file is complete.

    Parameters
    ----------
    members: the data of each member in chunks, by the member's name, in the order of the file.
    """
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for name, chunks in members.items():
            header_at = file.tell()
            file.seek(_BLOCK, os.SEEK_CUR)
            nbytes = sum(file.write(chunk) for chunk in chunks)
            file.write(bytes(-nbytes % _BLOCK))
            end = file.tell()
            info = tarfile.TarInfo(name)
            info.size = nbytes
            file.seek(header_at)
            # GNU's format is used, because in it a single header can hold a size above 8 GiB.
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.seek(end)
        file.write(bytes(2 * _BLOCK))


def read_tar(
    file: IO[bytes], most_bytes: Mapping[str, int], sha256: str | None = None
) -> dict[str, Member]:
    """Read a tar file forwards, in one pass.

    Parameters
    ----------
    most_bytes: for each member whose data is kept in memory, the largest number of bytes that it
        may have. The data of other members is not kept.
    sha256: the digest that the file must have, in hexadecimal; None for any.

    Raises
    ------
    ArtifactError
        The file is truncated, is not a tar file, or its digest is not `sha256`. Or a member is not
        a plain file, occurs twice or is too large.
    """
    reader = _Reader(file, with_digest=sha256 is not None)
    members: dict[str, Member] = {}
    try:
        while (block := reader.exactly(_BLOCK)).strip(b"\0"):
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            _check_header(info, reader.left, most_bytes)
            if info.name in members:
                raise ArtifactError(f"it has two members `{info.name}`")
            offset = file.tell()
            data, digest = reader.body(info.size, keep=info.name in most_bytes)
            members[info.name] = Member(offset, info.size, digest, data)
            reader.exactly(-info.size % _BLOCK)
    except tarfile.TarError as error:
        raise ArtifactError(
            f"it is truncated or not an artifact of tvm_interop ({error}); {COPY_AGAIN}"
        ) from error
    if sha256 is not None:
        found = reader.whole_digest()
        if found != sha256.lower():
            raise ArtifactError(
                f"its SHA-256 is {found}, not {sha256}: it is not the file that you mean, and "
                f"nothing in it was used; {GIVE_THE_RIGHT_FILE}"
            )
    return members


def mapped(file: IO[bytes], member: Member) -> np.ndarray:
    """Map the bytes of a member from the file into memory.

    The operating system reads a page of the file when the program first uses it, and may remove the
    page from memory again when memory is short. Several processes share the pages. Writes to the
    array do not reach the file.

    Raises
    ------
    ArtifactError
        The file cannot be mapped: for example, it was truncated after `member` was read.
    """
    if member.nbytes == 0:
        return np.empty(0, np.uint8)
    begin = member.offset // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    length = member.offset + member.nbytes - begin
    try:
        memory = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY, offset=begin)
    except (OSError, ValueError) as error:
        raise ArtifactError(f"it cannot be mapped into memory: {error}") from error
    return np.frombuffer(memory, np.uint8, member.nbytes, member.offset - begin)


class _Reader:
    """Reads a file forwards. It never allocates more memory than the number of bytes left in the
    file.
    """

    def __init__(self, file: IO[bytes], with_digest: bool) -> None:
        self._file = file
        self._whole = hashlib.sha256() if with_digest else None
        self.left = os.fstat(file.fileno()).st_size

    def exactly(self, nbytes: int) -> bytes:
        """Read the next `nbytes` bytes."""
        data = self._file.read(min(nbytes, self.left))
        if len(data) < nbytes:
            raise ArtifactError(f"it is truncated or not an artifact of tvm_interop; {COPY_AGAIN}")
        self.left -= nbytes
        if self._whole is not None:
            self._whole.update(data)
        return data

    def body(self, nbytes: int, keep: bool) -> tuple[bytes | None, str]:
        """Read the next `nbytes` bytes, and return the bytes and their SHA-256.

        If `keep` is False, the bytes are not kept, and None is returned in their place.
        """
        if keep:
            data = self.exactly(nbytes)
            return data, hashlib.sha256(data).hexdigest()
        digest = hashlib.sha256()
        while nbytes > 0:
            chunk = self.exactly(min(nbytes, _CHUNK))
            digest.update(chunk)
            nbytes -= len(chunk)
        return None, digest.hexdigest()

    def whole_digest(self) -> str:
        """Read the rest of the file, and return the SHA-256 of the whole file."""
        assert self._whole is not None
        while self.left > 0:
            self.exactly(min(self.left, _CHUNK))
        return self._whole.hexdigest()


def _check_header(info: tarfile.TarInfo, left: int, most_bytes: Mapping[str, int]) -> None:
    name = info.name.encode("utf-8", "replace").decode()
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise ArtifactError(
            f"its member `{name}` is not a plain file (type {info.type!r}); artifacts hold only "
            "plain files"
        )
    if not 0 <= info.size <= left:
        raise ArtifactError(
            f"it is truncated: `{name}` should have {info.size} bytes, and the file has {left} "
            f"left; {COPY_AGAIN}"
        )
    most = most_bytes.get(info.name, info.size)
    if info.size > most:
        raise ArtifactError(f"its `{name}` has {info.size} bytes, and at most {most} are allowed")
