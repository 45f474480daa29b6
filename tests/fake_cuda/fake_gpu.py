"""Functions for tests under the fake CUDA: its switches, its log, and kernels in Python."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm_ffi.libinfo import find_libtvm_ffi

from tvm_interop._native.cuda import Dispatch
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.plan.plan import Plan

from .happens_before import Access, OpAccesses

DISPATCHES: tuple[Dispatch, ...] = ("streams", "captured", "linked")
"""All dispatch modes: the ways in which a run sends its operators to the GPU."""

_KDL_CUDA = 2
_EFFECT = ctypes.CFUNCTYPE(None, ctypes.c_int64)
_DRIVER: Any = ctypes.CDLL("libcuda.so.1")
_RUNTIME: Any = ctypes.CDLL("libcudart.so.13")
_CUDNN: Any = ctypes.CDLL("libcudnn.so.9")
_CUBLASLT: Any = ctypes.CDLL("libcublasLt.so.13")
_FFI: Any = ctypes.CDLL(find_libtvm_ffi())
_FFI.TVMFFIEnvGetStream.restype = ctypes.c_void_p
_DRIVER.FakeCudaLaunch.argtypes = [ctypes.c_char_p, ctypes.c_void_p, _EFFECT, ctypes.c_int64]


def start_log(path: Path) -> None:
    """Log every call of the fake CUDA into the file `path` from now on."""
    _DRIVER.FakeCudaStartLog(os.fsencode(path))


def stop_log() -> None:
    """Stop the log. The file of the log is then complete."""
    _DRIVER.FakeCudaStopLog()


def logged(log: Path, call: str) -> list[dict[str, Any]]:
    """The entries of a log that calls of the function `call` made."""
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    return [entry for entry in entries if entry["call"] == call]


def fail_next(call: str, status: int) -> None:
    """Make the next call of the function `call` fail with `status`."""
    _DRIVER.FakeCudaFailNext(call.encode(), status)


@contextmanager
def gpus_apart() -> Iterator[None]:
    """Context in which the GPUs cannot access each other's memory."""
    _DRIVER.FakeCudaSetPeerAccess(0)
    try:
        yield
    finally:
        _DRIVER.FakeCudaSetPeerAccess(1)


def algorithm_times(ms: Mapping[int, float]) -> AbstractContextManager[None]:
    """Context in which algorithms of the kernel libraries take longer.

    Parameters
    ----------
    ms: the additional milliseconds of each algorithm, by its number.
    """
    functions = _CUDNN.FakeCudnnSetTime, _CUBLASLT.FakeCublasLtSetTime
    times = {algorithm: ctypes.c_double(time) for algorithm, time in ms.items()}
    return _algorithms_with(functions, times, ctypes.c_double(0.0))


@contextmanager
def _algorithms_with(
    functions: Sequence[Any], settings: Mapping[int, Any], normal: Any
) -> Iterator[None]:
    """Context in which each algorithm has its setting in `settings`.

    Each function in `functions` changes the setting of one algorithm of one library. At the end of
    the context, the algorithms get the setting `normal` again.
    """

    def set_all(settings: Mapping[int, Any]) -> None:
        for function in functions:
            for algorithm, setting in settings.items():
                function(algorithm, setting)

    set_all(settings)
    try:
        yield
    finally:
        set_all(dict.fromkeys(settings, normal))


@contextmanager
def launch_time(us: float) -> Iterator[None]:
    """Context in which the host takes `us` microseconds to launch a kernel, a copy or a graph."""
    _DRIVER.FakeCudaSetLaunchTime(ctypes.c_double(us))
    try:
        yield
    finally:
        _DRIVER.FakeCudaSetLaunchTime(ctypes.c_double(0.0))


@contextmanager
def graph_start(us: float) -> Iterator[None]:
    """Context in which the GPU takes `us` microseconds to begin a graph that is not empty."""
    _DRIVER.FakeCudaSetGraphStart(ctypes.c_double(us))
    try:
        yield
    finally:
        _DRIVER.FakeCudaSetGraphStart(ctypes.c_double(0.0))


