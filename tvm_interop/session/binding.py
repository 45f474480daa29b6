"""Memory of the caller's under the inputs and outputs of a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..artifact.artifact import Artifact
from ..execution.graph_module import GraphModule


class Binding:
    """An instance whose inputs are read from, and outputs written to, the caller's memory.

    Made by `Session.io_binding`. What is bound is not copied: an output of one run that is bound as
    an input too, such as the cache of a transformer, stays where it is. One thread at a time may
    run it.
    """

    def __init__(self, artifact: Artifact) -> None:
        self._module = GraphModule(artifact)

    def bind_cpu_input(self, name: str, array: Any) -> None:
        """Read input `name` from `array`'s own memory from the next run on.

        Raises
        ------
        InputError
            No input of that name, the wrong shape or type; not contiguous, or not at an address
            that is a multiple of 64 (`tvm_interop.aligned_empty` makes such arrays).
        DeviceError
            The model runs on a GPU.
        """
        self._module.set_input_zero_copy(name, array)

    def bind_output(self, name: str, array: Any = None) -> np.ndarray:
        """Write output `name` into `array`'s memory from the next run on; into a new one for None.

        Returns
        -------
        The array that is written to.

        Raises
        ------
        InputError, DeviceError
            As for `bind_cpu_input`; `array` is read-only.
        """
        return self._module.set_output_zero_copy(name, array)

    def run(self) -> None:
        """Run the model on what is bound."""
        self._module.run()

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        """Copies of all outputs of the last run."""
        return [self._module.get_output(i).numpy() for i in range(self._module.get_num_outputs())]
