"""`GraphModule`: runs an artifact, under the names TVM's graph executor had."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _cuda, _runtime
from .artifact import Artifact
from .cuda_instance import CudaInstance, require_gpu, runs_on_cuda
from .errors import DeviceError, InputError
from .instance import Instance, aligned_empty, as_tensor
from .plan import PlannedValue
from .remote import ServerAddress
from .remote_instance import RemoteInstance
from .storage import ALIGNMENT

_DLPACK_CPU = 1
_DLPACK_CUDA = 2


class OpProfile(NamedTuple):
    """When one operator ran, in microseconds since the run began."""

    name: str
    kernel: str
    stream: int
    start_us: float
    end_us: float


class GraphModule:
    """A loaded model.

    One thread at a time may run a module; load a second one to run two at once. Inputs keep their
    values between runs. Outputs are copied out, so a later run does not change them.

    Examples
    --------
    >>> module = GraphModule(load("model.tar"))  # doctest: +SKIP
    >>> module.run(data=image)  # doctest: +SKIP
    >>> module.get_output(0).numpy()  # doctest: +SKIP
    """

    def __init__(self, artifact: Artifact, server: ServerAddress | None = None) -> None:
        """Load kernels, allocate memory, start the streams.

        On a GPU each operator is run once, and all are then captured into one CUDA graph.

        Parameters
        ----------
        server: run on a free server of TVM's RPC, which has our runtime loaded; None runs here. A
            server runs TVM's kernels alone, and its clock is what `benchmark` tells.

        Raises
        ------
        ArtifactError
            The kernels do not load on this system, or there.
        DeviceError
            The model was compiled for a GPU, and there is none; there is no free server.
        """
        self.artifact = artifact
        self._instance = _open(artifact) if server is None else RemoteInstance(artifact, server)
        self.plan = self._instance.plan
        self._input_index = {self.plan.values[v].name: i for i, v in enumerate(self.plan.inputs)}

    # Inputs.

    def set_input(self, key: str | int | None = None, value: Any = None, **params: Any) -> None:
        """Copy data into inputs.

        Parameters
        ----------
        key: an input's name or index, with `value`.
        value: an array or tensor of the input's shape and type.
        params: more inputs, by name.

        Raises
        ------
        InputError
            No input of that name; the wrong shape or type.
        """
        given: dict[str | int, Any] = {} if key is None else {key: value}
        given.update(params.items())
        checked = {k: self._checked(k, v) for k, v in given.items()}  # All, before any is copied.
        for k, array in checked.items():
            self._instance.write(self._input_value(k), array)

    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """Read an input from `value`'s own memory from now on.

        `value` stays in use until another is set: change it between runs, not during one.

        Parameters
        ----------
        value: a contiguous array or CPU tensor at an address that is a multiple of 64.

        Raises
        ------
        InputError
            As for `set_input`; not contiguous, or not aligned.
        DeviceError
            The module runs on a GPU, or on a server.
        """
        if not isinstance(self._instance, Instance):
            raise DeviceError(
                "a module on a GPU or a server reads its inputs from memory there; use set_input, "
                "which copies"
            )
        array = self._checked(key, value)
        if not array.flags.c_contiguous or array.ctypes.data % ALIGNMENT != 0:
            raise InputError(
                f"input `{self._input(key).name}`: zero copy needs contiguous memory at an address "
                f"that is a multiple of {ALIGNMENT}; allocate it with tvm.runtime.empty, or use "
                "set_input, which copies"
            )
        self._instance.rebind(self._input_value(key), array)

    def get_input(self, index: str | int, out: Any = None) -> Any:
        """The current value of an input: a copy, or `out` filled with it."""
        return _copied_out(self._instance.read(self._input_value(index)), out)

    def get_num_inputs(self) -> int:
        """How many inputs the model has."""
        return len(self.plan.inputs)

    def get_input_index(self, name: str) -> int:
        """The index of the input called `name`, or -1, as TVM's graph executor has it."""
        return self._input_index.get(name, -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and types of the inputs, each by name."""
        values = [self.plan.values[v] for v in self.plan.inputs]
        return {v.name: v.shape for v in values}, {v.name: v.dtype for v in values}

    # Running.

    def run(self, **inputs: Any) -> None:
        """Set `inputs`, run the model, and return when the outputs are ready.

        Raises
        ------
        InputError
            As for `set_input`.
        ExecutionError
            An operator failed (named), another thread is running this module, or the process was
            forked since it was made.
        """
        if inputs:
            self.set_input(**inputs)
        self._instance.run()

    # Outputs.

    def get_num_outputs(self) -> int:
        """How many outputs the model has."""
        return len(self.plan.outputs)

    def get_output_index(self, name: str) -> int:
        """The index of the output called `name`, or -1."""
        names = [self.plan.values[v].name for v in self.plan.outputs]
        return names.index(name) if name in names else -1

    def get_output(self, index: int, out: Any = None) -> Any:
        """Output number `index` of the last run: a copy, or `out` filled with it.

        Raises
        ------
        InputError
            There is no such output; `out` has another shape or type.
        """
        if not 0 <= index < len(self.plan.outputs):
            raise InputError(f"no output {index}: the model has {len(self.plan.outputs)}")
        return _copied_out(self._instance.read(self.plan.outputs[index]), out)

    # Weights.

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Set weights from what `tvm.runtime.save_param_dict` made.

        Raises
        ------
        InputError
            A name that is no weight of the model; the wrong shape or type. Nothing is changed then.
        """
        import tvm

        index = {
            v.name: i
            for i, v in enumerate(self.plan.values)
            if v.storage == "weight" and v.copy_of is None
        }
        arrays = {}
        for name, tensor in tvm.runtime.load_param_dict(params_bytes).items():
            if name not in index:
                raise InputError(f"no weight `{name}`; the model's are {', '.join(index)}")
            value = self.plan.values[index[name]]
            arrays[index[name]] = _as_array(tensor, value, "weight")
        for v, array in arrays.items():
            self._instance.replace(v, array)

    # Time.

    def benchmark(
        self,
        device: Any = None,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        end_to_end: bool = False,
        **inputs: Any,
    ) -> Any:
        """Time the model on the inputs that are set.

        Parameters
        ----------
        device: for code written for TVM's graph executor; it must be the module's own.
        repeat: how many times to measure.
        number: how many runs each measurement takes the mean of.
        min_repeat_ms: raise `number` until a measurement lasts this long, in milliseconds.
        end_to_end: count setting the inputs and getting the outputs too.
        inputs: inputs to set first.

        Returns
        -------
        tvm.runtime.module.BenchmarkResult
            mean, median, min, max, std and results, in seconds.

        Raises
        ------
        DeviceError
            `device` is another than the module's.
        """
        from tvm.runtime.module import BenchmarkResult

        if func_name != "run":
            raise InputError(f"no function `{func_name}` to benchmark; there is `run`")
        own = _DLPACK_CUDA if runs_on_cuda(self.plan) else _DLPACK_CPU
        if device is not None and device.dlpack_device_type() != own:
            where = self.plan.streams[0].device if own == _DLPACK_CUDA else "the CPU"
            raise DeviceError(f"this module runs on {where}, not on {device}")
        if inputs:
            self.set_input(**inputs)
        timer = self._time_end_to_end if end_to_end else self._time
        timer(1)
        if min_repeat_ms:
            while (took := timer(number)) * 1e3 < min_repeat_ms:
                number = max(number + 1, int(number * min(10, 1.1 * min_repeat_ms / (took * 1e3))))
        return BenchmarkResult([timer(number) / number for _ in range(repeat)])

    def profile(self) -> list[OpProfile]:
        """Run once and tell when each operator ran: a row an operator, in order of start."""
        rows = [
            OpProfile(self.plan.operators[op].name, self.plan.operators[op].kernel, stream, *span)
            for op, stream, *span in self._instance.profile()
        ]
        return sorted(rows, key=lambda row: (row.start_us, row.stream))

    def _time(self, number: int) -> float:
        return self._instance.time(number)

    def _time_end_to_end(self, number: int) -> float:
        values = {self.plan.values[v].name: self._instance.read(v).copy() for v in self.plan.inputs}
        began = time.perf_counter()
        for _ in range(number):
            self.set_input(**values)
            self._instance.run()
            for i in range(len(self.plan.outputs)):
                self.get_output(i)
        return time.perf_counter() - began

    def _input_value(self, key: str | int) -> int:
        index = self._input_index.get(key, -1) if isinstance(key, str) else key
        if not 0 <= index < len(self.plan.inputs):
            inputs = ", ".join(_described(self.plan.values[v]) for v in self.plan.inputs)
            raise InputError(f"the model has no input `{key}`; it has {inputs}")
        return self.plan.inputs[index]

    def _input(self, key: str | int) -> PlannedValue:
        return self.plan.values[self._input_value(key)]

    def _checked(self, key: str | int, value: Any) -> np.ndarray:
        return _as_array(value, self._input(key), "input")


def measure_interleaved(
    modules: Mapping[str, GraphModule], repeats: int, warmup: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """Time modules against each other, in microseconds, `repeats` values each.

    Every round runs each module once, in an order drawn anew, so that drift falls on all alike.

    Raises
    ------
    InputError
        Some run on the CPU and others on a GPU or a server: their clocks differ.
    """
    if any(isinstance(module._instance, RemoteInstance) for module in modules.values()):
        raise InputError("modules on servers cannot be timed against others; use `benchmark`")
    executors: list[Any] = [module._instance.executor for module in modules.values()]  # type: ignore[union-attr]
    on_cuda = {runs_on_cuda(module.plan) for module in modules.values()}
    if len(on_cuda) > 1:
        raise InputError("modules on the CPU and on a GPU cannot be timed against each other")
    measure = _cuda.measure_interleaved if True in on_cuda else _runtime.measure_interleaved
    seconds = measure(executors, warmup, repeats, seed)
    return {name: np.array(s) * 1e6 for name, s in zip(modules, seconds, strict=True)}


def _open(artifact: Artifact) -> Instance | CudaInstance:
    """The artifact's plan with memory under it, where it was compiled for."""
    plan = artifact.usable_plan()
    if runs_on_cuda(plan):
        require_gpu(plan)
        return CudaInstance(plan, artifact.load_kernels(), artifact.weights)
    instance = Instance(plan, artifact.load_kernels(), artifact.weights)
    if len(plan.streams) > 1 and not _runtime.has_own_cores(instance.streams):
        wanted = sum(stream.threads for stream in plan.streams)
        warnings.warn(
            f"the model was compiled for {len(plan.streams)} streams on {wanted} cores, and this "
            f"process may use {_runtime.allowed_cores()}: the streams take turns, which is right "
            "but slow; compile it here, or with fewer streams",
            RuntimeWarning,
            stacklevel=3,
        )
    return instance


def _as_array(value: Any, expected: PlannedValue, kind: str) -> np.ndarray:
    if value is None:
        raise InputError(f"{kind} `{expected.name}` was given no value")
    is_tensor = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
    array = np.from_dlpack(value) if is_tensor else np.asarray(value)
    if array.shape != expected.shape or str(array.dtype) != expected.dtype:
        raise InputError(
            f"{kind} `{expected.name}` must be {_described(expected)}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return array


def _described(value: PlannedValue) -> str:
    return f"`{value.name}` ({value.dtype} of shape {value.shape})"


def _copied_out(array: np.ndarray, out: Any) -> Any:
    if out is None:
        copy = aligned_empty(array.shape, array.dtype)
        np.copyto(copy, array)
        return as_tensor(copy)
    if isinstance(out, np.ndarray):
        if out.shape != array.shape or out.dtype != array.dtype:
            raise InputError(
                f"`out` must be {array.dtype} of shape {array.shape}, "
                f"got {out.dtype} of shape {out.shape}"
            )
        np.copyto(out, array)
        return out
    if tuple(out.shape) != array.shape or str(out.dtype) != str(array.dtype):
        raise InputError(
            f"`out` must be {array.dtype} of shape {array.shape}, "
            f"got {out.dtype} of shape {tuple(out.shape)}"
        )
    return out.copyfrom(array)
