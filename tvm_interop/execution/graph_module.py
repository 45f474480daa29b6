"""`GraphModule`, which runs a compiled model and has the methods of TVM's graph executor."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._native.runtime import Port
from ..artifact.artifact import Artifact
from ..errors import DeviceError, ExecutionError, InputError
from ..program.host_memory import aligned_empty
from .arrays import HostTensor, check_key, copied_out, described, writable_array
from .benchmark import benchmark_result
from .inputs import as_device_output, is_beside
from .instance import DeviceInstance, info_of
from .native import NativeInstance
from .open_instance import Shapes, artifact_at, tell_of_idle_cores
from .shaped_instances import ShapedInstances

if TYPE_CHECKING:
    from ..plan.plan import Plan
    from .operator_profile import OpProfile
    from .rpc_server import ServerAddress


class GraphModule(ShapedInstances, AbstractContextManager["GraphModule"]):
    """A loaded model, ready to run.

    Only one thread at a time may run a module; load a second module to run two at once. Inputs keep
    their values between runs. Outputs are copied, so a later run does not change them. The class
    `Session` also runs models, and has the method names of onnxruntime.

    Examples
    --------
    >>> with GraphModule("model.tar") as module:
    ...     (scores,) = module(image)  # or `module(image=image)`
    >>> scores.numpy().tolist()
    [[0.0, 0.0, 2.0]]
    """

    def __init__(
        self, artifact: Artifact | str | os.PathLike[str], server: ServerAddress | None = None
    ) -> None:
        """Load the kernels, allocate memory and start the streams.

        On a GPU, each operator runs once. Then all operators are captured into one CUDA graph.

        Parameters
        ----------
        artifact: the artifact that `compile` or `load` returned, or the path of its file.
        server: the address of the tracker of TVM's RPC, and the key of the servers to use. The
            model runs on a free server, which must have our runtime loaded. None runs the model on
            this machine. A server runs only TVM's kernels, and `benchmark` measures times by the
            server's clock.

        Raises
        ------
        ArtifactError
            The kernels cannot be loaded on this machine or on the server, or `load` refuses the
            file.
        InputError
            `artifact` is neither an artifact nor a path.
        DeviceError
            The model was compiled for a GPU and there is none, or there is no free server.
        """
        artifact = artifact_at(artifact)
        shapes = Shapes(artifact, server)
        super().__init__(shapes, shapes.open(0))
        self.artifact = artifact
        if server is None and artifact.from_elsewhere:
            tell_of_idle_cores(artifact)

    @property
    def plan(self) -> Plan:
        """The plan that runs for the current input shapes."""
        return self._instance.plan

    def ports(self) -> tuple[list[Port], list[Port]]:
        """Return the inputs and the outputs for the current input shapes."""
        return self._current_inputs(), self._current_outputs()

    def __repr__(self) -> str:
        return f"GraphModule({self.artifact.summary()})"

    def __reduce__(self) -> Any:
        raise ExecutionError(
            "a GraphModule has threads and memory of this process: it can be neither copied nor "
            "pickled. Make a new one of the same artifact instead"
        )

    def __exit__(self, *_: object) -> None:
        """Close the module at the end of a `with` block."""
        self.close()

    def close(self) -> None:
        """Free memory and threads now. Later uses of the module raise `ExecutionError`."""
        self._drop_instances()

    # Inputs.

    def set_input(self, key: str | int | None = None, value: Any = None, /, **params: Any) -> None:
        """Copy data into inputs.

        If the model was compiled for several sets of input shapes, the module switches to the set
        that fits the given arrays. Inputs whose shapes change must be given in the same call. Other
        inputs keep their values.

        Parameters
        ----------
        key: the name or index of the input that gets `value`.
        value: an array or tensor of the input's shape and dtype. If the module runs on a GPU, the
            tensor may lie on that GPU.
        params: more inputs, by name. An input may have any name, even `key` or `value`.

        Raises
        ------
        InputError
            There is no input of that name, or an array has the wrong shape or dtype.
        """
        self._write_all(self._prepared(self._given(key, value, params)))

    def _given(
        self, key: str | int | None, value: Any, params: dict[str, Any]
    ) -> dict[str | int, Any]:
        """Return the arrays that a call of `set_input` gives, by name or index of the input."""
        if key is None and "key" in params and "key" not in self._input_index:
            # Programs for TVM's graph executor may call `set_input(key="x", value=x)`.
            key, value = params.pop("key"), params.pop("value", None)
        given = cast(dict[str | int, Any], params)
        if key is not None:
            check_key(key, "input")
            given = {key: value, **given}
        return given

    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """From now on, read an input from the memory of `value`, without a copy.

        The module uses the memory of `value` until the input is set again. You may change its
        contents between runs, but not during a run. The module never writes to this memory: if the
        input is set later, the input gets its own memory again.

        Parameters
        ----------
        key: the input's name or index.
        value: a contiguous array or CPU tensor. If the module was loaded from a file that was
            compiled with version 0.2 or later, its address must be a multiple of the element's
            size, otherwise of 64 bytes.

        Raises
        ------
        InputError
            The same cases as for `set_input`. Also if `value` is not contiguous or not aligned.
        DeviceError
            The module runs on a GPU, or on a server.
        """
        self._take_fitting_shape(self._sizes_of({key: value}))
        array = self._checked(key, value)
        self._check_is_full()
        self._instance.rebind(self._input(key).value, array)
        self._never_set.discard(self._position(key))

    def get_input(self, index: str | int, out: Any = None) -> Any:
        """Copy the current value of an input into `out` or a new tensor, and return the copy."""
        return copied_out(self._read_input(self._position(index)), out)

    def get_num_inputs(self) -> int:
        """Return the number of inputs of the model."""
        return len(self._instance.inputs)

    def get_input_index(self, name: str) -> int:
        """Return the index of the input `name`, or -1 if there is no such input."""
        return self._input_index.get(name, -1)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return two mappings: the shapes and the dtypes of the inputs, by name."""
        return info_of(self._current_inputs())

    # Running.

    def __call__(self, /, *arrays: Any, **inputs: Any) -> list[Any]:
        """Run the model on the given inputs, as `run` does, and return copies of all outputs."""
        self._set_all(self._all_given(arrays, inputs))
        self._instance.run([port.value for port in self._instance.outputs])
        self._count_run()
        return [self.get_output(i) for i in range(self.get_num_outputs())]

    def run(self, /, *arrays: Any, **inputs: Any) -> None:
        """Set the given inputs, run the model, and return when the outputs are ready.

        An input that was never set contains zeros. A `RuntimeWarning` says so once.

        Parameters
        ----------
        arrays: all inputs in the model's order, or a single mapping from names or indices to
            arrays.
        inputs: inputs by name.

        Raises
        ------
        InputError
            The same cases as for `set_input`. Also if the number of arrays is wrong.
        ExecutionError
            An operator failed (the message names it), another thread is running this module, or the
            process was forked after the module was made.
        DeviceError
            The process cannot use its GPU any more, because a kernel failed or the process was
            forked.
        """
        if arrays or inputs or self._never_set:  # If there is nothing to set, save the call.
            self._set_all(self._all_given(arrays, inputs))
        self._instance.run()
        self._count_run()

    def run_into(self, inputs: Mapping[Any, Any], outputs: Mapping[Any, Any]) -> None:
        """Run the model on the given inputs, and copy outputs into arrays of the caller.

        On a GPU, the host waits only once, for the run together with the copies to host memory.

        Parameters
        ----------
        inputs: arrays or tensors by name or index of the input, as for `run`.
        outputs: arrays or tensors to write to, by name or index of the output, as for `get_output`.

        Raises
        ------
        InputError, ExecutionError, DeviceError
            The same cases as for `run` and `get_output`.
        """
        places = {self._output_position(key): out for key, out in outputs.items()}
        here = [i for i, out in places.items() if not is_beside(out, self._instance)]
        self._set_all(inputs)
        self._instance.run([self._instance.outputs[i].value for i in here])
        self._count_run()
        for position, out in places.items():
            self._copied_output(position, out)

    def run_on(self, inputs: Mapping[str, Any], outputs: Sequence[int]) -> dict[int, np.ndarray]:
        """Run the model on the given inputs, and return new arrays of some outputs by position.

        On a CPU, the kernels read the caller's arrays and write the new arrays directly, where this
        is possible. The module's own inputs and outputs then stay as they are.

        Parameters
        ----------
        inputs: inputs by name, which must not change during the run. Other inputs have the values
            that were set before.

        Raises
        ------
        InputError, ExecutionError, DeviceError
            The same cases as for `run`.
        """
        given = self._prepared(inputs)
        unset = self._never_set - given.keys()
        if unset:
            self._tell_of_zeros(unset)
        ports = self._current_outputs()
        fixed = [i for i in outputs if i not in self._counted]
        made = {i: aligned_empty(ports[i].shape, ports[i].dtype) for i in fixed}
        if isinstance(self._instance, NativeInstance) and self._is_full:
            self._instance.run_on(given, made)
            self._count_run()
        else:
            self._write_all(given)
            self.run_into({}, made)
        made.update((i, np.array(self._read_output(i))) for i in outputs if i in self._counted)
        return made

    def start(self, /, *arrays: Any, **inputs: Any) -> None:
        """Start a run and do not wait for the GPU; on other devices, do the same as `run`.

        Later runs, and all calls that set inputs or get outputs, come after the started run. A
        library that reads an output of `get_output_zero_copy` waits for the run too. If the GPU
        fails, a later call raises the error.

        Raises
        ------
        InputError, ExecutionError, DeviceError
            The same cases as for `run`.
        """
        self._set_all(self._all_given(arrays, inputs))
        if isinstance(self._instance, DeviceInstance):
            self._instance.start()
        else:
            self._instance.run()
        self._count_run()

    def _all_given(
        self, arrays: tuple[Any, ...], inputs: Mapping[str, Any]
    ) -> Mapping[str | int, Any]:
        return self._by_name(arrays) | cast(dict[str | int, Any], inputs)

    def _set_all(self, given: Mapping[str | int, Any]) -> None:
        if given:
            self._write_all(self._prepared(given))
        if self._never_set:
            self._tell_of_zeros(self._never_set)

    def _by_name(self, arrays: tuple[Any, ...]) -> dict[str | int, Any]:
        """Return the positional arguments of `run`, by the names or indices of the inputs."""
        if not arrays:
            return {}
        if len(arrays) == 1 and isinstance(arrays[0], Mapping):
            return dict(arrays[0])
        if len(arrays) != len(self._input_index):
            raise InputError(
                f"{len(arrays)} array(s) given, and the model has {len(self._input_index)} inputs: "
                f"{self._inputs_in_words()}; give all of them in order, or some by name"
            )
        return dict(zip(self._input_index, arrays, strict=True))

    def _tell_of_zeros(self, unset: set[int]) -> None:
        names = ", ".join(f"`{n}`" for n, i in self._input_index.items() if i in unset)
        warnings.warn(
            f"the model runs on zeros: its inputs {names} were never set; give arrays to `run` or "
            "`set_input`",
            RuntimeWarning,
            stacklevel=4,  # The warning names the line of the user's code.
        )
        self._never_set = self._never_set - unset

    # Outputs.

    def get_num_outputs(self) -> int:
        """Return the number of outputs of the model."""
        return len(self._current_outputs())

    def get_output_index(self, name: str) -> int:
        """Return the index of the output `name`, or -1 if there is no such output."""
        names = [port.name for port in self._current_outputs()]
        return names.index(name) if name in names else -1

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return two mappings by name: the outputs' largest possible shapes, and their dtypes."""
        return info_of(self._current_outputs())

    def get_output(self, index: int | str, out: Any = None) -> Any:
        """Copy an output of the last run into `out` or a new tensor, and return the copy.

        Parameters
        ----------
        index: the output's index or name.
        out: an array or tensor of the output's shape and dtype; None makes a new tensor in the
            host's memory. If the module runs on a GPU, the tensor may lie on that GPU.

        Raises
        ------
        InputError
            There is no such output, or `out` has another shape or dtype.
        """
        return self._copied_output(self._output_position(index), out)

    def _copied_output(self, position: int, out: Any) -> Any:
        port = self._instance.outputs[position]
        if not is_beside(out, self._instance):
            return copied_out(self._read_output(position), out)
        self._counted.refuse(port, position, "be copied to memory of the GPU")
        cast(DeviceInstance, self._instance).copy_to(port.value, as_device_output(out, port))
        return out

    def get_output_zero_copy(self, index: int | str) -> Any:
        """Return an output of the last run in the module's own memory. The next run changes it.

        Returns
        -------
        On a GPU, a `DeviceTensor`, which other libraries read by DLPack without a copy. On a CPU,
        an array. From a server, an array that was copied here.

        Raises
        ------
        InputError
            There is no such output.
        """
        position = self._output_position(index)
        if isinstance(self._instance, DeviceInstance):
            self._counted.refuse(self._instance.outputs[position], position, "be viewed on the GPU")
            return self._instance.view(self._instance.outputs[position].value)
        return self._read_output(position).view(HostTensor)

    def set_output_zero_copy(self, key: str | int, value: Any = None) -> np.ndarray:
        """From now on, write an output into the memory of `value`, without a copy.

        Each run writes to the memory of `value` until other memory is set. If `set_input_zero_copy`
        binds the same memory to an input, a state passes from run to run, and each run copies it.

        Parameters
        ----------
        key: the output's name or index.
        value: a contiguous array or CPU tensor at an address that is a multiple of 64 bytes. None
            makes a new array.

        Returns
        -------
        An array over the memory that the output is written to.

        Raises
        ------
        InputError
            There is no output `key`, or it has no memory of its own. Or `value` has the wrong shape
            or dtype, is read-only, is not contiguous, or is not aligned.
        DeviceError
            The module runs on a GPU, or on a server.
        """
        position = self._output_position(key)
        self._check_is_full()
        expected = self._instance.outputs[position]
        self._counted.refuse(expected, position, "be written to memory of yours")
        if self.plan.values[self.plan.outputs[position]].storage != "output":
            raise InputError(
                f"output `{expected.name}` has no memory of its own: it is an input, a weight, or "
                "in the memory of another tensor; take it with get_output, which copies"
            )
        if value is None:
            value = aligned_empty(expected.shape, expected.dtype)
        array = writable_array(value, expected)
        self._instance.rebind(expected.value, array)
        return array

    def _output_position(self, key: str | int) -> int:
        check_key(key, "output")
        position = self.get_output_index(key) if isinstance(key, str) else key
        known = self._current_outputs()
        if not 0 <= position < len(known):
            which = f"`{key}`" if isinstance(key, str) else key
            outputs = ", ".join(map(described, known))
            raise InputError(f"the model has no output {which}; its outputs are: {outputs}")
        return position

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
        device: the module's own device, or None. The parameter exists for code that was written for
            TVM's graph executor.
        func_name: `run`, the only function. This parameter exists for the same reason as `device`.
        repeat: the number of measurements.
        number: the number of runs in each measurement, which gives the mean time of these runs.
        min_repeat_ms: the shortest time of a measurement, in milliseconds. `number` is raised until
            a measurement takes that long.
        end_to_end: whether to count the time to set the inputs and to get the outputs too.
        inputs: inputs to set first.

        Returns
        -------
        tvm.runtime.module.BenchmarkResult
            mean, median, min, max, std and results, in seconds.

        Raises
        ------
        InputError
            `func_name` is not `run`.
        DeviceError
            `device` is not the module's device.
        """
        if func_name != "run":
            raise InputError(f"no function `{func_name}` to benchmark; there is `run`")
        if device is not None and device.dlpack_device_type() != self._instance.dlpack_device_type:
            raise DeviceError(
                f"this module runs on {self.plan.device_in_words()}, not on {device}; leave "
                "`device` out"
            )
        if inputs:
            self.set_input(**inputs)
        timer = self._time_end_to_end if end_to_end else self._instance.time
        return benchmark_result(timer, repeat, number, min_repeat_ms)

    def profile(self) -> list[OpProfile]:
        """Run once and return when each operator ran.

        There is one row for each operator, in the order in which the operators started.
        """
        from .operator_profile import operator_profile

        return operator_profile(self.plan, self._instance.profile())

    def _time_end_to_end(self, number: int) -> float:
        values = {name: self._read_input(i).copy() for name, i in self._input_index.items()}
        began = time.perf_counter()
        for _ in range(number):
            self(values)
        return time.perf_counter() - began
