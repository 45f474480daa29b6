"""Imports all files of a package, so that each file registers what it defines."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_files(package: str) -> None:
    """Import each file of `package`, so that the file registers its classes or functions."""
    found = importlib.import_module(package)
    for module in pkgutil.iter_modules(found.__path__):
        importlib.import_module(f"{package}.{module.name}")
