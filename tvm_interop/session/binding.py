"""`Binding`: an instance of a model that reads and writes the caller's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .._native.runtime import Port
from ..artifact.artifact import Artifact
from ..errors import DeviceError, InputError
from ..execution.arrays import HostTensor, described, writable_array
from ..execution.graph_module import GraphModule
from ..execution.inputs import as_device_output, is_on_device
from ..program.host_memory import aligned_empty
from .bound_names import BoundNames


class Binding(BoundNames):
    """An instance of a model that reads inputs from and writes outputs to the caller's memory.

    `Session.io_binding` makes a binding. An array may be bound to an output and also to an input,
    for example for the cache of a transformer. Only one thread at a time may run a binding.

    On a CPU, a contiguous array at an address that is a multiple of 64 bytes is not copied;
    `tvm_interop.aligned_empty` makes such arrays. Any other array is copied in each run. An output
    that shares the memory of another tensor of the model is copied too. The `repr` of a binding
    says which tensors are copied.

    On a GPU every bound array or tensor is copied in each run, because a CUDA graph contains the
    addresses of its tensors. Tensors on the GPU are copied on the GPU, and the host waits once for
    all copies from and to its own memory. An output that is not bound is not copied: `get_outputs`
    returns it in the GPU's memory.

    If the session compiles in the background, the first run after the compilation changes to the
    new artifact. Bound arrays stay bound.

    Examples
    --------
    >>> session = tvm_interop.Session("model.onnx")
    >>> binding = session.io_binding()
    >>> binding.bind_input("image", image)
    >>> scores = binding.bind_output("y")  # Each run writes to this array.
    >>> session.run_with_iobinding(binding)
    >>> scores.tolist()
    [[0.0, 0.0, 2.0]]
    """

    def __init__(self, current: Callable[[], tuple[Artifact, GraphModule] | None]) -> None:
        """Make an instance of the artifact that the session runs now.

        Parameters
        ----------
        current: a function that returns the artifact that the session runs now, and the module that
            counts the session's runs. This module counts the runs of the binding too. The function
            returns None if the session was closed.
        """
        found = current()
        assert found is not None, "a closed session makes no bindings"
        self._current = current
        self._inputs_bound: dict[str, Any] = {}
        self._outputs_bound: dict[str, Any] = {}
        self._use(*found)

    def _use(self, artifact: Artifact, counted_with: GraphModule) -> None:
        self._artifact = artifact
        self._is_for_gpus = artifact.is_for_gpus
        self._module = GraphModule(artifact)
        self._module.count_with(counted_with)
        self._outputs = {port.name: port for port in self._module.ports()[1]}
        self._copied_in: dict[str, Any] = {}
        self._copied_out: dict[str, Any] = {}
        self._in_place: set[str] = set()

    def _follow(self) -> None:
        """If the session runs a new artifact now, change to it, and bind the same memory again."""
        current = self._current()
        if current is None or current[0] is self._artifact:
            return
        self._use(*current)
        for name, array in list(self._inputs_bound.items()):
            self.bind_input(name, array)
        for name, array in list(self._outputs_bound.items()):
            self.bind_output(name, array)

    def __repr__(self) -> str:
        in_place = ", ".join(sorted(self._in_place)) or "nothing"
        copied = ", ".join(sorted({*self._copied_in, *self._copied_out})) or "nothing"
        return f"Binding(in place: {in_place}; copied in each run: {copied})"

    def _bind_input(self, name: str, array: Any) -> None:
        self._module.set_input(name, array)
        self._copied_in.pop(name, None)
        try:
            self._module.set_input_zero_copy(name, array)
            self._in_place.add(name)
        except (InputError, DeviceError):
            self._copied_in[name] = array
            self._in_place.discard(name)
        self._inputs_bound[name] = array

    def clear_binding_inputs(self) -> None:
        """From now on, do not read the bound arrays. The inputs keep their present values."""
        for name in self._inputs_bound:
            self._module.set_input(name, self._module.get_input(name))
            self._in_place.discard(name)
        self._copied_in.clear()
        self._inputs_bound.clear()

    def _bind_output(self, name: str, array: Any) -> Any:
        expected = self._output(name)
        self._module.check_size_is_fixed(name)
        if array is None:
            array = aligned_empty(expected.shape, expected.dtype)
        if self._is_for_gpus and is_on_device(array):
            self._copied_out[name] = as_device_output(array, expected)
            self._outputs_bound[name] = array
            return array
        bound = writable_array(array, expected)
        self._copied_out.pop(name, None)
        try:
            self._module.set_output_zero_copy(name, array)
            self._in_place.add(name)
        except (InputError, DeviceError):
            if name in self._in_place:
                # The array that was bound to this output before must not be written to any more.
                self._module.set_output_zero_copy(name)
                self._in_place.discard(name)
            self._copied_out[name] = array
        self._outputs_bound[name] = array
        return bound

    def _output(self, name: str) -> Port:
        if name not in self._outputs:
            known = ", ".join(map(described, self._outputs.values()))
            raise InputError(f"the model has no output `{name}`; its outputs are: {known}")
        return self._outputs[name]

    def _leave_on_device(self, name: str, device_type: str) -> None:
        self._output(name)
        if not self._is_for_gpus or device_type != "cuda":
            raise InputError(
                f"output `{name}` cannot be bound to the device `{device_type}`, because the model "
                f"runs on the {'GPU' if self._is_for_gpus else 'CPU'}: bind it to that device"
            )
        self._copied_out.pop(name, None)
        self._outputs_bound.pop(name, None)

    def clear_binding_outputs(self) -> None:
        """From now on, write outputs to the binding's own memory, and not to the bound arrays."""
        for name in self._in_place & self._outputs_bound.keys():
            self._module.set_output_zero_copy(name)
            self._in_place.discard(name)
        self._copied_out.clear()
        self._outputs_bound.clear()

    def run(self) -> None:
        """Run the model on the bound inputs and outputs."""
        self._follow()
        self._module.run_into(self._copied_in, self._copied_out)

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run without a copy, in the model's order.

        A bound output is the array or tensor that was bound. Any other output is in the memory of
        this binding, and the next run changes it. Arrays have the method `numpy`.
        """
        bound = {name: self._copied_out.get(name) for name in self._outputs}
        return [
            self._module.get_output_zero_copy(name)
            if array is None
            else array.view(HostTensor)
            if type(array) is np.ndarray
            else array
            for name, array in bound.items()
        ]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return copies of all outputs of the last run, in the model's order.

        An output of strings is an array of `str`, of dtype object. Memory that is bound to such an
        output gets the positions of the strings, as `GraphModule.output_strings` lists them.
        """
        outputs = [self._module.get_output(i) for i in range(self._module.get_num_outputs())]
        return [self._module.as_strings(i, each.numpy()) for i, each in enumerate(outputs)]
