"""Tests the checker with an oracle, with plans of a faulty planner, and with known bugs."""

from __future__ import annotations

import ast
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.interleavings import is_safe
from tests.unit.test_plan import NAMES, diamond, two_stream_plan
from tvm_interop import PlanError, Schedule
from tvm_interop.checking.races import check_program
from tvm_interop.checking.stream_program import Access, StreamOperator, StreamProgram
from tvm_interop.cli.app import run_app
from tvm_interop.plan import check
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan, PlannedValue
from tvm_interop.plan.stream_form import stream_program
from tvm_interop.program import program as programs
from tvm_interop.program import storage

ROOT = Path(__file__).parents[2]


def op(name, stream, reads=(), writes=(), waits=(), **more):
    return StreamOperator(name, stream, tuple(reads), tuple(writes), tuple(waits), **more)


def program(*operators, **more):
    return StreamProgram(operators=operators, **more)


def test_a_program_that_is_too_large_is_refused_in_one_sentence() -> None:
    large = program(*(op(f"o{i}", str(i)) for i in range(50_000)))
    with pytest.raises(PlanError, match=r"^the program has too many operators .* fewer streams$"):
        check_program(large)


# The next tests compare the checker with an oracle.


def random_program(rng):
    """A random program of up to five operators on up to three streams and eight bytes.

    The operators touch the bytes of two buffers.
    """
    count = rng.randint(2, 5)
    names = [f"op{i}" for i in range(count)]
    keen = rng.choice([0.1, 0.4, 0.8, 0.95])  # The probability of a wait.
    tensors: list[Access] = []
    operators = []
    for i, name in enumerate(names):
        reads = [rng.choice(tensors) for _ in range(rng.randint(0, 2)) if tensors]
        if rng.random() < 0.2:
            reads.append(random_access(rng, None))
        writes = [
            random_access(rng, rng.choice([None, f"t{i}", f"t{i}", f"t{rng.randint(0, 2)}"]))
            for _ in range(rng.randint(0, 1) + (not reads))
        ]
        tensors += writes
        stream = str(rng.randint(0, 2))
        waits = [before for before in names[:i] if rng.random() < keen]
        if i + 1 < count and rng.random() < 0.03:
            waits.append(names[i + 1])  # A wait for a later operator may deadlock.
        operators.append(op(name, stream, reads, writes, waits))
    if rng.random() < 0.3 and not any(names[-1] in o.waits for o in operators):
        operators = [*operators[:-1], *shares_of(operators[-1])]
    outputs = tuple(rng.sample(tensors, 1)) if tensors and rng.random() < 0.5 else ()
    return program(*operators, outputs=outputs)


def random_access(rng, tensor):
    begin = rng.randint(0, 3)
    return Access(rng.choice("xy"), begin, rng.randint(begin, 4), tensor)


def shares_of(whole):
    """Two operators that take the place of `whole`. Each writes one share of the outputs of
    `whole`."""
    for i in range(2):
        writes = tuple(msgspec.structs.replace(w, share=(i, 2)) for w in whole.writes[:1])
        yield op(f"{whole.name}[{i}]", f"part{i}", whole.reads, writes, whole.waits)


@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_every_interleaving_says(seed):
    """The checker calls a random program safe exactly if every interleaving of its streams is
    safe. The four tests together try 1,000 unsafe programs or more."""
    rng = random.Random(seed)
    safe = unsafe = 0
    while safe < 150 or unsafe < 250:
        made = random_program(rng)
        expected = is_safe(made)
        report = check_program(made)
        assert report.is_safe == expected, made.to_json() + report.text
        safe, unsafe = safe + expected, unsafe + (not expected)


def test_the_wait_that_it_names_mends_a_race():
    rng = random.Random(7)
    mended = 0
    while mended < 150:
        made = random_program(rng)
        report = check_program(made)
        if report.is_safe or report.faults[0].kind != "race" or made.outputs:
            continue
        fault = report.faults[0]
        waiter, source = fault.wait
        again = program(
            *(
                msgspec.structs.replace(o, waits=(*o.waits, source)) if o.name == waiter else o
                for o in made.operators
            )
        )
        after = check_program(again)
        assert all((f.kind, f.operators) != ("race", fault.operators) for f in after.faults)
        assert all(f.kind != "deadlock" for f in after.faults)
        mended += 1


# The next tests check plans of a faulty planner.


def test_a_reader_that_the_planner_forgets_is_seen(monkeypatch):
    """`D` reads `c` and writes `d`.

    A planner that does not know about the read puts `d` over `c`.
    """
    lifetimes = Plan.arena_buffers

    def forgetful(plan):
        return {
            device: {v: replace(buffer, users=()) for v, buffer in buffers.items()}
            for device, buffers in lifetimes(plan).items()
        }

    monkeypatch.setattr(Plan, "arena_buffers", forgetful)
    with pytest.raises(PlanError, match="arena"):
        make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]]))


