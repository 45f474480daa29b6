"""Tests which inputs of concatenations are written directly into the result, and which are
copied."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests import nets
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import ArtifactError, GraphModule
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.frontend import load_model
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.plan.make import make_plan
from tvm_interop.program.concat_in_place import can_be_in_place, concat_in_place
from tvm_interop.program.library_op import library_op
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.program.storage import GPU_PART_ALIGNMENT
from tvm_interop.scheduling import Schedule
from tvm_interop.transform import LowerToUnits, extract

PROVIDERS = ["tvm"] if why_missing("onednn") else ["tvm", "onednn"]


def image(name: str, channels: int, **fields: int) -> Value:
    return Value(name, (1, channels, 4, 4), "float32", **fields)  # type: ignore[arg-type]


def concat(name: str, values: list[Value], inputs: tuple[int, ...], output: int) -> Operator:
    shapes = tuple(values[v].shape for v in (*inputs, output))
    described = library_op(op="concat", shapes=shapes, layouts=("plain",) * len(shapes))
    return Operator(name, "concat", inputs, (output,), described)


def joined(
    *concats: tuple[tuple[int, ...], int],
    values: list[Value],
    written: tuple[int, ...],
    **rest: object,
) -> Program:
    """A program: one operator for each value in `written`, and then the concatenations `concats`,
    each given by its inputs and its output."""
    made = [Operator(f"make {values[v].name}", "k", (0,), (v,)) for v in written]
    joins = [concat(f"join {values[out].name}", values, ins, out) for ins, out in concats]
    outputs: tuple[int, ...] = rest.get("outputs", (concats[-1][1],))  # type: ignore[assignment]
    weights: dict[int, np.ndarray] = rest.get("weights", {})  # type: ignore[assignment]
    return Program(values, [*made, *joins], (0,), outputs, weights)


def left(program: Program) -> list[str]:
    """The concatenations that are left in the program."""
    return [op.name for op in concat_in_place(program).operators if op.name.startswith("join")]


def places(program: Program) -> dict[str, tuple[str, int]]:
    """For each alias, the value that contains it and its offset in bytes."""
    values = concat_in_place(program).values
    return {v.name: (values[v.alias_of].name, v.offset) for v in values if v.alias_of is not None}


PIXELS = 4 * 4 * 4
"""The size of a channel in bytes."""


def test_parts_lie_one_after_the_other() -> None:
    values = [image("x", 1), image("a", 3), image("b", 5), image("c", 2), image("y", 10)]
    program = joined(((1, 2, 3), 4), values=values, written=(1, 2, 3))
    assert left(program) == []
    assert places(program) == {"a": ("y", 0), "b": ("y", 3 * PIXELS), "c": ("y", 8 * PIXELS)}
    # The given program does not change.
    assert [op.name for op in program.operators][-1] == "join y"
    assert all(value.alias_of is None for value in program.values)


def test_a_concatenation_within_another() -> None:
    """The result of one concatenation is an input of the next one. If a value is written into a
    result, so is its reshape `b again`."""
    values = [
        image("x", 1),
        image("a", 2),
        image("b", 3),
        image("ab", 5),
        image("c", 4),
        image("cab", 9),
        image("d", 1),
        image("y", 10),
        Value("b again", (48,), "float32", alias_of=2),
    ]
    program = joined(((1, 2), 3), ((4, 3), 5), ((6, 5), 7), values=values, written=(1, 2, 4, 6))
    assert left(program) == []
    assert places(program) == {
        "d": ("y", 0),
        "cab": ("y", 1 * PIXELS),
        "c": ("y", 1 * PIXELS),
        "ab": ("y", 5 * PIXELS),
        "a": ("y", 5 * PIXELS),
        "b": ("y", 7 * PIXELS),
        "b again": ("y", 7 * PIXELS),
    }


def test_a_result_that_is_joined_with_its_own_parts_is_no_beginning() -> None:
    values = [image("x", 1), image("a", 2), image("b", 2), image("y", 4), image("z", 8)]
    program = joined(((1, 2), 3), ((1, 2, 3), 4), values=values, written=(1, 2), outputs=(4,))
    assert left(program) == ["join z"]
    assert places(program) == {"a": ("y", 0), "b": ("y", 2 * PIXELS)}


def test_the_second_concatenation_of_a_part_copies() -> None:
    values = [image("x", 1), image("a", 2), image("b", 2), image("y", 4), image("z", 4)]
    program = joined(((1, 2), 3), ((2, 1), 4), values=values, written=(1, 2), outputs=(3, 4))
    assert left(program) == ["join z"]
    assert places(program) == {"a": ("y", 0), "b": ("y", 2 * PIXELS)}


def test_the_same_part_twice_copies() -> None:
    values = [image("x", 1), image("a", 2), image("y", 4)]
    assert left(joined(((1, 1), 2), values=values, written=(1,))) == ["join y"]


def test_what_no_operator_writes_is_copied() -> None:
    values = [image("x", 2), image("a", 2), image("w", 2), image("y", 4)]
    assert left(joined(((0, 1), 3), values=values, written=(1,))) == ["join y"]
    weights = {2: np.zeros((1, 2, 4, 4), np.float32)}
    assert left(joined(((1, 2), 3), values=values, written=(1,), weights=weights)) == ["join y"]


def test_a_reshape_is_copied() -> None:
    values = [
        image("x", 1),
        image("a", 2),
        Value("r", (1, 2, 2, 8), "float32"),
        image("r again", 2, alias_of=2),
        image("y", 4),
    ]
    assert left(joined(((1, 3), 4), values=values, written=(1, 2))) == ["join y"]


def test_parts_that_would_not_be_aligned_are_copied() -> None:
    def odd(*channels: int) -> Program:
        parts = [Value(f"p{c}", (1, c, 3, 3), "float32") for c in channels]
        whole = Value("y", (1, sum(channels), 3, 3), "float32")
        ids = tuple(range(1, len(parts) + 1))
        return joined((ids, len(ids) + 1), values=[image("x", 1), *parts, whole], written=ids)

    assert left(odd(16, 5)) == []  # Only the last input may have an unaligned size.
    assert left(odd(5, 16)) == ["join y"]
    assert left(odd(16, 8, 16)) == ["join y"]
    assert can_be_in_place([64, 128, 4])
    assert can_be_in_place([4])
    assert not can_be_in_place([64, 32, 32])
    assert can_be_in_place([64, 32, 32], GPU_PART_ALIGNMENT)
    assert not can_be_in_place([32, 16, 32], GPU_PART_ALIGNMENT)


def test_parts_on_a_gpu_may_lie_closer() -> None:
    """The second input begins at byte 288 of the result. A GPU needs a multiple of 32 bytes, and a
    CPU needs a multiple of 64."""
    values = [
        Value("x", (1, 1, 3, 3), "float32"),
        Value("a", (1, 8, 3, 3), "float32"),
        Value("b", (1, 8, 3, 3), "float32"),
        Value("y", (1, 16, 3, 3), "float32"),
    ]
    program = joined(((1, 2), 3), values=values, written=(1, 2))
    assert left(program) == ["join y"]
    in_place = concat_in_place(program, GPU_PART_ALIGNMENT)
    names = tuple(op.name for op in in_place.operators)
    assert names == ("make a", "make b")
    schedule = Schedule("by hand", names, streams=[[0], [1]])
    assert make_plan(in_place, schedule, device="cuda:0").values[2].offset == 288
    with pytest.raises(ArtifactError, match="`b` of 288 bytes at 288 is not part"):
        make_plan(in_place, schedule)


def test_a_part_may_be_given_out_too() -> None:
    values = [image("x", 1), image("a", 2), image("b", 2), image("y", 4), image("z", 4)]
    program = joined(((1, 2), 3), values=values[:4], written=(1, 2), outputs=(2, 3))
    assert left(program) == []
    assert concat_in_place(program).outputs == (2, 3)


def test_kernels_that_nobody_calls_any_more_go() -> None:
    module = LowerToUnits()(load_model(nets.inception_like()))
    program = extract(module)
    in_place = concat_in_place(program)
    called = {op.kernel for op in in_place.operators}
    assert {var.name_hint for var in in_place.kernels.get_global_vars()} == called
    assert len(called) < len(program.kernels.get_global_vars())
    assert concat_in_place(in_place) is in_place


# The next tests are about the results of programs with concatenations in place.


def blocks(net: nets.Net, x: str, parts: dict[str, int]) -> list[str]:
    """Convolutions of `x`, each followed by ReLU. `parts` has their numbers of channels."""
    return [
        net.op("Relu", [net.conv(x, name, (16, channels), 3)], f"{name}_relu")
        for name, channels in parts.items()
    ]


def nested() -> onnx.ModelProto:
    """A dense block: each layer reads the outputs of all earlier layers. The layer `b` is also an
    output of the model."""
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 8])
    a, b = blocks(net, x, {"a": 16, "b": 32})
    net.op("Concat", [a, b], "ab", axis=1)
    net.op("Relu", [net.conv("ab", "c", (48, 16), 1)], "c_relu")
    net.op("Concat", ["c_relu", "ab"], "cab", axis=1)
    net.op("Relu", [net.conv("cab", "d", (64, 16), 1)], "d_relu")
    net.op("Concat", ["cab", "d_relu"], "y", axis=1)
    return net.model("y", b)


def copied() -> onnx.ModelProto:
    """Concatenations whose inputs must be copied.

    Such an input is read by two concatenations, or twice by one concatenation, or is an input of
    the model or a weight.

    The input `c` of some concatenations has an odd number of channels.
    """
    net = nets.Net()
    x = net.input("x", [1, 16, 4, 4])
    a, b, c = blocks(net, x, {"a": 16, "b": 16, "c": 5})
    net.op("Concat", [a, b], "ab", axis=1)
    net.op("Concat", [b, a], "ba", axis=1)
    net.op("Concat", [c, c], "cc", axis=1)
    net.op("Concat", [x, c], "xc", axis=1)
    net.op("Concat", [c, net.weight(1, 3, 4, 4)], "cw", axis=1)
    names = ["ab", "ba", "cc", "xc", "cw"]
    net.op("Concat", names, "all", axis=1)
    net.conv("all", "y", (32 + 32 + 10 + 21 + 8, 8), 1)
    return net.model("y", "ab", "cw")


def unaligned() -> onnx.ModelProto:
    """Concatenations of inputs whose sizes are not multiples of 64 bytes, and of inputs that are
    batches of two images."""
    net = nets.Net()
    x = net.input("x", [1, 16, 3, 3])
    a, b, c = blocks(net, x, {"a": 16, "b": 5, "c": 16})
    net.op("Concat", [a, b], "ab", axis=1)
    net.op("Concat", [b, c], "bc", axis=1)
    net.op("Concat", ["bc", "ab"], "y", axis=1)
    two = net.input("two", [2, 16, 4, 4])
    d, e = blocks(net, two, {"d": 16, "e": 16})
    net.op("Concat", [d, e], "z", axis=1)
    net.op("Concat", [d, e], "rows", axis=2)
    return net.model("y", "z", "rows")


@pytest.mark.parametrize("providers", [["tvm"], PROVIDERS[-1:]], ids=["tvm", "library"])
@pytest.mark.parametrize("make", [nested, copied, unaligned, nets.inception_like])
def test_numbers_are_right_and_bits_the_same(make: object, providers: list[str]) -> None:
    model: onnx.ModelProto = make()  # type: ignore[operator]
    feeds = nets.feeds(model)
    options = CompileOptions(streams=2, threads=1, providers=providers, latency_db=":memory:")
    compilation = Compilation(model, options)
    expected = run_onnxruntime(model, feeds)
    results = []
    for schedule in (
        compilation.sequential(),
        compilation.schedule("greedy"),
        compilation.schedule("lios"),
    ):
        module = GraphModule(compilation.artifact(schedule))
        for _ in range(3):  # The streams interleave differently in each run.
            module.run(**feeds)
            results.append([module.get_output(i).numpy() for i in range(len(expected))])
    for got, want in zip(results[0], expected.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * abs(want).max())
    for again in results[1:]:
        for one, other in zip(results[0], again, strict=True):
            np.testing.assert_array_equal(other, one)


@pytest.mark.parametrize(
    ("make", "stay"),
    [(nested, set()), (copied, {"ba", "cc", "xc", "cw"}), (unaligned, {"bc", "z", "rows"})],
)
def test_which_concatenations_of_a_model_stay(make: object, stay: set[str]) -> None:
    program = extract(LowerToUnits()(load_model(make())))  # type: ignore[operator]
    before = {op.name for op in program.operators}
    after = {op.name for op in concat_in_place(program).operators}
    assert {name.split("/")[0] for name in after if name.endswith("/Concat")} == stay
    assert before - after


def test_growing_concatenations_share_the_longest() -> None:
    values = [image("in", 16), *(image(f"f{i}", 16) for i in range(3))]
    values += [image("two", 32), image("three", 48)]
    program = joined(((1, 2), 4), ((1, 2, 3), 5), values=values, written=(1, 2, 3))
    assert left(program) == []
    step = image("", 16).nbytes
    assert places(program) == {
        "f0": ("three", 0),
        "f1": ("three", step),
        "f2": ("three", 2 * step),
        "two": ("three", 0),
    }


def test_what_reads_the_beginning_does_not_wait_for_the_rest() -> None:
    values = [image("in", 16), *(image(f"f{i}", 16) for i in range(3))]
    values += [image("two", 32), image("three", 48), image("read", 32)]
    program = joined(((1, 2), 4), ((1, 2, 3), 5), values=values, written=(1, 2, 3), outputs=(5, 6))
    program.operators.append(Operator("read", "k", (4,), (6,)))
    shared = concat_in_place(program)
    names = [op.name for op in shared.operators]
    waits_for = {names[a] for a, b in shared.edges() if names[b] == "read"}
    assert waits_for == {"make f0", "make f1"}
