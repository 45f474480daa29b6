"""Makes the graph of a model's operators."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import InputError
from ..models.units import unit_graph
from ..program.graph import OpGraph
from .compilation import Compilation


def operator_graph(model: Any, unit: Literal["schedule", "kernel"] = "schedule") -> OpGraph:
    """Make the graph of a model's operators.

    Parameters
    ----------
    model: an ONNX file's path, a network's name (see `models.list`) or an ONNX model. With unit
        `kernel` it may also be a Relax IRModule.
    unit: what counts as an operator. `schedule` counts operators as the papers do (see
        `models.units.schedule_units`) and needs no compiler. `kernel` counts TVM's fused kernels,
        which `compile` schedules.

    Raises
    ------
    UnsupportedModelError: the model cannot be read or imported.
    InputError: `unit` is neither `schedule` nor `kernel`.

    Examples
    --------
    >>> operator_graph("squeezenet")
    OpGraph(50 operators, 65 edges)
    """
    if unit == "kernel":
        return Compilation(model).graph
    if unit != "schedule":
        raise InputError(f"there is no unit `{unit}`: give `schedule` or `kernel`")
    return unit_graph(model)
