"""The vector instructions of this machine's CPU, as LLVM names them.

Read from the system, not guessed from the CPU's name: virtual machines often give a processor
another's name, and switch off instructions that the real one has.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_X86_64 = {
    # What /proc/cpuinfo calls it, and what LLVM does.
    "pni": "sse3",
    "ssse3": "ssse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "popcnt": "popcnt",
    "avx": "avx",
    "avx2": "avx2",
    "bmi1": "bmi",
    "bmi2": "bmi2",
    "f16c": "f16c",
    "fma": "fma",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512cd": "avx512cd",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx_vnni": "avxvnni",
}


@functools.cache
def host_features() -> tuple[str, ...]:
    """LLVM's names of this CPU's vector instructions, sorted.

    Empty on processors other than x86-64, where LLVM's own default is used, and where the system
    does not say.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        with open("/proc/cpuinfo") as file:
            return parse_cpuinfo(file)
    except OSError:
        return ()


def parse_cpuinfo(lines: Iterable[str]) -> tuple[str, ...]:
    """LLVM's names of the vector instructions in the first `flags` line of `/proc/cpuinfo`."""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return tuple(sorted(_X86_64[flag] for flag in set(value.split()) & set(_X86_64)))
    return ()


def missing_features(features: Iterable[str], host: tuple[str, ...] | None = None) -> list[str]:
    """Those of `features` that a CPU lacks, sorted; none where it does not say what it has.

    Parameters
    ----------
    host: what the CPU has; by default this machine's.
    """
    host = host_features() if host is None else host
    return sorted(set(features) - set(host)) if host else []


def target_features(target: Any) -> tuple[str, ...]:
    """The instructions in this module's list that kernels compiled for `target` may use, sorted.

    Those of its `mattr`, and those that LLVM counts to its `mcpu`.
    """
    import tvm
    import tvm_ffi

    attrs = dict(target.attrs)
    if not str(attrs.get("mtriple", platform.machine())).startswith("x86_64"):
        return ()
    # Asked about a target without a CPU, LLVM leaves `mattr` out.
    known = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", **attrs})
    of_cpu = tvm_ffi.get_global_func("target.llvm_get_cpu_features")(known)
    return tuple(sorted({str(name) for name in of_cpu} & set(_X86_64.values())))


@dataclass(frozen=True)
class Registers:
    """A CPU's vector registers: how many there are, and bytes in each."""

    count: int
    nbytes: int


def vector_registers(target: Any) -> Registers:
    """The vector registers that kernels compiled for `target` may use."""
    attrs = dict(target.attrs)
    if not str(attrs.get("mtriple", platform.machine())).startswith("x86_64"):
        return Registers(32, 16)  # AArch64; on others LLVM makes the best of it.
    features = target_features(target)
    if "avx512f" in features:
        return Registers(32, 64)
    return Registers(16, 32 if "avx" in features else 16)
