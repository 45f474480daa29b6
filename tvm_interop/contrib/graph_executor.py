"""`graph_executor.GraphModule`, with the interface of the class that TVM removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..artifact.artifact import Artifact
from ..execution import graph_module as executor
from ..relay.build_module import PlacedLibrary
from ..relay.counterparts import GRAPH_EXECUTOR, refuse

__all__ = ["GraphModule"]


class GraphModule(executor.GraphModule):
    """A `tvm_interop.GraphModule` that is made from `lib["default"](dev)`, a library on a device.

    As in TVM, arrays and lists are converted to the input's type. `tvm_interop.GraphModule` itself
    refuses arrays of another type.

    Examples
    --------
    >>> module = graph_executor.GraphModule(lib["default"](dev))  # doctest: +SKIP
    """

    def __init__(self, module: PlacedLibrary | Artifact) -> None:
        super().__init__(module.artifact if isinstance(module, PlacedLibrary) else module)

    def _prepared(self, given: Mapping[Any, Any]) -> dict[int, Any]:
        return super()._prepared({key: self._converted(key, v) for key, v in given.items()})

    def _converted(self, key: str | int, value: Any) -> Any:
        is_tensor = hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray)
        return value if value is None or is_tensor else np.asarray(value, self._input(key).dtype)


def __getattr__(name: str) -> Any:
    refuse("contrib.graph_executor", name, GRAPH_EXECUTOR)
