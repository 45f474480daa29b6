"""Tests reading registers and shared memory from machine code, against what ptxas prints."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from tvm_interop import DeviceError
from tvm_interop.kernels.build_cuda import compile_fatbin
from tvm_interop.kernels.cubin import KernelResources, resources_in

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")

ARCHS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100")
SOURCE = """
extern "C" __global__ void plain(float* a) { a[threadIdx.x] *= 2; }

extern "C" __global__ void shared(float* a) {
  __shared__ float s[300];
  s[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = s[63 - threadIdx.x];
}

extern "C" __global__ void dynamic(float* a) {
  extern __shared__ float d[];
  d[threadIdx.x] = a[threadIdx.x];
  __syncthreads();
  a[threadIdx.x] = d[63 - threadIdx.x];
}

extern "C" __global__ void many_registers(float* a, int n) {
  float r[60], sum = 0;
  for (int i = 0; i < 60; i++) r[i] = a[i * n + threadIdx.x];
  for (int j = 0; j < n; j++)
    for (int i = 0; i < 60; i++) sum += r[i] = r[i] * sum + a[i];
  for (int i = 0; i < 60; i++) a[i * n] = r[i];
}
"""


@pytest.fixture(scope="module")
def fatbin() -> bytes:
    return compile_fatbin(SOURCE, ARCHS)


def said_by_ptxas(arch: str, folder: Path) -> dict[str, KernelResources]:
    """The resources of each kernel, as `ptxas -v` prints them."""
    source = folder / "kernels.cu"
    source.write_text(SOURCE)
    command = ["nvcc", "--cubin", "-O3", f"-arch={arch}", "-Xptxas", "-v", str(source)]
    done = subprocess.run(
        [*command, "-o", str(folder / "kernels.cubin")], capture_output=True, text=True, check=True
    )
    found = {}
    for each in done.stderr.split("Compiling entry function")[1:]:
        name = re.search(r"'(\w+)'", each)
        registers = re.search(r"Used (\d+) registers", each)
        shared = re.search(r"(\d+) bytes smem", each)
        assert name is not None
        assert registers is not None
        found[name[1]] = KernelResources(int(registers[1]), int(shared[1]) if shared else 0)
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_the_sections_say_what_ptxas_prints(arch: str, fatbin: bytes, tmp_path: Path) -> None:
    said = said_by_ptxas(arch, tmp_path)
    assert set(said) == {"plain", "shared", "dynamic", "many_registers"}
    assert resources_in(fatbin)[arch] == said
    assert said["shared"].shared_bytes == 300 * 4
    assert said["many_registers"].registers > 60


def test_no_other_architectures_are_found(fatbin: bytes) -> None:
    assert set(resources_in(fatbin)) == set(ARCHS)


def test_bytes_that_are_no_machine_code(fatbin: bytes) -> None:
    with pytest.raises(DeviceError, match="it begins with 7f454c46"):
        resources_in(b"\x7fELF" + fatbin[4:])
    for size in (10, 60, 200, 3000):
        with pytest.raises(DeviceError, match="machine code cannot be read"):
            resources_in(fatbin[:size])


def test_compressed_code_is_refused(fatbin: bytes) -> None:
    """The first entry of a fat binary begins at byte 16. Its flags are 8 bytes at offset 40."""
    (flags,) = struct.unpack_from("<Q", fatbin, 16 + 40)
    changed = bytearray(fatbin)
    struct.pack_into("<Q", changed, 16 + 40, flags | 0x8000)
    with pytest.raises(DeviceError, match="sm_75 cannot be read: it is compressed"):
        resources_in(bytes(changed))


def test_a_kernel_without_its_registers(fatbin: bytes) -> None:
    """In machine code, the attribute with the number of registers has the kind 0x2f."""
    changed = fatbin.replace(b"\x04\x2f\x08\x00", b"\x04\x2e\x08\x00")
    assert changed != fatbin
    with pytest.raises(DeviceError, match="does not say how many registers"):
        resources_in(changed)
