"""Gets the CUDA C source of a kernel from TVM, and the launches that the host's code makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.instrument import pass_instrument

from tvm_interop.errors import DeviceError
from tvm_interop.kernels.build_cuda import compiling_with_nvcc, cuda_target
from tvm_interop.kernels.exact_floats import ExactFloats
from tvm_interop.kernels.launches import calls_of_launches, launch_of

_DEVICE_FUNCTION = 2
"""TVM's number for functions that run on a device."""


class NotExecutedError(Exception):
    """A kernel cannot be emulated; the message is the reason."""


class WrongLaunchError(Exception):
    """The host's code of a kernel is wrong; the message says how."""


@dataclass(frozen=True)
class Launch:
    """A launch of a device function, as the host's code makes it.

    Attributes
    ----------
    function: the device function's name.
    tensors: for each parameter of the function, the index of the kernel's parameter that it gets.
    grid, block: the numbers of blocks, and of threads in a block, along x, y and z.
    dynamic_shared_bytes: bytes of dynamic shared memory of each block.
    """

    function: str
    tensors: tuple[int, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_shared_bytes: int = 0


@dataclass(frozen=True)
class DeviceCode:
    """The CUDA C source of a kernel, and its launches in order."""

    source: str
    launches: tuple[Launch, ...]


def device_code(name: str, scheduled: tirx.PrimFunc, archs: Sequence[str]) -> DeviceCode:
    """Compile a scheduled kernel as `build_cuda_kernels` does, but only to CUDA C source.

    Raises
    ------
    NotExecutedError
        TVM cannot compile the kernel, or a launch has a setting that is not emulated.
    WrongLaunchError
        A launch is given memory that is not a tensor of the kernel.
    """
    target = cuda_target(archs)
    seen: Any = _HostFunctions()
    exact: Any = ExactFloats()
    kernel = tvm.IRModule({name: scheduled.with_attr("global_symbol", name)})
    try:
        with (
            target,
            tvm.transform.PassContext(instruments=[seen]),
            compiling_with_nvcc(archs),
        ):
            module = tvm.compile(exact(kernel), target=target).mod
    except Exception as error:
        raise NotExecutedError(f"TVM cannot compile it: {_first_line(error)}") from error
    sources = [part.inspect_source() for part in module.imports if part.kind == "cuda"]
    launches = [launch for host in seen.functions for launch in launches_of(host)]
    if len(sources) != 1 or not launches:
        raise NotExecutedError("it has no code for a GPU")
    return DeviceCode(sources[0], tuple(launches))


@pass_instrument
class _HostFunctions:
    """Keeps the host's functions as they are before TVM's pass `MakePackedAPI` changes them."""

    def __init__(self) -> None:
        self.functions: list[tirx.PrimFunc] = []

    def run_before_pass(self, mod: tvm.IRModule, info: Any) -> None:
        if str(info.name) != "tirx.MakePackedAPI":
            return
        for _, func in mod.functions_items():
            if (func.attrs or {}).get("calling_conv") != _DEVICE_FUNCTION:
                self.functions.append(func)


def launches_of(host: tirx.PrimFunc) -> list[Launch]:
    """The launches in a host function, in order.

    Raises
    ------
    NotExecutedError
        A launch has a setting or an argument that is not emulated.
    WrongLaunchError
        A launch is given memory that is not a tensor of the kernel.
    """
    views: list[tuple[Any, Any]] = []
    tvm_ffi.structural_walk(
        host.body,
        (tirx.DeclBuffer, lambda stmt: views.append((stmt.buffer, stmt.data))),
    )

    def parameter(argument: Any) -> int:
        buffer = _buffer_of(argument)
        for view, data in views:
            if view.same_as(buffer):
                return parameter(data)
        for i, param in enumerate(host.params):
            if param.same_as(buffer):
                return i
        raise WrongLaunchError(
            f"its host code launches it with `{buffer.name}`, which is not a tensor of the kernel: "
            "the GPU would use memory that the host has allocated"
        )

    return [_launch(call, parameter) for call in calls_of_launches(host)]


def _launch(call: Any, parameter: Any) -> Launch:
    try:
        found = launch_of(call)
    except DeviceError as error:
        raise NotExecutedError(str(error)) from error
    tensors = call.args[1 : len(call.args) - len(call.attrs.launch_params)]
    places = tuple(parameter(tensor) for tensor in tensors)
    return Launch(found.function, places, found.grid, found.block, found.dynamic_shared_bytes)


def _buffer_of(argument: Any) -> Any:
    """The buffer whose address is the `argument` of a launch."""
    if getattr(getattr(argument, "op", None), "name", "") != "tirx.buffer_data":
        raise NotExecutedError(
            f"its host code launches it with the argument `{argument}`, which is not "
            "the address of a buffer"
        )
    return argument.args[0]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
