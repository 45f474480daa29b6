"""`graph_executor.GraphModule`, with the interface of the class that TVM removed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..artifact.artifact import Artifact
from ..execution import graph_module as executor
from ..relay.build_module import PlacedLibrary
from ..relay.counterparts import GRAPH_EXECUTOR, refuse

__all__ = ["GraphModule"]


class GraphModule(executor.GraphModule):
    """A `tvm_interop.GraphModule` that takes the result of `lib["default"](dev)`.

    As in TVM, numbers are converted to the input's type. `tvm_interop.GraphModule` refuses numbers
    of another type.

    Examples
    --------
    >>> module = graph_executor.GraphModule(lib["default"](dev))  # doctest: +SKIP
    """

    def __init__(self, module: PlacedLibrary | Artifact) -> None:
        super().__init__(module.artifact if isinstance(module, PlacedLibrary) else module)

    def set_input(self, key: str | int | None = None, value: Any = None, /, **params: Any) -> None:
        """Copy data into inputs; arrays and lists are converted to the input's type.

        Raises
        ------
        InputError
            There is no input of that name; the shape is wrong; or a tensor has the wrong type.
        """
        given = self._given(key, value, params)
        super().set_input(**{self._input(k).name: self._converted(k, v) for k, v in given.items()})

    def _converted(self, key: str | int, value: Any) -> Any:
        is_tensor = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
        return value if value is None or is_tensor else np.asarray(value, self._input(key).dtype)


def __getattr__(name: str) -> Any:
    refuse("contrib.graph_executor", name, GRAPH_EXECUTOR)
