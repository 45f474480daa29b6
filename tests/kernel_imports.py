"""Lists the functions that compiled kernels import. `python -m tests.kernel_imports FIRST LAST`.

The runtime library must have every function that a kernel needs (`runtime/model/tvm_imports.cc`).
This program builds TVM's kernels of the random graphs with seeds FIRST to LAST - 1, and counts the
imports. It measures nothing and runs nothing, so a graph takes two or three seconds. `--target`
names another CPU, such as `llvm -mcpu=x86-64`. With `--target cuda` the program builds only the
code that runs on the host of a GPU, and not the code for the GPU itself. So it needs neither a GPU
nor nvcc. Its exit code is 1 if a kernel imports a function that is not listed.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from tests.random_graphs.generator import random_graph
from tvm_interop._native.cpu import unknown_imports
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.errors import DeviceError, UnsupportedModelError
from tvm_interop.kernels import build_cuda

ARCHS = ("sm_90",)


def main() -> int:
    """Build the kernels of the graphs, and print how many libraries import each function."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, help="the seed after the last one")
    parser.add_argument("--target", default="llvm", help="a target of TVM, or `cuda`")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no graph later")
    given = parser.parse_args()
    built, refused, failed = 0, 0, 0
    counts, unknown = Counter[str](), Counter[str]()
    until = time.monotonic() + given.seconds
    seed = given.first
    while seed < given.last and time.monotonic() < until:
        model = random_graph(seed).build()
        seed += 1
        try:
            code = host_code(model) if given.target == "cuda" else cpu_code(model, given.target)
        except UnsupportedModelError:
            refused += 1
            continue
        except DeviceError as error:  # The error's text names the imports that are not listed.
            print(f"seed {seed - 1}: {str(error).partition(chr(10))[0]}", flush=True)
            failed += 1
            continue
        built += 1
        counts.update(imports(code))
        unknown.update(unknown_imports(code))
    print(
        f"seeds {given.first} to {seed - 1}: {built} libraries, {refused} refused, {failed} failed"
    )
    for name, count in counts.most_common():
        print(f"{count:6} {name}{' NOT LISTED' if name in unknown else ''}")
    return 1 if unknown or failed else 0


def cpu_code(model: onnx.ModelProto, target: str) -> bytes:
    """The library of the model's kernels for a CPU, all of them TVM's."""
    options = CompileOptions(target, providers=["tvm"], streams=2, latency_db=":memory:")
    return Compilation(model, options).kernels


def host_code(model: onnx.ModelProto) -> bytes:
    """The library of the model's kernels for GPUs, without the machine code for the GPU."""
    compilation = Compilation(model, CompileOptions("cuda", archs=ARCHS, providers=["tvm"]))
    with tempfile.TemporaryDirectory() as folder, without_gpu_code():
        path = Path(folder) / "kernels.so"
        return build_cuda.build_cuda_kernels(compilation.program.kernels, path, ARCHS).read_bytes()


@contextmanager
def without_gpu_code() -> Iterator[None]:
    """Return a few bytes instead of the machine code that nvcc would compile."""
    patched: Any = build_cuda
    before = patched.compile_fatbin, patched._require_nvcc
    patched.compile_fatbin = lambda source, archs: b"no machine code"
    patched._require_nvcc = lambda: "nvcc"
    try:
        yield
    finally:
        patched.compile_fatbin, patched._require_nvcc = before


def imports(code: bytes) -> list[str]:
    """The functions and variables that a shared library imports, without versions."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        said = subprocess.run(
            ["nm", "-D", "--undefined-only", file.name], capture_output=True, text=True, check=True
        )
    return [line.split()[-1].partition("@")[0] for line in said.stdout.splitlines()]


if __name__ == "__main__":
    raise SystemExit(main())
