"""`GraphModule`: runs an artifact, under the names TVM's graph executor had."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn, cast

import numpy as np

from ..artifact.artifact import Artifact, load
from ..errors import DeviceError, ExecutionError, InputError
from ..plan.plan import Plan, PlannedValue
from ..program.host_memory import aligned_empty
from .arrays import as_array, copied_out, described, shape_of
from .instance import PlanInstance
from .open_instance import open_instance, tell_of_idle_cores
from .operator_profile import OpProfile, operator_profile
from .rpc import RemoteInstance
from .rpc_server import ServerAddress


class GraphModule(AbstractContextManager["GraphModule"]):
    """A loaded model.

    One thread at a time may run a module; load a second one to run two at once. Inputs keep their
    values between runs. Outputs are copied out, so a later run does not change them. `Session` is
    the same under the names of onnxruntime.

    Examples
    --------
    >>> with GraphModule("model.tar") as module:  # doctest: +SKIP
    ...     (scores,) = module(image)
    >>> scores.numpy()  # doctest: +SKIP
    """

    def __init__(
        self, artifact: Artifact | str | os.PathLike[str], server: ServerAddress | None = None
    ) -> None:
        """Load kernels, allocate memory, start the streams.

        On a GPU each operator is run once, and all are then captured into one CUDA graph.

        Parameters
        ----------
        artifact: what `compile` or `load` returned, or the path of a file for `load`.
        server: run on a free server of TVM's RPC, which has our runtime loaded; None runs here. A
            server runs TVM's kernels alone, and its clock is what `benchmark` tells.

        Raises
        ------
        ArtifactError
            The kernels do not load on this system, or there; as `load` for a path.
        InputError
            `artifact` is something else.
        DeviceError
            The model was compiled for a GPU, and there is none; there is no free server.
        """
        artifact = _loaded(artifact)
        self.artifact = artifact
        self._models = [artifact, *(artifact.others if server is None else ())]
        self._instance: PlanInstance = (
            open_instance(artifact) if server is None else RemoteInstance(artifact, server)
        )
        if server is None and artifact.from_elsewhere:
            tell_of_idle_cores(self._instance.plan)
        self._instances: dict[int, PlanInstance] = {0: self._instance}
        self._params: dict[str, np.ndarray] = {}
        self.plan = self._instance.plan
        self._input_index = {self.plan.values[v].name: i for i, v in enumerate(self.plan.inputs)}
        self._never_set = set(range(len(self.plan.inputs)))

    def __repr__(self) -> str:
        return f"GraphModule({self.artifact.summary()})"

    def __reduce__(self) -> Any:
        raise ExecutionError(
            "a GraphModule has threads and memory of this process: it can be neither copied nor "
            "pickled. Make one of the same artifact where it is needed"
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give memory and threads back now; what is asked of the module later is refused."""
        self._instance = cast(PlanInstance, _Closed())
        self._instances.clear()
        self._models.clear()
        self._params.clear()

    # Inputs.

    def set_input(self, key: str | int | None = None, value: Any = None, /, **params: Any) -> None:
        """Copy data into inputs.

        Where the model was compiled for several shapes, what is given chooses among them; give
        inputs whose shapes change together. Other inputs keep their values.

        Parameters
        ----------
        key: an input's name or index, with `value`.
        value: an array or tensor of the input's shape and type.
        params: more inputs, by name; any name can be an input's, `key` and `value` too.

        Raises
        ------
        InputError
            No input of that name; the wrong shape or type.
        """
        given = self._given(key, value, params)
        self._take_fitting_shape(given)
        checked = {k: self._checked(k, v) for k, v in given.items()}  # All, before any is copied.
        for k, array in checked.items():
            self._instance.write(self._input_value(k), array)
            self._never_set.discard(self._position(k))

    def _given(
        self, key: str | int | None, value: Any, params: dict[str, Any]
    ) -> dict[str | int, Any]:
        """What a call of `set_input` sets, by name or index."""
        if key is None and "key" in params and "key" not in self._input_index:
            # As TVM's graph executor lets it be called: `set_input(key="x", value=x)`.
            key, value = params.pop("key"), params.pop("value", None)
        return params if key is None else {key: value, **params}  # type: ignore[return-value,dict-item]

    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """Read an input from `value`'s own memory from now on.

        `value` stays in use until another is set: change it between runs, not during one. It is
        only ever read: an input that is set later has memory of its own again.

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
        self._take_fitting_shape({key: value})
        array = self._checked(key, value)
        self._instance.rebind(self._input_value(key), array)
        self._never_set.discard(self._position(key))

    def get_input(self, index: str | int, out: Any = None) -> Any:
        """The current value of an input: a copy, or `out` filled with it."""
        return copied_out(self._instance.read(self._input_value(index)), out)

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

    def __call__(self, /, *arrays: Any, **inputs: Any) -> list[Any]:
        """Run the model on what is given, as `run` does, and return copies of all outputs."""
        self.run(*arrays, **inputs)
        return [self.get_output(i) for i in range(self.get_num_outputs())]

    def run(self, /, *arrays: Any, **inputs: Any) -> None:
        """Set the inputs that are given, run the model, and return when the outputs are ready.

        An input that was never set is zeros, which a `RuntimeWarning` tells once.

        Parameters
        ----------
        arrays: all inputs, in the model's order; or one mapping of arrays by name.
        inputs: inputs by name.

        Raises
        ------
        InputError
            As for `set_input`; another number of arrays than the model has inputs.
        ExecutionError
            An operator failed (named), another thread is running this module, or the process was
            forked since it was made.
        """
        given = {**self._by_name(arrays), **inputs}
        if given:
            self.set_input(**given)
        if self._never_set:
            self._tell_of_zeros()
        self._instance.run()

    def _by_name(self, arrays: tuple[Any, ...]) -> dict[str, Any]:
        """What `run` was given without keywords, by the inputs' names."""
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

    def _tell_of_zeros(self) -> None:
        names = ", ".join(f"`{n}`" for n, i in self._input_index.items() if i in self._never_set)
        warnings.warn(
            f"the model runs on zeros: its inputs {names} were never set; give arrays to `run` or "
            "`set_input`",
            RuntimeWarning,
            stacklevel=3,
        )
        self._never_set.clear()

    # Outputs.

    def get_num_outputs(self) -> int:
        """How many outputs the model has."""
        return len(self.plan.outputs)

    def get_output_index(self, name: str) -> int:
        """The index of the output called `name`, or -1."""
        names = [self.plan.values[v].name for v in self.plan.outputs]
        return names.index(name) if name in names else -1

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Shapes and types of the outputs, each by name."""
        values = [self.plan.values[v] for v in self.plan.outputs]
        return {v.name: v.shape for v in values}, {v.name: v.dtype for v in values}

    def get_output(self, index: int | str, out: Any = None) -> Any:
        """An output of the last run, by index or name: a copy, or `out` filled with it.

        Raises
        ------
        InputError
            There is no such output; `out` has another shape or type.
        """
        position = self._output_position(index)
        return copied_out(self._instance.read(self.plan.outputs[position]), out)

    def set_output_zero_copy(self, key: str | int, value: Any = None) -> np.ndarray:
        """Write an output into `value`'s own memory from now on.

        Each run writes there, until other memory is set. Bound as an input too, with
        `set_input_zero_copy`, it carries a state from run to run without a copy.

        Parameters
        ----------
        value: a contiguous array or CPU tensor at an address that is a multiple of 64; None makes a
            new array.

        Returns
        -------
        The array over that memory.

        Raises
        ------
        InputError
            No such output; the wrong shape or type; read-only, not contiguous, or not aligned; the
            output has no memory of its own.
        DeviceError
            The module runs on a GPU, or on a server.
        """
        index = self.plan.outputs[self._output_position(key)]
        expected = self.plan.values[index]
        if expected.storage != "output":
            raise InputError(
                f"output `{expected.name}` has no memory of its own: it is an input, a weight, or "
                "in the memory of another; take it with get_output, which copies"
            )
        if value is None:
            value = aligned_empty(expected.shape, expected.dtype)
        array = as_array(value, expected, "output")
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            raise InputError(f"output `{expected.name}` cannot be written to a read-only array")
        self._instance.rebind(index, array)
        return array

    def _output_position(self, key: str | int) -> int:
        position = self.get_output_index(key) if isinstance(key, str) else key
        if not 0 <= position < len(self.plan.outputs):
            outputs = ", ".join(described(self.plan.values[v]) for v in self.plan.outputs)
            which = f"`{key}`" if isinstance(key, str) else key
            raise InputError(
                f"no output {which}: the model has {len(self.plan.outputs)}, {outputs}"
            )
        return position

    # Weights.

    def load_params(self, params_bytes: bytes | bytearray) -> None:
        """Set weights from what `tvm.runtime.save_param_dict` made.

        Raises
        ------
        InputError
            A name that is no weight of the model; the wrong shape or type. Nothing is changed then.
        """
        import tvm

        index = _weight_indices(self.plan)
        arrays = {}
        for name, tensor in tvm.runtime.load_param_dict(params_bytes).items():
            if name not in index:
                raise InputError(f"no weight `{name}`; the model's are {', '.join(index)}")
            value = self.plan.values[index[name]]
            arrays[str(name)] = as_array(tensor, value, "weight")
        for instance in self._instances.values():
            self._replace_weights(instance, arrays)
        self._params.update(arrays)  # For shapes that have not been run yet.

    def _replace_weights(self, instance: Any, arrays: Mapping[str, np.ndarray]) -> None:
        index = _weight_indices(instance.plan)
        for name, array in arrays.items():
            if name not in index:
                raise InputError(
                    f"for inputs of other shapes the model has no weight `{name}`: give the "
                    "weights when the model is compiled"
                )
            instance.replace(index[name], array)

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
        if device is not None and device.dlpack_device_type() != self._instance.dlpack_device_type:
            raise DeviceError(f"this module runs on {_where(self.plan)}, not on {device}")
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
        return operator_profile(self.plan, self._instance.profile())

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

    def _take_fitting_shape(self, given: Mapping[str | int, Any]) -> None:
        """Go over to the model for the shapes given, if it is another than the last."""
        if len(self._models) < 2 or self._fits(self.plan, given):
            return
        fitting = [i for i, each in enumerate(self._models) if self._fits(each.plan, given)]
        if not fitting:
            known = "; ".join(str(shapes) for shapes in self.artifact.input_shapes)
            found = {key: shape_of(value) for key, value in given.items()}
            raise InputError(
                f"the model was not compiled for the shapes {found}; it was compiled for {known}"
            )
        i = fitting[0]
        model = self._models[i]
        kept = self._kept_inputs(model.plan, given)
        if i not in self._instances:
            self._instances[i] = open_instance(model)
            self._replace_weights(self._instances[i], self._params)
        self._instance = self._instances[i]
        self.plan = self._instance.plan
        for index, array in kept.items():
            self._instance.write(self.plan.inputs[index], array)

    def _fits(self, plan: Plan, given: Mapping[str | int, Any]) -> bool:
        return all(
            shape_of(value) == plan.values[plan.inputs[self._position(key)]].shape
            for key, value in given.items()
        )

    def _kept_inputs(self, plan: Plan, given: Mapping[str | int, Any]) -> dict[int, np.ndarray]:
        """The inputs, by index, that keep their values where `plan` takes over."""
        new = {self._position(key) for key in given}
        kept = {}
        for index, (ours, theirs) in enumerate(zip(self.plan.inputs, plan.inputs, strict=True)):
            if index in new:
                continue
            value = self.plan.values[ours]
            if value.shape != plan.values[theirs].shape:
                raise InputError(
                    f"input `{value.name}` changes its shape too, to {plan.values[theirs].shape}: "
                    "give it in the same call"
                )
            kept[index] = self._instance.read(ours).copy()
        return kept

    def _input_value(self, key: str | int) -> int:
        return self.plan.inputs[self._position(key)]

    def _position(self, key: str | int) -> int:
        index = self._input_index.get(key, -1) if isinstance(key, str) else key
        if not 0 <= index < len(self.plan.inputs):
            raise InputError(f"the model has no input `{key}`; it has {self._inputs_in_words()}")
        return index

    def _inputs_in_words(self) -> str:
        return ", ".join(described(self.plan.values[v]) for v in self.plan.inputs)

    def _input(self, key: str | int) -> PlannedValue:
        return self.plan.values[self._input_value(key)]

    def _checked(self, key: str | int, value: Any) -> np.ndarray:
        return as_array(value, self._input(key), "input")


class _Closed:
    """Stands in the place of the instance of a module that was closed."""

    def __getattr__(self, _: str) -> NoReturn:
        raise ExecutionError("the module was closed: make a new one of the same artifact")


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
    instances = [module._instance for module in modules.values()]
    if not instances:
        return {}
    clock = instances[0].clock
    if any(instance.clock is None for instance in instances) or clock is None:
        raise InputError("modules on servers cannot be timed against others; use `benchmark`")
    if any(instance.clock is not clock for instance in instances):
        raise InputError("modules on the CPU and on a GPU cannot be timed against each other")
    executors = [instance.executor for instance in instances]
    seconds = clock.measure_interleaved(executors, warmup, repeats, seed)
    return {name: np.array(s) * 1e6 for name, s in zip(modules, seconds, strict=True)}


def _loaded(artifact: Any) -> Artifact:
    if isinstance(artifact, Artifact):
        return artifact
    if isinstance(artifact, (str, os.PathLike)):
        return load(artifact)
    raise InputError(
        f"a GraphModule is made of an artifact or its path, not of a `{type(artifact).__name__}`: "
        "give what `tvm_interop.compile` returned"
    )


def _where(plan: Plan) -> str:
    """What a plan runs on, for messages."""
    device = plan.streams[0].device if plan.streams else "cpu:0"
    return "the CPU" if device.startswith("cpu") else device


def _weight_indices(plan: Plan) -> dict[str, int]:
    """The weights of a plan, by name: each one's index into its values."""
    return {
        v.name: i for i, v in enumerate(plan.values) if v.storage == "weight" and v.copy_of is None
    }
