"""Tests the tables of exported networks. A table marks the networks that run sequentially."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks import all_cores, shipped_schedules, zoo, zoo_tables

ROWS = [
    zoo.Row(
        name, error=1e-6, compile_s=9.0, compile_peak_mib=500.0, scheduled=scheduled,
        median_us={zoo.OURS: 1000.0}, noise=1.0,
        ratios={zoo.SEQUENTIAL: ratio, zoo.ONNXRUNTIME: 2.0},
        intervals={zoo.SEQUENTIAL: (ratio - 0.05, ratio + 0.05), zoo.ONNXRUNTIME: (1.9, 2.1)},
    )
    for name, scheduled, ratio in (
        ("my_gat", True, 0.5), ("my_crnn", True, 0.98), ("tv_r3d_18", False, 1.25),
        ("hf_mamba", False, 0.75),
    )
]  # fmt: skip
OF_SCHEDULES = f"{math.sqrt(0.5 * 0.98):.3f}"


@pytest.fixture
def report() -> dict[str, Any]:
    rows = [asdict(row) for row in [*ROWS, zoo.Row("my_unet", refused="an operator")]]
    return {"machine": {"cores": 2, "cpu": "A CPU", "quiet": True}, "rows": rows}


def _cells(table: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by the first cell of their row."""
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {first: cells for first, *cells in rows}


def test_the_table_marks_networks_that_ship_sequential(report: dict[str, Any]) -> None:
    cells = _cells(zoo_tables.networks(report)[1])
    shipped = {name: row[0] for name, row in cells.items() if name in {r.network for r in ROWS}}
    assert shipped == {row.network: "a schedule" if row.scheduled else "sequential" for row in ROWS}
    assert cells[""][2:4] == ["over ours, sequential", "over onnxruntime"]
    # A program measured against itself is not a schedule, so it is not part of the mean of
    # schedules.
    assert cells["**geometric mean**"][2:4] == [OF_SCHEDULES[:4], "2.00"]


@pytest.mark.parametrize("section", [zoo_tables.networks, zoo_tables.other_kinds])
def test_older_reports_say_how_openvino_got_its_inputs(
    section: Callable[[dict[str, Any]], list[str]], report: dict[str, Any]
) -> None:
    assert "OpenVINO got its inputs with each run here" in section(report)[0]
    assert "OpenVINO got" not in section({**report, "openvino_inputs": "set once"})[0]


def test_a_report_without_any_schedule_has_no_mean_of_schedules(report: dict[str, Any]) -> None:
    report["rows"] = [row for row in report["rows"] if not row["scheduled"]]
    cells = _cells(zoo_tables.networks(report)[1])
    assert cells["**geometric mean**"][2:4] == ["", "2.00"]


def test_where_a_schedule_ships_says_which_were_faster_and_slower() -> None:
    def row(name: str, ratio: float) -> dict[str, Any]:
        found = {"rested": ratio, "back_to_back": ratio - 0.01}
        ends = {kind: (value - 0.05, value + 0.05) for kind, value in found.items()}
        noise = dict.fromkeys(found, 1.01)
        return asdict(
            shipped_schedules.Row(
                name, {"rested": {"ours": 2000.0}}, found, ends, noise, dict(ends)
            )
        )

    ratios = {"my_crnn": 0.98, "my_gat": 0.5, "my_autoint_b64": 1.055}
    text, table = zoo_tables.where_it_pays(
        {
            "machine": {"cores": 2, "cpu": "A CPU", "quiet": True},
            "rounds": 60,
            "ships": {"tv_r3d_18": False, **dict.fromkeys([*ratios, "hf_mamba"], True)},
            "rows": [row(*each) for each in ratios.items()],
        }
    )
    cells = _cells(table)
    assert list(cells) == ["", "---", "gat", "crnn", "autoint_b64", "**geometric mean**"]
    assert cells["gat"] == [
        "graphs", "2.00", "0.500", "0.450 to 0.550", "1.010", "0.490", "0.440 to 0.540",
    ]  # fmt: skip
    assert "There the artifacts of 4 of 5 networks ran a schedule" in text
    assert "3 of the schedules ran in this measurement" in text
    # The interval of `crnn` includes 1, so `crnn` is neither faster nor slower. Without rests
    # between the runs ("back to back"), the interval of `autoint_b64` includes 1. So `autoint_b64`
    # is not slower back to back.
    assert "With rests, 1 of the schedules were faster than sequential" in text
    assert "and 1 slower (autoint_b64). Back to back, 1 of the" in text
    assert text.endswith("beyond the interval, and 0 slower.")


def test_the_printed_table_and_means_do_the_same() -> None:
    cells = _cells(zoo.table(ROWS))
    assert cells["tv_r3d_18"][0] == "sequential"
    assert cells["my_gat"][0] == "a schedule"
    assert len({len(row) for row in cells.values()}) == 1
    means = zoo.means([zoo.ratios_of_schedules(row) for row in ROWS])
    assert means.splitlines() == [
        f"over ours, sequential, geometric mean of 2: {OF_SCHEDULES}",
        "over onnxruntime, sequential, geometric mean of 4: 2.000",
    ]


def test_every_exported_network_has_a_kind() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    from benchmarks.zoo_export import NETWORKS

    kinds = [name for names in zoo_tables.KINDS.values() for name in names]
    assert sorted(kinds) == sorted(NETWORKS)
    assert len({zoo_tables.short(name) for name in NETWORKS}) == len(NETWORKS)


def test_networks_are_drawn_from_a_pool() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    from benchmarks.zoo_export import NETWORKS
    from benchmarks.zoo_pool import POOL, draw

    names = [name for makers in POOL.values() for name in makers]
    assert len({*names, *NETWORKS}) == len(names) + len(NETWORKS)
    drawn = draw("0a1b2c", 3)
    assert draw("0a1b2c", 3) == drawn
    assert draw("0a1b2d", 3) != drawn
    for kind, chosen in drawn.items():
        assert len({*chosen}) == 3
        assert {*chosen} <= {*POOL[kind]}
    assert all({*draw("x", 99)[kind]} == {*makers} for kind, makers in POOL.items())


def test_the_table_of_all_cores_says_what_ships() -> None:
    names = ("all cores", "one core", "sequential")
    rows = [
        all_cores.Row(
            network,
            merged={"all cores": 2, "one core": 1},
            prices_us=dict(zip(names, (90.0, 120.0, 100.0), strict=True)),
            ships={"all cores": ships, "one core": False},
            checks={"all cores": 0.9} if ships else {},
            us=dict(zip((*names, "sequential, again"), (80.0, 100.0, 160.0, 176.0), strict=True)),
            ratios={"one core": 0.81},
            intervals={"one core": (0.7, upper)},
        )
        for network, ships, upper in (("tv_one", True, 0.9), ("tv_two", False, 1.1))
    ]
    told = {
        "machine": {"cores": 2, "cpu": "A CPU", "quiet": False, "busy": 0.5},
        "rows": [asdict(row) for row in [*rows, all_cores.Row("tv_three", refused="too new")]],
    }
    text, table = zoo_tables.all_cores(told)
    cells = _cells(table)
    assert cells["tv_one"][:7] == ["2", "0.75", "0.90", "sequential", "**0.90**", "0.80", "0.50"]
    assert cells["tv_one"][7:] == ["0.81 (0.70 to 0.90)", "1.10"]
    assert cells["tv_two"][4] == "sequential"
    assert "tv_three" not in cells
    assert "Of 2 artifacts, 0 ran a schedule of `ios-both` before the change" in text
    assert "before the change, and 1 after it" in text
    assert "on 1 networks, and slower on 0" in text
