"""Tests the experiments on HIOS, Opara and TOP: end to end, and with wrong numbers planted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.paper_kernels import paper_graph
from benchmarks.papers import __main__ as command
from benchmarks.papers import (
    hios,
    hios_networks,
    hios_simulated,
    opara,
    opara_models,
    opara_runs,
    pages,
    sources,
    store,
    top,
    top_learned,
)
from benchmarks.papers.record import CONTRADICTED, REPRODUCED, Record, verdict
from tvm_interop import LatencyTable, OpGraph
from tvm_interop.scheduling.block_simulation import BlockRun


@pytest.mark.parametrize(
    ("paper", "name", "expected"),
    [
        ("hios", "Figure 5", REPRODUCED),
        ("opara", "Figure 6", CONTRADICTED),
        ("top", "Figure 2", REPRODUCED),
    ],
)
def test_one_experiment_of_each_paper_from_the_command_line(
    paper: str, name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = name.removeprefix("Figure ")
    assert command.main([paper, "--figure", figure, "--out", str(tmp_path)]) == 0
    assert f"{paper}, {name}: {expected}" in capsys.readouterr().out
    ((_, record),) = store.records(paper, tmp_path).values()
    assert verdict(record) == expected
    (page,) = [t for p, t in pages.documents(tmp_path).items() if p.name == f"{paper}.md"]
    assert ("*Why ours differs:*" in page) == (expected == CONTRADICTED)


def _held(record: Record) -> dict[str, bool]:
    return {check.what: check.holds for check in record.checks}


def test_hios_a_wrong_algorithm_flips_the_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(hios.figure_4()) == verdict(hios.figure_5()) == REPRODUCED
    monkeypatch.setattr(hios, "FIGURE_4_OPS", (3, 4, 2, 1, 1, 4, 3, 3))
    assert verdict(hios.figure_4()) == CONTRADICTED
    monkeypatch.setattr(hios, "with_windows", lambda *_: ([[[0]]], 18.0))
    assert verdict(hios.figure_5()) == CONTRADICTED


def test_hios_the_curves_are_judged_under_both_evaluators(monkeypatch: pytest.MonkeyPatch) -> None:
    held = _held(hios_simulated._record(9))
    assert all(holds for what, holds in held.items() if what.startswith("clock: "))
    assert not held["exact: LP over sequential, first point"]
    curves = copy.deepcopy(sources.read("hios/curves"))
    for point in curves["figure 9"]["points"].values():
        point["hios-lp, clock"][0] *= 2
        for name in ("hios-lp", "hios-mr"):
            point[f"{name}, exact"] = point[f"{name}, clock"]
    monkeypatch.setattr(hios_simulated, "read", lambda _: curves)
    changed = _held(hios_simulated._record(9))
    assert not changed["clock: LP over sequential, first point"]
    assert changed["exact: MR over sequential, first point"]


def _made(ms: float, profiled_s: float = 1.0) -> hios_networks.Made:
    return hios_networks.Made(ms, profiled_s, 10, 0.1, 5, 100)


def test_hios_latencies_as_in_the_paper_would_reproduce_its_networks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The given latencies have the HIOS paper's savings over sequential execution in 100 ms. So the
    experiment must find that the paper's figures are reproduced."""
    found = {
        (name, size): {
            "sequential": _made(100.0), "IOS": _made(98.0 - i, 2e3 * (i + 1)),
            "HIOS-MR": _made(102.0), "HIOS-LP": _made(90.0 - i, 10.0 * (i + 1)),
            "inter-GPU MR": _made(102.0), "inter-GPU LP": _made(90.0 - i),
        }
        for name, sizes in hios_networks.SIZES.items() for i, size in enumerate(sizes)
    }  # fmt: skip
    monkeypatch.setattr(hios_networks, "schedules", lambda: found)
    monkeypatch.setattr(hios_networks, "LINKS", ())
    assert verdict(hios_networks.figure_12()) == REPRODUCED
    assert verdict(hios_networks.figure_14()) == REPRODUCED
    held = _held(hios_networks.figure_13())
    assert held.pop("nasnet_a, smallest image: HIOS-LP over IOS, latency") is False
    assert held["inception_v3, smallest image: reduction by HIOS-LP over reduction by IOS"]
    found["inception_v3", 512]["HIOS-MR"] = _made(80.0)
    assert verdict(hios_networks.figure_12()) == CONTRADICTED


def test_hios_a_latency_that_is_asked_for_twice_is_measured_once() -> None:
    latency = hios_networks.Profiled(LatencyTable([3, 4], transfers={(0, 1): 2.0}))
    latency.op(0)
    latency.stage([[0]])
    latency.stages([[[0], [1]], [[0], [1]]])
    latency.transfer(0, 1)
    latency.transfer(0, 1)
    assert sorted(latency.asked.values()) == [2.0, 3.0, 4.0]


