"""Makes random programs with known results, and random schedules for the programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from tvm_interop import OpGraph, Schedule
from tvm_interop.program.program import Operator, Program, Value

SHAPE = (8,)


def random_program(seed: int, num_ops: int = 14) -> Program:
    """A random program in which each operator reads one to three tensors that the input or earlier
    operators provide."""
    rng = random.Random(seed)
    values = [Value("x", SHAPE, "float32"), Value("w", SHAPE, "float32")]
    operators = []
    for i in range(num_ops):
        count = rng.randint(1, min(3, len(values)))
        inputs = tuple(rng.sample(range(len(values)), count))
        values.append(Value(f"v{i}", SHAPE, "float32"))
        operators.append(Operator(f"op{i}", f"op{i}", inputs, (len(values) - 1,)))
    read = {v for op in operators for v in op.inputs}
    outputs = tuple(op.outputs[0] for op in operators if op.outputs[0] not in read)
    weights = {1: np.linspace(-1, 1, 8, dtype=np.float32)}
    return Program(values, operators, (0,), outputs, weights)


def program_on(graph: OpGraph) -> Program:
    """A program with the operators and dependencies of `graph`, on small tensors.

    Operators without predecessors read the input. Every operator reads the weight.
    """
    values = [Value("x", SHAPE, "float32"), Value("w", SHAPE, "float32")]
    made: dict[int, int] = {}
    operators = []
    for op in graph.topological_order():
        read = [made[before] for before in dict.fromkeys(graph.predecessors(op))] or [0]
        made[op] = len(values)
        values.append(Value(f"v{op}", SHAPE, "float32"))
        operators.append(Operator(graph.names[op], graph.names[op], (*read, 1), (made[op],)))
    outputs = tuple(made[op] for op in made if not graph.successors(op))
    weights = {1: np.linspace(-1, 1, 8, dtype=np.float32)}
    return Program(values, operators, (0,), outputs, weights)


def effects_of(program: Program) -> dict[str, Callable[..., None]]:
    """A function for each operator, by name. Each halves the sum of its inputs and adds an index.

    The index is the operator's own index in the program.
    """

    def effect(number: int) -> Callable[..., None]:
        def compute(*arrays: np.ndarray) -> None:
            *inputs, output = arrays
            output[...] = sum(inputs) * np.float32(0.5) + np.float32(number)

        return compute

    return {op.name: effect(i) for i, op in enumerate(program.operators)}


def reference(program: Program, x: np.ndarray) -> list[np.ndarray]:
    values: dict[int, np.ndarray] = {0: x, **program.weights}
    for op, effect in zip(program.operators, effects_of(program).values(), strict=True):
        values[op.outputs[0]] = np.empty(SHAPE, np.float32)
        effect(*(values[v] for v in op.inputs), values[op.outputs[0]])
    return [values[v] for v in program.outputs]


def random_schedule(
    program: Program, num_streams: int, seed: int, devices: Sequence[int] = (0,)
) -> Schedule:
    """A random schedule: each operator is on a random stream, each stream on a random device."""
    rng = random.Random(seed)
    orders: list[list[int]] = [[] for _ in range(num_streams)]
    for i in range(len(program.operators)):
        orders[rng.randrange(num_streams)].append(i)
    names = tuple(op.name for op in program.operators)
    streams = [order for order in orders if order]
    chosen = [rng.choice(devices) for _ in streams]
    return Schedule("by hand", names, streams=streams, devices=chosen)
