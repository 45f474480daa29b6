"""Kernels as their mathematics is written down, compiled with as little cleverness as can be.

What a kernel that ships is checked against, and what ships in its place where it is found wrong.
"""

from __future__ import annotations

import platform
from typing import Any

import tvm


def reference_target(opt_level: int = 1) -> tvm.target.Target:
    """The target of references: this machine's processor without any instructions added.

    LLVM vectorises loops neither at level 0 nor at 1, nor has it wide registers to do so with: its
    faults in that, the schedules and the vector math are what a reference must not share.
    """
    target: dict[str, Any] = {"kind": "llvm", "opt-level": opt_level}
    if platform.machine() in ("x86_64", "AMD64"):
        target["mcpu"] = "x86-64"
    return tvm.target.Target(target)
