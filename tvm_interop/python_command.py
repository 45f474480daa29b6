"""Makes a command that starts another Python process, which runs one function of this package."""

from __future__ import annotations

import os
import sys
from multiprocessing import spawn

from .errors import DeviceError


def python_command(module: str) -> list[str]:
    """Return the command that runs the function `main` of a module in a new process.

    The new process finds the same modules as this one. Unlike a process that `multiprocessing`
    starts, it does not import the main module of this program, so any program can start it.

    Raises
    ------
    DeviceError
        This process does not know which Python interpreter to start.
    """
    python = spawn.get_executable()
    if not python or getattr(sys, "frozen", False):
        raise DeviceError(
            "this program does not know which Python interpreter to start: name one with "
            "`multiprocessing.set_executable`"
        )
    path = list(map(str, sys.path))
    program = f"import sys; sys.path[:] = {path}; from {module} import main; main()"
    return [os.fsdecode(python), "-c", program]
