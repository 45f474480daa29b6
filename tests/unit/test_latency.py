"""Tests latency tables and batches of stages."""

import numpy as np
import pytest

from tvm_interop.errors import LatencyError, TVMInteropError
from tvm_interop.latency import LatencyModel, LatencyTable, StageBatch
from tvm_interop.latency.base import LatencyOver
from tvm_interop.program.graph import OpGraph
from tvm_interop.scheduling import schedule

STAGES = [[[0, 1], [2]], [[3]], [[0], [1], [2], [3]]]


def test_a_stage_is_its_longest_group():
    table = LatencyTable([1, 2, 4, 8])
    assert table.op(2) == 4
    assert [table.stage(stage) for stage in STAGES] == [4, 8, 8]
    assert table.stages(STAGES).tolist() == [4, 8, 8]
    assert table.stages([]).tolist() == []


def test_on_few_streams_it_is_the_most_loaded_one():
    # The longest operators are placed first: 5 us and 4 us on the two streams. The two operators of
    # 3 us follow, first after the operator of 4 us, and then after the operator of 5 us.
    table = LatencyTable([3, 3, 4, 5], streams=2)
    assert table.stage([[0], [1], [2], [3]]) == 8
    assert LatencyTable([3, 3, 4, 5], streams=1).stage([[0], [1, 2], [3]]) == 15
    assert LatencyTable([3, 3, 4, 5], streams=9).stage([[0], [1, 2], [3]]) == 7


def test_a_model_over_another_answers_as_the_other_does():
    class Base(LatencyTable):
        is_costly, may_refuse = True, True

        def measure_again(self, stages):
            return len(stages)

        def mergeable(self):
            return [(0, 1)]

        def merges(self, sets):
            return np.full(len(sets), 7.0)

    base = Base([1, 2, 4, 8], transfers={(0, 1): 3.0}, stage_us=2.5)
    over = LatencyOver(base)
    assert (over.is_costly, over.may_refuse, over.stage_us) == (True, True, 2.5)
    assert (over.op(2), over.stage(STAGES[0]), over.transfer(0, 1)) == (4, 6.5, 3.0)
    assert over.stages(STAGES).tolist() == base.stages(STAGES).tolist()
    assert over.measure_again(STAGES) == 3
    assert over.mergeable() == [(0, 1)]
    assert over.merges([(0, 1), (2, 3)]).tolist() == [7.0, 7.0]


def test_a_batch_reads_like_a_list():
    batch = StageBatch.from_stages(STAGES)
    as_tuples = [tuple(map(tuple, stage)) for stage in STAGES]
    assert list(batch) == as_tuples
    assert (len(batch), batch[-1], batch[:2]) == (3, as_tuples[2], as_tuples[:2])
    with pytest.raises(IndexError):
        batch[3]


class Overridden(LatencyTable):
    def stage(self, groups):
        return 100.0 * len(groups)


class Slower(LatencyTable):
    def op(self, op):
        return 2 * super().op(op)


class Counting(LatencyModel):
    def op(self, op):
        return 1.0

    def stage(self, groups):
        return float(sum(map(len, groups)))


def test_what_a_subclass_overrides_is_honoured():
    assert Overridden([1] * 4).stages(STAGES).tolist() == [200, 100, 400]
    assert Slower([1, 2, 4, 8]).stages(STAGES).tolist() == [8, 16, 16]
    assert Counting().stages(StageBatch.from_stages(STAGES)).tolist() == [3, 1, 4]
    graph = OpGraph.from_edges(3, [])
    # `Overridden` gives each stage 100 us for each of its groups. So three stages of one operator
    # take as long as one stage of three groups: 300 us.
    assert schedule(graph, "ios", Overridden([1] * 3)).makespan == 300


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ([1, -2, 3], "operator 1 has a latency of -2"),
        ([1, float("nan")], "operator 1 has a latency of nan"),
        ([float("inf")], "operator 0"),
        ([[1, 2]], "shape"),
        (["x"], "not a list of numbers"),
    ],
)
def test_bad_tables(table, says):
    with pytest.raises(LatencyError, match=says) as caught:
        LatencyTable(table)
    assert isinstance(caught.value, TVMInteropError)
    assert isinstance(caught.value, ValueError)


def test_bad_streams():
    with pytest.raises(LatencyError, match="`streams` is 0"):
        LatencyTable([1], streams=0)


def test_an_operator_the_table_lacks():
    with pytest.raises(LatencyError, match="operator 2 is not in"):
        LatencyTable([1, 2]).stage([[0, 2]])
    with pytest.raises(LatencyError, match="operator -1 is not in"):
        LatencyTable([1, 2]).stages([[[-1]]])


def test_a_stage_without_groups():
    with pytest.raises(LatencyError, match="a stage without groups"):
        LatencyTable([1, 2], streams=1).stages([[[0]], []])


@pytest.mark.parametrize("name", ["ios", "lios"])
def test_a_table_of_the_wrong_size(name):
    graph = OpGraph.from_edges(["a", "b", "c"], [("a", "b")])
    with pytest.raises(LatencyError, match="`c` is the first without one"):
        schedule(graph, name, LatencyTable([1, 2]))
    with pytest.raises(LatencyError, match="4 entries for 3 operators"):
        schedule(graph, name, LatencyTable([1, 2, 3, 4]))


def test_a_model_that_answers_nonsense():
    class Negative(Counting):
        def op(self, op):
            return -1.0 if op == 1 else 1.0

    class NotANumber(Counting):
        def stage(self, groups):
            return float("nan") if len(groups) == 2 else 1.0

    graph = OpGraph.from_edges(["a", "b"], [])
    with pytest.raises(LatencyError, match="`b` takes -1"):
        schedule(graph, "lios", Negative())
    with pytest.raises(TVMInteropError, match="stage of `a`, `b` takes nan"):
        schedule(graph, "ios", NotANumber())


def test_prices_are_plain_float64():
    assert LatencyTable([1, 2]).stages([[[0]]]).dtype == np.float64
