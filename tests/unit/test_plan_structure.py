"""Plans that point outside themselves or leave bytes unwritten are refused, by name."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tvm_interop import ArtifactError, Schedule
from tvm_interop.library_op import LibraryOp
from tvm_interop.plan import Plan, PlannedOperator, PlannedValue, make_plan
from tvm_interop.plan_structure import check_structure
from tvm_interop.program import Operator, Program, Value

ROW = (1, 16, 2, 2)
NBYTES = 16 * 4 * 4
"""Of an image of shape `ROW`."""


def joined_plan() -> Plan:
    """Two operators write a half of `joined` each; two shares of a third read it and write `y`."""
    values = [
        Value("x", ROW, "float32"),
        Value("joined", (1, 32, 2, 2), "float32"),
        Value("left", ROW, "float32", alias_of=1),
        Value("right", ROW, "float32", alias_of=1, offset=NBYTES),
        Value("y", (1, 32, 2, 2), "float32"),
    ]
    operators = [
        Operator("L", "k", (0,), (2,)),
        Operator("R", "k", (0,), (3,)),
        Operator("S[1/2]", "s", (1,), (4,), share=(0, 2), whole="S"),
        Operator("S[2/2]", "s", (1,), (4,), share=(1, 2), whole="S"),
    ]
    program = Program(values, operators, inputs=(0,), outputs=(4,))
    names = tuple(op.name for op in operators)
    return make_plan(program, Schedule("by hand", names, streams=[[0, 2], [1, 3]]))


def changed(plan: Plan, name: str, **fields: Any) -> Plan:
    """`plan` with fields of the operator or value of this name overwritten."""

    def edit(entry: Any) -> Any:
        return msgspec.structs.replace(entry, **fields) if entry.name == name else entry

    operators = tuple(map(edit, plan.operators))
    return msgspec.structs.replace(plan, operators=operators, values=tuple(map(edit, plan.values)))


def without(plan: Plan, name: str) -> Plan:
    kept = tuple(op for op in plan.operators if op.name != name)
    return msgspec.structs.replace(plan, operators=kept)


def with_operator(plan: Plan, op: PlannedOperator) -> Plan:
    return msgspec.structs.replace(plan, operators=(*plan.operators, op))


def refused(plan: Plan, message: str) -> None:
    with pytest.raises(ArtifactError, match=message):
        check_structure(plan)
    with pytest.raises(ArtifactError, match=message):
        Plan.from_json(plan.to_json())


def operator(plan: Plan, name: str) -> PlannedOperator:
    (found,) = (op for op in plan.operators if op.name == name)
    return found


def value(plan: Plan, name: str) -> PlannedValue:
    (found,) = (v for v in plan.values if v.name == name)
    return found


def test_a_sound_plan_passes() -> None:
    plan = joined_plan()
    assert Plan.from_json(plan.to_json()) == plan
    waits = {op.name: [plan.operators[w].name for w in op.waits] for op in plan.operators}
    # Each share reads both halves: each waits for the one on the other stream.
    assert waits == {"L": [], "R": [], "S[1/2]": ["R"], "S[2/2]": ["L"]}


def test_writers_that_overlap() -> None:
    plan = joined_plan()
    refused(changed(plan, "right", offset=NBYTES - 64), "writes over .* `joined`")
    again = msgspec.structs.replace(operator(plan, "L"), name="L again", waits=())
    refused(with_operator(plan, again), "`L`, `L again` write `joined`, and are not the shares")


def test_bytes_that_nobody_writes() -> None:
    plan = joined_plan()
    nobody = "no operator writes value `joined` from byte"
    refused(without(plan, "R"), f"{nobody} {NBYTES} of {2 * NBYTES} on")
    refused(changed(plan, "right", shape=(1, 8, 2, 2)), f"{nobody} {NBYTES * 3 // 2} of")
    refused(changed(plan, "left", shape=(1, 12, 2, 2)), f"{nobody} {NBYTES * 3 // 4} of")
    refused(changed(plan, "L", outputs=(3,)), f"{nobody} 0 of")


def test_shares_that_are_not_all_there() -> None:
    plan = joined_plan()
    refused(without(plan, "S[2/2]"), r"`S\[1/2\]` write `y`, and are not the shares of one kernel")
    repeated = r"`S\[./2\]`, `S\[./2\]` write `y`, and are not the shares of one kernel"
    refused(changed(plan, "S[2/2]", share=(0, 2)), repeated)
    refused(changed(plan, "S[2/2]", share=None), repeated)
    refused(changed(plan, "S[2/2]", share=(1, 3)), repeated)
    refused(changed(plan, "S[2/2]", kernel="t"), repeated)
    refused(changed(plan, "S[2/2]", inputs=(0,)), repeated)
    refused(changed(plan, "S[2/2]", share=(2, 2)), r"`S\[2/2\]` is share 2 of 2")


def test_one_operator_that_says_it_is_a_share() -> None:
    refused(changed(joined_plan(), "L", share=(0, 2)), "`L` write `joined`")


def test_aliases_that_are_no_part() -> None:
    plan = joined_plan()
    refused(changed(plan, "right", offset=NBYTES + 64), "`right` of 256 bytes at 320 is no part")
    refused(changed(plan, "right", offset=NBYTES + 4), "`right` of 256 bytes at 260 is no part")
    refused(changed(plan, "left", offset=-64), "`left` of 256 bytes at -64 is no part")
    refused(changed(plan, "right", alias_of=2), "`right` is an alias of none")
    refused(changed(plan, "right", alias_of=99), "`right` is an alias of none")
    refused(changed(plan, "right", alias_of=None), "`right` is an alias of none")


def test_inputs_and_weights_are_not_written() -> None:
    plan = joined_plan()
    refused(changed(plan, "joined", storage="input"), "an operator writes input `joined`")
    refused(changed(plan, "joined", storage="weight"), "an operator writes weight `joined`")


def pool(layouts: tuple[str, str]) -> LibraryOp:
    return LibraryOp(
        op="max_pool2d",
        shapes=(ROW, ROW),
        layouts=layouts,  # type: ignore[arg-type]
        window=(3, 3),
        strides=(1, 1),
        padding=(1, 1, 1, 1),
        dilation=(1, 1),
    )


def test_layouts_and_descriptions_that_contradict() -> None:
    plain = changed(joined_plan(), "L", library="onednn", description=pool(("plain", "plain")))
    check_structure(plain)
    refused(changed(plain, "left", layout="blocked16"), "`L` takes `left` as plain, but it is")
    blocked = pool(("plain", "blocked16"))
    refused(changed(plain, "L", description=blocked), "`L` takes `left` as blocked16, but it is")
    refused(changed(plain, "L", description=None), "`L` is `onednn`'s, but not described")
    narrow = msgspec.structs.replace(pool(("plain", "plain")), shapes=(ROW, (1, 8, 2, 2)))
    refused(changed(plain, "L", description=narrow), "`L` is described with shapes")
    refused(changed(plain, "x", dtype="int32"), "`L` has a tensor that is not float32")


def test_tvms_kernels_take_no_padded_blocks() -> None:
    refused(
        changed(joined_plan(), "x", shape=(1, 12, 2, 2), layout="blocked16"),
        "`L` is TVM's, but its `x` is blocked16",
    )
