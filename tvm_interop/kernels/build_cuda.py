"""Compiles a program's kernels for NVIDIA GPUs with nvcc; neither a GPU nor its driver is needed.

The kernel library contains machine code for each requested architecture (a "fatbin"). So a GPU of
one of these architectures loads the library without compiling anything.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir

from .._native import cuda as _cuda
from ..errors import DeviceError
from ..program.kernel_demand import KernelDemand
from .cubin import resources_in
from .exact_floats import ExactFloats
from .launches import CUDA_PIPELINE, Launch, noting_launches
from .linker import find_linker

Demands: TypeAlias = Mapping[str, Mapping[str, tuple[KernelDemand, ...]]]
"""The resources that the launches of each kernel need, by architecture and by the kernel's name."""

DEFAULT_ARCHS = ("sm_80", "sm_90")
"""Architectures that kernels are compiled for by default: A100 and H100."""

_CREATE = "ffi.Module.create.cuda"
"""The name of a function that exists only if TVM's own CUDA runtime is loaded."""
_COMPILE = "tvm_callback_cuda_compile"
"""If TVM's CUDA runtime is loaded, TVM calls the function of this name to compile CUDA source."""


def cuda_target(archs: Sequence[str] = DEFAULT_ARCHS) -> Any:
    """TVM's target for kernels that run on all of `archs`, such as `sm_90`.

    Raises
    ------
    DeviceError
        One of `archs` is not the name of an architecture.
    """
    for arch in archs:
        if re.fullmatch(r"sm_\d{2,3}", arch) is None:
            raise DeviceError(f"`{arch}` is not a GPU architecture; give one such as `sm_90`")
    oldest = min(archs, key=lambda arch: int(arch[3:]))
    return tvm.target.Target(
        {
            "kind": "cuda",
            "arch": oldest,
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
        },
        host="llvm",
    )


def build_cuda_kernels(
    kernels: tvm.IRModule,
    out_path: str | os.PathLike[str],
    archs: Sequence[str] = DEFAULT_ARCHS,
    tell: Callable[[Demands], object] | None = None,
) -> Path:
    """Compile scheduled `kernels` to the shared library `out_path`.

    On a machine with a GPU of one of `archs`, `tvm.runtime.load_module` opens the library and gives
    each kernel by name. The file appears complete or not at all.

    Parameters
    ----------
    tell: called with the resources that each kernel needs, such as registers. These are read from
        the kernels' machine code and launches.

    Raises
    ------
    DeviceError
        nvcc or the C++ compiler is missing or fails. Or `tell` is given, and the machine code or a
        launch cannot be read.
    """
    find_linker()
    _require_nvcc()
    target = cuda_target(archs)
    out = Path(out_path)
    exact: Any = ExactFloats()
    try:
        with target, compiling_with_nvcc(archs) as fatbins, noting_launches() as launches:
            module = tvm.compile(exact(kernels), target=target, tir_pipeline=CUDA_PIPELINE).mod
            fatbins += _embed_binaries(module, archs)
        if tell is not None:
            tell(_demands(fatbins, launches, archs))
    except DeviceError:
        raise
    except Exception as error:
        raise DeviceError(f"TVM cannot compile the kernels for `{target}`: {error}") from error
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        library = Path(scratch) / "kernels.so"
        tvm.runtime.Executable(module).export_library(str(library))
        os.replace(library, out)
    return out


def _demands(
    fatbins: Sequence[bytes], launches: Mapping[str, tuple[Launch, ...]], archs: Sequence[str]
) -> Demands:
    resources = [resources_in(fatbin) for fatbin in fatbins]

    def demand(launch: Launch, arch: str) -> KernelDemand:
        for found in resources:
            needed = found.get(arch, {}).get(launch.function)
            if needed is not None:
                return KernelDemand(
                    launch.function,
                    launch.blocks,
                    launch.threads,
                    needed.registers,
                    needed.shared_bytes,
                    launch.dynamic_shared_bytes,
                )
        raise DeviceError(f"nvcc has made no machine code of `{launch.function}` for {arch}")

    return {
        arch: {
            kernel: tuple(demand(launch, arch) for launch in each)
            for kernel, each in launches.items()
        }
        for arch in archs
    }