def test_opara_wrong_times_flip_table_i(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = {"Opara": 0.3e-3, "Nimble": 6e-3}
    monkeypatch.setattr(opara, "_seconds", lambda _, form: theirs[form])
    assert verdict(opara.table_i()) == REPRODUCED
    theirs["Nimble"] = 0.3e-3
    assert verdict(opara.table_i()) == CONTRADICTED


def test_opara_a_kernel_without_a_demand_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(opara_models.section_3_2()) == REPRODUCED
    demands = copy.deepcopy(sources.read("kernel_demands"))
    network = demands["networks"]["googlenet"]
    next(iter(network["kernels"].values()))["launches"]["sm_80"] = []
    monkeypatch.setattr(opara_models, "read", lambda _: demands)
    assert verdict(opara_models.section_3_2()) == CONTRADICTED


def test_opara_launch_orders_as_in_the_paper_would_reproduce_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not any(_held(opara.figure_3()).values())
    saved = {"rtx2080super": 0.29, "a100": 0.103}
    monkeypatch.setattr(opara, "ms", lambda _, gpu, form, batch: 1 - saved[gpu] * (form == "Opara"))
    assert verdict(opara.figure_2()) == REPRODUCED


def test_opara_what_runs_at_once_and_how_much_is_used() -> None:
    ran = BlockRun(10.0, ((0, 0, 0.0, 4.0), (1, 1, 2.0, 6.0), (2, 0, 6.0, 6.0), (3, 0, 6.0, 8.0)))
    assert opara_runs.most_at_once(ran) == 2
    found = opara_runs.subject("googlenet", "a100")
    kernels = [[], [], [], []]
    sms = found.on.multiprocessors
    for op, blocks in ((0, sms // 2), (1, sms), (3, 3 * sms)):
        kernels[op] = [type(found.kernels[0][0])(blocks, (1, 1, 1, 1), 1.0)]
    subject = type(found)("x", "a100", "assumed", found.graph, kernels, (), found.on)
    assert opara_runs.active_share(subject, ran) == pytest.approx((2 * 0.5 + 4 + 2) / 10)


def test_opara_the_first_order_is_depth_first() -> None:
    found = opara_runs.subject("googlenet", "a100")
    graph = OpGraph.from_edges(6, [(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 5)])
    subject = type(found)("x", "a100", "assumed", graph, (), (), found.on)
    assert opara_runs.depth_first(subject) == [0, 1, 3, 2, 4, 5]


def test_a_batch_multiplies_what_the_kernels_write() -> None:
    one, four = paper_graph("squeezenet"), paper_graph("squeezenet", batch=4)
    for before, after in zip(one.work, four.work, strict=True):
        for a, b in zip(before, after, strict=True):
            assert (b.kind, b.columns, b.flops) == (a.kind, a.columns, 4 * a.flops)
            assert b.rows == 4 * a.rows
            assert a.nbytes < b.nbytes <= 4 * a.nbytes


_Change = Callable[[str, Any], Any]


def _planted(monkeypatch: pytest.MonkeyPatch, module: Any, change: _Change) -> None:
    """Make a module read result files that `change` has changed."""
    before = module.read
    monkeypatch.setattr(module, "read", lambda name: change(name, copy.deepcopy(before(name))))


def test_top_wrong_latencies_flip_figure_2(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(top.figure_2()) == REPRODUCED

    def flat(_: str, found: Any) -> Any:
        found["figures"]["2"]["0.03"][-1][1] = 1.0
        return found

    _planted(monkeypatch, top, flat)
    assert verdict(top.figure_2()) == CONTRADICTED


def test_top_agents_that_serve_as_in_the_paper_would_reproduce_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = _held(top_learned.figure_15())
    assert held["MADDPG over POS that waits, all requests"]
    assert not held["MADDPG over POS that skips, all requests"]

    def as_published(name: str, found: Any) -> Any:
        if "maddpg" in name:
            found["final"]["throughput"] = 1630.0
        if "policies" in name:
            for absent in ("wait", "skip"):
                found[f"pos, {absent}"]["throughput"] = 1000.0
        return found

    _planted(monkeypatch, top_learned, as_published)
    assert verdict(top_learned.figure_15()) == REPRODUCED


def test_top_a_training_that_gets_worse_flips_figure_21(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict(top_learned.figure_21()) == REPRODUCED

    def worse(_: str, found: Any) -> Any:
        found["curve"] = [[step, 1.0 + step / 8000] for step, _ in found["curve"]]
        return found

    _planted(monkeypatch, top_learned, worse)
    assert verdict(top_learned.figure_21()) == CONTRADICTED