def test_a_dependency_that_the_planner_forgets_is_seen(monkeypatch):
    """`C` reads a view of the output of `A`. Without the edge from `A`, `C` waits for no
    operator."""
    known = programs.reads

    def forgetful(values, operators):
        found = known(values, operators)
        names = [(operators[r.producer].name, operators[r.consumer].name) for r in found]
        return [r for r, pair in zip(found, names, strict=True) if pair != ("A", "C")]

    for module in (storage, programs):
        monkeypatch.setattr(module, "reads", forgetful)
    with pytest.raises(PlanError, match="let `C` wait for `A`"):
        make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]]))


def test_a_size_that_the_planner_gets_wrong_is_seen(monkeypatch):
    monkeypatch.setattr(PlannedValue, "nbytes", property(lambda value: 512))
    monkeypatch.setattr(check, "check_bounds", lambda plan: None)
    with pytest.raises(PlanError):
        make_plan(diamond(), Schedule("by hand", NAMES, streams=[[0, 1, 3, 4], [2]]))


def test_a_plan_is_a_program():
    assert tvm_interop.check(stream_program(two_stream_plan())).is_safe
    with pytest.raises(PlanError, match="int is not a program"):
        tvm_interop.check(3)


@pytest.mark.parametrize(
    ("layout", "channels"), [("plain", 20), ("blocked8", 24), ("blocked16", 32)]
)
def test_blocks_are_full_in_the_form_of_the_checker(layout, channels):
    plan = two_stream_plan()
    value = msgspec.structs.replace(plan.values[0], shape=(1, 20, 2, 2), layout=layout)
    form = stream_program(msgspec.structs.replace(plan, values=[value, *plan.values[1:]]))
    read = next(a for op in form.operators for a in op.reads if a.tensor == f"{value.name} (0)")
    assert read.end - read.begin == value.nbytes == channels * 16


def test_the_checker_imports_nothing_of_what_it_checks():
    package = ROOT / "tvm_interop"
    for path in (*(package / "checking").glob("*.py"), package / "plan" / "stream_form.py"):
        imports = [
            n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)
        ]
        modules = {n.module for n in imports if n.level == 2}
        assert modules <= {"_native", "errors", "plain_data", "checking.stream_program"}, path
        if path.parent.name == "plan":  # The checker may import only the plan's types.
            taken = {(n.module, name.name) for n in imports if n.level == 1 for name in n.names}
            assert taken == {("plan", "Plan"), ("plan", "PlannedValue")}
    for path in (ROOT / "passes" / "check").iterdir():
        for included in re.findall(r'#include "(.*)"', path.read_text()):
            assert included.startswith("passes/check/"), path


# The next tests are small programs with bugs that other projects shipped.


def test_the_dual_stream_experts_of_vllm_48223():
    """The routed experts overwrite the hidden states while the shared expert still reads them.

    The shared expert runs on its own stream. There is a fork and a join, but they do not order the
    experts.
    """

    def layer(experts_write):
        return program(
            op("router", "main", [Access("hidden")], [Access("weights")]),
            op("shared expert", "aux", [Access("hidden")], [Access("shared")], ["router"]),
            op("routed experts", "main", [Access("hidden"), Access("weights")], experts_write),
            op(
                "sum",
                "main",
                [*experts_write, Access("shared")],
                [Access("out")],
                ["shared expert"],
            ),
        )

    report = tvm_interop.check(layer([Access("hidden")]))
    assert report.faults[0].operators == ("shared expert", "routed experts")
    assert report.faults[0].wait == ("routed experts", "shared expert")
    assert tvm_interop.check(layer([Access("a copy")])).is_safe


def test_the_concurrent_streams_of_llama_cpp_21897():
    """The allocator assumes that operators run in the order of their launches.

    The allocator frees the bytes of the norm after the launch of the last branch that reads the
    norm. The next tensor then overwrites these bytes too early.
    """

    def attention(k_at):
        norm = Access("pool", 0, 64, "norm")
        q, k, v = (
            Access("pool", begin, begin + 64, name)
            for begin, name in ((64, "q"), (k_at, "k rotated"), (192, "v"))
        )
        k_raw = Access("pool", 128, 192, "k")
        return program(
            op("norm", "0", [Access("x")], [norm]),
            op("q", "0", [norm], [q]),
            op("k", "1", [norm], [k_raw], ["norm"]),
            op("v", "2", [norm], [v], ["norm"]),
            op("rope k", "1", [k_raw], [k]),
            op("attention", "0", [q, k, v], [Access("y")], ["rope k", "v"]),
        )

    report = tvm_interop.check(attention(k_at=0))
    assert {fault.operators for fault in report.faults} == {("q", "rope k"), ("v", "rope k")}
    assert "bytes 0 to 64 of `pool`" in report.faults[0].text
    assert tvm_interop.check(attention(k_at=256)).is_safe