@contextmanager
def node_times(gpu_us: float, host_us: float = 0.0) -> Iterator[None]:
    """A context in which the nodes of graphs take more time to launch and to begin.

    Parameters
    ----------
    gpu_us: microseconds that the GPU takes to begin a node after the node before it.
    host_us: microseconds of the host for each node of a graph that it launches.
    """
    _DRIVER.FakeCudaSetNodeTimes(ctypes.c_double(gpu_us), ctypes.c_double(host_us))
    try:
        yield
    finally:
        _DRIVER.FakeCudaSetNodeTimes(ctypes.c_double(0.0), ctypes.c_double(0.0))


@contextmanager
def without_waits(call: str) -> Iterator[None]:
    """Context in which the function `call` succeeds and waits for nothing: a planted fault."""
    _DRIVER.FakeCudaSetWithoutWait(call.encode())
    try:
        yield
    finally:
        _DRIVER.FakeCudaSetWithoutWait(b"")


def late_refusals(statuses: Mapping[int, int]) -> AbstractContextManager[None]:
    """Context in which launches of algorithms of the kernel libraries fail.

    Parameters
    ----------
    statuses: the status that launches of each algorithm return, by its number. The library still
        proposes these algorithms.
    """
    functions = _CUDNN.FakeCudnnRefuse, _CUBLASLT.FakeCublasLtRefuse
    return _algorithms_with(functions, statuses, 0)


@contextmanager
def larger_workspaces(nbytes: int) -> Iterator[None]:
    """Context in which every algorithm of cuDNN needs a workspace of `nbytes` bytes more."""
    _CUDNN.FakeCudnnSetMoreWorkspace(ctypes.c_int64(nbytes))
    try:
        yield
    finally:
        _CUDNN.FakeCudnnSetMoreWorkspace(ctypes.c_int64(0))


def allocated(device: int = 0) -> tuple[int, int]:
    """The bytes and the blocks allocated now in a GPU's memory; for GPU -1, in pinned memory."""
    nbytes, blocks = ctypes.c_int64(), ctypes.c_int64()
    _DRIVER.FakeCudaAllocated(device, ctypes.byref(nbytes), ctypes.byref(blocks))
    return nbytes.value, blocks.value


@contextmanager
def noted(op: str) -> Iterator[None]:
    """Context in which the log says that all launches belong to operator `op`."""
    _DRIVER.FakeCudaNote(op.encode())
    yield
    _DRIVER.FakeCudaNote(b"")


def fail_work(kernel: str, status: int) -> None:
    """Make the next launch of `kernel` succeed, and fail with `status` when the GPU runs it."""
    _DRIVER.FakeCudaFailWork(kernel.encode(), status)


def repair() -> None:
    """Repair the GPU after a failure, as the start of another process would."""
    _DRIVER.FakeCudaRepair()
    _RUNTIME.cudaGetLastError()


def set_delays(seed: int) -> None:
    """From now on, one thread for each stream does the GPU's work, with random delays.

    With seed 0, each call does its work at once, before it returns.
    """
    _DRIVER.FakeCudaSetDelays(seed)


def runtime() -> Any:
    """The functions of the fake runtime, for tests that call them directly."""
    return _RUNTIME


def driver() -> Any:
    """The functions of the fake driver, for tests that call them directly."""
    return _DRIVER


def effect(function: Callable[[int], object]) -> Any:
    """Wrap a function as the effect of a kernel, for `launch`.

    Keep the result until the kernel has ended.
    """
    return _EFFECT(lambda number: function(number) and None)


def launch(name: str, stream: Any, does: Any = None) -> int:
    """Launch a kernel that calls `does` (made by `effect`), or a kernel that changes nothing."""
    return int(_DRIVER.FakeCudaLaunch(name.encode(), stream, does or _EFFECT(), 0))


