"""Checks that a file belongs to the user or to root, and that nobody else can change it.

The package reads machine code and latencies only from files that pass the checks of this module. A
user who can write to a file, or to a folder above the file, can change the file's contents. So a
file is not used if another user owns it or may write to it. ssh has the same rule for its keys.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

TRUSTED_FOLDERS = "TVM_INTEROP_TRUSTED_FOLDERS"
"""Environment variable that lists folders, separated by colons. Files in these folders are used,
even if other users may write to the folders.
"""


def why_not_trusted(path: str | os.PathLike[str]) -> str | None:
    """Return why another user may be able to change the file `path`; None if no other user can.

    The function checks the file or folder `path` and each folder above it, and follows links. Each
    file and folder must belong to the user or to root, and no other user may write to it. A missing
    file passes the check. A folder with the sticky bit, such as `/tmp`, passes too. Other users can
    make files in such a folder, but they cannot replace the files of the user.
    """
    real = Path(os.path.realpath(path))
    trusted = [
        Path(os.path.realpath(name))
        for name in os.environ.get(TRUSTED_FOLDERS, "").split(os.pathsep)
        if name
    ]
    if any(real == folder or folder in real.parents for folder in trusted):
        return None
    for place in (real, *real.parents):
        try:
            status = place.stat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"`{place}` cannot be looked at: {error.strerror}"
        reason = why_not_own(status)
        if reason is not None:
            return f"`{place}` {reason}"
    return None


def why_not_own(status: os.stat_result) -> str | None:
    """Return why another user may change a file or folder; None if no other user may.

    Parameters
    ----------
    status: owner and permissions of the file or folder, as `os.stat` returns them.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {_user(status.st_uid)}"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "may be written to by anybody; `chmod o-w` it"
    if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        return f"may be written to by group {_group(status.st_gid)}; `chmod g-w` it"
    return None


def make_own_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and its missing parents, which only their owner can read and write.

    Raises
    ------
    OSError
        A folder cannot be made.
    """
    folder = Path(path)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)  # A umask cannot add permissions.
    folder.mkdir(exist_ok=True)  # If `path` is a file, this raises an OSError.


def _is_own_group(gid: int) -> bool:
    """Whether `gid` is root's group, or a private group whose only member is the user."""
    if gid == 0:
        return True
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return user.pw_gid == gid and user.pw_name == group.gr_name and not group.gr_mem


def _user(uid: int) -> str:
    try:
        return f"`{pwd.getpwuid(uid).pw_name}`"
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return f"`{grp.getgrgid(gid).gr_name}`"
    except KeyError:
        return str(gid)
