"""Tests schedules: their validation, streams, barriers, simulation and text form."""

import json

import pytest

from tests.graphs import latencies, layered
from tvm_interop.errors import ScheduleError
from tvm_interop.latency import LatencyTable
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, Stage, schedule

NAMES = ("a", "b", "c", "d")
GRAPH = OpGraph.from_edges(NAMES, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
US = LatencyTable([1, 2, 3, 4])


def staged(*stages):
    return Schedule("hand", NAMES, stages=tuple(Stage(g, tuple(range(len(g)))) for g in stages))


def streamed(*streams):
    return Schedule("hand", NAMES, streams=streams)


GOOD_STAGES = staged([[0]], [[1], [2]], [[3]])


@pytest.mark.parametrize(
    "good",
    [
        GOOD_STAGES,
        staged([[0, 1, 2, 3]]),
        staged([[0, 2]], [[1, 3]]),
        streamed([0, 1, 3], [2]),
        streamed([0, 1, 2, 3]),
        streamed([0], [1], [2], [3]),
    ],
)
def test_good_schedules_pass(good):
    good.validate(GRAPH)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (staged([[0]], [[1], [2]]), "`d` is not in the schedule"),
        (staged([[0]], [[1], [2]], [[3, 1]]), "`b` is in the schedule twice"),
        (staged([[0], [1]], [[2]], [[3]]), "`b` reads the output of `a` but both are in stage 0"),
        (staged([[1]], [[0]], [[2]], [[3]]), "`b` reads the output of `a` but is in stage 0"),
        (staged([[0]], [[3, 1, 2]]), "`d` reads the output of `b` but comes before it"),
        (staged([[0]], [[1], [7]], [[3]]), "operator 7"),
        (staged([[0]], [[1], [-1]], [[3]]), "operator -1"),
        (streamed([0, 1, 3]), "`c` is not in the schedule"),
        (streamed([0, 1, 3], [2, 0]), "`a` is in the schedule twice"),
        (streamed([1, 0], [2, 3]), "`a` -> `b` -> `a`"),
        (streamed([0, 1, 2, 9]), "operator 9"),
    ],
)
def test_the_first_fault_is_named(bad, says):
    with pytest.raises(ScheduleError) as caught:
        bad.validate(GRAPH)
    assert says in str(caught.value)


def test_one_stream_in_a_stage_does_not_make_groups_ordered():
    stage = Stage(([0], [1]), (0, 0))
    bad = Schedule("hand", NAMES, stages=(stage, Stage(([2, 3],), (0,))))
    with pytest.raises(ScheduleError, match="different groups"):
        bad.validate(GRAPH)


def test_operators_are_matched_by_name():
    turned = OpGraph.from_edges(NAMES[::-1], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    GOOD_STAGES.validate(turned)
    streamed([0, 1, 3], [2]).validate(turned)
    assert GOOD_STAGES.simulate(turned, LatencyTable([4, 3, 2, 1])) == 1 + 3 + 4
    with pytest.raises(ScheduleError, match="`d`, which the graph does not have"):
        GOOD_STAGES.validate(OpGraph.from_edges(["a", "b", "c"], []))


def test_streams_of_stages():
    assert GOOD_STAGES.is_staged
    assert GOOD_STAGES.streams == ((0, 1, 3), (2,))
    assert GOOD_STAGES.num_streams == 2
    shared = Schedule("hand", NAMES, stages=(Stage(([0], [1], [2, 3]), (1, 0, 1)),))
    assert shared.streams == ((1,), (0, 2, 3))


def test_simulate():
    assert GOOD_STAGES.simulate(GRAPH, US) == 1 + 3 + 4
    assert streamed([0, 1, 3], [2]).simulate(GRAPH, US) == 8
    assert streamed([0, 1, 2, 3]).simulate(GRAPH, US) == 10
    # Groups on one stream run one after the other.
    stages = (Stage(([0],), (0,)), Stage(([1], [2]), (0, 0)), Stage(([3],), (0,)))
    assert Schedule("hand", NAMES, stages=stages).simulate(GRAPH, US) == 10


def test_barriers_ask_for_edges():
    assert GOOD_STAGES.ordering_edges() == ()
    stages = (
        Stage(([0], [1]), (0, 1)),
        Stage(([2],), (0,)),
        Stage(([3], [4]), (1, 2), barrier=True),
    )
    ready = Schedule("hand", ("a", "b", "c", "d", "e"), stages=stages)
    assert set(ready.ordering_edges()) == {(2, 3), (2, 4), (1, 4)}


def test_a_schedule_cannot_be_changed():
    with pytest.raises(AttributeError):
        GOOD_STAGES.scheduler = "other"
    with pytest.raises(AttributeError):
        GOOD_STAGES.stages[0].barrier = True


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Stage(([0],), (0,), kind="odd"), "`odd`"),
        (lambda: Stage(([0],), (0, 1)), "names 2 streams"),
        (lambda: Stage(([0],), (-1,)), "stream -1"),
        (lambda: Schedule("x", ("a",), stages=(Stage(([0],), (10**12,)),)), "stream 1000000000000"),
        (lambda: Schedule("x", ("a",), stages=(Stage(([0],), (0,)),), streams=((), (0,))), "both"),
        (lambda: Schedule("x", ("a",), stages=(Stage(([0],), (0,)),), devices=[0]), "in place of"),
        (lambda: Schedule("x", ("a",), streams=[[0]], devices=[0, 1]), "1 streams.*devices of 2"),
        (lambda: Schedule("x", ("a",), streams=[[0]], devices=[-1]), "stream 0 is on device -1"),
    ],
)
def test_malformed_schedules(make, says):
    with pytest.raises(ScheduleError, match=says):
        make()


