"""Looks for periods in which two cores of a virtual machine run on one core of its host.

The model is a chain of matrix products. Each product is divided into two parts, which run side by
side. The model runs again and again. When a run takes far longer than the fastest run, the times of
its operators show the reason. If both parts ran at the same time, and each took twice its usual
time, the two threads shared one core. The virtual machine itself does not report this as stolen
time.

Run it as ``python -m benchmarks.shared_cores --seconds 60``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import tvm_interop

_PRODUCTS, _ROWS, _WIDTH = 6, 32, 1024
_RUNS = 10
_SLOW = 1.5
"""A period of `_RUNS` runs counts as slow if its median is this many times the fastest median."""
_AT_ONCE = 1.7
"""If at least this many operators ran at the same time, no other program took a core from them."""


def products() -> onnx.ModelProto:
    """A chain of matrix products with square weights. A ReLU follows each product."""
    random = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(_PRODUCTS):
        weight = (0.03 * random.standard_normal((_WIDTH, _WIDTH))).astype("float32")
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"y{i}"]))
        value = f"y{i}"
    shape = [_ROWS, _WIDTH]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=9)


def main() -> None:
    """Run the model for a while, and print the operators' times in slow periods."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    seconds = parser.parse_args().seconds
    artifact = tvm_interop.compile(products(), scheduler="sequential", latency_db=":memory:")
    module = tvm_interop.GraphModule(artifact)
    module.run(x=np.random.default_rng(1).standard_normal((_ROWS, _WIDTH)).astype("float32"))
    looks: list[tuple[float, float, float, float]] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        at = time.monotonic()
        runs_us = []
        for _ in range(_RUNS):
            begins = time.perf_counter()
            module.run()
            runs_us.append(1e6 * (time.perf_counter() - begins))
        rows = module.profile()
        span_us = max(row.end_us for row in rows) - min(row.start_us for row in rows)
        op_us = float(np.median([row.end_us - row.start_us for row in rows]))
        overlap = sum(row.end_us - row.start_us for row in rows) / span_us
        looks.append((at, float(np.median(runs_us)), op_us, overlap))
    _, medians, ops, overlaps = np.array(looks).T
    slow = (medians > _SLOW * medians.min()) & (overlaps > _AT_ONCE)
    usual = medians <= _SLOW * medians.min()
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slow, [False]])))
    times = [*(look[0] for look in looks), ends]
    lengths = [times[end] - times[begin] for begin, end in edges.reshape(-1, 2)]
    print(f"fastest median of {_RUNS} runs: {medians.min():.0f} us; {len(looks)} medians")
    print(f"slow periods: {len(lengths)}, {100 * sum(lengths) / seconds:.1f}% of the time")
    if lengths:
        print(f"longest {max(lengths):.2f} s, median {np.median(lengths):.2f} s")
        print(
            f"one operator: {np.median(ops[slow]):.0f} us in slow periods, "
            f"{np.median(ops[usual]):.0f} us otherwise"
        )
        print(
            f"operators at the same time: {np.median(overlaps[slow]):.2f} in slow periods, "
            f"{np.median(overlaps[usual]):.2f} otherwise"
        )


if __name__ == "__main__":
    main()
