"""Compiles a random graph and says whether its outputs are right."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator

from tvm_interop import GraphModule
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.errors import TVMInteropError

from .builder import DT
from .generator import random_graph

SCHEDULERS = ("nimble", "greedy", "opara", "heft", "lios")
TOLERANCE = {"float16": 2e-2, "float32": 1e-4, "float64": 1e-6}
"""Of the largest number of an output, or of 1."""

Arrays = Mapping[str, np.ndarray]


def judged(seed: int) -> dict[str, Any]:
    """What became of the graph of this seed, as a line of the log.

    `bits`: two schedules differ. `wrong`: a node, given our own inputs of it, does not give what
    onnxruntime and ONNX's reference give. `unclear`: it gives what one of the two gives. `noise`:
    outputs differ, and no node of its own does: errors of rounding grew, or tipped a choice over.
    `refused`: an error of ours. `raw`: any other. `unjudged`: only bits were compared.
    """
    began = time.monotonic()
    graph = random_graph(seed)
    model = graph.build()
    record: dict[str, Any] = {"seed": seed, "nodes": len(model.graph.node)}
    feeds = [graph.feeds(seed * 7 + i) for i in range(2)]
    wanted = [by_onnxruntime(model, feed) or by_reference(model, feed) or {} for feed in feeds]
    if not all(wanted):
        record["unjudged"] = "neither oracle runs it"
    try:
        found = run_all(model, feeds, seed, record)
        differing = [
            name
            for feed_number, want in enumerate(wanted)
            for name in want
            if not alike(found[feed_number][name], want[name])
        ]
        if differing:
            record |= blamed(model, feeds[0], seed)
            record["outputs"] = sorted(set(differing))[:5]
    except TVMInteropError as error:
        record["refused"] = f"{type(error).__name__}: {str(error)[:400]}"
    except Exception as error:
        record["raw"] = f"{type(error).__name__}: {str(error)[:400]}"
    return record | {"s": round(time.monotonic() - began, 1)}


def run_all(
    model: onnx.ModelProto, feeds: Sequence[Arrays], seed: int, record: dict[str, Any]
) -> list[dict[str, np.ndarray]]:
    """The outputs for each of `feeds`; three schedules and a second run must give the same bits."""
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
    usual = results["sequential"]
    for scheduler, runs in results.items():
        for number, run in enumerate(runs):
            for name, array in run.items():
                again = usual[0] if number == len(feeds) else usual[number]
                if array.tobytes() != again[name].tobytes():
                    record.setdefault("bits", []).append(f"{scheduler} run {number} {name}")
    return usual[: len(feeds)]


def outputs_of(module: GraphModule, feed: Arrays) -> dict[str, np.ndarray]:
    for name, array in feed.items():
        module.set_input(name, array)
    module.run()
    names = [module.plan.values[value].name for value in module.plan.outputs]
    return {name: module.get_output(i).numpy() for i, name in enumerate(names)}


def blamed(model: onnx.ModelProto, feed: Arrays, seed: int) -> dict[str, Any]:
    """Which node is at fault: each is given what we computed for its inputs."""
    open_model = with_all_outputs(model, seed)
    computed = run_all(open_model, [feed], seed, {})[0]
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    known: dict[str, np.ndarray] = {**constants, **feed, **computed}
    faults: dict[str, list[str]] = {"wrong": [], "unclear": []}
    for node in model.graph.node:
        given = {name: known[name] for name in node.input if name}
        by_oracles = [
            oracle(one_of(model, node, given), given) for oracle in (by_onnxruntime, by_reference)
        ]
        for name in node.output:
            verdicts = [alike(known[name], o[name]) for o in by_oracles if o is not None]
            if not all(verdicts):
                kind = "unclear" if any(verdicts) else "wrong"
                faults[kind].append(f"{node.op_type} {name}")
    named = {kind: found[:5] for kind, found in faults.items() if found}
    return named or {"noise": True}


def with_all_outputs(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with every value among its outputs."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    known = {value.name for value in (*model.graph.output, *model.graph.input)}
    for name, dtype, shape in random_graph_values(seed):
        if name not in known:
            opened.graph.output.append(onnx.helper.make_tensor_value_info(name, DT[dtype], shape))
    return opened


def random_graph_values(seed: int) -> list[tuple[str, str, tuple[int, ...]]]:
    graph = random_graph(seed)
    graph.build()
    return [(str(name), str(dtype), shape) for name, dtype, shape in graph.vals]


def one_of(model: onnx.ModelProto, node: onnx.NodeProto, given: Arrays) -> onnx.ModelProto:
    """A model of this node alone."""
    inputs = [
        onnx.helper.make_tensor_value_info(
            name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = onnx.helper.make_graph([node], "one", inputs, outputs)
    return onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )


def by_onnxruntime(model: onnx.ModelProto, feed: Arrays) -> dict[str, np.ndarray] | None:
    """None where onnxruntime has no kernel for it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    names = [output.name for output in model.graph.output]
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return dict(zip(names, session.run(names, dict(feed)), strict=True))
    except Exception:
        return None


def by_reference(model: onnx.ModelProto, feed: Arrays) -> dict[str, np.ndarray] | None:
    """None where the reference cannot run it."""
    names = [output.name for output in model.graph.output]
    try:
        with np.errstate(all="ignore"):
            return dict(zip(names, ReferenceEvaluator(model).run(None, dict(feed)), strict=True))
    except Exception:
        return None


def alike(got: np.ndarray, wanted: np.ndarray) -> bool:
    """The same type and shape; integers the same; NaN and infinities in the same places."""
    wanted = np.asarray(wanted)
    if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
        return False
    if got.dtype.kind in "biu":
        return bool((got == wanted).all())
    tolerance = TOLERANCE[str(got.dtype)]
    ours, theirs = got.astype(np.float64), wanted.astype(np.float64)
    is_finite = np.isfinite(theirs)
    if not np.array_equal(ours[~is_finite], theirs[~is_finite], equal_nan=True):
        return False
    if not np.isfinite(ours[is_finite]).all():
        return False
    scale = max(1.0, float(np.abs(theirs[is_finite]).max(initial=0.0)))
    return bool((np.abs(ours - theirs)[is_finite] <= tolerance * scale).all())