# The next tests are about the kinds of faults and their messages.


def test_a_tensor_that_is_overwritten_in_order():
    a, b = (Access("arena", 0, 64, name) for name in "ab")
    in_order = [op("A", "0", (), [a]), op("B", "0", (), [b])]
    report = check_program(program(*in_order, op("C", "0", [a])))
    (fault,) = report.faults
    assert (fault.kind, fault.operators, fault.wait) == ("overwritten", ("B", "C"), None)
    assert "finds what `B` wrote" in fault.text
    assert check_program(program(*in_order, op("C", "0", [b]))).is_safe
    written_again = op("A again", "0", (), [a])
    assert check_program(program(*in_order, written_again, op("C", "0", [a]))).is_safe
    report = check_program(program(*in_order, outputs=(a,)))
    assert report.faults[0].operators == ("B", "the host")


def test_restrict_is_kept():
    inside = [Access("x", 0, 8)], [Access("x", 4, 12)]
    assert check_program(program(op("relu", "0", *inside))).is_safe
    (fault,) = check_program(program(op("conv", "0", *inside, restrict=True))).faults
    assert (fault.kind, fault.begin, fault.end) == ("overlap", 4, 8)
    two = [Access("x", 0, 8, "a"), Access("x", 4, 12, "b")]
    assert check_program(program(op("split", "0", (), two))).is_safe
    assert not check_program(program(op("split", "0", (), two, restrict=True))).is_safe


def test_a_circle_of_waits():
    (fault,) = check_program(
        program(op("a", "0"), op("b", "0", waits=["c"]), op("c", "1", waits=["d"]), op("d", "1"))
    ).faults
    assert fault.kind == "deadlock"
    assert fault.operators == ("c", "d")


def test_the_text_draws_it():
    made = program(
        op("a", "main", (), [Access("x", 0, 64)]),
        op("b", "side", [Access("x", 32, 64)]),
        op("c", "main", waits=["b"]),
    )
    assert check_program(made).text.splitlines() == [
        "unsafe (race): `a` writes and `b` reads bytes 32 to 64 of `x`, and nothing orders the "
        "two; let `b` wait for `a`",
        "",
        "  main    side",
        "> a",
        "        > b",
        "  c             waits for b",
        "",
        "missing: b waits for a",
    ]
    assert check_program(program(op("a", "0"))).text.startswith("safe: 1 operators")


# Programs as JSON.


def test_json_round_trip():
    rng = random.Random(1)
    for _ in range(50):
        made = random_program(rng)
        assert StreamProgram.from_json(made.to_json()) == made


def document(**changes):
    return {
        "format": "tvm_interop.stream_program",
        "version": 1,
        "operators": [{"name": "a", "stream": "0", "writes": [{"buffer": "x"}]}],
        **changes,
    }


def operator(**changes):
    return [{"name": "a", "stream": "0", **changes}]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (document(version=2), "version 2"),
        (document(format="json"), "not a program of streams"),
        (document(colour=1), "colour"),
        (document(operators=operator(waits=["b"])), "waits for `b`, which is not an operator"),
        (document(operators=operator() * 2), "two operators are called `a`"),
        (document(operators=operator(name="")), "is called ''"),
        (document(operators=operator(stream=3)), "stream"),
        (document(operators=operator(reads=[{"buffer": "x", "begin": 2, "end": 1}])), "2 to 1"),
        (document(operators=operator(reads=[{"buffer": "x", "begin": -1}])), "-1 to"),
        (document(operators=operator(reads=[{"buffer": "x", "end": 2**70}])), f"0 to {2**70} of"),
        (
            document(operators=operator(reads=[{"buffer": "x", "end": 9}]), buffers={"x": 8}),
            "has 8",
        ),
        (document(operators=operator(writes=[{"buffer": "x", "share": [2, 2]}])), "share 2 of 2"),
        (document(operators=operator(writes=[{"buffer": "x", "share": [0, 9]}])), "share 0 of 9"),
        (document(buffers={"x": -1}), "-1 bytes"),
        ({}, "not a program of streams"),
    ],
)
def test_what_is_no_program_is_refused(wrong, says):
    for given in (wrong, json.dumps(wrong)):
        with pytest.raises(PlanError, match=says):
            tvm_interop.check(wrong) if given is wrong else StreamProgram.from_json(given)


