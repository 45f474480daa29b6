"""`python -m tests.random_graphs.minimise SEED`: finds the smallest failing part of a graph.

A node may be wrong only in a kernel that is fused with its neighbours. So the search begins with a
wrong node and adds the nodes before it, step by step. The inputs of such a part are the values that
it reads from other nodes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from tests.one_node import computed

from .blame import blamed, with_all_outputs
from .generator import random_graph
from .judge import run_all
from .oracles import alike, by_onnxruntime, by_reference, constants_of, reads

_DEEPEST = 8


def smallest(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
    """A small model that fails, from the graph of this seed, and its inputs. None if there is none.

    The tensors of the small model have the shapes that they have in the graph.
    """
    graph = random_graph(seed)
    model, feed = graph.build(), graph.feeds(seed * 7)
    ours = run_all(with_all_outputs(model), [feed], seed, {})[0]
    faults = blamed(model, feed, ours)
    constants = constants_of(model)
    known = {**feed, **ours}
    for fault in (*faults.get("wrong", ()), *faults.get("unclear", ())):
        name = fault.partition(" ")[2]
        for depth in range(1, _DEEPEST + 1):
            piece, given = piece_before(model, name, depth, known, constants)
            if is_wrong(piece, given, name):
                return piece, given
    return None


def piece_before(
    model: onnx.ModelProto,
    output: str,
    depth: int,
    known: Mapping[str, np.ndarray],
    constants: Mapping[str, np.ndarray],
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return a model of the nodes that compute `output`, up to a depth, and the model's inputs."""
    maker = {name: node for node in model.graph.node for name in node.output}
    wanted, kept = {output}, []
    for _ in range(depth):
        nodes = [maker[name] for name in wanted if name in maker]
        kept += [node for node in nodes if node not in kept]
        wanted = {name for node in nodes for name in reads(node)}
    made = {name for node in kept for name in node.output}
    read = {name for node in kept for name in reads(node) if name not in made}
    inputs = {name: known[name] for name in read if name not in constants}

    def typed(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnx.helper.make_tensor_value_info(name, kind, array.shape)

    graph = onnx.helper.make_graph(
        [node for node in model.graph.node if node in kept],
        "piece",
        [typed(name, array) for name, array in inputs.items()],
        [typed(output, known[output])],
        [onnx.numpy_helper.from_array(constants[n], n) for n in sorted(read & constants.keys())],
    )
    piece = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    return piece, inputs


def is_wrong(model: onnx.ModelProto, feed: dict[str, np.ndarray], name: str) -> bool:
    """Whether both onnxruntime and the reference disagree with us."""
    (got,) = computed(model, feed, providers=None)
    wanted = [oracle(model, feed) for oracle in (by_onnxruntime, by_reference)]
    return not any(alike(got, found[name]) for found in wanted if found is not None)


def main() -> int:
    """Print the smallest failing part of the graph, and write it to a file with its inputs."""
    seed = int(sys.argv[1])
    found = smallest(seed)
    if found is None:
        print(f"seed {seed}: no piece of it is wrong by itself")
        return 1
    model, feed = found
    path = Path(f"build/seed_{seed}.onnx")
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path)
    np.savez(path.with_suffix(".npz"), **feed)
    print(onnx.printer.to_text(model))
    print(f"{path}, {path.stat().st_size} bytes; its inputs are beside it")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
