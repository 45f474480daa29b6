"""Measures how compile time grows with model size, for families of unusual models.

    python -m benchmarks.compile_growth [FAMILY ...] [--limit SECONDS]

Each family has a smallest size n, and its models of sizes n, 2n and 4n are compiled. Each model is
compiled in a process of its own, because compilation may crash or take too long. The outputs of the
model are compared with onnxruntime's. The last column of the table is the exponent of the growth:
log2 of the time at 4n over the time at 2n. An exponent far above 1 is a fault.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx
from onnx import helper

Nodes: TypeAlias = "list[onnx.NodeProto]"


def _node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: object) -> object:
    return helper.make_node(op_type, list(inputs), list(outputs), **attrs)


def _model(
    nodes: Nodes,
    output: str,
    shape: Sequence[int] = (4, 64),
    constants: dict[str, np.ndarray] | None = None,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("t0", onnx.TensorProto.FLOAT, list(shape))],
        [onnx.ValueInfoProto(name=output)],
        [onnx.numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def doubling(n: int) -> onnx.ModelProto:
    """A chain of n additions of a tensor to itself. Written out, the result has 2^n terms."""
    return _model([_node("Add", [f"t{i}", f"t{i}"], [f"t{i + 1}"]) for i in range(n)], f"t{n}")


def fibonacci(n: int) -> onnx.ModelProto:
    """A chain of n products. Each multiplies the two tensors before it."""
    nodes = [_node("Relu", ["t0"], ["t1"])]
    nodes += [_node("Mul", [f"t{i}", f"t{i + 1}"], [f"t{i + 2}"]) for i in range(n)]
    return _model(nodes, f"t{n + 1}")


def doubling_of_functions(n: int) -> onnx.ModelProto:
    """A chain of n steps. Each multiplies the sine of a tensor by the error function of the tensor.

    The sine and the error function both take many instructions.
    """
    nodes = []
    for i in range(n):
        nodes.append(_node("Sin", [f"t{i}"], [f"s{i}"]))
        nodes.append(_node("Erf", [f"t{i}"], [f"c{i}"]))
        nodes.append(_node("Mul", [f"s{i}", f"c{i}"], [f"t{i + 1}"]))
    return _model(nodes, f"t{n}")


def doubling_by_concat(n: int) -> onnx.ModelProto:
    """A model that n times splits a tensor into halves a and b, and joins a + b with b again."""
    nodes = []
    for i in range(n):
        nodes.append(_node("Split", [f"t{i}"], [f"a{i}", f"b{i}"], axis=1, num_outputs=2))
        nodes.append(_node("Add", [f"a{i}", f"b{i}"], [f"c{i}"]))
        nodes.append(_node("Concat", [f"c{i}", f"b{i}"], [f"t{i + 1}"], axis=1))
    return _model(nodes, f"t{n}")


def chain_of_adds(n: int) -> onnx.ModelProto:
    """A chain of n element-wise additions of a constant."""
    one = {"one": np.ones((4, 64), "float32")}
    nodes = [_node("Add", [f"t{i}", "one"], [f"t{i + 1}"]) for i in range(n)]
    return _model(nodes, f"t{n}", constants=one)


def chain_of_convs(n: int) -> onnx.ModelProto:
    """A chain of n convolutions."""
    w = {"w": np.full((2, 2, 3, 3), 1 / 18, "float32")}
    nodes = [_node("Conv", [f"t{i}", "w"], [f"t{i + 1}"], pads=[1] * 4) for i in range(n)]
    return _model(nodes, f"t{n}", (1, 2, 6, 6), w)


def chain_of_softmaxes(n: int) -> onnx.ModelProto:
    """A chain of n softmax operators, which are reductions."""
    return _model([_node("Softmax", [f"t{i}"], [f"t{i + 1}"]) for i in range(n)], f"t{n}")


def many_users(n: int) -> onnx.ModelProto:
    """A model in which n softmax operators read one tensor. A chain of additions sums them."""
    nodes = [_node("Relu", ["t0"], ["s0"])]
    for i in range(n):
        nodes.append(_node("Softmax", ["t0"], [f"u{i}"], axis=i % 2))
        nodes.append(_node("Add", [f"s{i}", f"u{i}"], [f"s{i + 1}"]))
    return _model(nodes, f"s{n}")


def many_cheap_users(n: int) -> onnx.ModelProto:
    """A model in which n element-wise operators read one tensor; all could be fused into one."""
    nodes = [_node("Relu", ["t0"], ["s0"])]
    for i in range(n):
        nodes.append(_node(("Abs", "Neg", "Relu", "Sigmoid")[i % 4], ["t0"], [f"u{i}"]))
        nodes.append(_node("Add", [f"s{i}", f"u{i}"], [f"s{i + 1}"]))
    return _model(nodes, f"s{n}")


def concat_of_one(n: int) -> onnx.ModelProto:
    """One concatenation, of n copies of one tensor."""
    return _model([_node("Concat", ["t0"] * n, ["y"], axis=0)], "y", (1, 8))


def concat_of_many(n: int) -> onnx.ModelProto:
    """One concatenation, of the results of n softmax operators."""
    names = [f"u{i}" for i in range(n)]
    nodes = [_node("Softmax", ["t0"], [name], axis=i % 2) for i, name in enumerate(names)]
    return _model([*nodes, _node("Concat", names, ["y"], axis=0)], "y", (2, 8))


def split(n: int) -> onnx.ModelProto:
    """A model whose split operator has n outputs. A chain of additions sums them."""
    names = [f"u{i}" for i in range(n)]
    nodes = [_node("Split", ["t0"], names, axis=0, num_outputs=n)]
    nodes.append(_node("Relu", ["u0"], ["s0"]))
    nodes += [_node("Add", [f"s{i}", f"u{i}"], [f"s{i + 1}"]) for i in range(n)]
    return _model(nodes, f"s{n}", (n, 8))


def split_and_concat(n: int) -> onnx.ModelProto:
    """A model that splits a tensor into n parts and concatenates them in reverse order."""
    names = [f"u{i}" for i in range(n)]
    nodes = [
        _node("Split", ["t0"], names, axis=0, num_outputs=n),
        _node("Concat", names[::-1], ["y"], axis=0),
    ]
    return _model(nodes, "y", (n, 8))


def sum_of_many(n: int) -> onnx.ModelProto:
    """A model whose sum operator has n inputs, the results of n softmax operators."""
    names = [f"u{i}" for i in range(n)]
    nodes = [_node("Softmax", ["t0"], [name], axis=i % 2) for i, name in enumerate(names)]
    return _model([*nodes, _node("Sum", names, ["y"])], "y", (2, 8))


def many_constants(n: int) -> onnx.ModelProto:
    """A chain of n additions. Each adds a different constant."""
    rng = np.random.default_rng(0)
    constants = {f"c{i}": rng.standard_normal((4, 64)).astype("float32") for i in range(n)}
    nodes = [_node("Add", [f"t{i}", f"c{i}"], [f"t{i + 1}"]) for i in range(n)]
    return _model(nodes, f"t{n}", constants=constants)


def slices(n: int) -> onnx.ModelProto:
    """A chain of n slices. Each drops the first row of the tensor before it."""
    constants = {"from": np.array([1]), "to": np.array([2**31]), "axis": np.array([0])}
    nodes = [_node("Slice", [f"t{i}", "from", "to", "axis"], [f"t{i + 1}"]) for i in range(n)]
    return _model(nodes, f"t{n}", (n + 4, 4), constants)


def transposes(n: int) -> onnx.ModelProto:
    """A chain of n pairs of a transpose and a reshape."""
    nodes: Nodes = []
    for i in range(n):
        nodes.append(_node("Transpose", [f"t{i}"], [f"a{i}"], perm=[1, 0]))
        nodes.append(_node("Reshape", [f"a{i}", "shape"], [f"t{i + 1}"]))
    return _model(nodes, f"t{n}", (4, 64), {"shape": np.array([4, 64])})


def ladder(n: int) -> onnx.ModelProto:
    """A chain of n blocks. In each, a matrix product and a softmax run in parallel and are added.

    There are 2^n paths through the model.
    """
    w = {"w": np.full((8, 8), 0.1, "float32")}
    nodes: Nodes = []
    for i in range(n):
        nodes.append(_node("MatMul", [f"t{i}", "w"], [f"a{i}"]))
        nodes.append(_node("Softmax", [f"t{i}"], [f"b{i}"]))
        nodes.append(_node("Add", [f"a{i}", f"b{i}"], [f"t{i + 1}"]))
    return _model(nodes, f"t{n}", (4, 8), w)


FAMILIES: dict[Callable[[int], onnx.ModelProto], int] = {
    doubling: 30,
    fibonacci: 30,
    doubling_of_functions: 8,
    doubling_by_concat: 8,
    chain_of_adds: 750,
    chain_of_convs: 500,
    chain_of_softmaxes: 250,
    many_users: 250,
    many_cheap_users: 250,
    concat_of_one: 1250,
    concat_of_many: 250,
    split: 500,
    split_and_concat: 500,
    sum_of_many: 250,
    many_constants: 250,
    slices: 250,
    transposes: 250,
    ladder: 100,
}
"""The smallest size n at which each family is compiled."""


def compile_and_compare(family: str, n: int, scheduler: str) -> None:
    """Compile the model of size `n` and print the seconds that this took.

    Raises
    ------
    AssertionError: the outputs differ from onnxruntime's.
    """
    import onnxruntime

    import tvm_interop

    model = next(f for f in FAMILIES if f.__name__ == family)(n)
    # The first access to `compile` imports TVM. The time must not include the import.
    run = tvm_interop.compile
    start = time.perf_counter()
    artifact = run(model, scheduler=scheduler, latency_db=":memory:")
    seconds = time.perf_counter() - start
    module = tvm_interop.GraphModule(artifact)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(0).random(shape, "float32")
    module.run(t0=x)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(None, {"t0": x})[0]
    np.testing.assert_allclose(module.get_output(0).numpy(), wanted, rtol=1e-3, atol=1e-5)
    print(f"{seconds:.2f}", flush=True)


def _seconds(family: str, n: int, limit_s: float, scheduler: str) -> float | str:
    command = [sys.executable, "-m", "benchmarks.compile_growth", family, "--one", str(n)]
    command += ["--scheduler", scheduler]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"> {limit_s:.0f} s"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [""])[-1][:100]
        return f"exit {done.returncode} {last}"
    return float(done.stdout.split()[-1])


def main() -> None:
    """Print the table, with one line for each family of models."""
    names = [family.__name__ for family in FAMILIES]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(names))
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--scheduler", default="sequential")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        compile_and_compare(args.families[0], args.one, args.scheduler)
        return
    print("| family | n | at n | at 2n | at 4n | exponent |\n|---|---|---|---|---|---|")
    for family, n in FAMILIES.items():
        if args.families and family.__name__ not in args.families:
            continue
        found = []
        for size in (n, 2 * n, 4 * n):
            found.append(_seconds(family.__name__, size, args.limit, args.scheduler))
            if isinstance(found[-1], str):
                break
        numbers = [value for value in found if isinstance(value, float)]
        growth = math.log2(numbers[2] / numbers[1]) if len(numbers) == 3 else math.nan
        cells = [*map(str, found), "", ""][:3]
        print(f"| {family.__name__} | {n} | {' | '.join(cells)} | {growth:.1f} |", flush=True)


if __name__ == "__main__":
    main()