def compile_fatbin(source: str, archs: Sequence[str]) -> bytes:
    """Machine code of CUDA `source` for each of `archs`, and PTX for newer architectures.

    Raises
    ------
    DeviceError
        nvcc refuses the source.
    """
    newest = max(archs, key=lambda arch: int(arch[3:]))[3:]
    codes = [f"arch=compute_{arch[3:]},code={arch}" for arch in archs]
    codes.append(f"arch=compute_{newest},code=compute_{newest}")
    with tempfile.TemporaryDirectory(prefix="tvm_interop_") as folder:
        code, fatbin = Path(folder) / "kernels.cu", Path(folder) / "kernels.fatbin"
        code.write_text(source)
        # TVM would add `--use_fast_math`, but results must be as exact as onnxruntime's.
        command = [_require_nvcc(), "--fatbin", "-O3", "--expt-relaxed-constexpr", "--threads=0"]
        command += [f"-gencode={code}" for code in codes]
        done = subprocess.run(
            [*command, "-o", str(fatbin), str(code)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise DeviceError(f"nvcc cannot compile the kernels: {done.stderr or done.stdout}")
        return fatbin.read_bytes()


def kernels_with_workspace(kernels: tvm.IRModule) -> set[str]:
    """Names of the scheduled `kernels` that allocate a workspace in GPU memory while they run.

    `lift_workspaces` explains why workspaces in GPU memory are unsafe, and removes most of them.
    """
    found = set()
    for var, func in kernels.functions_items():
        scopes: set[str] = set()
        tvm_ffi.structural_walk(
            func.body,
            (s_tir.SBlock, lambda block, scopes=scopes: scopes.update(_scopes_of(block))),
        )
        if "global" in scopes:
            found.add(var.name_hint)
    return found


def _scopes_of(block: Any) -> set[str]:
    return {str(buffer.scope()) for buffer in block.alloc_buffers}


@contextmanager
def compiling_with_nvcc(archs: Sequence[str]) -> Iterator[list[bytes]]:
    """Make TVM compile CUDA source by `compile_fatbin`, even if TVM's CUDA runtime is loaded.

    Yields
    ------
    A list of the fatbins that were compiled for TVM so far.
    """
    fatbins: list[bytes] = []

    def compiled(source: Any) -> bytes:
        fatbins.append(compile_fatbin(_text(source), archs))
        return fatbins[-1]

    before = tvm_ffi.get_global_func(_COMPILE, allow_missing=True)
    tvm_ffi.register_global_func(_COMPILE, compiled, override=True)
    try:
        yield fatbins
    finally:
        if before is None:
            tvm_ffi.remove_global_func(_COMPILE)
        else:
            tvm_ffi.register_global_func(_COMPILE, before, override=True)


def _embed_binaries(module: Any, archs: Sequence[str]) -> list[bytes]:
    """Compile the CUDA source in `module`, unless TVM's CUDA runtime has already compiled it.

    Returns
    -------
    The fatbins that this call has compiled.
    """
    if tvm_ffi.get_global_func(_CREATE, allow_missing=True) is not None:
        return []
    fatbins = []
    imports = list(module.imports)
    module.clear_imports()
    for imported in imports:
        if imported.kind == "cuda":
            source = imported.inspect_source()
            binary = compile_fatbin(source, archs)
            imported = _cuda.with_binary(imported, source.encode(), binary)
            fatbins.append(binary)
        module.import_module(imported)
    return fatbins


def _text(source: Any) -> str:
    return source if isinstance(source, str) else bytes(source).decode()


def _require_nvcc() -> str:
    home = os.environ.get("CUDA_HOME")
    nvcc = shutil.which("nvcc") or (shutil.which("nvcc", path=f"{home}/bin") if home else None)
    if nvcc is None:
        raise DeviceError(
            "no `nvcc` was found to compile kernels for a GPU with: install CUDA 13's toolkit and "
            "put its `bin` on PATH, or name its folder in CUDA_HOME"
        )
    return nvcc
