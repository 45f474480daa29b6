"""tvm_interop as a backend of ONNX, by the interface that `onnx.backend.base` defines.

    >>> from tvm_interop import onnx_backend
    >>> prepared = onnx_backend.prepare(onnx.load("model.onnx"))
    >>> prepared.run([image])[0].tolist()
    [[0.0, 0.0, 2.0]]

The backend runs operators one after the other, and uses only the kernels that TVM generates. It
measures no kernels, so that compiling a model takes as little time as possible. Use
`tvm_interop.compile` for a model that runs fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.backend.base

from .compiler.api import compile as compile_model
from .errors import InputError
from .execution.graph_module import GraphModule
from .session.sequences import joined, places_of
from .session.tensor_info import infos_of_onnx

__all__ = ["PreparedModel", "TVMInteropBackend", "prepare", "run_model", "supports_device"]


class PreparedModel(onnx.backend.base.BackendRep):  # type: ignore[misc]
    """A compiled model, which the method `run` runs."""

    def __init__(self, model: onnx.ModelProto, input_shapes: Mapping[str, Sequence[int]]) -> None:
        shapes = {name: tuple(shape) for name, shape in input_shapes.items()}
        artifact = compile_model(
            model, scheduler="sequential", providers=["tvm"], streams=1, input_shapes=shapes
        )
        weights = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [value.name for value in model.graph.input if value.name not in weights]
        self._module = GraphModule(artifact)
        self._outputs = infos_of_onnx(model)[1]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """Run the model.

        Parameters
        ----------
        inputs: arrays in the order of the model's inputs, or a dictionary by name.

        Returns
        -------
        The outputs, in the model's order.

        Raises
        ------
        InputError
            There are too few or too many inputs, or an input has another shape or type than the
            model's.
        """
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self._inputs):
                raise InputError(
                    f"the model has {len(self._inputs)} inputs "
                    f"({', '.join(f'`{name}`' for name in self._inputs)}), and {len(inputs)} were "
                    "given; give one array for each"
                )
            inputs = dict(zip(self._inputs, inputs, strict=True))
        for name, value in inputs.items():
            self._module.set_input(name, value)
        self._module.run()
        module = self._module
        places = places_of(self._outputs, list(module.get_output_info()[0]))
        results = [
            module.as_strings(i, module.get_output(i).numpy()) for own in places for i in own
        ]
        return tuple(joined(self._outputs, places, results))


class TVMInteropBackend(onnx.backend.base.Backend):  # type: ignore[misc]
    """The backend that ONNX's interface asks for. It compiles models for this computer's CPU."""

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compile `model`.

        Parameters
        ----------
        device: must be `CPU`.
        kwargs: `input_shapes`, a dictionary with the shape of each input whose shape the model
            leaves open, by name.

        Raises
        ------
        UnsupportedModelError
            The model cannot be imported; the message names the node and says why.
        InputError
            The device is not `CPU`.
        """
        if not cls.supports_device(device):
            raise InputError(f"device `{device}`: the ONNX backend runs only on `CPU`")
        return PreparedModel(model, kwargs.get("input_shapes", {}))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device` is a CPU."""
        return device.split(":")[0] == "CPU"


prepare = TVMInteropBackend.prepare
run_model = TVMInteropBackend.run_model
supports_device = TVMInteropBackend.supports_device
