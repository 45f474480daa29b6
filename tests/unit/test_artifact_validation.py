"""Tests that a plan with wrong addresses or unwritten bytes is refused, and that the error names
the operator or value at fault."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.native_runtime import read_plan_in_both as read_plan
from tvm_interop import ArtifactError, Schedule
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan, PlannedOperator, PlannedValue
from tvm_interop.plan.validate import check_bounds
from tvm_interop.program.kinds.row_matmul import as_row_matmul
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Operator, Program, Value

ROW = (1, 16, 2, 2)
NBYTES = 16 * 4 * 4
"""The size of an image of shape `ROW`, in bytes."""


def joined_plan() -> Plan:
    """Two operators each write a half of `joined`. A third operator, in two shares, reads `joined`
    and writes `y`."""
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
    """Return a copy of `plan` whose operator or value called `name` has the given `fields`."""

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
        check_bounds(plan)
    with pytest.raises(ArtifactError, match=message):
        read_plan(plan.to_json())


def operator(plan: Plan, name: str) -> PlannedOperator:
    (found,) = (op for op in plan.operators if op.name == name)
    return found


def value(plan: Plan, name: str) -> PlannedValue:
    (found,) = (v for v in plan.values if v.name == name)
    return found


def test_a_sound_plan_passes() -> None:
    plan = joined_plan()
    assert read_plan(plan.to_json()) == plan
    waits = {op.name: [plan.operators[w].name for w in op.waits] for op in plan.operators}
    # Each share reads both halves of `joined`, and waits for the writer on the other stream.
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


def test_shares_of_a_librarys_kernel() -> None:
    """Only some kernels of libraries have shares, and the descriptions of all shares of a kernel
    are equal."""

    def product(rows: int) -> LibraryOp:
        shapes = ((rows, 600), (600, 128), (rows, 128))
        return library_op(op="matmul", shapes=shapes, layouts=("plain",) * 3)

    plain = product(4)
    rows, row = as_row_matmul(plain), as_row_matmul(product(1))
    assert rows is not None
    assert row is not None

    def plan_of(*ops: LibraryOp) -> Plan:
        values = [Value(f"v{i}", shape, "float32") for i, shape in enumerate(rows.shapes)]
        operators = [
            Operator(f"P[{i + 1}/2]", "p", (0, 1), (2,), op, "onednn", share=(i, 2), whole="P")
            for i, op in enumerate(ops)
        ]
        program = Program(values, operators, inputs=(0, 1), outputs=(2,))
        names = tuple(op.name for op in operators)
        return make_plan(program, Schedule("by hand", names, streams=[[0], [1]]))

    plan = plan_of(rows, rows)
    check_bounds(plan)
    no_shares = r"`P\[./2\]`, `P\[./2\]` write `v2`, and are not the shares of one kernel"
    other = rows.with_fields(activation="relu")
    refused(changed(plan, "P[2/2]", description=other), no_shares)
    refused(changed(plan, "P[2/2]", library=None), no_shares)
    first = changed(plan, "P[1/2]", description=plain)
    refused(changed(first, "P[2/2]", description=plain), no_shares)
    first = changed(plan, "P[1/2]", description=row)
    refused(changed(first, "P[2/2]", description=row), no_shares)


def test_one_operator_that_says_it_is_a_share() -> None:
    refused(changed(joined_plan(), "L", share=(0, 2)), "`L` write `joined`")


def test_aliases_that_are_no_part() -> None:
    plan = joined_plan()
    refused(changed(plan, "right", offset=NBYTES + 64), "`right` of 256 bytes at 320 is not part")
    refused(changed(plan, "right", offset=NBYTES + 4), "`right` of 256 bytes at 260 is not part")
    refused(changed(plan, "left", offset=-64), "`left` lies at byte -64")
    refused(changed(plan, "right", alias_of=2), "`right` is not an alias of a value")
    refused(changed(plan, "right", alias_of=99), "`right` is not an alias of a value")
    refused(changed(plan, "right", alias_of=None), "`right` is not an alias of a value")


def test_inputs_and_weights_are_not_written() -> None:
    plan = joined_plan()
    refused(changed(plan, "joined", storage="input"), "an operator writes input `joined`")
    refused(changed(plan, "joined", storage="weight"), "an operator writes weight `joined`")


def pool(layouts: tuple[str, str]) -> LibraryOp:
    return library_op(
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
    check_bounds(plain)
    refused(changed(plain, "left", layout="blocked16"), "`L` takes `left` as plain, but it is")
    blocked = pool(("plain", "blocked16"))
    refused(changed(plain, "L", description=blocked), "`L` takes `left` as blocked16, but it is")
    refused(changed(plain, "L", description=None), "`L` is `onednn`'s, but has no description")
    narrow = pool(("plain", "plain")).with_fields(shapes=(ROW, (1, 8, 2, 2)))
    refused(changed(plain, "L", description=narrow), "`L` is described with shapes")
    refused(changed(plain, "x", dtype="int32"), "`L` has a tensor that is not float32")


def test_tvms_kernels_take_no_padded_blocks() -> None:
    blocked = changed(joined_plan(), "joined", shape=(1, 30, 2, 2), layout="blocked16")
    refused(blocked, r"`S\[./2\]` is TVM's, but its `joined` is blocked16")


# The next tests are about plans that somebody could write on purpose. Accidental damage would
# hardly cause them.


def everywhere(plan: Plan, **fields: Any) -> Plan:
    """Return a copy of `plan` in which every stream has the given `fields`."""
    streams = tuple(msgspec.structs.replace(stream, **fields) for stream in plan.streams)
    return msgspec.structs.replace(plan, streams=streams)


@pytest.mark.parametrize("threads", [-1, 0, 2**40, 2**70])
def test_threads_out_of_bounds(threads: int) -> None:
    refused(everywhere(joined_plan(), threads=threads), f"stream 0 has {threads} threads")


def test_streams_that_differ_or_do_nothing() -> None:
    plan = joined_plan()
    first, second = plan.streams
    uneven = (first, msgspec.structs.replace(second, threads=2))
    refused(msgspec.structs.replace(plan, streams=uneven), "stream 1 has 2 threads, and stream 0 1")
    idle = msgspec.structs.replace(plan, streams=(*plan.streams, first))
    refused(idle, "stream 2 has no operator")
    crowd = msgspec.structs.replace(plan, streams=(first,) * 5000)
    refused(crowd, "has 5000 streams; at most 4096")


def test_an_operator_that_reads_the_same_time_and_again() -> None:
    """An operator may have at most as many inputs as the plan has values.

    The checker looks at each input, which would take too long for very many inputs.
    """
    plan = joined_plan()
    greedy = plan.operators[-1]
    inputs = greedy.inputs * 50_000
    wide = msgspec.structs.replace(greedy, inputs=inputs)
    refused(
        msgspec.structs.replace(plan, operators=(*plan.operators[:-1], wide)),
        f"`{re.escape(greedy.name)}` has {len(inputs)} inputs; at most .*{len(plan.values)} v",
    )


@pytest.mark.parametrize(
    "device", ["tpu:0", "cpu", "cpu:1", "cuda:-1", "cuda:1024", "cuda:\u0661", ""]
)
def test_devices_that_are_none(device: str) -> None:
    refused(everywhere(joined_plan(), device=device), "stream 0 is on device")


@pytest.mark.parametrize("dtype", ["float31", "object", "<f4", "S8", "float128", ""])
def test_types_that_are_none(dtype: str) -> None:
    refused(changed(joined_plan(), "x", dtype=dtype), f"`x` is of type `{dtype}`")


def test_shapes_out_of_bounds() -> None:
    plan = joined_plan()
    refused(changed(plan, "x", shape=(1, -16, 2, 2)), "`x` has a dimension of -16")
    refused(changed(plan, "x", shape=(2**41,)), f"`x` has a dimension of {2**41}")
    refused(changed(plan, "x", shape=(1,) * 33), "`x` has 33 dimensions")
    refused(changed(plan, "x", shape=(2**40, 2**40)), "tensors have .* bytes; at most")
    refused(changed(plan, "x", shape=(16, 4), layout="blocked16"), "`x` is blocked16, and has 2")
    refused(changed(plan, "left", offset=2**62), f"`left` lies at byte {2**62}")


@pytest.mark.parametrize("nbytes", [2**62, 2**40, -1, 2**70])
def test_arenas_out_of_bounds(nbytes: int) -> None:
    plan = msgspec.structs.replace(joined_plan(), arena_bytes=nbytes)
    refused(plan, f"the arena has {nbytes} bytes; it must have 0 to ")


def test_arenas_of_other_devices() -> None:
    plan = msgspec.structs.replace(joined_plan(), arenas={"cuda:7": 2**62})
    refused(plan, "has arenas on cuda:7")


def test_names_and_waits_twice() -> None:
    plan = joined_plan()
    again = msgspec.structs.replace(operator(plan, "R"), name="L")
    refused(with_operator(without(plan, "R"), again), "two operators are called `L`")
    nameless = msgspec.structs.replace(operator(plan, "R"), name="")
    refused(with_operator(without(plan, "R"), nameless), "operator 3 has an empty name")
    refused(changed(plan, "L", kernel=""), "`L` does not name a kernel")
    twice = operator(plan, "S[1/2]").waits * 2
    refused(changed(plan, "S[1/2]", waits=twice), r"`S\[1/2\]` waits twice")


def test_inputs_and_outputs_that_are_none() -> None:
    plan = joined_plan()
    for_inputs = {(0, 0): "two inputs of the model are called `x`", (1,): "`joined` .* as arena"}
    for inputs, message in for_inputs.items():
        refused(msgspec.structs.replace(plan, inputs=inputs), message)
    refused(msgspec.structs.replace(plan, inputs=(-1,)), "an input or output of the model")
    refused(msgspec.structs.replace(plan, outputs=(99,)), "an input or output of the model")
    refused(msgspec.structs.replace(plan, outputs=(1,)), "`joined` of the model is planned in the")
    refused(msgspec.structs.replace(plan, outputs=(2,)), "`left` of the model is planned in the")
    blocked = changed(plan, "x", layout="blocked16")
    refused(blocked, "`x`, an input or output of the model, is blocked16")
    for v in (0, 4):
        values = list(plan.values)
        values[v] = msgspec.structs.replace(values[v], name="a\0b")
        zero = msgspec.structs.replace(plan, values=values)
        refused(zero, "an input or output of the model, has a zero byte in its name")


def test_operators_that_read_what_is_not_yet_written() -> None:
    plan = joined_plan()
    refused(changed(plan, "L", inputs=(3,)), "`L` reads what `R` writes, and is not planned after")
    refused(changed(plan, "L", inputs=(2,)), "`L` reads what `L` writes")


def test_copies_on_one_device() -> None:
    plan = joined_plan()
    weight = PlannedValue("w", ROW, "float32", "weight")
    twin = PlannedValue("w again", ROW, "float32", "weight", copy_of=5)
    both = msgspec.structs.replace(plan, values=(*plan.values, weight, twin))
    refused(both, "`w again` is a copy of `w`, and both lie on cpu:0")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strides": (2**62, 1)}, f"a `strides` of {2**62}"),
        ({"padding": (-1, 0, 0, 0)}, "a `padding` of -1"),
        ({"op": "conv2d", "groups": 2**40}, f"a `groups` of {2**40}"),
        ({"op": "conv2d", "clip_high": 1e300}, "a `clip_high` of 1e\\+300"),
        ({"shapes": ((0, 2**62), ROW)}, "with a shape of"),
        ({"layouts": ("plain",)}, "2 shapes and 1 layouts"),
        ({"cut": (0, 2, 0)}, r"a `cut` of \(0, 2, 0\)"),
        ({"cut": (0, 2, 1, 2)}, r"a `cut` of \(0, 2, 1, 2\)"),
        ({"cut": (0, 4, 0, 2)}, r"a `cut` of \(0, 4, 0, 2\)"),
        ({"cut": (2, 0, 0, 2)}, r"a `cut` of \(2, 0, 0, 2\)"),
        ({"cut": (0, 2, 0, 4)}, "`L` is described with shapes"),
    ],
)
def test_descriptions_out_of_bounds(fields: dict[str, Any], message: str) -> None:
    description = pool(("plain", "plain")).with_fields(**fields)
    plan = changed(joined_plan(), "L", library="onednn", description=description)
    refused(plan, f"operator `L` is described with .*{message}|{message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"max_pool2d"', '"pool9d"', "`pool9d` is not a kind of operator that this version knows"),
        ('"lrn_size":0', '"lrn_size":3', "`max_pool2d` takes no field `lrn_size` of 3"),
        ('"groups":1', '"mood":1', "`max_pool2d` takes no field `mood` of 1"),
        ('"window":[3,3]', '"window":"all"', "of `max_pool2d`"),
    ],
)
def test_what_a_plan_says_of_an_unknown_kind_or_field(old: str, new: str, message: str) -> None:
    plan = changed(joined_plan(), "L", library="onednn", description=pool(("plain", "plain")))
    text = plan.to_json()
    assert read_plan(text) == plan
    with pytest.raises(ArtifactError, match=rf"{message}.*operators.*description"):
        read_plan(text.replace(old, new))


def test_libraries_that_are_none() -> None:
    described = pool(("plain", "plain"))
    for library in ("nobody", "cudnn"):
        plan = changed(joined_plan(), "L", library=library, description=described)
        refused(plan, f"`L` needs kernel library `{library}`; known are `onednn`")


@pytest.mark.parametrize("text", ["", "[" * 100_000, "{}", '{"streams": 1e999}', b"\xff\xfe"])
def test_texts_that_are_no_plan(text: str | bytes) -> None:
    with pytest.raises(ArtifactError, match=r"`plan\.json` cannot be read by this version"):
        read_plan(text)
