"""Tests latencies of stages that are predicted from other stages."""

from __future__ import annotations

import sys

import msgspec
import numpy as np
import pytest

from tests.contended_device import SETTING, ContendedDevice, random_stages
from tvm_interop.errors import DeviceError, LatencyError
from tvm_interop.latency import StageBatch
from tvm_interop.latency.features import FEATURES, longest_group_us, stage_features
from tvm_interop.latency.learned import LearnedLatency, prediction_error

OPS = 40


def make_learned(device: ContendedDevice, seed: int = 0) -> LearnedLatency:
    pytest.importorskip("xgboost", reason="xgboost is not installed (extra `learned`)")
    return LearnedLatency(device.table(), SETTING, seed)


def measured(device: ContendedDevice, stages: list[list[list[int]]]) -> np.ndarray:
    return np.array([device.stage(groups) for groups in stages])


# The next tests are about features, which need no xgboost.


def test_features_of_a_stage() -> None:
    device = ContendedDevice(4)
    batch = StageBatch.from_stages([[[0, 1], [2]], [[3]]])
    found = stage_features(batch, device.table(), SETTING)
    assert found.shape == (2, len(FEATURES))
    first = dict(zip(FEATURES, found[0].tolist(), strict=True))
    us = [device.op(i) for i in range(4)]
    groups = (us[0] + us[1], us[2])
    assert (first["groups"], first["operators"], first["operators_of_largest_group"]) == (2, 3, 2)
    assert first["total_over_longest"] == pytest.approx(sum(groups) / max(groups))
    assert first["shortest_over_longest"] == pytest.approx(min(groups) / max(groups))
    flops = [w.flops for w in device.workloads]
    rates = ((flops[0] + flops[1]) / groups[0], flops[2] / groups[1])
    assert first["sum_of_flops_per_us"] == pytest.approx(sum(rates))
    extents = [w.parallel_extent for w in device.workloads[:3]]
    assert first["log_least_extent"] == pytest.approx(np.log1p(min(extents)))
    assert first["log_most_extent"] == pytest.approx(np.log1p(max(extents)))
    assert longest_group_us(batch, device.table()).tolist() == [max(groups), us[3]]
    assert dict(zip(FEATURES, found[1].tolist(), strict=True))["total_over_longest"] == 1


def test_features_of_no_stage() -> None:
    device = ContendedDevice(4)
    assert stage_features(StageBatch.from_stages([]), device.table(), SETTING).shape == (
        0,
        len(FEATURES),
    )


def test_a_stage_has_the_features_it_has_alone() -> None:
    device = ContendedDevice(OPS)
    stages = random_stages(OPS, 50)
    together = stage_features(StageBatch.from_stages(stages), device.table(), SETTING)
    for stage, row in zip(stages, together, strict=True):
        alone = stage_features(StageBatch.from_stages([stage]), device.table(), SETTING)
        np.testing.assert_array_equal(alone[0], row)


# Learning.


def test_predicts_stages_it_never_saw() -> None:
    device = ContendedDevice(OPS)
    learned = make_learned(device)
    seen, unseen = random_stages(OPS, 300, seed=1), random_stages(OPS, 200, seed=2)
    learned.observe(seen, measured(device, seen))
    predicted, truth = learned.predict(unseen), measured(device, unseen)
    alone = longest_group_us(StageBatch.from_stages(unseen), device.table())
    ours, baseline = prediction_error(predicted.us, truth), prediction_error(alone, truth)
    assert ours.mape < 0.5 * baseline.mape
    assert ours.spearman > baseline.spearman
    within = np.abs(np.log(predicted.us / truth)) < 2 * predicted.spread
    assert within.mean() > 0.85, "errors are rarely above twice the spread"


def test_lone_operators_are_as_measured() -> None:
    device = ContendedDevice(OPS)
    learned = make_learned(device)
    assert learned.stage([[3]]) == learned.op(3) == device.op(3)
    with pytest.raises(LatencyError, match="no samples"):
        learned.stage([[3], [4]])
    learned.observe([[[0], [1]], [[2], [3]]], np.array([50.0, 60.0]))
    predicted = learned.predict([[[3]], [[3], [4]]])
    assert predicted.us[0] == device.op(3)
    assert predicted.spread[0] == 0
    assert predicted.spread[1] > 0
    assert predicted.optimistic_us(1.0)[1] < predicted.us[1]


