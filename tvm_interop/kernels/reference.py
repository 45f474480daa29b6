"""Makes the target for reference kernels, with few optimisations and baseline instructions.

Each kernel is checked against a reference kernel at compile time. If the kernel is wrong, the
artifact contains the reference kernel in its place.
"""

from __future__ import annotations

import platform
from typing import Any

import tvm


def reference_target(opt_level: int = 1) -> tvm.target.Target:
    """The target of reference kernels: this machine's architecture, baseline instructions only.

    A reference must not share the faults of LLVM's vectoriser, the schedules or `vector_math`. LLVM
    does not vectorise loops at optimisation levels 0 and 1, and the baseline instructions use no
    wide registers.

    Parameters
    ----------
    opt_level: LLVM's optimisation level.
    """
    target: dict[str, Any] = {"kind": "llvm", "opt-level": opt_level}
    if platform.machine() in ("x86_64", "AMD64"):
        target["mcpu"] = "x86-64"
    return tvm.target.Target(target)
