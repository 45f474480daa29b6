"""Finds the vector instructions of this machine's CPU, and gives them by LLVM's names.

The instructions are taken from a list that the operating system gives. They cannot be derived from
the CPU's name: a virtual machine often shows the name of another processor, and may switch off some
instructions.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

_X86_64 = {
    # The keys are flags of /proc/cpuinfo. The values are LLVM's names for the same instructions.
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
_FURTHER = {
    "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx512_fp16": "avx512fp16",
    "gfni": "gfni",
}
"""Further instructions, which kernels use only if the target names them or a CPU that has them. The
default target leaves them out, so that its kernels run on more machines."""


@functools.cache
def host_features() -> tuple[str, ...]:
    """Return LLVM's names of this CPU's vector instructions, sorted.

    The result is empty on processors other than x86-64; kernels for such processors use LLVM's
    default instructions. The result is also empty if the system lists no instructions.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    return tuple(name for name in _all_features() if name not in _FURTHER.values())


@functools.cache
def _all_features() -> tuple[str, ...]:
    """Return what `host_features` returns, and the instructions in `_FURTHER` that this CPU has."""
    try:
        with open("/proc/cpuinfo") as file:
            return parse_cpuinfo(file)
    except OSError:
        return ()


def parse_cpuinfo(lines: Iterable[str]) -> tuple[str, ...]:
    """Return LLVM's names of the instructions in the first `flags` line of `/proc/cpuinfo`."""
    known = _X86_64 | _FURTHER
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return tuple(sorted(known[flag] for flag in set(value.split()) & set(known)))
    return ()


def missing_features(features: Iterable[str], host: tuple[str, ...] | None = None) -> list[str]:
    """Return the instructions in `features` that a CPU lacks, sorted.

    If `host` is empty, the CPU's instructions are unknown, and the result is empty too.

    Parameters
    ----------
    host: the instructions that the CPU has; by default the instructions of this machine's
        CPU.
    """
    if host is None:
        host = _all_features() if host_features() else ()
    return sorted(set(features) - set(host)) if host else []


def target_features(target: Any) -> tuple[str, ...]:
    """Return the vector instructions that kernels compiled for `target` may use, sorted.

    The result has the instructions in the target's `mattr`, and the instructions that the CPU in
    `mcpu` has according to LLVM. Instructions that this module does not know are left out. The
    result is empty for targets other than x86-64.
    """
    import tvm
    import tvm_ffi

    attrs = dict(target.attrs)
    if not str(attrs.get("mtriple", platform.machine())).startswith("x86_64"):
        return ()
    # LLVM ignores `mattr` if the target has no `mcpu`. So a target without `mcpu` gets `x86-64`.
    known = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", **attrs})
    of_cpu = tvm_ffi.get_global_func("target.llvm_get_cpu_features")(known)
    names = {*_X86_64.values(), *_FURTHER.values()}
    return tuple(sorted({str(name) for name in of_cpu} & names))


@dataclass(frozen=True)
class Registers:
    """The number of vector registers of a CPU, and the size of each in bytes."""

    count: int
    nbytes: int


def vector_registers(target: Any) -> Registers:
    """Return the vector registers that kernels compiled for `target` may use."""
    attrs = dict(target.attrs)
    if not str(attrs.get("mtriple", platform.machine())).startswith("x86_64"):
        # AArch64 has 32 registers of 16 bytes. On other CPUs these numbers do no harm, because LLVM
        # splits vectors that are too long.
        return Registers(32, 16)
    features = target_features(target)
    if "avx512f" in features:
        return Registers(32, 64)
    return Registers(16, 32 if "avx" in features else 16)


def runs_own_kernels(target: Any) -> bool:
    """Whether every CPU of the TVM target `target` can run this project's kernels.

    This project's own kernels compute convolutions by Winograd's algorithm, attention, and products
    of a single row and a matrix. They need the instructions AVX2 and FMA.
    """
    return target.kind.name == "llvm" and {"avx2", "fma"} <= {*target_features(target)}
