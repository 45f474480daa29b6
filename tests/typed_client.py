"""A program of a user, which `make lint` checks with `mypy --strict`.

This program is never run. The calls at its end are wrong, and have `type: ignore` comments. If the
package loses the type of a parameter, mypy reports that a comment is not needed any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

import tvm_interop
from tvm_interop import transform


def compiled_and_run(model: Path, image: np.ndarray) -> list[str]:
    """Compile, save, load, run and profile a model."""
    artifact: tvm_interop.Artifact = tvm_interop.compile(
        model, scheduler="ios", out="model.tar", streams=2, max_groups=8
    )
    artifact.save("again.tar")
    module: tvm_interop.GraphModule = tvm_interop.GraphModule(tvm_interop.load("again.tar"))
    module.run(data=image)
    number: int = module.get_num_outputs()
    shapes: dict[str, tuple[int, ...]] = module.get_input_info()[0]
    rows = [f"{row.name}: {row.end_us - row.start_us} us" for row in module.profile()]
    return [*rows[:number], *shapes]


def scheduled() -> float:
    """Schedule a graph with the user's own latencies."""
    graph: tvm_interop.OpGraph = tvm_interop.OpGraph.from_edges(3, [(0, 1), (0, 2)])
    prices: tvm_interop.LatencyModel = tvm_interop.LatencyTable([3.0, 5.0, 8.0])
    made: tvm_interop.Schedule = tvm_interop.schedule(graph, "ios", latency=prices)
    stages: tuple[tvm_interop.Stage, ...] = made.stages
    return len(stages) + (made.makespan or 0.0)


@tvm_interop.register_scheduler("typed")
def in_turn(
    graph: tvm_interop.OpGraph, latency: tvm_interop.LatencyModel | None
) -> tvm_interop.Schedule:
    """Schedule all operators on one stream."""
    return tvm_interop.Schedule("typed", graph.names, streams=(tuple(range(graph.num_ops)),))


def failed(model: str) -> str:
    """Catch errors by their classes, and give a pass its options."""
    transform.InterOpSchedule(scheduler="greedy")
    try:
        tvm_interop.compile(model)
    except tvm_interop.UnsupportedModelError as error:
        return error.node
    except tvm_interop.TVMInteropError as error:
        return str(error)
    return ""


def wrong(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Calls that a type checker must refuse."""
    tvm_interop.compile("model.onnx", streams="two")  # type: ignore[arg-type]
    tvm_interop.load(shapes)  # type: ignore[arg-type]
    tvm_interop.LatencyTable([1.0]).op("first")  # type: ignore[arg-type]
