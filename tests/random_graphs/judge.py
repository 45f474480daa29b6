"""Compiles a random graph, and says whether its outputs are right."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvm_interop import Artifact, GraphModule, aligned_empty, load
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.errors import TVMInteropError

from .blame import blamed, with_all_outputs
from .conditioning import within_rounding
from .generator import random_graph
from .oracles import Arrays, alike, by_onnxruntime, by_reference

SCHEDULERS = ("nimble", "greedy", "opara", "heft", "lios")


def judged(seed: int) -> dict[str, Any]:
    """The verdict on the graph of this seed, as a line of the log.

    `bits`: two schedules give different bits. `wrong`: for our inputs, a node gives neither the
    result of onnxruntime nor the result of the reference. Or each single node is right, but the
    fused kernels of the graph are wrong. `unclear`: a node agrees with one oracle. `settled`: it
    agrees with the oracle that is right by ONNX's text. `noise`: rounding explains the difference.
    `rounded`: rounding explains the difference of a normalisation alone. `unjudged`: neither oracle
    runs these nodes, and the other nodes are judged. `refused`: our error. `raw`: any other error.
    """
    began = time.monotonic()
    graph = random_graph(seed)
    model = graph.build()
    record: dict[str, Any] = {"seed": seed, "nodes": len(model.graph.node)}
    with errors_recorded(record):
        feeds = [graph.feeds(seed * 7 + i) for i in range(2)]
        found = run_all(model, feeds, seed, record)
        for feed, ours in zip(feeds, found, strict=True):
            wanted = by_onnxruntime(model, feed) or by_reference(model, feed)
            if wanted is None or not all(alike(ours[name], wanted[name]) for name in wanted):
                record |= looked_into(model, feed, ours, wanted, seed)
    return record | {"s": round(time.monotonic() - began, 1)}


@contextmanager
def errors_recorded(record: dict[str, Any]) -> Iterator[None]:
    """End the block at an error, and note it: as `refused` if it is ours, else as `raw`."""
    try:
        yield
    except TVMInteropError as error:
        record["refused"] = f"{type(error).__name__}: {str(error)[:600]}"
    except Exception as error:
        record["raw"] = f"{type(error).__name__}: {str(error)[:400]}"


def looked_into(
    model: onnx.ModelProto, feed: Arrays, ours: Arrays, wanted: Arrays | None, seed: int
) -> dict[str, Any]:
    """The kinds of fault that explain our outputs, with the nodes or outputs at fault.

    `wanted` has the expected outputs, from which `ours` differ. It is None if no oracle runs the
    whole graph. Then this function decides whether our outputs are right.

    The graph is compiled again with every value as an output. If no node of this second model is at
    fault, its outputs are right. The outputs of the graph must then be the same except for
    rounding, because fused kernels differ from the kernels of single nodes.
    """
    opened = run_all(with_all_outputs(model), [feed], seed, {})[0]
    faults = blamed(model, feed, opened)
    if "wrong" in faults or "unclear" in faults:
        return faults
    node_by_node = {name: opened[name] for name in ours}
    others = [name for name in ours if not alike(ours[name], node_by_node[name])]
    explained = within_rounding(model, feed, ours, node_by_node) if others else {}
    fused = [name for name in others if not explained[name]]
    if fused:
        return faults | {"wrong": [f"fused into {name}" for name in fused[:5]]}
    explained_already = wanted is None or "settled" in faults or "rounded" in faults
    return faults if explained_already else faults | {"noise": True}


def run_all(
    model: onnx.ModelProto, feeds: Sequence[Arrays], seed: int, record: dict[str, Any]
) -> list[dict[str, np.ndarray]]:
    """The outputs for each of `feeds`.

    Three schedules, a second run, and a run of the native library on memory that is not aligned
    must give the same bits.
    """
    options = CompileOptions(
        streams=2 if seed % 3 else 4,
        latency_db=":memory:",
        providers=["tvm"] if seed % 2 else None,
    )
    compilation = Compilation(model, options)
    chosen = ["sequential", SCHEDULERS[seed % 5], SCHEDULERS[(seed + 2) % 5]]
    results: dict[str, list[dict[str, np.ndarray]]] = {}
    for scheduler in chosen:
        artifact = compilation.artifact(compilation.schedule(scheduler), None, None)
        module = GraphModule(artifact)
        results[scheduler] = [outputs_of(module, feed) for feed in (*feeds, feeds[0])]
    results["native"] = natively(artifact, feeds, seed)
    usual = results["sequential"]
    for scheduler, runs in results.items():
        for number, run in enumerate(runs):
            for name, array in run.items():
                again = usual[0] if number == len(feeds) else usual[number]
                if array.tobytes() != again[name].tobytes():
                    record.setdefault("bits", []).append(f"{scheduler} run {number} {name}")
    return usual[: len(feeds)]


def natively(artifact: Artifact, feeds: Sequence[Arrays], seed: int) -> list[Arrays]:
    """The outputs of the native library. Inputs begin at different places in a cache line."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tar"
        artifact.save(path)
        module = GraphModule(load(path))
    ports = module.ports()[1]
    runs = []
    for feed in feeds:
        shifted = {
            name: moved(array, seed + i) for i, (name, array) in enumerate(sorted(feed.items()))
        }
        made = module.run_on(shifted, range(len(ports)))
        runs.append({ports[i].name: array for i, array in made.items()})
    return runs


def moved(array: np.ndarray, elements: int) -> np.ndarray:
    """A copy of `array` that begins `elements % 16` elements after an address that is a multiple of
    64."""
    begin = elements % 16
    memory = aligned_empty((begin + array.size,), array.dtype)
    copy = memory[begin:].reshape(array.shape)
    copy[...] = array
    return copy


def outputs_of(module: GraphModule, feed: Arrays) -> dict[str, np.ndarray]:
    for name, array in feed.items():
        module.set_input(name, array)
    module.run()
    names = [module.plan.values[value].name for value in module.plan.outputs]
    return {name: module.get_output(i).numpy() for i, name in enumerate(names)}
