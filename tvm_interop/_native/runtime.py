"""Loads and runs models through the C interface of the native library, `tvm_interop/runtime.h`.

This module calls the library's functions by ctypes. It imports neither TVM nor tvm-ffi, because
their imports would take several times as long as loading a model.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArtifactError, DeviceError, ExecutionError, InputError
from .c_interface import DTYPES, LoadOptions, OperatorTime, declare
from .gate import GATE
from .library_path import runtime_library_path, tvm_ffi_path
from .timing import OperatorTiming

OUT_OF_MEMORY = 5
_ERRORS: dict[int, type[Exception]] = {
    1: InputError,
    2: ArtifactError,
    3: ArtifactError,
    4: ExecutionError,
    OUT_OF_MEMORY: MemoryError,
}
"""The exception class for each `tvi_status` of the C interface that means a failure."""


class Port(NamedTuple):
    """An input or output of a model.

    Attributes
    ----------
    value: the number by which an instance identifies the port's tensor.
    """

    value: int
    name: str
    shape: tuple[int, ...]
    dtype: str


@functools.cache
def _library() -> Any:
    """Return the native library, with the types of its functions."""
    tvm_ffi = tvm_ffi_path()
    try:
        if tvm_ffi is not None:
            ctypes.CDLL(str(tvm_ffi), ctypes.RTLD_GLOBAL)
        library = ctypes.CDLL(str(runtime_library_path()))
    except OSError as error:
        raise DeviceError(
            f"the native library does not load: {error}; install `tvm-interop` again"
        ) from error
    declare(library)
    return library


def _check(status: int) -> None:
    if status != 0:
        text = _library().tvi_last_error().decode("utf-8", "replace")
        raise _ERRORS.get(status, ExecutionError)(text)


class NativeModel:
    """A loaded model, which its instances share.

    Attributes
    ----------
    warning: a warning for the user, for example that a library is missing; None if there is none.
    uses_fallback: whether the model's slower kernels run, because oneDNN is missing.
    inputs, outputs: for each set of input shapes, the inputs and the outputs of the model. The
        inputs are numbered from 0, and the numbers of the outputs follow.
    counted_axes: for each output whose size depends on values that the model computes, by the
        output's position, the axis of this size. `outputs` holds the output's largest shape.
    input_strings, output_strings: for each input or output that is strings, by its position, the
        list of strings. Runs read and compute positions in this list.
    """

    def __init__(self, path: str, sha256: str | None, onednn: str) -> None:
        """Load the artifact at `path`. Everything in it is checked, except for its machine code.

        Parameters
        ----------
        sha256: the digest that the file must have, in hexadecimal; None if any digest will do.
        onednn: the path of oneDNN's library, in case the model needs it.

        Raises
        ------
        ArtifactError
            The file is not an artifact, is damaged or unsafe, or cannot run on this machine.
        """
        self._handle = ctypes.c_void_p()
        self._library = _library()
        options = LoadOptions(
            ctypes.sizeof(LoadOptions),
            None if sha256 is None else sha256.encode(),
            onednn.encode(),
        )
        _check(
            self._library.tvi_model_load(
                os.fsencode(path), ctypes.byref(options), ctypes.byref(self._handle)
            )
        )
        warning = self._library.tvi_model_warning(self._handle)
        self.warning: str | None = None if warning is None else warning.decode()
        self.uses_fallback = bool(self._library.tvi_model_uses_fallback(self._handle))
        shapes = range(self._library.tvi_model_num_shapes(self._handle))
        ins = self._library.tvi_model_num_inputs(self._handle)
        outs = self._library.tvi_model_num_outputs(self._handle)
        info = self._library.tvi_model_input
        self.inputs = [self._ports(info, shape, ins, 0) for shape in shapes]
        info = self._library.tvi_model_output
        self.outputs = [self._ports(info, shape, outs, ins) for shape in shapes]
        axis_of = self._library.tvi_model_output_counted_axis
        axes = {i: int(axis_of(self._handle, i)) for i in range(outs)}
        self.counted_axes = {i: axis for i, axis in axes.items() if axis >= 0}
        self.input_strings = self._strings("input", ins)
        self.output_strings = self._strings("output", outs)

    def _strings(self, kind: str, number: int) -> dict[int, tuple[str, ...]]:
        count_of = getattr(self._library, f"tvi_model_{kind}_num_strings")
        text_at = getattr(self._library, f"tvi_model_{kind}_string")
        counts = {i: count_of(self._handle, i) for i in range(number)}
        return {
            i: tuple(text_at(self._handle, i, k).decode() for k in range(count))
            for i, count in counts.items()
            if count
        }

    def __del__(self) -> None:
        if self._handle:
            self._library.tvi_model_free(self._handle)

    @property
    def is_for_gpu(self) -> bool:
        """Whether the model was compiled for a GPU."""
        devices = [self._library.tvi_model_device(self._handle, s) for s in range(len(self.inputs))]
        return any(device != b"cpu:0" for device in devices)

    def num_threads(self, shape: int) -> int:
        """Return how many threads the model was compiled for, for a set of input shapes."""
        return int(self._library.tvi_model_num_threads(self._handle, shape))

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The batch size of each set of input shapes; empty if these are not batch sizes."""
        return self._sizes(self._library.tvi_model_batch_size)

    @property
    def ranges(self) -> dict[str, tuple[int, ...]]:
        """For each dimension with a range, by name, its size in each set of input shapes."""
        count = self._library.tvi_model_num_ranges(self._handle)
        return {
            self._library.tvi_model_range_dimension(self._handle, number).decode(): tuple(
                self._library.tvi_model_range_size(self._handle, number, shape)
                for shape in range(len(self.inputs))
            )
            for number in range(count)
        }

    @property
    def row_masks(self) -> dict[str, str]:
        """For each mask, by the input's name: where it must be 1 (see `RowMask.one_at`)."""
        found = {}
        for i, port in enumerate(self.inputs[0]):
            one_at = self._library.tvi_model_row_mask(self._handle, i)
            if one_at is not None:
                found[port.name] = one_at.decode()
        return found

    @property
    def weights_nbytes(self) -> int:
        """The size of the weights in bytes. All instances share the weights."""
        return int(self._library.tvi_model_weights_nbytes(self._handle))

    def instance_nbytes(self, shape: int) -> int:
        """Return the bytes of an instance's tensors without weights, for a set of input shapes."""
        return int(self._library.tvi_model_instance_nbytes(self._handle, shape))

    def input_alignment(self, shape: int, position: int) -> int:
        """Return the alignment, in bytes, at which a run reads an input in place.

        The result is 0 if every run copies the input.
        """
        return int(self._library.tvi_model_input_alignment(self._handle, shape, position))

    def open(self, shape: int) -> NativeModelInstance:
        """Make an instance for a set of input shapes."""
        return NativeModelInstance(self, self._handle, shape)

    def _sizes(self, size_of: Callable[..., int]) -> tuple[int, ...]:
        """The size that the C function `size_of` returns for each set of input shapes.

        If the sets of input shapes do not stand for sizes, `size_of` returns 0, and this method
        returns an empty tuple.
        """
        found = tuple(size_of(self._handle, shape) for shape in range(len(self.inputs)))
        return found if all(found) else ()

    def _ports(self, info: Callable[..., Any], shape: int, count: int, first: int) -> list[Port]:
        ports = []
        for i in range(count):
            port = info(self._handle, shape, i).contents
            if port.type == 13:
                _know_bfloat16(port.name.decode())
            ports.append(
                Port(
                    first + i,
                    port.name.decode(),
                    tuple(port.shape[: port.rank]),
                    DTYPES[port.type],
                )
            )
        return ports