def test_json_round_trip():
    awkward = OpGraph.from_edges(['q"uote', "back\\slash", "ünï/code:0"], [(0, 1)])
    for graph in (GRAPH, awkward, layered(40, 1), OpGraph.from_edges(0, [])):
        us = LatencyTable([x / 3 for x in latencies(graph.num_ops, 2)])
        for name in ("ios", "lios", "greedy", "sequential"):
            options = {"max_transitions": 10_000} if name == "ios" else {}
            before = schedule(graph, name, us, **options)
            text = before.to_json()
            after = Schedule.from_json(text)
            assert after == before
            assert after.to_json() == text
            after.validate(graph)


def test_devices_are_kept():
    before = Schedule("hand", ("a", "b", "c"), streams=[[0, 2], [1]], devices=[0, 3])
    text = before.to_json()
    assert '\n  "devices": [0, 3]\n' in text
    assert Schedule.from_json(text) == before
    assert Schedule("hand", ("a", "b", "c"), streams=[[0, 2], [1]]) != before


def test_json_reads_well():
    text = GOOD_STAGES.to_json()
    assert '      {"stream": 1, "operators": ["c"]}\n' in text
    assert max(map(len, schedule(layered(40, 1), "greedy").to_json().splitlines())) <= 100


def test_json_can_be_edited_by_hand():
    text = GOOD_STAGES.to_json().replace('"barrier": false', '"barrier": true')
    assert all(stage.barrier for stage in Schedule.from_json(text).stages)


def _edited(**changes):
    value = json.loads(GOOD_STAGES.to_json())
    for path, new in changes.items():
        *parents, last = path.split("__")
        at = value
        for key in parents:
            at = at[int(key) if key.isdigit() else key]
        if new is KeyError:
            del at[last]
        else:
            at[int(last) if last.isdigit() else last] = new
    return json.dumps(value)


GROUP = "stages__1__groups__0"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[" * 100000, "cannot be read"),
        ("[]", "Expected `object`"),
        ("{}", "`format` is not"),
        (None, "NoneType"),
        ('{"format": "tvm_interop.schedule", "version": NaN}', "not valid JSON"),
        (_edited(format="onnx"), "`format` is not"),
        (_edited(version=3), "version 3.*update tvm_interop"),
        (_edited(version=3, colour="red"), "version 3.*update tvm_interop"),
        (_edited(version=0), "version 0.*schedule the model again"),
        (_edited(version=KeyError), "missing required field `version`"),
        (_edited(version=True), r"Expected `int.*version"),
        (_edited(colour="red"), "unknown field `colour`"),
        (_edited(stages__1__colour="red"), r"unknown field `colour`.*stages\[1\]"),
        (_edited(**{f"{GROUP}__colour": "red"}), r"`colour`.*stages\[1\].groups\[0\]"),
        (_edited(scheduler=KeyError), "missing required field `scheduler`"),
        (_edited(stages=KeyError), "either a field `stages` or a field `streams`"),
        (_edited(streams=[["a"]]), "either a field `stages` or a field `streams`"),
        (_edited(makespan_us="1"), r"Expected `float.*makespan_us"),
        (_edited(makespan_us=10**400), "out of range"),
        (_edited(operators__0="b"), "lists `b` twice"),
        (_edited(operators__0=1), r"Expected `str`.*operators"),
        (_edited(stages__0=[]), r"Expected `object`.*stages\[0\]"),
        (_edited(stages__0__kind="odd"), "no stage kind `odd`"),
        (_edited(stages__0__barrier=0), r"Expected `bool`.*stages\[0\].barrier"),
        (_edited(**{f"{GROUP}__stream": 0.5}), r"Expected `int`.*groups\[0\].stream"),
        (_edited(**{f"{GROUP}__stream": -1}), "stream -1"),
        (_edited(**{f"{GROUP}__stream": 10**9}), "stream 1000000000"),
        (_edited(**{f"{GROUP}__operators": ["z"]}), "`z`, which `operators` lacks"),
        (_edited(**{f"{GROUP}__operators": "a"}), "Expected `array`"),
        (_edited(stages=KeyError, streams=[["a", None]]), r"Expected `str`.*streams\[0\]\[1\]"),
        (_edited(timeline=[["a", 0, 1]]), r"timeline\[0\]"),
        (_edited(devices=["cuda:0"]), r"Expected `int`.*devices\[0\]"),
        (_edited(devices=[0, 1]), "each stage its `device` in place"),
        (_edited(timeline=[["a", 0, 1, "2"]]), r"Expected `float`.*timeline\[0\]\[3\]"),
        (_edited(timeline=[["z", 0, 1, 2]]), "`z`, which `operators` lacks"),
    ],
)
def test_json_that_is_refused(text, says):
    with pytest.raises(ScheduleError, match=says):
        Schedule.from_json(text)
