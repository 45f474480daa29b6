"""Tests plans over several GPUs: the device of each value, the copies, and damaged plans."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.damage import damaged
from tvm_interop import ArtifactError, PlanError, Schedule, ScheduleError
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Operator, Program, Value

NAMES = ("A", "B", "C", "D", "E")


def diamond() -> Program:
    """The graph x -> a -> (b, c) -> d -> e.

    C reads a reshape of a and the weight w. E also reads w.
    """
    values = [Value(name, (16, 16), "float32") for name in ("x", "a", "b", "c", "d", "e")]
    values.append(Value("a_flat", (256,), "float32", alias_of=1))
    values.append(Value("w", (16, 16), "float32"))
    operators = [
        Operator("A", "k", (0,), (1,)),
        Operator("B", "k", (1,), (2,)),
        Operator("C", "k", (6, 7), (3,)),
        Operator("D", "k2", (2, 3), (4,)),
        Operator("E", "k", (4, 7), (5,)),
    ]
    return Program(values, operators, inputs=(0,), outputs=(5,), weights={7: None})  # type: ignore[dict-item]


def split(streams: Any, devices: Any, program: Program | None = None, **fields: Any) -> Plan:
    program = program or diamond()
    names = tuple(op.name for op in program.operators)
    schedule = Schedule("by hand", names, streams=streams, devices=devices, **fields)
    return make_plan(program, schedule, device="cuda:0")


def two_gpus() -> Plan:
    return split([[0, 1, 3, 4], [2]], [0, 1])


def described(plan: Plan) -> dict[str, tuple[str, list[str], list[str], list[str]]]:
    """For each operator: its device, and the names of its inputs, its outputs and its waits."""

    def named(values: tuple[int, ...]) -> list[str]:
        return [plan.values[v].name for v in values]

    return {
        op.name: (
            plan.streams[op.stream].device,
            named(op.inputs),
            named(op.outputs),
            [plan.operators[w].name for w in op.waits],
        )
        for op in plan.operators
    }


def test_what_another_gpu_reads_is_copied_once() -> None:
    assert described(two_gpus()) == {
        "A": ("cuda:0", ["x"], ["a"], []),
        "a_flat to cuda:1": ("cuda:0", ["a_flat"], ["a_flat@cuda:1"], ["A"]),
        "B": ("cuda:0", ["a"], ["b"], []),
        "C": ("cuda:1", ["a_flat@cuda:1", "w"], ["c"], ["a_flat to cuda:1"]),
        "c to cuda:0": ("cuda:1", ["c"], ["c@cuda:0"], ["C"]),
        "D": ("cuda:0", ["b", "c@cuda:0"], ["d"], ["c to cuda:0"]),
        "E": ("cuda:0", ["d", "w@cuda:0"], ["e"], []),
    }


def test_copies_have_streams_of_their_own() -> None:
    plan = two_gpus()
    assert [stream.device for stream in plan.streams] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [op.name for op in plan.operators if op.stream >= 2] == [
        "a_flat to cuda:1",
        "c to cuda:0",
    ]
    assert [op.is_copy for op in plan.operators if op.stream < 2] == [False] * 5


def test_two_readers_share_one_copy_whatever_shape_they_see() -> None:
    plan = split([[0], [1, 2, 3, 4]], [0, 1])
    assert [op.name for op in plan.operators if op.is_copy] == ["a to cuda:1"]
    aliases = {v.name: plan.values[v.alias_of].name for v in plan.values if v.alias_of is not None}
    assert aliases == {"a_flat": "a", "a_flat@cuda:1": "a@cuda:1"}


def test_weights_and_inputs_lie_where_they_are_read() -> None:
    plan = two_gpus()
    kept = {
        v.name: (v.storage, v.device, None if v.copy_of is None else plan.values[v.copy_of].name)
        for v in plan.values
        if v.storage in ("input", "weight", "output")
    }
    assert kept == {
        "x": ("input", "cuda:0", None),
        "w": ("weight", "cuda:1", None),  # The weight lies on the GPU that reads it first.
        # The weight is copied to the second GPU, which reads it too.
        "w@cuda:0": ("weight", "cuda:0", "w"),
        "e": ("output", "cuda:0", None),
    }
    both = split([[0, 1, 2, 3], [4]], [1, 2])
    assert {v.name: v.device for v in both.values if v.name.startswith("w")} == {
        "w": "cuda:1",
        "w@cuda:2": "cuda:2",
    }


def test_an_input_that_several_read_is_copied_by_nobody() -> None:
    values = [Value(name, (16,), "float32") for name in ("x", "a", "b")]
    operators = [Operator("A", "k", (0,), (1,)), Operator("B", "k", (0,), (2,))]
    plan = split([[0], [1]], [0, 1], Program(values, operators, (0,), (1, 2)))
    assert not any(op.is_copy for op in plan.operators)
    assert [plan.values[v].name for v in plan.twins()[0]] == ["x@cuda:1"]
    assert plan.inputs == (0,)


def test_each_gpu_has_an_arena() -> None:
    plan = two_gpus()
    used = {v.name: (v.device, v.offset) for v in plan.values if v.storage == "arena"}
    # `a` is sent while B reads it and writes `b`, and the copy of `c` comes back while `b` is kept
    # for D. So these three tensors have separate memory on the first GPU.
    assert {name for name, (device, _) in used.items() if device == "cuda:1"} == {
        "a_flat@cuda:1",
        "c",
    }
    assert plan.arenas == {"cuda:0": 3 * 1024, "cuda:1": 2 * 1024}
    assert plan.arena_bytes == 5 * 1024


def test_storage_is_used_again_once_it_was_sent() -> None:
    """A chain of operators moves to the second GPU and comes back to the first. The memory of `a`
    on the first GPU is free again when `b` is written."""
    values = [Value(name, (16, 16), "float32") for name in ("x", "a", "p", "q", "b", "y")]
    operators = [Operator(n, "k", (i,), (i + 1,)) for i, n in enumerate(("A", "P", "Q", "B", "Y"))]
    program = Program(values, operators, (0,), (5,))
    plan = split([[0, 3, 4], [1, 2]], [0, 1], program)
    offset = {v.name: v.offset for v in plan.values}
    # When the result of Q comes back, all users of `a` have ended, and the copy has ended too.
    assert offset["a"] in (offset["q@cuda:0"], offset["b"])
    assert plan.arenas["cuda:0"] == 2 * 1024


def test_parts_of_a_tensor_on_two_gpus() -> None:
    """A tensor is made of two parts, which two GPUs compute. The tensor lies on the GPU that
    computes the first part, and the second part is copied to its place in the tensor."""
    values = [
        Value("x", (1, 16), "float32"),
        Value("p", (1, 16), "float32", alias_of=3, offset=0),
        Value("q", (1, 16), "float32", alias_of=3, offset=64),
        Value("pq", (1, 32), "float32"),
        Value("r", (1, 16), "float32"),
        Value("y", (1, 32), "float32"),
    ]
    operators = [
        Operator("P", "k", (0,), (1,)),
        Operator("Q", "k", (0,), (2,)),
        Operator("R", "k", (2,), (4,)),  # R runs on the GPU that computes q.
        Operator("Y", "k", (3, 4), (5,)),
    ]
    program = Program(values, operators, (0,), (5,))
    assert described(split([[0, 3], [1, 2]], [0, 1], program)) == {
        "P": ("cuda:0", ["x"], ["p"], []),
        "Q": ("cuda:1", ["x@cuda:1"], ["q@cuda:1"], []),
        "q to cuda:0": ("cuda:1", ["q@cuda:1"], ["q"], ["Q"]),
        "R": ("cuda:1", ["q@cuda:1"], ["r"], []),
        "r to cuda:0": ("cuda:1", ["r"], ["r@cuda:0"], ["R"]),
        "Y": ("cuda:0", ["pq", "r@cuda:0"], ["y"], ["r to cuda:0"]),
    }
    # Y runs on the second GPU and reads the whole tensor, so the tensor is copied there. R runs
    # there too and reads only the part q, so q is copied separately.
    assert described(split([[0, 1], [2, 3]], [0, 1], program)) == {
        "P": ("cuda:0", ["x"], ["p"], []),
        "Q": ("cuda:0", ["x"], ["q"], []),
        "q to cuda:1": ("cuda:0", ["q"], ["q@cuda:1"], ["Q"]),
        "pq to cuda:1": ("cuda:0", ["pq"], ["pq@cuda:1"], []),
        "R": ("cuda:1", ["q@cuda:1"], ["r"], ["q to cuda:1"]),
        "Y": ("cuda:1", ["pq@cuda:1", "r"], ["y"], ["pq to cuda:1"]),
    }


def test_names_that_are_taken() -> None:
    program = diamond()
    program.values[1] = Value("c@cuda:0", (16, 16), "float32")
    plan = split([[0, 1, 3, 4], [2]], [0, 1], program)
    names = [v.name for v in plan.values] + [op.name for op in plan.operators]
    assert len(set(names)) == len(names)


def test_the_launch_order_is_kept() -> None:
    plan = split([[0, 1, 3, 4], [2]], [0, 1], launch_order=[0, 2, 1, 3, 4])
    assert [op.name for op in plan.operators if not op.is_copy] == ["A", "C", "B", "D", "E"]


def test_all_on_one_gpu_is_as_ever() -> None:
    names = NAMES
    plain = Schedule("by hand", names, streams=[[0, 1, 3, 4], [2]])
    second = Schedule("by hand", names, streams=[[0, 1, 3, 4], [2]], devices=[1, 1])
    on_one = make_plan(diamond(), second, device="cuda:0")
    assert on_one == make_plan(diamond(), plain, device="cuda:1")
    assert on_one.devices == ("cuda:1",)
    assert all(value.device is None for value in on_one.values)


def test_a_cpu_is_one_device() -> None:
    schedule = Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]], devices=[0, 1])
    with pytest.raises(ScheduleError, match="`C` on device 1, but the CPU is one device"):
        make_plan(diamond(), schedule)


def test_a_gpu_that_no_machine_has() -> None:
    schedule = Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]], devices=[0, 4032])
    with pytest.raises(ScheduleError, match="`C` on device 4032; there can be 1024"):
        make_plan(diamond(), schedule, device="cuda:0")


def test_json_round_trip() -> None:
    assert read_plan(two_gpus().to_json()) == two_gpus()


def test_plans_from_before_there_were_devices() -> None:
    plan = make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 2, 3, 4]]))
    document = json.loads(plan.to_json())
    del document["arenas"]
    for value in document["values"]:
        del value["device"], value["copy_of"]
    assert read_plan(json.dumps(document)) == plan


# The next tests are about damaged plans. Other tests cover the faults of one stream or one GPU.


def test_a_dropped_wait_of_a_copy() -> None:
    """Neither a copy between GPUs nor the operator that reads the copy may start too early."""
    plan = two_gpus()
    for op, source in (
        ("a_flat to cuda:1", "A"),
        ("C", "a_flat to cuda:1"),
        ("c to cuda:0", "C"),
        ("D", "c to cuda:0"),
    ):
        with pytest.raises(PlanError, match=f"let `{op}` wait for `{source}`"):
            read_plan(damaged(plan, **{f"{op}__waits": []}))


def test_a_buffer_used_again_while_a_copy_still_reads_it() -> None:
    """A copy runs on a stream of its own. The stream of its source cannot tell when the copy
    ends."""
    values = [Value(name, (16, 16), "float32") for name in ("x", "a", "p", "b", "y", "z")]
    operators = [
        Operator("A", "k", (0,), (1,)),
        Operator("P", "k", (1,), (2,)),
        Operator("B", "k", (0,), (3,)),
        Operator("Y", "k", (3,), (4,)),
        Operator("Z", "k", (2,), (5,)),
    ]
    program = Program(values, operators, (0,), (4, 5))
    plan = split([[0, 2, 3], [1, 4]], [0, 1], program)
    offset = {v.name: v.offset for v in plan.values}
    assert offset["a"] != offset["b"]
    with pytest.raises(PlanError, match="let `B` wait for `a to cuda:1`"):
        read_plan(damaged(plan, b__offset=offset["a"]))


def test_an_argument_on_another_gpu() -> None:
    plan = two_gpus()
    index = {v.name: i for i, v in enumerate(plan.values)}
    with pytest.raises(ArtifactError, match="`C` runs on cuda:1, but its `a_flat` lies on cuda:0"):
        read_plan(damaged(plan, C__inputs=[index["a_flat"], index["w"]]))
    with pytest.raises(ArtifactError, match="`E` runs on cuda:0, but its `w` lies on cuda:1"):
        read_plan(damaged(plan, E__inputs=[index["d"], index["w"]]))
    with pytest.raises(ArtifactError, match="`B` runs on cuda:1, but its `a` lies on cuda:0"):
        read_plan(damaged(plan, B__stream=1))
    with pytest.raises(ArtifactError, match="`b` lies on cuda:1"):
        read_plan(damaged(plan, b__device="cuda:1"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"b__device": "cuda:7"}, "`b` lies on cuda:7, where the plan has no stream"),
        (
            {"a_flat__device": "cuda:1"},
            "`a_flat` lies on cuda:1, but the value that it is an alias of",
        ),
        ({"c to cuda:0__stream": 0, "E__stream": 3}, "must lead from its stream's device, cuda:0"),
        ({"c to cuda:0__inputs": [1, 2]}, "must have one input and one output"),
        ({"c to cuda:0__inputs": [6]}, "the plan marks neither as a copy of the other"),
        ({"c@cuda:0__copy_of": 99}, "`c@cuda:0` is a copy of a value that the plan does not have"),
        ({"c@cuda:0__shape": [8, 32]}, "`c@cuda:0` is not a copy of `c`: their shapes"),
        ({"w@cuda:0__copy_of": 3}, "which the host does not write"),
        ({"w@cuda:0__copy_of": None, "w@cuda:0__storage": "arena"}, "no operator writes"),
    ],
)
def test_nonsense_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ArtifactError, match=says):
        read_plan(damaged(two_gpus(), **changes))


def test_a_cpu_beside_a_gpu_is_refused() -> None:
    text = two_gpus().to_json().replace("cuda:1", "cpu:0")
    with pytest.raises(ArtifactError, match="`cpu:0` cannot be combined with other"):
        read_plan(text)


def test_arenas_that_do_not_add_up_are_refused() -> None:
    document = json.loads(two_gpus().to_json())
    document["arenas"]["cuda:1"] = 64
    with pytest.raises(ArtifactError, match="the devices' arenas have"):
        read_plan(json.dumps(document))
