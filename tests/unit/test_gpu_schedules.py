"""Tests schedules of stages on GPUs: their form, their checks, and the cost of copies."""

import json

import pytest

from tvm_interop.errors import GraphError, LatencyError, ScheduleError
from tvm_interop.latency import LatencyModel, LatencyTable, Link
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import Schedule, Stage, schedule

NAMES = ("a", "b", "c", "d", "e")
GRAPH = OpGraph.from_edges(
    NAMES, [("a", "b"), ("a", "c"), ("a", "d"), ("b", "e"), ("c", "e"), ("d", "e")]
)
US = LatencyTable([2, 4, 3, 5, 1], transfers=dict.fromkeys(GRAPH.edges, 2.0))
GPU_STAGES = (((0,), (1, 2), (4,)), ((3,),))


def by_hand(gpu_stages=GPU_STAGES, **fields):
    return Schedule.from_gpu_stages("by hand", NAMES, gpu_stages, **fields)


def test_stages_of_each_gpu():
    made = by_hand()
    made.validate(GRAPH)
    assert made.gpu_stages == GPU_STAGES
    assert made.is_staged
    assert made.devices == (0, 0, 1)
    assert made.streams == ((0, 1, 4), (2,), (3,))
    assert [stage.device for stage in made.stages] == [0, 1, 0, 0]
    # The stage of d is listed before the stage of a, although d reads a. In the order of launches,
    # a still comes first.
    assert made.launch_order_of_stages(GRAPH) == [0, 1, 2, 3]
    assert by_hand([[[3]], [[0], [1, 2], [4]]]).launch_order_of_stages(GRAPH) == [1, 0, 2, 3]


def test_a_gpu_may_be_idle():
    made = by_hand([[], [[0], [1], [2], [3], [4]]])
    assert made.gpu_stages == ((), ((0,), (1,), (2,), (3,), (4,)))
    assert made.simulate(GRAPH, US) == 15


def test_stages_without_a_gpu_are_of_one_device():
    stages = (Stage(([0],), (0,)), Stage(([1], [2, 3]), (0, 1)), Stage(([4],), (0,)))
    made = Schedule("by hand", NAMES, stages=stages)
    assert made.gpu_stages == (((0,), (1, 2, 3), (4,)),)
    assert made.devices == ()


def test_json_is_kept_and_readable():
    made = by_hand(makespan=12.0)
    text = made.to_json()
    assert Schedule.from_json(text) == made
    document = json.loads(text)
    assert document["version"] == 2
    assert "devices" not in document
    assert [stage["device"] for stage in document["stages"]] == [0, 1, 0, 0]
    edited = text.replace('{"device": 1, ', '{"device": 3, ')
    assert edited != text
    assert len(Schedule.from_json(edited).gpu_stages) == 4


@pytest.mark.parametrize("devices", [[], [0, 1]])
def test_what_version_1_wrote_is_read(devices):
    document = {
        "format": "tvm_interop.schedule",
        "version": 1,
        "scheduler": "old",
        "makespan_us": 3.0,
        "operators": ["a", "b"],
    }
    group = {"stream": 0, "operators": ["a", "b"]}
    stages = [{"kind": "concurrent", "barrier": True, "groups": [group]}]
    shape = {"streams": [["a"], ["b"]], "devices": devices} if devices else {"stages": stages}
    read = Schedule.from_json(json.dumps({**document, **shape}))
    assert read.devices == tuple(devices)
    assert read.is_staged == (not devices)
    assert Schedule.from_json(read.to_json()) == read


@pytest.mark.parametrize(
    ("gpu_stages", "says"),
    [
        ([[[0], [1, 2]], [[3]]], "`e` is not in the schedule"),
        ([[[0], [1, 2], [4]], [[3], [1]]], "`b` is in the schedule twice"),
        ([[[0], [1, 4], [2]], [[3]]], "`e` reads the output of `b` but both are in stage"),
        ([[[1], [0], [2], [4]], [[3]]], "`b` reads the output of `a` but is in stage"),
        ([[[4], [0], [1], [2]], [[3]]], "`e` reads the output of `b` but is in stage"),
        ([[[4], [0], [1]], [[2], [3]]], "`e` reads the output of `b`"),
    ],
)
def test_faults_are_named(gpu_stages, says):
    with pytest.raises(ScheduleError, match=says):
        by_hand(gpu_stages).validate(GRAPH)


def test_a_circle_through_two_gpus_names_its_operators():
    stuck = by_hand([[[4], [0], [1]], [[3], [2]]])
    graph = OpGraph.from_edges(NAMES, [("a", "d"), ("d", "e")])
    with pytest.raises(ScheduleError, match="wait for each other in a circle") as caught:
        stuck.validate(graph)
    for op in "ade":
        assert f"`{op}`" in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([Stage(([0],), (0,), device=0), Stage(([1],), (0,))], "stage 1 does not name a device"),
        ([Stage(([0],), (0,), device=0), Stage(([1],), (0,), device=1)], "stream 0 is on device 0"),
    ],
)
def test_devices_that_contradict_each_other(stages, says):
    with pytest.raises(ScheduleError, match=says):
        Schedule("by hand", NAMES, stages=stages)


