"""The tar file that an artifact is: written in one pass, read in one, whatever is in it.

Plain headers, plain files, no more: what else tar can hold (sparse files, links, names and sizes in
headers of their own) is refused, since a few bytes of that can stand for terabytes.
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


@dataclass(frozen=True)
class Member:
    """A file in the tar.

    Attributes
    ----------
    offset: where its data begins in the file, in bytes; a multiple of 512.
    nbytes: its size.
    sha256: of its data.
    data: what is in it; None where only its digest was asked for.
    """

    offset: int
    nbytes: int
    sha256: str
    data: bytes | None


def write_tar(
    path: str | os.PathLike[str], members: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """Write a tar file; an older file of that name is replaced only once this is whole.

    Parameters
    ----------
    members: the chunks of each, in order.
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
            file.write(info.tobuf(tarfile.GNU_FORMAT))  # The format that tells 8 GiB in 512 bytes.
            file.seek(end)
        file.write(bytes(2 * _BLOCK))


def read_tar(
    file: IO[bytes], most_bytes: Mapping[str, int], sha256: str | None = None
) -> dict[str, Member]:
    """Read a tar file from its first byte to its last, once.

    Parameters
    ----------
    most_bytes: how large each member may be that is kept in memory; others are not kept.
    sha256: what the file's digest must be, in hexadecimal.

    Raises
    ------
    ArtifactError
        Truncated, no tar file, another than `sha256` says, or a member that is not plain, twice
        there, or too large.
    """
    reader = _Reader(file, with_digest=sha256 is not None)
    members: dict[str, Member] = {}
    try:
        while (block := reader.exactly(_BLOCK)).strip(b"\0"):
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            _check_header(info, reader.left, most_bytes)
            if info.name in members:
                raise ArtifactError(f"`{info.name}` is in it twice")
            offset = file.tell()
            data, digest = reader.body(info.size, keep=info.name in most_bytes)
            members[info.name] = Member(offset, info.size, digest, data)
            reader.exactly(-info.size % _BLOCK)
    except tarfile.TarError as error:
        raise ArtifactError(f"it is truncated or no artifact of tvm_interop ({error})") from error
    if sha256 is not None:
        found = reader.whole_digest()
        if found != sha256.lower():
            raise ArtifactError(
                f"its SHA-256 is {found}, not {sha256}: it is not the file that you mean, and "
                "nothing in it was used"
            )
    return members


def mapped(file: IO[bytes], member: Member) -> np.ndarray:
    """The bytes of a member, in memory that is the file's own.

    Pages come from the file when they are touched, and may go again where memory is short; several
    processes share them. What is written to the array stays with the array.

    Raises
    ------
    ArtifactError
        The file has changed since `member` was read.
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
    """Reads a file forwards; never asks for memory that the file could not fill."""

    def __init__(self, file: IO[bytes], with_digest: bool) -> None:
        self._file = file
        self._whole = hashlib.sha256() if with_digest else None
        self.left = os.fstat(file.fileno()).st_size

    def exactly(self, nbytes: int) -> bytes:
        """The next `nbytes` bytes."""
        data = self._file.read(min(nbytes, self.left))
        if len(data) < nbytes:
            raise ArtifactError("it is truncated or no artifact of tvm_interop")
        self.left -= nbytes
        if self._whole is not None:
            self._whole.update(data)
        return data

    def body(self, nbytes: int, keep: bool) -> tuple[bytes | None, str]:
        """The next `nbytes` bytes where they are to be kept, and their SHA-256."""
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
        """The SHA-256 of the whole file, what is left of it included."""
        assert self._whole is not None
        while self.left > 0:
            self.exactly(min(self.left, _CHUNK))
        return self._whole.hexdigest()


def _check_header(info: tarfile.TarInfo, left: int, most_bytes: Mapping[str, int]) -> None:
    name = info.name.encode("utf-8", "replace").decode()
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise ArtifactError(
            f"its member `{name}` is no plain file (type {info.type!r}); artifacts hold nothing "
            "else"
        )
    if not 0 <= info.size <= left:
        raise ArtifactError(
            f"it is truncated: `{name}` is to have {info.size} bytes, and the file has {left} left"
        )
    most = most_bytes.get(info.name, info.size)
    if info.size > most:
        raise ArtifactError(f"its `{name}` has {info.size} bytes; at most {most} can be")
