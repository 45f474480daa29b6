"""Tests how the papers' rankings of schedulers are compared with our rankings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.papers import rankings, store
from benchmarks.papers.rankings import RANKINGS, Agreement, Ranking, agreement, in_order
from benchmarks.papers.record import Chart, Record, above

POINTS = ["small", "large"]


def record_of(**series: list[float]) -> Record:
    chart = Chart("Us, Figure 1", "lines", POINTS, series, "ms")
    return Record("They say so.", "nothing", [above("", 1, 0)], charts=[chart])


RANKED = Ranking("lios", "Figure 1", "Us, Figure 1", "", in_order(["a"], ["b", "c"]))


def test_pairs_alike_the_other_way_and_equal() -> None:
    ours = record_of(a=[1.0, 2.0], b=[2.0, 1.0], c=[1.005, 3.0])
    found = agreement(RANKED, ours)
    assert found == Agreement(alike=2, otherwise=1, equal=1)
    assert found.tau == 0.25
    turned = agreement(replace(RANKED, more_is_better=True), ours)
    assert turned == Agreement(alike=1, otherwise=2, equal=1)


def test_a_point_may_have_a_ranking_of_its_own() -> None:
    ours = record_of(a=[1.0, 2.0], b=[2.0, 1.0], c=[3.0, 3.0])
    assert agreement(RANKED, ours).otherwise == 1
    at = {"large": in_order(["b"], ["a"], ["c"])}
    assert agreement(replace(RANKED, at=at), ours) == Agreement(alike=5)


def test_tiers_rank_all_pairs_between_them() -> None:
    assert in_order(["a", "b"], ["c"], ["d"]) == (
        ("a", "c"), ("b", "c"), ("a", "d"), ("b", "d"), ("c", "d"),
    )  # fmt: skip


def test_the_median_of_a_box_counts() -> None:
    chart = Chart("Us, Figure 1", "boxes", ["a", "b"], {"ours": [[1, 1, 9], [2, 2, 2]]}, "ms")
    ours = replace(record_of(), charts=[chart])
    assert agreement(replace(RANKED, pairs=(("a", "b"),)), ours) == Agreement(alike=1)


@pytest.mark.parametrize(
    ("ranked", "says"),
    [
        (replace(RANKED, chart="Us, Figure 2"), "no chart `Us, Figure 2`"),
        (replace(RANKED, pairs=(("a", "z"),)), "no scheduler `z`"),
        (replace(RANKED, at={"huge": ()}), "no points .'huge'."),
    ],
)
def test_rankings_of_what_is_not_there(ranked: Ranking, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        agreement(ranked, record_of(a=[1.0, 1.0], b=[2.0, 2.0], c=[3.0, 3.0]))


def test_every_ranking_has_its_stored_result() -> None:
    for ranked in RANKINGS:
        _, record = store.records(ranked.paper)[ranked.experiment]
        assert agreement(ranked, record).pairs > 0


def test_a_changed_number_changes_the_ranking_of_ios() -> None:
    _, record = store.records("ios")["Figure 6"]
    before = rankings.ios_agreement(record)
    (chart,) = record.charts
    worst = {**chart.series, "ios-both, ours": [0.01] * len(chart.points)}
    after = rankings.ios_agreement(replace(record, charts=[replace(chart, series=worst)]))
    assert after.pairs == before.pairs
    assert after.tau < before.tau
