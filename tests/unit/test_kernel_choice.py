"""Tests, with invented latencies, that layouts are chosen for which the whole model is fastest.

In most of these tests, a kernel takes 1 us if it is fast on blocked tensors, and 10 us otherwise. A
reorder takes 2 us.
"""

from __future__ import annotations

import types
from collections.abc import Collection

import numpy as np
import onnx
import pytest

from tests import nets
from tests.made_up_latency import MadeUp, Microseconds, two_islands
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.kernel_choice import choose_kernels, laid_out
from tvm_interop.compiler.provider_choice import given_to
from tvm_interop.frontend import load_model
from tvm_interop.lowering.narrow_storage import NarrowStorage
from tvm_interop.machine.kernel_libraries import blocked_layout, why_missing
from tvm_interop.measure.cpu_timer import CpuStageTimer
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.program.concat_in_place import concat_in_place
from tvm_interop.program.program import Operator, Program
from tvm_interop.program.storage import Layout
from tvm_interop.transform import LowerToUnits, extract

pytestmark = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


def liked_by(names: Collection[str] | None = None, reorder_us: float = 2.0) -> Microseconds:
    """Latencies in which the named operators, or all operators, are fast on blocked tensors."""

    def us(op: Operator) -> float:
        if op.description is not None and op.description.op == "reorder":
            return reorder_us
        if op.library is None:
            return 20.0
        is_blocked = op.description is not None and set(op.description.layouts) != {"plain"}
        likes = names is None or op.name.split("/")[0] in names
        return 1.0 if is_blocked and likes else 10.0

    return us


def chosen(model: onnx.ModelProto, us: Microseconds, layout: Layout = "blocked16") -> Program:
    program = concat_in_place(extract(LowerToUnits(libraries=("onednn",))(load_model(model))))
    return choose_kernels(program, ("tvm", "onednn"), lambda program: MadeUp(program, us), layout)


def blocked(model: onnx.ModelProto, us: Microseconds, layout: Layout = "blocked16") -> set[str]:
    """Return the names of the operators with a blocked output.

    The function also checks that each operator's description has the layouts of its tensors.
    """
    program = chosen(model, us, layout)
    for op in program.operators:
        layouts = tuple(program.values[v].layout for v in (*op.inputs, *op.outputs))
        if op.library is not None:
            assert op.description is not None
            assert op.description.layouts == layouts
        elif layout in layouts:
            assert len(set(layouts)) == 1, f"`{op.name}` would mix layouts"
    for v in (*program.inputs, *program.outputs, *program.weights):
        assert program.values[v].layout == "plain"
    for value in program.values:
        root = value if value.alias_of is None else program.values[value.alias_of]
        assert value.layout == root.layout
    return {
        op.name.split("/")[0]
        for op in program.operators
        if any(program.values[v].layout == layout for v in op.outputs)
    }


def test_all_that_may_be_blocked_is() -> None:
    # `c` and `f` stay plain: a softmax reads the output of `c`, and a reshape reads the output of
    # `f`.
    assert blocked(two_islands(), liked_by()) == {"a", "b", "d", "e"}


@pytest.mark.parametrize("narrow", [None, NarrowStorage()], ids=["f32", "bf16"])
def test_kernels_fused_of_elementwise_ones_take_blocked_tensors(
    narrow: NarrowStorage | None,
) -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.op("Sub", [net.conv(x, "a", (16, 16), 3), net.conv(x, "b", (16, 16), 3)], "sub")
    net.op("Relu", [net.conv(net.op("Abs", ["sub"], "abs"), "c", (16, 16), 3)], "y")
    lower = LowerToUnits(libraries=("onednn",), narrow=narrow)
    program = extract(lower(load_model(net.model("y"))))
    chosen = choose_kernels(program, ("onednn",), lambda p: MadeUp(p, liked_by()))
    (fused,) = [op for op in chosen.operators if op.description is None]
    layouts = [chosen.values[v].layout for v in (*fused.inputs, *fused.outputs)]
    assert layouts == ["blocked16"] * 3


def test_nothing_is_blocked_where_nothing_gains() -> None:
    assert blocked(two_islands(), liked_by(())) == set()
    assert blocked(two_islands(), liked_by((), reorder_us=0.0)) == set()


