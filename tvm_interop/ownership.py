"""Who owns a file: machine code and prices are read only from files of the user or of root.

Whoever can write to a file, or to a folder above it, decides what is in it. So, as ssh does with
keys, a file is not used if somebody else owns it or may write to it.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

TRUSTED_FOLDERS = "TVM_INTEROP_TRUSTED_FOLDERS"
"""The environment variable that names folders, with colons between, that others may write to."""


def why_not_trusted(path: str | os.PathLike[str]) -> str | None:
    """Why what lies at `path` may be another's; None where it is one's own or root's, or not there.

    The file or folder is looked at, and each folder above it, links followed. In a folder with the
    sticky bit, such as `/tmp`, others may make files, and not replace those of others.
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
    """Why others may change a file or folder of this status, in words; None if they may not."""
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
    """Make a folder, and those above it that are missing, for its owner alone, whatever the umask.

    Raises
    ------
    OSError
        It cannot be made.
    """
    folder = Path(path)
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)  # The umask takes away, and adds nothing.
    folder.mkdir(exist_ok=True)  # Raises where something else has its name.


def _is_own_group(gid: int) -> bool:
    """Whether it is the group that systems make for one user, or root's."""
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
