"""Writes files that are either complete or not there at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


def check_place(path: str | os.PathLike[str]) -> None:
    """Check that a file can be written at `path`. Call this before work that takes long.

    Raises
    ------
    InputError
        The folder of `path` does not exist or may not be written to, or `path` is a folder.
    """
    place = Path(os.path.abspath(path))
    if not place.parent.is_dir():
        raise InputError(f"there is no folder `{place.parent}` to write `{path}` to; make it")
    if place.is_dir():
        raise InputError(f"`{path}` is a folder: give the name of a file in it")
    if not _is_device(place) and not os.access(place.parent, os.W_OK):
        raise InputError(
            f"folder `{place.parent}` may not be written to: give a place for `{path}` that may"
        )


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give a `with` block the path of a temporary file, which becomes `path` at the end.

    The file is in the folder of `path`. When the block ends, the file is renamed to `path`. If the
    block raises an exception, the file is removed and `path` stays as it was. If `path` is a device
    or a pipe, such as `/dev/null`, the block gets `path` itself.

    Raises
    ------
    InputError
        The folder of `path` does not exist.
    OSError
        The folder cannot be written to.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"there is no folder `{path.parent}` to write `{path}` to; make it")
    if _is_device(path):
        yield str(path)
        return
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield str(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_device(path: Path) -> bool:
    """Whether `path` is a device, a pipe or a name in `/dev`. A rename would remove these."""
    if os.path.realpath(path.parent) == "/dev":
        return path.exists()
    return path.exists() and not path.is_file() and not path.is_dir()
