"""Finds the public keys that the user trusts."""

from __future__ import annotations

import os

ENVIRONMENT = "TVM_INTEROP_TRUSTED_KEYS"
"""The environment variable that lists files of public keys, separated by colons."""


def keys_of_environment() -> list[str]:
    """The files of public keys that the variable `TVM_INTEROP_TRUSTED_KEYS` lists."""
    return [name for name in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if name]
