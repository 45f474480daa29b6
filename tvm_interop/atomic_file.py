"""Writes files that are either complete or not there at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Give a `with` block the path of a temporary file, which becomes `path` at the end.

    The file is in the folder of `path`. When the block ends, the file is renamed to `path`. If the
    block raises an exception, the file is removed and `path` stays as it was.

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
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield str(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