class NativeModelInstance:
    """An instance of a model, with memory of its own for inputs and outputs.

    Attributes
    ----------
    sizes: for outputs whose size depends on values that the model computes, the sizes that the
        latest run gave. There is a number for each output, or none if no output has such a size.
    """

    def __init__(self, model: NativeModel, handle: ctypes.c_void_p, shape: int) -> None:
        """Allocate memory and prepare kernels; `NativeModel.open` calls this.

        Raises
        ------
        ArtifactError
            The model's machine code does not load on this machine, or a kernel library refuses an
            operator.
        MemoryError
            There is not enough memory.
        """
        self._handle = ctypes.c_void_p()
        self._library = _library()
        self.model = model  # Keep the model alive: it owns the descriptions of inputs and outputs.
        _check(self._library.tvi_instance_create(handle, shape, ctypes.byref(self._handle)))
        self._num_inputs = len(model.inputs[shape])
        self._ports = [*model.inputs[shape], *model.outputs[shape]]
        num_outputs = len(self._ports) - self._num_inputs
        self.sizes = (ctypes.c_int64 * (num_outputs if model.counted_axes else 0))()
        self._inputs = (ctypes.c_void_p * self._num_inputs)()
        self._outputs = (ctypes.c_void_p * num_outputs)()
        # Pass the arrays of addresses as pointers, because a call with arrays takes 0.3 us longer.
        # The pointers keep the arrays alive.
        self._arguments = (
            self._handle,
            ctypes.cast(self._inputs, ctypes.c_void_p),
            ctypes.cast(self._outputs, ctypes.c_void_p),
        )
        self._run = self._library.tvi_run
        self._sizes: tuple[Any, ...] = ()  # Only `tvi_run_counted` takes this argument.
        if model.counted_axes:
            self._run = self._library.tvi_run_counted
            self._sizes = (ctypes.cast(self.sizes, ctypes.c_void_p),)

    def __del__(self) -> None:
        if self._handle:
            self._library.tvi_instance_free(self._handle)

    @property
    def address(self) -> int:
        """The address of the instance: a pointer to a `tvi_instance` of the C interface."""
        assert self._handle.value is not None
        return self._handle.value

    def own_array(self, value: int) -> np.ndarray:
        """Return an array over the instance's own memory for an input or output.

        The instance lives as long as the array.
        """
        port = self._ports[value]
        if value < self._num_inputs:
            address = self._library.tvi_instance_input_buffer(self._handle, value)
        else:
            position = value - self._num_inputs
            address = self._library.tvi_instance_output_buffer(self._handle, position)
        dtype = np.dtype(port.dtype)
        count = int(np.prod(port.shape, dtype=np.int64))
        if count == 0:
            return np.empty(port.shape, dtype)
        if address is None:
            _check(OUT_OF_MEMORY)
        memory: Any = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
        memory.owner = self
        array: np.ndarray = np.frombuffer(memory, np.uint8).view(dtype).reshape(port.shape)
        return array

    def place(self, value: int, address: int | None) -> None:
        """From the next run on, use the memory at `address` for input or output `value`.

        If `address` is None, the instance's own memory is used.
        """
        if value < self._num_inputs:
            self._inputs[value] = address
        else:
            self._outputs[value - self._num_inputs] = address

    def run_on(self, inputs: Mapping[int, int], outputs: Mapping[int, int]) -> None:
        """Run every operator once, with the given addresses for this run only.

        Parameters
        ----------
        inputs, outputs: addresses by position. Inputs and outputs without an entry stay at the
            addresses that `place` set.

        Raises
        ------
        ExecutionError
            An operator failed (the message names it), or another thread is in `run`.
        """
        lent = []
        for placed, addresses in ((self._inputs, inputs), (self._outputs, outputs)):
            copy = type(placed).from_buffer_copy(placed)
            for i, address in addresses.items():
                copy[i] = address
            lent.append(copy)
        with GATE:
            status = self._run(self._handle, *map(ctypes.byref, lent), *self._sizes)
        if status != 0:
            _check(status)

    def run(self) -> None:
        """Run every operator once.

        Raises
        ------
        ExecutionError
            An operator failed (the message names it), or another thread is in `run`.
        """
        with GATE:
            status = self._run(*self._arguments, *self._sizes)
        if status != 0:
            _check(status)

    def profile(self) -> list[OperatorTiming]:
        """Run every operator once, and return when each operator ran."""
        count = ctypes.c_size_t()
        profile = functools.partial(self._library.tvi_profile, *self._arguments)
        _check(profile(None, 0, ctypes.byref(count)))
        times = (OperatorTime * max(count.value, 1))()
        with GATE:
            status = profile(times, len(times), ctypes.byref(count))
        _check(status)
        return [
            OperatorTiming(
                t.op, t.stream, t.start_ns / 1e3, t.end_ns / 1e3, t.thread, t.on_core_ns / 1e3
            )
            for t in times[: count.value]
        ]


def num_threads() -> int:
    """Return how many threads may run models at once, including the threads that call `run`.

    Raises
    ------
    ExecutionError
        The environment variable TVM_INTEROP_NUM_THREADS is not a number of threads.
    """
    threads = int(_library().tvi_num_threads())
    if threads == 0:
        raise ExecutionError(_library().tvi_last_error().decode("utf-8", "replace"))
    return threads


def set_num_threads(threads: int, pin: bool) -> None:
    """Set how many threads may run models at once. `pin` pins each thread to one core.

    Raises
    ------
    InputError
        `threads` is less than 1.
    ExecutionError
        The environment variable TVM_INTEROP_NUM_THREADS is not a number of threads.
    """
    _check(_library().tvi_set_num_threads(threads, int(pin)))


def _know_bfloat16(name: str) -> None:
    """Make `bfloat16` known to NumPy, for the input or output `name`."""
    try:
        import ml_dtypes  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"`{name}` is bfloat16, which NumPy itself lacks: install the package `ml_dtypes`"
        ) from error
