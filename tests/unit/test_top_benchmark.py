"""The programme of TOP's benchmark in small: cells that are kept, searches, and the report."""

import json

import numpy as np
import pytest

from benchmarks.top import done, run
from benchmarks.top_cells import SEARCHES, Setup, World, search_cell
from benchmarks.top_report import report, seeds, summary


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
    assert "375 decisions" not in table  # No such cells.
    assert (tmp_path / "top_curves.svg").stat().st_size > 1000
