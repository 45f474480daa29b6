"""Names this machine's CPU, for reports and for the keys of stored measurements."""

from __future__ import annotations

import functools
import os
import platform


@functools.cache
def cpu_model() -> str:
    """Return the CPU's name, its vector instructions, and the number of CPUs this process may use.

    Virtual machines often give different processors the same name. Such processors differ in their
    instructions, so the result lists the instructions too.
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
        pass  # The system is not Linux, so use the name that `platform` gives.
    return f"{model} [{flags}] x{len(os.sched_getaffinity(0))}"
