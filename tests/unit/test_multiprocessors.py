"""Tests how many blocks a multiprocessor holds, against NVIDIA's own calculator and documents."""

from __future__ import annotations

import itertools
import math
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tvm_interop import DeviceError
from tvm_interop.kernels.linker import find_linker
from tvm_interop.machine.multiprocessors import (
    GPUS,
    MULTIPROCESSORS,
    Residency,
    multiprocessor,
    residency,
    share_of_multiprocessor,
    waves,
)
from tvm_interop.program.kernel_demand import KernelDemand


def launch(threads: int, registers: int, static: int = 0, dynamic: int = 0) -> KernelDemand:
    return KernelDemand("k", 100, threads, registers, static, dynamic)


def calculator() -> Path | None:
    """NVIDIA's `cuda_occupancy.h`, which the CUDA toolkit has beside nvcc."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), nvcc and str(Path(nvcc).resolve().parents[1])]
    for home in [*filter(None, homes), "/usr/local/cuda"]:
        for folder in ("include", "targets/x86_64-linux/include"):
            header = Path(home) / folder / "cuda_occupancy.h"
            if header.exists():
                return header
    return None


ASK = r"""
#include "cuda_occupancy.h"
#include <cstdio>
int main() {
  int major, minor, warps, threads, registers, registers_of_sm, registers_of_block;
  unsigned long sm_bytes, block_bytes, reserved, fixed, dynamic;
  while (std::scanf("%d %d %d %lu %lu %lu %d %d %lu %lu %d %d", &major, &minor, &warps,
                    &sm_bytes, &block_bytes, &reserved, &threads, &registers, &fixed, &dynamic,
                    &registers_of_sm, &registers_of_block) == 12) {
    cudaOccDeviceProp gpu;
    gpu.computeMajor = major;
    gpu.computeMinor = minor;
    gpu.maxThreadsPerBlock = 1024;
    gpu.maxThreadsPerMultiprocessor = warps * 32;
    gpu.regsPerBlock = registers_of_block;
    gpu.regsPerMultiprocessor = registers_of_sm;
    gpu.warpSize = 32;
    gpu.sharedMemPerBlock = 49152;
    gpu.sharedMemPerMultiprocessor = sm_bytes;
    gpu.sharedMemPerBlockOptin = block_bytes;
    gpu.reservedSharedMemPerBlock = reserved;
    gpu.numSms = 1;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = 1024;
    kernel.numRegs = registers;
    kernel.sharedSizeBytes = fixed;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = dynamic;
    kernel.numBlockBarriers = 1;
    cudaOccDeviceState state;
    state.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult result;
    const int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state,
                                                               threads, dynamic);
    std::printf("%d\n", status == 0 ? result.activeBlocksPerMultiprocessor : -status);
  }
}
"""


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that computes, by NVIDIA's calculator, how many blocks a multiprocessor holds."""
    header = calculator()
    if header is None:
        pytest.skip("the CUDA toolkit is not installed, which has `cuda_occupancy.h`")
    folder = tmp_path_factory.mktemp("occupancy")
    source, program = folder / "ask.cc", folder / "ask"
    source.write_text(ASK)
    linker = find_linker()
    command = [linker.command, *linker.options, "-w", f"-I{header.parent}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True)
    return program


def answers(program: Path, arch: str, launches: Sequence[KernelDemand]) -> list[int]:
    """The number of blocks of each launch on a multiprocessor of `arch`, by NVIDIA's calculator."""
    sm, number = multiprocessor(arch), int(arch[3:])
    lines = [
        f"{number // 10} {number % 10} {sm.warps} {sm.shared_bytes} {sm.block_shared_bytes} "
        f"{sm.reserved_bytes} {each.threads} {each.registers} {each.static_shared_bytes} "
        f"{each.dynamic_shared_bytes} {sm.registers} {sm.block_registers}"
        for each in launches
    ]
    done = subprocess.run(
        [str(program)], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    found = [int(line) for line in done.stdout.split()]
    assert min(found) >= 0, "NVIDIA's calculator rejects a launch"
    return found


def launches_of_all_kinds(arch: str) -> list[KernelDemand]:
    """Kernel launches at and near each limit of a multiprocessor, and random launches."""
    most = multiprocessor(arch).block_shared_bytes
    sizes = [(0, 0), (1, 0), (127, 0), (128, 0), (3072, 1024), (48 * 1024, 0), (0, 48 * 1024)]
    sizes += [(0, most - 128), (0, most), (1024, most - 1024), (0, most // 2), (0, most // 2 + 1)]
    threads = (1, 31, 32, 33, 64, 96, 128, 192, 224, 256, 320, 384, 512, 768, 992, 1023, 1024)
    registers = (1, 8, 16, 31, 32, 33, 37, 40, 63, 64, 65, 72, 80, 96, 127, 128, 129, 168, 255)
    found = [launch(t, r, *s) for t, r, s in itertools.product(threads, registers, sizes)]
    draw = random.Random(arch)
    for _ in range(2000):
        fixed = draw.randrange(49152)
        found.append(
            launch(
                draw.randint(1, 1024),
                draw.randint(1, 255),
                fixed,
                draw.choice((0, draw.randrange(max(most - fixed, 1)))),
            )
        )
    return found


@pytest.mark.parametrize("arch", sorted(MULTIPROCESSORS))
def test_nvidias_calculator_says_the_same(arch: str, nvidia: Path) -> None:
    launches = launches_of_all_kinds(arch)
    ours = [residency(each, arch).blocks for each in launches]
    wrong = [
        (each, mine, theirs)
        for each, mine, theirs in zip(launches, ours, answers(nvidia, arch, launches), strict=True)
        if mine != theirs
    ]
    assert not wrong, wrong[:5]
    # A multiprocessor of sm_37 has twice the resources that a block may ask for.
    assert {0, 1 if arch != "sm_37" else 2, 2, multiprocessor(arch).blocks} <= set(ours)


def test_the_example_of_the_best_practices_guide() -> None:
    """The example is in the CUDA C++ Best Practices Guide, "Calculating Occupancy", for sm_70.

    A kernel has 37 registers for each thread. In blocks of 128 threads, 12 blocks are active, and
    the occupancy is 75%. In blocks of 320 threads, 4 blocks are active, and the occupancy is 63%.
    """
    assert residency(launch(128, 37), "sm_70") == Residency(12, "registers")
    assert residency(launch(320, 37), "sm_70") == Residency(4, "registers")
    assert 12 * 128 / 2048 == 0.75
    assert 4 * 320 / 2048 == 0.625


# The table "Technical Specifications per Compute Capability" of the CUDA C++ Programming Guide:
# resident blocks, resident warps, KiB of shared memory of a multiprocessor and of a block.
SPECIFIED = {
    "sm_37": (16, 64, 112, 48),
    "sm_53": (32, 64, 64, 48),
    "sm_62": (32, 64, 64, 48),
    "sm_72": (32, 64, 96, 96),
    "sm_70": (32, 64, 96, 96),
    "sm_75": (16, 32, 64, 64),
    "sm_80": (32, 64, 164, 163),
    "sm_86": (16, 48, 100, 99),
    "sm_87": (16, 48, 164, 163),
    "sm_89": (24, 48, 100, 99),
    "sm_90": (32, 64, 228, 227),
    "sm_100": (32, 64, 228, 227),
    "sm_120": (24, 48, 100, 99),
}


REGISTERS = {"sm_37": (131072, 65536), "sm_53": (65536, 32768), "sm_62": (65536, 32768)}
"""The registers of a multiprocessor and of a block, for architectures where not both are 65,536."""


def test_the_limits_are_those_of_the_programming_guide() -> None:
    assert set(SPECIFIED) == set(MULTIPROCESSORS)
    for arch, (blocks, warps, shared, of_block) in SPECIFIED.items():
        sm = multiprocessor(arch)
        assert (sm.blocks, sm.warps) == (blocks, warps)
        assert (sm.shared_bytes, sm.block_shared_bytes) == (shared * 1024, of_block * 1024)
        assert (sm.registers, sm.block_registers) == REGISTERS.get(arch, (65536, 65536))


@pytest.mark.parametrize(
    ("asks", "held"),
    [
        (launch(32, 16), Residency(32, "blocks")),
        (launch(1024, 16), Residency(2, "threads")),
        (launch(128, 64), Residency(8, "registers")),
        (launch(128, 32, 40 * 1024), Residency(4, "shared memory")),
        (launch(1025, 16), Residency(0, "threads")),
        (launch(1024, 65), Residency(0, "registers")),
        (launch(128, 16, 0, 164 * 1024), Residency(0, "shared memory")),
    ],
)
def test_what_limits_a_multiprocessor(asks: KernelDemand, held: Residency) -> None:
    assert residency(asks, "sm_80") == held


def test_shares_of_a_multiprocessor() -> None:
    assert share_of_multiprocessor(launch(1024, 16), "sm_80") == 0.5  # 1024 of 2048 threads
    assert share_of_multiprocessor(launch(1024, 16), "sm_75") == 1.0  # 1024 of 1024 threads
    assert share_of_multiprocessor(launch(128, 64), "sm_80") == 0.125  # 8192 of 65536 registers
    # A block takes 40 KiB of the 164 KiB of shared memory, and CUDA takes 1 KiB more for it.
    assert share_of_multiprocessor(launch(128, 16, 40 * 1024), "sm_80") == 41 / 164


def test_waves() -> None:
    asks = KernelDemand("k", 2 * 8 * 108, 128, 64)
    assert waves(asks, GPUS["a100"]) == 2
    assert waves(launch(1024, 65), GPUS["a100"]) == math.inf


def test_an_unknown_architecture_is_named() -> None:
    with pytest.raises(DeviceError, match=r"of `sm_91` are not known here.*sm_90"):
        residency(launch(32, 16), "sm_91")
