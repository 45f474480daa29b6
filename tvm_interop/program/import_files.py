"""Registries that files fill when they are imported."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_files(package: str) -> None:
    """Import each file of `package`, which registers what it has."""
    found = importlib.import_module(package)
    for module in pkgutil.iter_modules(found.__path__):
        importlib.import_module(f"{package}.{module.name}")
