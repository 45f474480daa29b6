"""Keeps results that take long to compute, in files beside the database of latencies."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from pathlib import Path

from ..atomic_file import replacing
from ..ownership import TRUSTED_FOLDERS, make_own_folder, why_not_own, why_not_trusted
from .store import default_path

_LOG = logging.getLogger("tvm_interop")
_ENVIRONMENT = "TVM_INTEROP_KEPT"
_DIGEST_BYTES = 32
_SUFFIX = ".kept"
_VERSION = 2
"""Version of the contents of kept files. Files of another version are ignored, and are removed when
all files together exceed the size limit.
"""
MAX_BYTES = 1 << 30
"""The largest total size of all files, in bytes, unless another limit is given."""


class KeptFiles:
    """Keeps bytes by key, in a folder that several processes may share.

    A file is written completely or not at all. It begins with a SHA-256 digest of its key and its
    data. A damaged file does not match its digest, so it counts as missing, and is removed. If all
    files together exceed the size limit, the files that were not used for the longest time are
    removed. If the folder cannot be written to, nothing is kept and a warning is logged.

    Files may hold machine code, so anybody who can write to a file could run code in your name. The
    folder is therefore made for its owner only. A folder that belongs to another user, or that
    other users can write to, is not used, and a warning is logged (see `ownership`).
    """

    def __init__(
        self, folder: str | os.PathLike[str], max_bytes: int = MAX_BYTES, fresh: bool = False
    ) -> None:
        """Remember the folder, but do not make it yet.

        Parameters
        ----------
        max_bytes: the largest total size of all files, in bytes.
        fresh: whether to ignore all data in the folder, so that `get` returns None. `put` replaces
            that data.
        """
        self._fresh = fresh
        self.folder = Path(folder)
        self._max_bytes = max_bytes
        # Whether the folder may be used; None until it is checked for the first time.
        self._is_trusted: bool | None = None

    def get(self, kind: str, key: str) -> bytes | None:
        """The data kept under `key`; None if nothing is kept there, or if the file is damaged."""
        path = self._path(kind, key)
        if self._fresh or not self._may_be_used():
            return None
        try:
            # Check the owner of the open file, not of its path, because another file may get this
            # path at any time.
            with path.open("rb") as file:
                reason = why_not_own(os.fstat(file.fileno()))
                content = file.read() if reason is None else b""
        except OSError:
            return None
        if reason is not None:
            _LOG.warning("the kept file `%s` is not used: it %s", path, reason)
            return None
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if _digest(kind, key, data) != digest:
            _LOG.warning("the kept file `%s` is damaged, so its contents are computed again", path)
            self._remove(path)
            return None
        with contextlib.suppress(OSError):
            # Set the time of last use, because recently used files are removed last.
            os.utime(path)
        return data

    def put(self, kind: str, key: str, data: bytes) -> None:
        """Keep `data` under `key`. Several processes may keep the same data at the same time."""
        if not self._may_be_used():
            return
        try:
            make_own_folder(self.folder)
            # Check the folder again: between the first check and now, another user may have made
            # it.
            if not self._may_be_used():
                return
            with replacing(self._path(kind, key)) as temporary:
                Path(temporary).write_bytes(_digest(kind, key, data) + data)
        except OSError as error:
            _LOG.warning("nothing is kept in `%s`: %s", self.folder, error.strerror or error)
            return
        self._trim()

    def nbytes(self) -> int:
        """The total size of all kept files, in bytes."""
        return sum(size for _, size, _ in self._files())

    def clear(self) -> int:
        """Remove all files, and return how many were removed."""
        return sum(self._remove(path) for _, _, path in self._files())

    def _may_be_used(self) -> bool:
        if self._is_trusted is None:
            is_there = self.folder.exists()
            reason = why_not_trusted(self.folder)
            if reason is None and not is_there:
                # The folder does not exist. Check it again later, because another user may make it.
                return True
            self._is_trusted = reason is None
            if reason is not None:
                _LOG.warning(
                    "nothing is written to or read from `%s`: %s; make the folder yours alone, or "
                    "name the folder in %s",
                    self.folder,
                    reason,
                    TRUSTED_FOLDERS,
                )
        return self._is_trusted

    def _trim(self) -> None:
        files = sorted(self._files())
        nbytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if nbytes <= self._max_bytes:
                return
            nbytes -= size if self._remove(path) else 0

    def _files(self) -> list[tuple[float, int, Path]]:
        """The time of last use, the size in bytes and the path of each file."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):  # Another process may remove the file.
                status = path.stat()
                found.append((status.st_mtime, status.st_size, path))
        return found

    def _path(self, kind: str, key: str) -> Path:
        name = hashlib.sha256(f"{_VERSION} {key}".encode()).hexdigest()
        return self.folder / f"{name}.{kind}{_SUFFIX}"

    @staticmethod
    def _remove(path: Path) -> bool:
        try:
            path.unlink()
        except OSError:
            return False
        return True


def _digest(kind: str, key: str, data: bytes) -> bytes:
    """A digest of key and data. It includes the key, so that a file that was renamed does not
    match.
    """
    return hashlib.sha256(b"\0".join([kind.encode(), key.encode(), data])).digest()


def kept_beside(latency_db: str | os.PathLike[str] | None, fresh: bool = False) -> KeptFiles | None:
    """The `KeptFiles` of a latency database: a folder with the database's name and `.kept` added.

    The environment variable `TVM_INTEROP_KEPT` can name another folder. Return None if the variable
    is empty, which means that nothing is kept, or if the database is in memory.
    """
    override = os.environ.get(_ENVIRONMENT)
    if override is not None:
        return KeptFiles(override, fresh=fresh) if override else None
    path = str(latency_db if latency_db is not None else default_path())
    return None if path == ":memory:" else KeptFiles(f"{path}.kept", fresh=fresh)
