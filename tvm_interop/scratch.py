"""Folders for files that are needed for a moment, and what becomes of those of a killed process.

A process that ends removes its own. One that is killed cannot: the next one that needs a folder
removes them. Each folder has a file that its process holds locked for as long as it lives, and the
system lets go of the lock with the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tvm_interop_"
LOCK = ".lock"
_NEW_S = 60.0
"""Folders that are younger than this may be ones that are not locked yet."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder of one's own, removed in the end, whatever happens.

    Raises
    ------
    OSError
        The folder for temporary files takes none.
    """
    _remove_those_of_the_dead(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        lock = os.open(Path(name) / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield Path(name)
        finally:
            os.close(lock)


@functools.cache
def _remove_those_of_the_dead(parent: str) -> None:
    """Once in a process: those in `parent` that are ours, and whose process is gone."""
    with contextlib.suppress(OSError):
        for folder in Path(parent).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    status = folder.lstat()
    if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _NEW_S:
        return
    # A link is not followed, and neither is one that somebody puts in the file's place.
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
