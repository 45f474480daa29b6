"""Tests that the measured figures in README and docs are the figures of the result files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks import (
    explain_verdicts,
    figures,
    machine_state,
    results_page,
    top_whole_table,
    zoo,
)
from benchmarks.explain_verdicts import Pair

ROOT = Path(__file__).resolve().parents[2]
WRITTEN = figures.documents()
"""The texts that are made from results, by the paths of their files."""


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_what_is_made_from_results_is_what_they_say(path: Path) -> None:
    assert path.read_text() == WRITTEN[path], "run `python -m benchmarks.figures`"


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.name)
def test_a_planted_figure_is_noticed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text()
    begin = max(text.find("<!-- figures"), 0)
    wrong = text[:begin] + re.sub(r"\d(?=\D*$)", _other_digit, text[begin:], count=1)
    assert wrong != text
    # `readme_figures` replaces only the figures in the README's own text, so plant the wrong figure
    # in that text.
    if path.name == "README.md":
        wrong = text.replace(re.findall(r"\d\.\d\d", text[begin:])[0], "9.99", 1)
        monkeypatch.setattr(figures.readme_figures, "PAGE", _Text(wrong))
        assert figures.readme_figures.page() == text != wrong
    else:
        assert wrong != WRITTEN[path]


def _other_digit(found: re.Match[str]) -> str:
    return str(9 - int(found[0]))


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self) -> str:
        return self._text


BY_HAND = {
    "AGENTS.md": {"0.1.15": "a version", "0": "a value"},
    "CONTRIBUTING.md": {"3.10": "a version", "3.13": "a version"},
    "README.md": {"0.27": "a version", "3.10": "a version"},
    "docs/explain.rst": {
        "1.05": "a bound in the rules of verdicts", "0.99": "a bound", "1.01": "a bound",
        "3%": "a bound", "80%": "a bound", "90%": "a level",
        "4%": "test_how_good_explain_is", "50%": "test_how_good_explain_is",
        "47%": "test_how_good_explain_is",
    },
    "docs/compile.rst": {
        "1%": "a bound", "5%": "a level", "40%": "a share of time", "80%": "a share of time",
        "0.0001": "a bound", "0.001": "a bound",
    },
    "docs/faq.rst": {"1.14": "a version"},
    "docs/from_tvmc.rst": {"0.20": "a version"},
    "docs/install.rst": {"3.10": "a version", "2.28": "a version"},
    "docs/limits.rst": {"1.23": "a version", "1.23.2": "a version"},
    "docs/perf.rst": {"95%": "a level"},
    "docs/precision.rst": {"0.01": "an option", "0.02": "a default"},
    "docs/server.rst": {"1.5": "a load that was asked for", "127.0.0.1": "an address"},
    "docs/serving.rst": {"0.3%": "a bound that `auto` goes by", "15%": "a bound"},
    "docs/speed_check.rst": {
        "1%": "a bound", "5%": "a level", "90%": "a level", "0.99": "a bound", "3%": "a bound",
        "0.98": "a bound", "0.95": "a simulated ratio", "2%": "a bound", "20%": "a level",
        "1.5%": "a level", "10%": "a level",
    },
}  # fmt: skip
"""The numbers with a point or a percent sign in pages that people write, each with its meaning. For
a measured number, the meaning names the test that checks it.
"""


def test_no_measured_figure_is_written_by_hand() -> None:
    found = {}
    for page in _pages_by_hand():
        name = page.relative_to(ROOT).as_posix()
        numbers = set(re.findall(r"(?<![\w.-])(?:\d[\d.]*%|\d+(?:\.\d+)+)", _prose(page)))
        unknown = numbers - set(BY_HAND.get(name, {}))
        if unknown:
            found[name] = sorted(unknown)
    assert not found, "generate these numbers from a result file, or explain them in BY_HAND"


_OTHERS = ("CHANGELOG.md", "cli.rst", "kinds.md", "sg_execution_times.rst")
"""Pages that programs write from other sources, and the changelog, which is about the past."""


def _pages_by_hand() -> list[Path]:
    pages = [*ROOT.glob("docs/*.rst"), *ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]
    made = {path for path in WRITTEN if path.name != "README.md"}
    return [page for page in sorted(pages) if page not in made and page.name not in _OTHERS]


def _prose(page: Path) -> str:
    """The text of a page without code, literals, links and figures that are made from results."""
    text = re.sub(r"<!-- figures.*?<!-- end of figures -->", "", page.read_text(), flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"(::.*)\n(?:(?: {3,}.*)?\n)+", r"\1\n", text) if page.suffix == ".rst" else text
    return re.sub(r"``.*?``|`[^`]*`|https?://\S+", "", text, flags=re.DOTALL)


def test_how_good_explain_is() -> None:
    found = json.loads((figures.RESULTS / "explain_verdicts.json").read_text())
    fields = Pair.__dataclass_fields__
    pairs = [Pair(**{k: v for k, v in row.items() if k in fields}) for row in found["pairs"]]
    rates = explain_verdicts.rates(pairs)
    assert (len(pairs), rates["pay"], rates["wrong"], rates["missed"]) == (18, 9, 1, 1)
    assert rates["wrong_by_constant_answer"] == 9
    (missed,) = (row for row in found["pairs"] if row["pays"] and row["verdict"] != "profitable")
    change = found["changes"][0]
    text = " ".join((ROOT / "docs" / "explain.rst").read_text().split())
    assert f"it missed a gain of {1 - missed['ratio']:.0%}" in text
    estimated = f"the estimated saving was {change['change']['gain']:.0%}"
    assert f"For the MMoE, {estimated}, and the measured saving was {change['gain']:.0%}" in text


def test_what_is_said_of_top_and_pos_is_so() -> None:
    """The comparisons in `docs/serving.rst` follow from the results. The page gives no numbers."""
    cells: dict[str, Any] = {
        path.stem: json.loads(path.read_text())
        for path in (figures.RESULTS / "serving" / "top").glob("*.json")
    }
    rows = cells["policies-0.03"]
    searched, pos = rows["search, 200 calls"]["saturated"], rows["pos, skip"]["saturated"]
    assert searched["throughput"] < pos["throughput"]
    assert searched["in mix"] > pos["in mix"]
    learned = [cells[f"maddpg-mended-{seed}"]["final"] for seed in range(3)]
    assert min(run["throughput"] for run in learned) > rows["pos, skip"]["throughput"]
    assert max(run["in mix"] for run in learned) < rows["pos, skip"]["in mix"]
    for key in ("throughput", "in mix"):
        top = max(run[key] for run in [*learned, rows["search, 200 calls"]])
        for plain in ("2 streams", "4 streams", "batches of 8"):
            assert rows[plain][key] > top
    assert cells["gpg-exact-a100"]["gpg"]["mean"] > cells["gpg-exact-a100"]["greedy"]["mean"]
    assert all(row["paper_reward_stages"] == row["operators"] for row in cells["printed-reward"])


def test_what_is_said_of_the_whole_of_top_is_so() -> None:
    """The results of the trainings with any seed support the verdict on TOP in
    `docs/serving.rst`."""
    folder = figures.RESULTS / "serving" / "top_whole"
    cells = {path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")}
    assert not top_whole_table.wins(cells), (
        "TOP now wins, so `auto` is perhaps not the best default"
    )
    rows = [row for row in cells.values() if (row["device"], row["mix"]) == ("a100", "CNNs")]
    for load in ("clients", "poisson"):
        mixes = {
            name: sum(row["mix"] for row in found) / len(found)
            for name, found in top_whole_table.contestants(rows, load).items()
        }
        longest = mixes["TOP, `ours`, 1000 steps, all of it"]
        assert longest > max(mixes[name] for name in ("sequential", "POS, waits", "POS, skips"))
        assert longest < min(mixes[name] for name in ("2 streams", "4 streams", "auto"))
        found = top_whole_table.contestants(rows, load)["hill climbing, 1000 calls"]
        mean, width = top_whole_table.interval([row["mix"] for row in found])
        assert abs(longest - mean) < width
        if load == "clients":
            combined = [name for name in mixes if name.startswith(("TOP", "hill", "top+"))]
            assert mixes["batches of 8"] > max(mixes[name] for name in combined)
    mixed = top_whole_table.contestants(
        [row for row in cells.values() if "recommender" in row["mix"]], "clients"
    )
    assert mixed["hill climbing, 1000 calls"][0]["mix"] > mixed["auto"][0]["mix"]
    assert mixed["auto"][0]["throughput"] > mixed["hill climbing, 1000 calls"][0]["throughput"]


def test_it_is_known_where_each_result_file_comes_from() -> None:
    assert not results_page.unrecorded(), "run `python -m benchmarks.results_page --record`"


def test_a_file_that_was_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = results_page._digest
    monkeypatch.setattr(
        results_page, "_digest", lambda path: digest(path) + "x" * (path.stem == "zoo")
    )
    assert results_page.unrecorded() == ["zoo"]


def test_the_page_of_results_tells_ages() -> None:
    aged = results_page.with_ages(results_page.page())
    ages = re.findall(r"^\| `.*\| (\d+|unknown) \|$", aged, flags=re.MULTILINE)
    assert len(ages) == results_page.page().count("\n| `") > 30


def test_a_measurement_says_by_what_it_was_made() -> None:
    found = machine_state.observe(0.01)
    assert {"commit", "command", "date"} <= set(found.as_dict())
    assert found.command.startswith("python ")
    assert re.match(r"\d{4}-\d\d-\d\dT", found.date)


def test_no_network_of_the_tables_was_computed_wrongly() -> None:
    rows = json.loads((figures.RESULTS / "zoo.json").read_text())["rows"]
    assert [row["network"] for row in rows if zoo.is_wrong(row["errors"])] == []
    openvino = {"OpenVINO, float32": 2e-6, "onnxruntime, sequential": 0.0}
    assert zoo.is_wrong({"ours": 0.1, **openvino})
    assert zoo.is_wrong({"ours": 1e-7, "ours, sequential": 0.1, **openvino})
    # Small errors, errors of bfloat16 and errors of onnxruntime do not count as wrong.
    assert not zoo.is_wrong({"ours": 1e-5, "ours, bf16": 0.02, **openvino})
    assert not zoo.is_wrong({"ours": 0.1, "OpenVINO, float32": 0.1})
