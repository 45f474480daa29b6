"""Tests the benchmark of TOP at a small size: its stored results, its searches and its report."""

import json

import numpy as np
import pytest

from benchmarks.top import RESULTS, chosen, run
from benchmarks.top_cells import SEARCHES, Setup, World, search_cell
from benchmarks.top_report import done, report, seeds, summary
from benchmarks.top_report_more import not_run, shared_queue, single_model, training_of_gpg


@pytest.mark.parametrize("method", SEARCHES)
def test_searches_make_so_many_calls_and_return_the_best_they_saw(method):
    seen = []

    def value(action):
        assert ((action >= 0) & (action <= 1)).all()
        seen.append(-float(((action - 0.3) ** 2).sum()))
        return seen[-1]

    found = SEARCHES[method](value, 4, 200, np.random.default_rng(0))
    assert len(seen) == 200
    assert -float(((found - 0.3) ** 2).sum()) == max(seen)
    assert max(seen) > -0.15


def test_a_cell_is_run_once_and_none_begins_without_time(tmp_path):
    ran = []
    programme = [(name, lambda name=name: ran.append(name) or {"a": 1}) for name in ("x", "y")]
    run(iter(programme), tmp_path, seconds=-1.0)
    assert ran == []
    (tmp_path / "x.json").write_text("{}")
    run(iter(programme), tmp_path, seconds=None)
    assert ran == ["y"]
    assert done(tmp_path) == {"x": {}, "y": {"a": 1}}


def test_all_contestants_see_the_same_world_and_the_report_tells_what_is_there(tmp_path):
    world = World(Setup())
    assert world.space.num_blocks == (10, 5, 10)
    again = World(Setup())
    np.testing.assert_array_equal(world.score.mean, again.score.mean)
    folder = tmp_path / "cells"
    folder.mkdir()
    for seed in (0, 1):
        cell = search_cell(Setup(), "hill climbing", 40, seed)
        assert cell["calls"] == 40
        assert cell["curve"][-1][1] == pytest.approx(cell["final"]["reward"], abs=1e-4)
        (folder / f"search-hill climbing-{seed}.json").write_text(json.dumps(cell))
    cells = done(folder)
    assert len(seeds(cells, "search-hill climbing")) == 2
    assert summary(cells)["search-hill climbing"]["seeds"] == 2
    report(folder)
    table = (tmp_path / "top_claims.md").read_text()
    assert "hill climbing" in table
    assert "(2 seeds)" in table
    assert "375 decisions" not in table  # Only claims with results are listed.
    assert (tmp_path / "top_curves.svg").stat().st_size > 1000


def test_claims_of_figures_16_and_23_follow_the_cells_that_were_run():
    cells = done(RESULTS)
    (claim,) = single_model(cells)
    assert claim.holds == "depends"
    rows = cells["single-policies"]
    saturated = {name: rows[name]["saturated"]["utilisation"] for name in rows}
    for name in ("ios stages", "search, 200 calls"):
        assert f"{saturated[name]:.2f}" in claim.ours
    assert saturated["search, 200 calls"] >= 1.26 * saturated["ios stages"]
    assert "(2 seeds, 2000 calls)" in claim.ours
    for run_ in seeds(cells, "single-mended"):
        run_["final"]["utilisation"] = 1.26 * rows["ios stages"]["utilisation"]
    assert single_model(cells)[0].holds == "reproduced"
    for name in ("single-mended-0", "single-mended-1"):
        del cells[name]
    rows["search, 200 calls"]["saturated"]["utilisation"] = 1.25 * saturated["ios stages"]
    assert single_model(cells)[0].holds == "not reproduced"

    (claim,) = shared_queue(cells)
    assert claim.holds == "not reproduced"
    # Both trainings (seeds) end with a combined block that is too large, so they serve no request.
    assert all("in mix" not in run_["final"] for run_ in seeds(cells, "shared-mended"))
    assert "mended, 0 and 0 (2 seeds, 2000 calls)" in claim.ours
    for run_, served in zip(seeds(cells, "shared-mended"), (700.0, 900.0), strict=True):
        run_["final"]["in mix"] = served
    assert shared_queue(cells)[0].holds == "reproduced"
    assert "mended, 700 and 900" in shared_queue(cells)[0].ours


def test_the_claim_of_figure_21_says_how_far_the_curve_fell():
    assert training_of_gpg({}) == []
    curve = [[50 * i, 1.0 - 0.02 * i] for i in range(20)]
    cell = {"steps": 800, "seconds": 120.0, "curve": curve}
    (claim,) = training_of_gpg({"gpg-training-gpg": cell})
    assert "take 0.99 of sequential over the first tenth of 800 steps, 0.63 over" in claim.ours
    assert "0.62 at the least; 2 minutes on a core" in claim.ours
    assert [c.figure for c in not_run({"gpg-training-gpg": cell})] == ["16", "23", "25"]


def test_chosen_cells_are_those_whose_names_begin_so():
    programme = [(name, dict) for name in ("a-0", "b-0", "a-1")]
    assert [name for name, _ in chosen(iter(programme), ["a-"])] == ["a-0", "a-1"]
    assert len(list(chosen(iter(programme), [""]))) == 3
    with pytest.raises(ValueError, match="begins with 'c'"):
        list(chosen(iter(programme), ["b", "c"]))
