"""Tests the parts that all experiments on the papers share: verdicts, the registry, results and
pages."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.machine_state import QUIET
from benchmarks.papers import __main__ as command
from benchmarks.papers import pages, pictures, registry, store
from benchmarks.papers.record import (
    CONTRADICTED,
    NOT_TO_BE_HAD,
    REPRODUCED,
    UNDECIDED,
    Chart,
    Check,
    Record,
    above,
    below,
    equal,
    near,
    not_to_be_had,
    record_from,
    verdict,
    within,
)

STORED = {paper: store.records(paper) for paper in registry.PAPERS}


def test_a_planted_wrong_number_flips_the_verdict() -> None:
    found = Record("They say so.", "nothing", [near("a ratio", 2.0, 2.1, 0.1)], why="Because.")
    assert verdict(found) == REPRODUCED
    stored = found.as_dict()
    stored["checks"][0]["ours"] = 2.3
    assert verdict(record_from(stored)) == CONTRADICTED
    stored["checks"][0]["ours"] = float("nan")
    assert verdict(record_from(stored)) == CONTRADICTED


@pytest.mark.parametrize("ours", [2.1, 2.3])
def test_times_of_a_busy_machine_decide_nothing(ours: float) -> None:
    timed = Record("They say so.", "a CPU", [near("a ratio", 2.0, ours, 0.1)], "Why.", timed=True)
    quiet = verdict(replace(timed, busy=QUIET))
    assert quiet == (REPRODUCED if ours < 2.2 else CONTRADICTED)
    assert verdict(replace(timed, busy=2 * QUIET)) == UNDECIDED
    assert verdict(replace(timed, busy=2 * QUIET, timed=False)) == quiet


def test_the_machine_of_a_stored_result_decides(tmp_path: Path) -> None:
    """How busy the machine was is read from the entry, next to the date and the commit."""
    stored = store.read("lios")
    stored["experiments"] = {"Table II": stored["experiments"]["Table II"]}
    made = stored["experiments"]["Table II"]["made"]
    for busy, wanted in ((2 * QUIET, UNDECIDED), (0.0, REPRODUCED)):
        made["busy"] = busy
        (tmp_path / "lios.json").write_text(json.dumps(stored))
        _, record = store.records("lios", tmp_path)["Table II"]
        assert verdict(record) == wanted
        page = pages.documents(tmp_path)[pages.FOLDER / "lios.md"]
        assert f"**{wanted.capitalize()}.** Device: {record.device}." in page
        assert (f"other programs took {busy:.0%} of the processor time" in page) == (busy > QUIET)


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (near("", 10.0, 9.0, 0.1), True), (near("", 10.0, 8.9, 0.1), False),
        (near("", -10.0, -9.5, 0.1), True), (near("", 10.0, 11.1, 0.1), False),
        (equal("", 3, 3), True), (equal("", 3, 4), False),
        (above("", 1.01, 1.0), True), (above("", 1.0, 1.0), False),
        (below("", 0.99, 1.0), True), (below("", 1.0, 1.0), False),
        (within("", 1.0, 1.0, 2.0), True), (within("", 2.1, 1.0, 2.0), False),
    ],
)  # fmt: skip
def test_what_holds(check: Check, holds: bool) -> None:
    assert check.holds is holds


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (above("", 1.0, 0.0), "above 0"), (above("", 2.0, 1.0), "above 1"),
        (below("", 1.0, 1.5), "below 1.5"), (Check("", None, 1.0, most=2.0), "at most 2"),
        (Check("", None, 1.0, least=0.5), "at least 0.5"), (equal("", 3, 3), "3"),
        (near("", 10.0, 9.0, 0.1), "9 to 11"),
    ],
)  # fmt: skip
def test_how_a_page_writes_what_is_accepted(check: Check, text: str) -> None:
    assert pages.accepted(check) == text


def test_a_check_can_fail_and_a_failure_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="`x` has no limit"):
        Check("x", None, 1.0)
    with pytest.raises(ValueError, match=r"give the reason in `why`: \['x'\]"):
        verdict(Record("They say so.", "nothing", [above("x", 1.0, 2.0)]))
    with pytest.raises(ValueError, match="either checks or"):
        Record("They say so.", "nothing")
    assert verdict(not_to_be_had("They say so.", "a GPU")) == NOT_TO_BE_HAD


def test_the_registry_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="there is no paper `x`"):
        registry.experiment("x", "Figure 1", "", seconds=1)
    first = registry.experiments("ios")[0]
    with pytest.raises(ValueError, match="registered twice"):
        registry.experiment("ios", first.name, "", seconds=1)
    with pytest.raises(ValueError, match="no experiment `Figure 99`; there are "):
        registry.chosen("ios", "Figure 99")
    assert {each.name for each in registry.chosen("ios", "Figure 6")} == {"Figure 6"}


def test_names_are_sorted_by_number() -> None:
    names = ["RQ1", "Figure 10", "Table V", "Figure 9", "Table II", "Table 3 (1)"]
    assert sorted(names, key=registry.order_of) == [
        "Table II", "Table 3 (1)", "Table V", "Figure 9", "Figure 10", "RQ1",
    ]  # fmt: skip


def test_one_experiment_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["ios", "--figure", "6", "--out", str(tmp_path)]) == 0
    assert "ios, Figure 6: " in capsys.readouterr().out
    ((entry, record),) = store.records("ios", tmp_path).values()
    assert set(entry["made"]) == {"date", "commit", "command", "seconds", "cpu", "cores", "busy"}
    assert len(record.checks) == 11
    command_of_file = store.read("ios", tmp_path)["machine"]["command"]
    assert command_of_file == "python -m benchmarks.papers ios"
    (page,) = [t for p, t in pages.documents(tmp_path).items() if p.name == "ios.md"]
    assert f"**{verdict(record).capitalize()}.**" in page
    # A wrong number in the file changes the page.
    path = tmp_path / "ios.json"
    stored = json.loads(path.read_text())
    stored["experiments"]["Figure 6"]["record"]["checks"][0]["ours"] = 9.0
    path.write_text(json.dumps(stored))
    (changed,) = [t for p, t in pages.documents(tmp_path).items() if p.name == "ios.md"]
    assert "**Contradicted.**" in changed
    assert "**does not hold**" in changed


def test_the_command_line_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ios", "--figure", "99"]) == 2
    assert "has no experiment `Figure 99`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        command.main(["--figure", "9"])
    assert "of which paper" in capsys.readouterr().err


def test_every_experiment_was_run_and_every_result_has_its_experiment() -> None:
    for paper, entries in STORED.items():
        assert [*entries] != [] or not registry.experiments(paper)
        assert {*entries} == {each.name for each in registry.experiments(paper)}


def test_quick_experiments_take_less_than_ten_minutes() -> None:
    found = [each for paper in registry.PAPERS for each in registry.experiments(paper)]
    assert sum(each.seconds for each in found if not each.slow) < 600


def test_at_most_a_fifth_is_not_to_be_had() -> None:
    found = [verdict(record) for entries in STORED.values() for _, record in entries.values()]
    assert found
    assert found.count(NOT_TO_BE_HAD) <= len(found) / 5


def test_pictures_show_what_the_results_say(tmp_path: Path) -> None:
    shown = {
        path: chart for paper in registry.PAPERS for path, chart in pages.charts(paper).items()
    }
    assert shown
    for path, chart in shown.items():
        assert pictures.digest_in(path) == pictures.digest(chart), f"draw {path.name} again"
    there = {*(pages.FOLDER / pages.IMAGES).glob("*.svg")}
    assert there == {*shown}, "delete the pictures that no page shows"
    chart = Chart("A title", "lines", ["1", "2"], {"ours": [1.0, None]}, "ms")
    pictures.draw(chart, tmp_path / "one.svg")
    assert pictures.digest_in(tmp_path / "one.svg") == pictures.digest(chart)