def new_stream(flags: int = 1) -> ctypes.c_void_p:
    """Make a stream. By default it does not wait for the default stream."""
    stream = ctypes.c_void_p()
    assert _RUNTIME.cudaStreamCreateWithFlags(ctypes.byref(stream), flags) == 0
    return stream


def new_event(flags: int = 0) -> ctypes.c_void_p:
    """Make an event. By default it records the time."""
    event = ctypes.c_void_p()
    assert _RUNTIME.cudaEventCreateWithFlags(ctypes.byref(event), flags) == 0
    return event


def current_stream(device: int = 0) -> Any:
    """The stream on which a kernel would run if it were called now."""
    return _FFI.TVMFFIEnvGetStream(_KDL_CUDA, device)


def current_device() -> int:
    """The current GPU. Calls that name no GPU are for this GPU."""
    device = ctypes.c_int()
    _RUNTIME.cudaGetDevice(ctypes.byref(device))
    return device.value


class Kernels:
    """Kernels in Python for a plan. Each kernel has the name of its operator.

    Attributes
    ----------
    called: the operators in the order in which they were launched.
    """

    def __init__(self, effects: dict[str, Callable[..., None]]) -> None:
        """Make the kernels.

        Parameters
        ----------
        effects: for each operator, a function that gets the arrays of the operator's inputs and
            outputs and writes the outputs.
        """
        self._effects = effects
        # The fake driver, written in C, calls these functions later, so they must stay alive.
        self._kept: list[Any] = []
        self.called: list[str] = []

    def get_function(self, name: str, query_imports: bool) -> Any:
        """Return the kernel `name`, as the same method of a TVM module does."""
        return tvm_ffi.convert(lambda *tensors: self._launch(name, tensors))

    def _launch(self, name: str, tensors: tuple[Any, ...]) -> None:
        arrays = [array_at(tensor) for tensor in tensors]
        effect = _EFFECT(lambda _: self._effects[name](*arrays))
        self._kept.append(effect)
        self.called.append(name)
        stream = current_stream(tensors[-1].device.index)
        with noted(name):
            status = _DRIVER.FakeCudaLaunch(name.encode(), stream, effect, 0)
        if status:
            raise RuntimeError(f"launch failed with {status}")


class Noted:
    """TVM's kernels of a plan. Each kernel notes in the log to which operator it belongs."""

    def __init__(self, kernels: Any, plan: Plan) -> None:
        self._kernels = kernels
        self._ops = itertools.cycle(
            op.name for op in plan.operators if op.library is None and not op.is_copy
        )

    def get_function(self, name: str, query_imports: bool) -> Any:
        """Return the kernel `name`, as the same method of a TVM module does."""
        kernel = self._kernels.get_function(name, query_imports)

        def call(*tensors: Any) -> None:
            with noted(next(self._ops)):
                kernel(*tensors)

        return tvm_ffi.convert(call)


def array_at(tensor: Any) -> np.ndarray:
    """A tensor of the fake GPU as an array. The fake GPU's memory is the host's memory."""
    nbytes = int(np.prod(tensor.shape)) * 4
    memory = (ctypes.c_uint8 * nbytes).from_address(address_of(tensor))
    return np.frombuffer(memory, np.float32).reshape(tuple(tensor.shape))


def address_of(tensor: Any) -> int:
    """The address of a tensor's first byte."""
    return int(tensor.data_ptr())


def accesses_of(instance: CudaInstance) -> dict[str, OpAccesses]:
    """The memory that each operator of an instance reads and writes according to its plan."""

    def access(v: int) -> Access:
        begin = address_of(instance.tensors[v])
        root = instance.plan.root_of(v)
        return Access(
            instance.plan.values[root].name, begin, begin + instance.plan.values[v].nbytes
        )

    return {
        op.name: OpAccesses(tuple(map(access, op.inputs)), tuple(map(access, op.outputs)))
        for op in instance.plan.operators
    }