def test_a_file_is_checked(tmp_path):
    path = tmp_path / "program.json"
    path.write_text(json.dumps(document()))
    assert tvm_interop.check(path).is_safe
    with pytest.raises(PlanError, match="cannot be read"):
        tvm_interop.check(tmp_path / "none.json")
    path.write_text("[")
    with pytest.raises(PlanError, match="cannot be read"):
        tvm_interop.check(str(path))


# The next tests are about the recorder of programs.


def test_a_recorded_race_is_raised_at_the_end():
    data = np.zeros((4, 8), dtype=np.float32)
    with tvm_interop.check.record() as r:
        a = r.op("fill", writes=[data], stream="compute")
        r.op("copy", reads=[data[1:3]], stream="copy", waits=[a])
    with tvm_interop.check.record() as r:
        r.op(writes=[data[:2]], stream=0)
        r.op(writes=[data[2:]], stream=1)

    def without_a_wait():
        with tvm_interop.check.record() as r:
            r.op("fill", writes=[data], stream="compute")
            r.op("copy", reads=[data[1:3]], stream="copy")

    with pytest.raises(PlanError, match=r"`fill` writes and `copy` reads.*let `copy` wait"):
        without_a_wait()


def test_a_test_that_fails_by_itself_says_so():
    def broken():
        with tvm_interop.check.record() as r:
            r.op(writes=["x"], stream=0)
            r.op(writes=["x"], stream=1)
            raise KeyError

    with pytest.raises(KeyError):
        broken()


def test_a_recorded_output():
    r = tvm_interop.check.record()
    x = Access("x", 0, 8, "result")
    r.op("a", writes=[x], stream=0)
    r.op("b", writes=[("x", 4, 6)], stream=0)
    assert tvm_interop.check(r).is_safe
    r.outputs(x)
    assert tvm_interop.check(r).faults[0].operators == ("b", "the host")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: (r.op("a"), r.op("a")), "two operators are called `a`"),
        (lambda r: r.op("a", waits=["b"]), "waits for 'b'"),
        (lambda r: r.op(reads=[("x", 1)]), "give \\(buffer, begin, end\\)"),
        (lambda r: r.op(reads=[object()]), "cannot be determined"),
        (lambda r: r.op(reads=3), "for 3; give a list"),
        (lambda r: r.op(waits="a"), "for 'a'; give a list"),
        (lambda r: r.op(7), "called 7; a name is text"),
    ],
)
def test_what_cannot_be_recorded(call, says):
    with pytest.raises(PlanError, match=says):
        call(tvm_interop.check.record())


def test_a_tensor_of_torchs_kind_is_its_bytes():
    class Tensor:
        shape, device = (2, 3), "cuda:0"

        def data_ptr(self):
            return 4096

        def element_size(self):
            return 4

        def stride(self):
            return (8, 1)

    r = tvm_interop.check.record()
    r.op(reads=[Tensor()])
    assert r.program.operators[0].reads == (Access("memory of cuda:0", 4096, 4096 + 11 * 4),)
    # A tensor on the CPU may share memory with an array of NumPy.
    Tensor.device = "cpu"
    r.op(reads=[Tensor()])
    assert r.program.operators[1].reads == (Access("memory", 4096, 4096 + 11 * 4),)


# The command line.


def run_check(*arguments):
    return run_app(["check", *map(str, arguments)])


def test_the_verb_draws_what_is_wrong(tmp_path, capsys):
    made = program(op("a", "main", (), [Access("x")]), op("b", "side", [Access("x")]))
    path, picture = tmp_path / "program.json", tmp_path / "fault.svg"
    path.write_text(made.to_json())
    assert run_check(path, "-o", picture) == 1
    assert "missing: b waits for a" in capsys.readouterr().out
    assert 'stroke-dasharray="6 4"' in picture.read_text()
    assert run_check(path, "--json") == 1
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert (fault["operators"], fault["wait"]) == (["a", "b"], ["b", "a"])

    mended = (made.operators[0], msgspec.structs.replace(made.operators[1], waits=("a",)))
    path.write_text(program(*mended).to_json())
    assert run_check(path, "-o", picture) == 0
    assert capsys.readouterr().out.startswith("safe: 2 operators")
    assert "dasharray" not in picture.read_text()


def test_the_verb_says_what_is_no_program(tmp_path, capsys):
    assert run_check(tmp_path / "none.json") == 2
    assert "none.json" in capsys.readouterr().err
    path = tmp_path / "program.json"
    path.write_text("{}")
    assert run_check(path) == 2
    assert run_check(path, "-o", tmp_path / "fault.png") == 2
    assert "not an .svg file" in capsys.readouterr().err
