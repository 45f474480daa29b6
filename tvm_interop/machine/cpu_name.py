"""What this machine is called, for figures and for keys of measurements."""

from __future__ import annotations

import functools
import os
import platform


@functools.cache
def cpu_model() -> str:
    """The CPU's name, its vector instructions, and how many CPUs this process may use.

    Virtual machines often give different processors one name; the flags tell those apart.
    """
    model, flags = platform.processor() or platform.machine(), ""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    model = value.strip()
                elif key.strip() == "flags":
                    flags = " ".join(
                        sorted(f for f in value.split() if f.startswith(("avx", "amx")))
                    )
                    break
    except OSError:
        pass  # Not Linux: the platform module's name has to do.
    return f"{model} [{flags}] x{len(os.sched_getaffinity(0))}"