def test_the_same_seed_and_samples_predict_the_same() -> None:
    device = ContendedDevice(OPS)
    stages, asked = random_stages(OPS, 120, seed=1), random_stages(OPS, 60, seed=2)
    answers = []
    for seed in (5, 5, 6):
        learned = make_learned(device, seed)
        for begin in range(0, 120, 40):
            part = stages[begin : begin + 40]
            learned.observe(part, measured(device, part))
        answers.append(learned.stages(asked))
    np.testing.assert_array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0], answers[2])


def test_more_samples_make_it_better() -> None:
    device = ContendedDevice(OPS)
    learned = make_learned(device)
    unseen = random_stages(OPS, 200, seed=2)
    truth = measured(device, unseen)
    stages = random_stages(OPS, 600, seed=1)
    errors = []
    for part in (stages[:40], stages[40:80], stages[80:100], stages[100:]):
        learned.observe(part, measured(device, part))
        errors.append(prediction_error(learned.stages(unseen), truth).mape)
    assert learned.num_samples == sum(1 for stage in stages if sum(map(len, stage)) > 1)
    assert errors[-1] < errors[0]


def test_learns_from_records_of_another_model() -> None:
    other, here = ContendedDevice(OPS, seed=1), ContendedDevice(OPS, seed=2)
    stages = random_stages(OPS, 300)
    records = [other.record([[i]]) for i in range(OPS)] + [other.record(s) for s in stages]
    learned = make_learned(here)
    learned.observe_records(records, {w.hash: w for w in other.workloads})
    unseen = random_stages(OPS, 200, seed=3)
    truth = measured(here, unseen)
    alone = longest_group_us(StageBatch.from_stages(unseen), here.table())
    assert (
        prediction_error(learned.stages(unseen), truth).mape
        < 0.7 * prediction_error(alone, truth).mape
    )


def test_records_of_no_use_are_left_out() -> None:
    device = ContendedDevice(OPS)
    workloads = {w.hash: w for w in device.workloads}
    elsewhere = msgspec.structs.replace(SETTING, device="another")
    alone = [device.record([[0]]), device.record([[1]])]
    pair = [[0], [1]]
    for unusable in (
        device.record(pair, samples=1),
        device.record(pair, setting=elsewhere),
        device.record(pair, setting=None),
        msgspec.structs.replace(device.record(pair), groups=None),
        device.record([[0], [2]]),
    ):
        learned = make_learned(device)
        learned.observe_records([*alone, unusable], workloads)
        assert learned.num_samples == 0
    learned = make_learned(device)
    learned.observe_records([*alone, device.record(pair)], workloads)
    assert learned.num_samples == 1


def test_a_hundred_thousand_stages_are_one_batch() -> None:
    """If stages were predicted one by one, this test would take minutes."""
    device = ContendedDevice(OPS)
    learned = make_learned(device)
    seen = random_stages(OPS, 100, seed=1)
    learned.observe(seen, measured(device, seen))
    some = StageBatch.from_stages(random_stages(OPS, 1000, seed=2))
    ops, groups = len(some.ops), len(some.group_ends)
    many = StageBatch(
        np.tile(some.ops, 100),
        np.concatenate([some.group_ends + i * ops for i in range(100)]),
        np.concatenate([some.stage_ends + i * groups for i in range(100)]),
    )
    prices = learned.stages(many)
    assert prices.shape == (100_000,)
    np.testing.assert_array_equal(prices[:1000], learned.stages(some))
    np.testing.assert_array_equal(prices[-1000:], prices[:1000])


def test_errors_of_predictions() -> None:
    truth = np.array([1.0, 2.0, 4.0])
    found = prediction_error(np.array([1.1, 2.2, 4.4]), truth)
    assert (found.stages, found.spearman) == (3, pytest.approx(1.0))
    assert found.mape == pytest.approx(0.1)
    assert prediction_error(truth[::-1], truth).spearman == pytest.approx(-1.0)
    assert np.isnan(prediction_error(np.ones(3), truth).spearman)
    tiny = prediction_error(np.array([0.1, 0.2]), np.array([0.0, 0.2]))
    assert tiny.mape == pytest.approx(0.1), "errors are relative to at least half a microsecond"
    ties = prediction_error(np.array([1.0, 1.0, 2.0]), np.array([1.0, 3.0, 2.0]))
    assert ties.spearman == pytest.approx(0.0)


def test_without_xgboost_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    with pytest.raises(DeviceError, match=r"tvm-interop\[learned\]"):
        LearnedLatency(ContendedDevice(2).table(), SETTING)
