"""Imports all files of a package, each of which registers its contents when it is imported."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_files(package: str) -> None:
    """Import each file of `package`, which then registers its contents."""
    found = importlib.import_module(package)
    for module in pkgutil.iter_modules(found.__path__):
        importlib.import_module(f"{package}.{module.name}")