@pytest.mark.parametrize(
    ("others_us", "reorder_us", "expected"),
    [
        # Each comment adds up the times of the three convolutions, and of the reorder if any.
        (14.0, 2.0, {"a"}),  # 14 us + (1 us + a reorder of 2 us) + 10 us
        (14.0, 4.5, {"a", "b"}),  # 14 us + 1 us + 14 us
        (15.0, 3.0, {"a"}),  # 15 us + (1 us + a reorder of 3 us) + 10 us
        (15.0, 4.5, set()),  # 10 us + 10 us + 10 us
    ],
)
def test_what_is_least_in_all(others_us: float, reorder_us: float, expected: set[str]) -> None:
    """Of three convolutions, only the second is faster on blocked tensors. The first and the third
    are slower."""
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.conv(net.conv(net.conv(x, "a", (16, 16), 3), "b", (16, 16), 3), "c", (16, 16), 3)

    def us(op: Operator) -> float:
        is_blocked = op.description is not None and "blocked16" in op.description.layouts
        if op.name[0] in "ac" and op.library and is_blocked:
            return others_us
        return liked_by(("b",), reorder_us)(op)

    assert blocked(net.model("c"), us) == expected


def test_one_island_is_blocked() -> None:
    assert blocked(two_islands(), liked_by(("a", "b", "c"))) == {"a", "b"}
    assert blocked(two_islands(), liked_by(("d", "e", "f"))) == {"d", "e"}


def test_where_blocks_are_used_the_library_is() -> None:
    def us(op: Operator) -> float:
        return liked_by()(op) if op.library is None or "blocked16" in layouts(op) else 99.0

    def layouts(op: Operator) -> tuple[str, ...]:
        return () if op.description is None else op.description.layouts

    program = chosen(two_islands(), us)
    libraries = {op.name.split("/")[0]: op.library for op in program.operators}
    assert {libraries[name] for name in "abcdef"} == {"onednn"}
    assert libraries["y"] is None  # On plain tensors, the kernel of TVM is faster.
    assert libraries["softmax"] is None


def test_the_library_alone() -> None:
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(two_islands())))
    slow = choose_kernels(
        program, ("onednn",), lambda program: MadeUp(program, lambda op: 9.0 if op.library else 1)
    )
    described = [op for op in slow.operators if op.description is not None]
    assert {op.library for op in described} == {"onednn"}
    none = choose_kernels(program, ("tvm",), lambda program: MadeUp(program, liked_by()))
    assert {op.library for op in none.operators} == {None}


def test_what_the_model_takes_and_gives_stays_plain() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.conv(net.conv(net.conv(x, "a", (16, 16), 3), "b", (16, 16), 3), "c", (16, 16), 3)
    assert blocked(net.model("c"), liked_by()) == {"a", "b"}
    assert blocked(net.model("c", "a"), liked_by()) == {"b"}


def test_what_works_on_each_number_takes_either_layout() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.conv(x, "a", (16, 16), 3)
    net.op("Exp", ["a"], "exp")
    net.conv("exp", "b", (16, 16), 3)
    model = net.model("b")
    assert blocked(model, liked_by()) == {"a", "exp"}
    assert blocked(model, liked_by(("a",))) == {"a", "exp"}
    assert blocked(model, liked_by(("b",))) == {"a", "exp"}
    # A reorder would take longer than `b` saves on blocked tensors, so `a` is blocked too.
    assert blocked(model, liked_by(("b",), reorder_us=20.0)) == {"a", "exp"}

    def a_is_slow_on_blocks(op: Operator) -> float:
        is_blocked = op.description is not None and "blocked16" in op.description.layouts
        slow = op.library is not None and op.name.startswith("a/") and is_blocked
        return 50.0 if slow else liked_by()(op)

    assert blocked(model, a_is_slow_on_blocks) == set()


def test_what_works_on_an_input_makes_what_it_gives_plain() -> None:
    """TVM's kernels know no layouts, so their inputs and outputs have the same layout."""
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.op("Sigmoid", [x], "sigmoid")
    net.op("Exp", ["sigmoid"], "exp")
    net.conv("sigmoid", "a", (16, 16), 3)
    net.conv("a", "b", (16, 16), 3)
    net.op("Sigmoid", ["b"], "y")
    assert blocked(net.model("y", "exp"), liked_by()) == {"a"}


def test_few_channels_and_broken_blocks_stay_plain() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.conv(net.conv(x, "narrow", (16, 8), 3), "wide", (8, 24), 3)
    net.op("Exp", ["wide"], "exp")
    net.conv("exp", "y", (24, 16), 3)
    model = net.model("y")
    assert blocked(model, liked_by()) == set()
    assert blocked(model, liked_by(), "blocked8") == {"narrow", "wide", "exp"}