def test_a_negative_device():
    with pytest.raises(ScheduleError, match="device -1"):
        Stage(([0],), (0,), device=-1)


def test_a_barrier_holds_back_its_own_gpu_alone():
    """b and c start together after a, and e waits for both. d does not wait for a barrier, because
    it runs on the other GPU.
    """
    assert set(by_hand().ordering_edges()) == {(0, 2), (2, 4)}


# Copies.


def test_copies_are_delays_or_take_turns():
    # a runs from 0 to 2, b and c from 2 to 6. The copy to d arrives at 4, d runs from 4 to 9, its
    # result is back at 11, and e runs from 11 to 12.
    assert by_hand().simulate(GRAPH, US) == 12
    assert by_hand().simulate(GRAPH, US, links="fifo") == 12
    # b, c and d run on three GPUs. a is sent to each of them over another link.
    spread = by_hand([[[0], [4]], [[1]], [[2]], [[3]]])
    assert spread.simulate(GRAPH, US) == spread.simulate(GRAPH, US, links="fifo") == 12
    # b, c and d run on GPU 1. a is sent once, and the results come back one after the other.
    two = by_hand([[[0], [4]], [[1, 2, 3]]])
    assert two.simulate(GRAPH, US) == 2 + 2 + 5 + 2 + 1
    assert two.simulate(GRAPH, US, links="fifo") == 2 + 2 + 5 + 3 * 2 + 1


def test_streams_on_gpus_pay_for_copies_too():
    streams = Schedule("by hand", NAMES, streams=[[0, 1, 2, 4], [3]], devices=[0, 1])
    assert streams.simulate(GRAPH, US) == 12
    alone = Schedule("by hand", NAMES, streams=[[0, 1, 2, 4], [3]], devices=[1, 1])
    assert alone.simulate(GRAPH, US) == 10


def test_links_of_another_kind():
    with pytest.raises(ScheduleError, match="`links` is 'bus'"):
        by_hand().simulate(GRAPH, US, links="bus")


def test_bytes_make_transfers():
    graph = OpGraph.from_edges(3, [(0, 1), (0, 1), (0, 2)], edge_bytes=[1000, 0, 500])
    assert graph.edge_bytes == (1000, 0, 500)
    link = Link(bytes_a_us=100.0, fixed_us=3.0)
    assert link.transfers(graph) == {(0, 1): 13.0, (0, 2): 8.0}
    latency = LatencyTable([1, 1, 1], transfers=link.transfers(graph))
    assert latency.transfer(0, 2) == 8.0


def test_a_graph_without_bytes_says_so():
    assert GRAPH.edge_bytes is None
    with pytest.raises(LatencyError, match="how many bytes"):
        Link(100.0).transfers(GRAPH)
    with pytest.raises(GraphError, match="2 `edge_bytes` for 1 edges"):
        OpGraph.from_edges(2, [(0, 1)], edge_bytes=[1, 2])
    with pytest.raises(GraphError, match="-1 bytes"):
        OpGraph.from_edges(2, [(0, 1)], edge_bytes=[-1])


def test_a_model_that_knows_no_copies_says_so():
    class Alone(LatencyModel):
        def op(self, op):
            return 1.0

        def stage(self, groups):
            return 1.0

    with pytest.raises(LatencyError, match="Alone does not know how long copies"):
        schedule(GRAPH, "heft", Alone(), gpus=2)
    assert schedule(GRAPH, "heft", Alone(), gpus=1, intra="none").makespan == 5


@pytest.mark.parametrize(
    ("transfers", "says"),
    [
        ({(0, 1): -1.0}, "finite, not negative"),
        ({(0, 1): float("nan")}, "finite, not negative"),
        ({(0, 9): 1.0}, "not between two different operators; there are 5"),
        ({(0, 1): "far"}, "'far' is not a transfer"),
        ({3: 1.0}, "transfer 3"),
    ],
)
def test_transfers_of_no_use(transfers, says):
    with pytest.raises(LatencyError, match=says):
        LatencyTable([1] * 5, transfers=transfers)


def test_an_edge_without_a_transfer_is_named():
    with pytest.raises(LatencyError, match="operator 0 to operator 2"):
        schedule(GRAPH, "heft", LatencyTable([1] * 5, transfers={(0, 1): 1.0}), gpus=2)
    free = schedule(GRAPH, "heft", LatencyTable([1] * 5), gpus=3)
    assert free.makespan == 3  # Without latencies of transfers, copies take no time.


@pytest.mark.parametrize("name", ["heft", "hios-lp", "hios-mr", "multi-gpu"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gpus": 0}, "`gpus` is 0"),
        ({"gpus": 1.5}, "`gpus` is 1.5"),
        ({"window": 0}, "`window` is 0"),
        ({"intra": "chains"}, "`intra` is 'chains'"),
    ],
)
def test_options_of_no_use(name, options, says):
    with pytest.raises(ScheduleError, match=says):
        schedule(GRAPH, name, US, **options)
