"""Compiles a program's kernels to a shared library.

The module also computes hashes of kernels, and finds the kernels that can be run in shares. A share
is a call that computes only a part of the kernel's output.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from .._native import cpu as _native
from ..errors import DeviceError, first_line
from .linker import Linker, find_linker
from .loops import ADDS, ROWS, STEPS
from .pipeline import PIPELINE

Target: TypeAlias = "tvm.target.Target | str | dict[str, Any]"

Count: TypeAlias = Callable[[int, int], None]
"""A callback that reports progress. Its arguments are how much is done, and how much there is to
do."""

_ELF_CLASS, _64_BITS = 4, 2
"""One byte of a library's file says whether the library is for 32 or for 64 bits. These two numbers
are the position of this byte, and its value for 64 bits."""

_ONLY_FOR_GPUS = ("s_tir.InjectPermutedLayout", "s_tir.InjectVirtualThread")
"""TVM's passes for shared memory and virtual threads, which kernels for a CPU never have. Compiling
takes a few percent less time without these passes."""

_TOGETHER = 4
"""Largest number of kernels in one object file; one thread compiles all kernels of a file."""


def build_kernels(
    kernels: tvm.IRModule,
    target: Target,
    out_path: str | os.PathLike[str],
    others: Mapping[str, Target] | None = None,
    count: Count | None = None,
    linker: Linker | None = None,
) -> Path:
    """Compile `kernels` to the shared library `out_path`.

    `tvm.runtime.load_module` opens the library and gives each kernel by name. A kernel is a
    function whose arguments are its tensors, outputs last. The file appears complete or not at all.

    Parameters
    ----------
    target: the target of all kernels that `others` does not name.
    others: the targets of kernels that are not for `target`, by the kernels' names. All kernels
        must run on the same machine.
    count: called with the number of kernels that are compiled so far and with the number of all
        kernels. Several threads may call it.
    linker: the compiler that links the library; by default this machine's compiler.

    Raises
    ------
    DeviceError
        There is no C++ compiler to link with, or TVM cannot compile for `target`. Or the kernels
        call a function that the runtime library does not have.
    """
    linker = linker or find_linker()
    out = Path(out_path)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        try:
            objects = _compiled(kernels, target, others or {}, Path(scratch), count)
        except DeviceError:
            raise
        except Exception as err:
            raise DeviceError(
                f"TVM cannot compile the kernels for `{target}`: {first_line(err)}"
            ) from err
        library = Path(scratch) / "kernels.so"
        linker.link(objects, library)
        _check_imports(library.read_bytes())
        os.replace(library, out)
    return out


def _check_imports(code: bytes) -> None:
    """Raise DeviceError if the kernels call a function that the runtime library does not have."""
    if code[_ELF_CLASS] != _64_BITS:
        # The runtime library exists for 64 bits only, so kernel libraries for 32 bits are not
        # checked.
        return
    unknown = _native.unknown_imports(code)
    if unknown:
        raise DeviceError(
            f"the kernels need {', '.join(f'`{name}`' for name in unknown)}, which the runtime "
            "library does not have; please report the model"
        )


def _compiled(
    kernels: tvm.IRModule,
    target: Target,
    others: Mapping[str, Target],
    folder: Path,
    count: Count | None,
) -> list[str]:
    """Compile kernels to object files of a few kernels, on as many threads as models may use.

    Only the kernels' names and targets decide which kernels go into one file, so each machine makes
    the same files.
    """
    functions = sorted(kernels.functions_items(), key=lambda item: item[0].name_hint)
    by_target: dict[str, tuple[tvm.target.Target, list[Any]]] = {}
    for item in functions:
        its_target = tvm.target.Target(others.get(item[0].name_hint, target))
        by_target.setdefault(str(its_target), (its_target, []))[1].append(item)
    files = [
        (its_target, some[i : i + _TOGETHER])
        for its_target, some in by_target.values()
        for i in range(0, len(some), _TOGETHER)
    ] or [(tvm.target.Target(target), [])]
    context = tvm.transform.PassContext.current()
    built: list[int] = []  # For each file that is written so far, its number of kernels.
    # TVM's pass instruments, such as its timing of passes, do not work on several threads. So if
    # there are instruments, one thread compiles all kernels.
    threads = 1 if context.instruments else min(_native.num_threads(), len(files))

    def build(number: int) -> str:
        its_target, some = files[number]
        path = folder / f"{number}.o"
        with _like(context):
            try:
                write_object(tvm.IRModule(dict(some)), its_target, path)
            except Exception as err:
                raise _error_of(some, its_target, path, err) from err
        if count is not None:
            built.append(len(some))
            count(sum(built), len(functions))
        return str(path)

    if threads == 1:
        return [build(number) for number in range(len(files))]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(build, range(len(files))))


def _error_of(
    some: list[Any], target: tvm.target.Target, path: Path, error: Exception
) -> Exception:
    """Return the error for kernels that TVM cannot compile. It names the first kernel at fault."""
    for var, function in some if len(some) > 1 else ():
        try:
            write_object(tvm.IRModule({var: function}), target, path)
        except Exception as err:
            return _error_of([(var, function)], target, path, err)
    if len(some) != 1:
        return error
    return DeviceError(
        f"TVM cannot compile the kernel of operator `{some[0][0].name_hint}`: {first_line(error)}; "
        "compute the operator outside of the model, or report the model"
    )


def write_object(kernels: tvm.IRModule, target: tvm.target.Target, path: Path) -> None:
    """Compile `kernels` to an object file, with the options of the current pass context."""
    compiled = tvm.compile(kernels, target=target, tir_pipeline=PIPELINE)
    compiled.mod.write_to_file(str(path))


def _like(context: tvm.transform.PassContext) -> AbstractContextManager[Any]:
    """A context manager that makes a copy of `context` the current pass context of this thread.

    The copy leaves out passes that change nothing on a CPU. Each thread has its own current pass
    context. If `context` is the current context of this thread already, nothing changes.
    """
    if context.same_as(tvm.transform.PassContext.current()):
        return nullcontext()
    alike: AbstractContextManager[Any] = tvm.transform.PassContext(
        context.opt_level,
        list(context.required_pass),
        [*context.disabled_pass, *_ONLY_FOR_GPUS],
        config=dict(context.config),
    )
    return alike


def kernel_hashes(kernels: tvm.IRModule) -> dict[str, str]:
    """A hash of each kernel's computation, by the kernel's name; equal in every process.

    The hash leaves out the kernel's own name and the names of its variables. Equal kernels of
    different models therefore have the same hash.
    """
    return {name: kernel_hash(func) for name, func in _functions(kernels)}


def kernel_hash(kernel: tirx.PrimFunc) -> str:
    """The hash of one kernel, as in `kernel_hashes`."""
    computation = kernel
    for name in ("global_symbol", ADDS, ROWS, STEPS):
        computation = computation.without_attr(name)
    return f"{tvm_ffi.structural_hash(computation) % 2**64:016x}"


def uses_parallel_loops(kernels: tvm.IRModule) -> dict[str, bool]:
    """For each kernel, by name, whether it runs a loop on TVM's thread pool."""
    return {name: _has_parallel_loop(func.body) for name, func in _functions(kernels)}


