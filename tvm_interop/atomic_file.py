"""Files that are either whole or not there."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import InputError


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary path beside `path` to write to; it takes `path`'s place when the block ends well.

    Where the block raises, the temporary file goes and `path` is as it was.

    Raises
    ------
    InputError
        The folder is not there.
    OSError
        It cannot be written to.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"there is no folder `{path.parent}` to write `{path}` to")
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield str(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