def test_parts_of_a_concatenation_lie_as_it_does() -> None:
    def joined(*channels: int) -> onnx.ModelProto:
        net = nets.Net()
        x = net.input("x", [1, 16, 8, 8])
        parts = [net.conv(x, f"part{i}", (16, c), 3) for i, c in enumerate(channels)]
        net.op("Concat", parts, "joined", axis=1)
        net.conv("joined", "y", (sum(channels), 16), 3)
        return net.model("y")

    assert blocked(joined(16, 32), liked_by()) == {"part0", "part1"}
    # Only the last input of a concatenation may end in a block that is padded with zeros.
    assert blocked(joined(16, 24), liked_by()) == {"part0", "part1"}
    assert blocked(joined(24, 16), liked_by()) == set()
    assert blocked(joined(32, 8), liked_by()) == set()


def test_a_sum_lies_as_its_output_or_is_reordered() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    net.conv(x, "shortcut", (16, 16), 1)
    net.conv(net.conv(x, "a", (16, 16), 3), "b", (16, 16), 3)
    net.op("Add", ["shortcut", "b"], "sum")
    net.conv("sum", "y", (16, 16), 3)
    assert blocked(net.model("y"), liked_by()) == {"shortcut", "a", "b"}
    # `shortcut` is an output of the model. Keeping it plain costs a reorder of 2 us.
    assert blocked(net.model("y", "shortcut"), liked_by()) == {"a", "b"}


@pytest.mark.parametrize(
    ("cpu", "layout"), [("core-avx2", "blocked8"), ("skylake-avx512", "blocked16")]
)
def test_the_cpu_that_runs_the_model_decides_how_many_channels_a_block_has(
    cpu: str, layout: Layout
) -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    for name in ("a", "b", "c"):
        x = net.conv(x, name, (16, 16), 3)
    options = CompileOptions(target=f"llvm -mcpu={cpu}", latency_db=":memory:", time_budget=0)
    program = Compilation(net.model("c"), options).program
    layouts = {value.layout for value in program.values}
    assert layouts == {"plain", layout}


def grouped(size: int) -> onnx.ModelProto:
    """A convolution with 4 channels in a group, between two convolutions that may be blocked. For
    blocked tensors and groups of 4 channels, oneDNN has only its slow reference implementation.
    """
    net = nets.Net()
    x = net.input("x", [1, 64, size, size])
    net.conv(net.conv(x, "before", (64, 64), 1), "grouped", (64, 64), 3, group=16)
    net.conv("grouped", "after", (64, 64), 1)
    return net.model("after")


def lowered(model: onnx.ModelProto) -> Program:
    return concat_in_place(extract(LowerToUnits(libraries=("onednn",))(load_model(model))))


@pytest.mark.parametrize("where", ["blocked", "plain", "both"])
def test_a_reference_implementation_is_not_measured(where: str) -> None:
    class Slow(MadeUp):
        def has_only_reference(self, op: int) -> bool:
            operator = self._operators[op]
            assert operator.description is not None
            is_plain = set(operator.description.layouts) == {"plain"}
            named = operator.library is not None and operator.name.startswith("grouped")
            return named and (where == "both" or where == ("plain" if is_plain else "blocked"))

        def stages(self, stages: object) -> np.ndarray:
            for groups in stages:  # type: ignore[attr-defined]
                operator = self._operators[groups[0][0]]
                is_reorder = operator.description is None or operator.description.op == "reorder"
                assert is_reorder or not self.has_only_reference(groups[0][0])
            return super().stages(stages)

    program = lowered(grouped(28))
    found = choose_kernels(program, ("tvm", "onednn"), lambda p: Slow(p, liked_by()))
    names = {op.name.split("/")[0]: op for op in found.operators}
    of_grouped = names["grouped"]
    layouts = {found.values[v].layout for v in (of_grouped.inputs[0], of_grouped.outputs[0])}
    if where == "plain":
        assert layouts == {"blocked16"}
    else:
        assert layouts == {"plain"}
    assert of_grouped.library == (None if where == "both" else "onednn")


def test_a_timer_tells_a_reference_implementation_from_others() -> None:
    program = lowered(grouped(28))
    layout = blocked_layout("onednn")
    inner = {program.storage_of(op.outputs[0]) for op in program.operators[:-1]}
    names = [op.name.split("/")[0] for op in program.operators]
    found = laid_out(given_to(program, range(len(names)), "onednn"), inner, "onednn", layout)
    kernels = types.SimpleNamespace()  # The test runs no kernel of TVM.
    timer = CpuStageTimer(found, kernels, streams=1)
    model = MeasuredLatency(found, {}, timer)
    assert model.has_only_reference(names.index("grouped"))
    assert not model.has_only_reference(names.index("before"))
    # Once the latency of `grouped` is measured, the latency decides, and it no longer matters that
    # oneDNN has only a reference implementation.
    assert model.stage([[names.index("grouped")]]) > 0
    assert not model.has_only_reference(names.index("grouped"))