def divisible_kernels(kernels: tvm.IRModule) -> set[str]:
    """Names of the kernels that can be run in shares, each of which computes a part of the output.

    A divisible kernel meets three conditions. Outside of parallel loops it writes only to buffers
    that it allocates itself, so each share fills its own buffers. Its parallel loops write only
    outputs, and no other statement reads these outputs. No parallel loop is inside another loop.
    Otherwise the next iteration of the outer loop could read parts of the output that other shares
    compute.
    """
    return {name for name, func in _functions(kernels) if _is_divisible(func)}


def _is_divisible(func: tirx.PrimFunc) -> bool:
    if not isinstance(func.body, s_tir.SBlockRealize):
        return False
    root = func.body.block
    own = set(root.alloc_buffers)
    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    parallel = [statement for statement in statements if _is_parallel_loop(statement)]
    serial = [statement for statement in statements if not _is_parallel_loop(statement)]
    outputs = [_written(loop) for loop in parallel]
    return (
        len(parallel) > 0
        and not any(_has_parallel_loop(statement) for statement in serial)
        and not any(_has_parallel_loop(loop.body) for loop in parallel)
        and all(_written(statement) <= own for statement in serial)
        and all(own.isdisjoint(written) for written in outputs)
        and not any(
            _read(statement) & written
            for written, loop in zip(outputs, parallel, strict=True)
            for statement in statements
            if statement is not loop
        )
    )


def _read(statement: tirx.Stmt) -> set[Any]:
    read: set[Any] = set()
    tvm_ffi.structural_walk(statement, (tvm.ir.TensorLoad, lambda load: read.add(load.source)))
    return read


def _written(statement: tirx.Stmt) -> set[Any]:
    """The buffers that `statement` writes, except the buffers that it allocates itself."""
    written: set[Any] = set()
    own: set[Any] = set()
    tvm_ffi.structural_walk(
        statement,
        [
            (tirx.BufferStore, lambda store: written.add(store.buffer)),
            (tirx.AllocBuffer, lambda alloc: own.add(alloc.buffer)),
            (s_tir.SBlock, lambda block: own.update(block.alloc_buffers)),
        ],
    )
    return written - own


def _is_parallel_loop(statement: tirx.Stmt) -> bool:
    return isinstance(statement, tirx.For) and statement.kind == tirx.ForKind.PARALLEL


def _functions(kernels: tvm.IRModule) -> list[tuple[str, tirx.PrimFunc]]:
    return [(var.name_hint, func) for var, func in kernels.functions_items()]


def _has_parallel_loop(statement: tirx.Stmt) -> bool:
    kinds = set()
    tvm_ffi.structural_walk(statement, (tirx.For, lambda loop: kinds.add(loop.kind)))
    return tirx.ForKind.PARALLEL in kinds
