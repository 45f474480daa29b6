"""`Binding`: an instance of a model that reads and writes the caller's memory without copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..artifact.artifact import Artifact
from ..execution.graph_module import GraphModule


class Binding:
    """An instance of a model that reads inputs from and writes outputs to the caller's memory.

    `Session.io_binding` makes a binding. Bound arrays are not copied. An array may be bound to an
    output and also to an input, for example for the cache of a transformer. Only one thread at a
    time may run a binding.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._module = GraphModule(artifact)

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """From the next run on, read input `name` from the memory of `array`, without a copy.

        `tvm_interop.aligned_empty` makes arrays at suitable addresses.

        Raises
        ------
        InputError
            There is no input of that name, or `array` has the wrong shape or dtype, is not
            contiguous, or is not at an address that is a multiple of 64 bytes.
        DeviceError
            The model runs on a GPU.
        """
        self._module.set_input_zero_copy(name, array)

    def bind_output(self, name: str, array: Any = None) -> np.ndarray:
        """From the next run on, write output `name` into the memory of `array`, without a copy.

        If `array` is None, a new array is made.

        Returns
        -------
        The array that is written to.

        Raises
        ------
        InputError, DeviceError
            The same cases as for `bind_cpu_input`. Also `InputError` if `array` is read-only or the
            output has no memory of its own.
        """
        return self._module.set_output_zero_copy(name, array)

    def run(self) -> None:
        """Run the model on the bound inputs and outputs."""
        self._module.run()

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Return copies of all outputs of the last run, in the model's order."""
        return [self._module.get_output(i).numpy() for i in range(self._module.get_num_outputs())]
