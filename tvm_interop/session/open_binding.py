"""`OpenBinding`: binds the caller's memory if a model has open dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError, did_you_mean
from ..execution.arrays import HostTensor, copied_out
from .bound_names import BoundNames
from .tensor_info import TensorInfo


class OpenBinding(BoundNames):
    """Reads inputs of any shapes from the caller's memory, and copies outputs to it.

    `Session.io_binding` makes such a binding if the model has open dimensions. Each run takes the
    shapes of the arrays that are bound at that time. Its outputs are new arrays, which are copied
    into the arrays that are bound to outputs. Only one thread at a time may run a binding.
    """

    def __init__(
        self,
        run: Callable[[None, Mapping[str, Any]], list[np.ndarray]],
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
    ) -> None:
        """Begin without any bound memory.

        Parameters
        ----------
        run: the method `run` of the session.
        inputs, outputs: the inputs and outputs of the session.
        """
        self._run = run
        self._inputs = {info.name: info for info in inputs}
        self._outputs = {info.name: info for info in outputs}
        self._bound_inputs: dict[str, Any] = {}
        self._bound_outputs: dict[str, Any] = {}
        self._results: list[np.ndarray] = []

    def _bind_input(self, name: str, array: Any) -> None:
        _check_name("input", name, self._inputs)
        self._bound_inputs[name] = array

    def _bind_output(self, name: str, array: Any) -> Any:
        _check_name("output", name, self._outputs)
        if array is None:
            self._bound_outputs.pop(name, None)
        else:
            self._bound_outputs[name] = array
        return array

    def _leave_on_device(self, name: str, device_type: str) -> None:
        raise InputError(
            f"output `{name}` cannot be bound to the device `{device_type}`, because a model with "
            'open dimensions returns its outputs on the CPU: bind it to "cpu"'
        )

    def clear_binding_inputs(self) -> None:
        """From now on, do not read the bound inputs."""
        self._bound_inputs.clear()

    def clear_binding_outputs(self) -> None:
        """From now on, do not write to the bound outputs."""
        self._bound_outputs.clear()

    def run(self) -> None:
        """Run the model on the bound inputs.

        Raises
        ------
        InputError
            An input is not bound, or an output does not fit the array that is bound to it.
        """
        self._results = self._run(None, self._bound_inputs)
        for name, result in zip(self._outputs, self._results, strict=True):
            if name in self._bound_outputs:
                copied_out(result, self._bound_outputs[name])

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run, in the model's order. Arrays have a method `numpy`.

        A bound output is the array or tensor that was bound.
        """
        found = [
            self._bound_outputs.get(name, result)
            for name, result in zip(self._outputs, self._results, strict=bool(self._results))
        ]
        return [each.view(HostTensor) if type(each) is np.ndarray else each for each in found]

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return copies of all outputs of the last run, in the model's order."""
        return [result.copy() for result in self._results]


def _check_name(kind: str, name: str, known: Mapping[str, TensorInfo]) -> None:
    if name not in known:
        raise InputError(
            f"the model has no {kind} `{name}`{did_you_mean(name, list(known))}; it has "
            f"{', '.join(map(str, known.values())) or 'none'}"
        )
