"""Makes temporary folders that are removed even if their process is killed.

A process removes its own folder when it ends. A killed process leaves its folder behind, and the
next process that needs a folder removes it. To tell whether a process still runs, each folder has a
file that its process keeps locked. The system releases the lock when the process ends.
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
_own: set[Path] = set()
"""The folders of this process."""
_NEW_S = 60.0
"""A temporary folder younger than this many seconds is not removed, because its process may not
have locked it yet.
"""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a temporary folder that only the user can read; remove it when the `with` block ends.

    Raises
    ------
    OSError
        No folder can be made in the folder for temporary files.
    """
    _remove_those_of_the_dead(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        lock = os.open(Path(name) / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _own.add(Path(name))
            yield Path(name)
        finally:
            _own.discard(Path(name))
            os.close(lock)


def remove_own_folders() -> None:
    """Remove all temporary folders of this process. The process must end immediately afterwards."""
    for folder in list(_own):
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _remove_those_of_the_dead(parent: str) -> None:
    """Remove the temporary folders in `parent` whose processes have ended, once per process."""
    with contextlib.suppress(OSError):
        for folder in Path(parent).glob(f"{PREFIX}*"):
            with contextlib.suppress(OSError):
                _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    status = folder.lstat()
    if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _NEW_S:
        return
    # For safety, a symbolic link in place of the lock file is not followed. `rmtree` follows no
    # links either.
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
