"""Reads each kernel's launches on a GPU from the host code that TVM generates.

One of TVM's kernels may launch several functions of the GPU, one after the other. Shapes are known
when a kernel is compiled, so the numbers of blocks and threads are known too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ..errors import DeviceError

CUDA_PIPELINE = "tvm_interop.cuda"
"""The name under which TVM finds a pipeline of passes: TVM's own passes, then `_NoteLaunches`."""

_DYNAMIC_SHARED = "tirx.use_dyn_shared_memory"
"""TVM's name for the launch parameter that holds the number of bytes of dynamic shared memory."""

_GRID, _BLOCK = ([f"{what}Idx.{axis}" for axis in "xyz"] for what in ("block", "thread"))

_noted: ContextVar[dict[str, tuple[Launch, ...]] | None] = ContextVar("_noted", default=None)


@dataclass(frozen=True)
class Launch:
    """A launch of a function of the GPU.

    Attributes
    ----------
    function: the function's name.
    grid, block: the number of blocks, and the number of threads in a block, along x, y and z.
    dynamic_shared_bytes: bytes of shared memory that the launch adds for each block.
    """

    function: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_shared_bytes: int = 0

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return math.prod(self.block)


@contextmanager
def noting_launches() -> Iterator[Mapping[str, tuple[Launch, ...]]]:
    """Record the launches of each kernel that TVM compiles with `CUDA_PIPELINE` in this context.

    Yields
    ------
    The launches by the kernel's name, in order. They are complete when the kernels are compiled.
    """
    found: dict[str, tuple[Launch, ...]] = {}
    token = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(token)


def calls_of_launches(host: tirx.PrimFunc) -> list[Any]:
    """The calls in a function of the host that launch functions of the GPU, in order."""
    calls: list[Any] = []

    def note(call: Any) -> None:
        if getattr(call.op, "name", "") == "tirx.call_ffi_kernel":
            calls.append(call)

    tvm_ffi.structural_walk(host.body, [(tvm.ir.Call, note)])
    return calls


def launch_of(call: Any) -> Launch:
    """The launch that a call makes.

    Raises
    ------
    DeviceError
        The launch has a setting that this module does not know, or a setting whose value is known
        only at run time.
    """
    names = [str(name) for name in call.attrs.launch_params]
    function = str(call.args[0].value)
    settings = dict(zip(names, call.args[len(call.args) - len(names) :], strict=True))
    unknown = [name for name in names if name not in (*_GRID, *_BLOCK, _DYNAMIC_SHARED)]
    if unknown:
        raise DeviceError(
            f"the launch of `{function}` has the setting `{unknown[0]}`, which this version does "
            "not know; schedule the kernel without it"
        )
    try:
        numbers = {name: int(value) for name, value in settings.items()}
    except TypeError as error:
        raise DeviceError(
            f"the launch of `{function}` depends on values that are known only when it runs; "
            "schedule the kernel for fixed shapes"
        ) from error
    grid, block = (tuple(numbers.get(name, 1) for name in axes) for axes in (_GRID, _BLOCK))
    return Launch(function, grid, block, numbers.get(_DYNAMIC_SHARED, 0))


@tvm.transform.module_pass(opt_level=0, name="NoteLaunches")
class _NoteLaunches:
    """Records the launches in the functions of the host, and changes nothing."""

    def transform_module(self, mod: tvm.IRModule, context: Any) -> tvm.IRModule:
        """Note the launches in `mod`, which TVM's own passes have lowered."""
        found = _noted.get()
        if found is not None:
            for var, func in mod.functions_items():
                launches = tuple(launch_of(call) for call in calls_of_launches(func))
                if launches:
                    found[var.name_hint] = launches
        return mod


def _pipeline(**options: Any) -> tuple[Any, Any, Any]:
    lowering, for_host, for_device = tirx.get_tir_pipeline("default", **options)
    passes: list[Any] = [lowering, _NoteLaunches()]
    return tvm.transform.Sequential(passes), for_host, for_device


tirx.register_tir_pipeline(CUDA_PIPELINE, _pipeline)
