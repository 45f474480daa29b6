"""Compiles a random graph for ranges of sizes, and compares runs of many sizes with onnxruntime."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from tvm_interop import GraphModule, compile
from tvm_interop.artifact.artifact import Artifact

from .conditioning import within_rounding
from .judge import errors_recorded, looked_into
from .oracles import Arrays, alike, by_onnxruntime
from .symbolic import SymbolicGraph

_RUNS = 8
"""How many sizes are drawn for each graph, besides those at the ends of the ranges."""
_JOINED = 1e-3
"""The allowed error of a row of a batch, against the row by itself."""


def judged(seed: int) -> dict[str, Any]:
    """The verdict on the graph of this seed, as a line of the log.

    `wrong`: for some size our result differs from onnxruntime's result, or a row gives another
    result in a batch than alone although the artifact says that a server may join rows. `noise`:
    rounding explains the difference. `unclear`, `settled`, `rounded`: as for graphs without ranges,
    found by looking at each node for the size at which the results differ. `refused`: our error.
    `raw`: any other error. `unjudged`: onnxruntime does not run the graph for any of the sizes.
    """
    began = time.monotonic()
    graph = SymbolicGraph(seed)
    model = graph.build()
    record: dict[str, Any] = {"seed": seed, "nodes": len(model.graph.node)}
    with errors_recorded(record):
        artifact = compile(
            model, shapes=graph.ranges, most_sizes=4, scheduler="sequential", time_budget=0,
            latency_db=":memory:", providers=["tvm"] if seed % 2 else None,
        )  # fmt: skip
        record |= _compared(graph, model, artifact, seed)
    return record | {"s": round(time.monotonic() - began, 1)}


def _compared(
    graph: SymbolicGraph, model: onnx.ModelProto, artifact: Artifact, seed: int
) -> dict[str, Any]:
    module, wrong, judged_any = GraphModule(artifact), [], False
    kinds: dict[str, Any] = {}
    for number, sizes in enumerate(_sizes(graph.ranges, seed)):
        feed = graph.feed(sizes, seed * 31 + number)
        rows = artifact.manifest.row_sizes
        for name, one_at in (rows.where_one if rows is not None else {}).items():
            if one_at == "all":
                feed[name][:] = 1
        wanted = by_onnxruntime(model, feed)
        if wanted is None:
            continue
        judged_any = True
        ours = {"y": np.asarray(module(feed)[0])}
        if not alike(ours["y"], wanted["y"]):
            if ours["y"].shape != wanted["y"].shape:
                wrong.append(f"{sizes}")
            elif within_rounding(model, feed, ours, wanted)["y"]:
                kinds["noise"] = True
            else:
                # Some differences do not come from ranges. An ArgMax may break ties in another way
                # in each runtime, and a kernel may have a fault.
                faults = looked_into(_fixed(model, feed), feed, ours, wanted, seed)
                kinds.update(faults)
                if "wrong" in faults:
                    wrong.append(f"{sizes}: {faults['wrong']}")
        elif artifact.manifest.batch_sizes:
            joined = _in_rows(model, feed)
            if joined is not None and not alike(ours["y"], joined, _JOINED):
                wrong.append(f"rows of {sizes}")
    found = {"wrong": wrong[:5]} if wrong else kinds
    return found if judged_any else {"unjudged": "onnxruntime runs none of the sizes"}


def _fixed(model: onnx.ModelProto, feed: Arrays) -> onnx.ModelProto:
    """The model, made for the shapes of `feed` only."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        for dimension, size in zip(
            value.type.tensor_type.shape.dim, feed[value.name].shape, strict=True
        ):
            dimension.dim_value = size
    return fixed


def _sizes(ranges: Mapping[str, int | tuple[int, int]], seed: int) -> list[dict[str, int]]:
    ends = {name: (size, size) if isinstance(size, int) else size for name, size in ranges.items()}
    rng = np.random.default_rng([seed, 1])
    drawn = [
        {name: int(rng.integers(least, most + 1)) for name, (least, most) in ends.items()}
        for _ in range(_RUNS)
    ]
    return [
        {name: least for name, (least, _) in ends.items()},
        {name: most for name, (_, most) in ends.items()},
        *drawn,
    ]


def _in_rows(model: onnx.ModelProto, feed: Arrays) -> np.ndarray | None:
    """Run each row in a batch of its own and join the outputs. A server must give these outputs.

    None if onnxruntime does not run a single row, because there is no answer to compare with then.
    """
    rows = len(next(iter(feed.values())))
    each = []
    for i in range(rows):
        one = by_onnxruntime(model, {name: array[i : i + 1] for name, array in feed.items()})
        if one is None:
            return None
        each.append(one["y"])
    return np.concatenate(each)
