"""Makes the pages about papers from result files: one for each paper, and one about all papers."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ..markdown import at_commit, table
from . import pictures, rankings, store
from .record import CONTRADICTED, NOT_TO_BE_HAD, UNDECIDED, VERDICTS, Check, Record, verdict
from .registry import PAPERS, order_of

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
IMAGES = "images"
Entries = dict[str, tuple[dict[str, Any], Record]]


def documents(folder: Path = store.FOLDER) -> dict[Path, str]:
    """Every page, by the path of its file."""
    found = {paper: _sorted(store.records(paper, folder)) for paper in PAPERS}
    found = {paper: entries for paper, entries in found.items() if entries}
    if not found:
        return {}
    pages = {FOLDER / f"{paper}.md": _page(paper, entries) for paper, entries in found.items()}
    return {FOLDER / "index.md": _index(found), **pages}


def draw(paper: str, folder: Path = store.FOLDER) -> None:
    """Draw each picture of one paper, if the numbers of the picture have changed."""
    for path, chart in charts(paper, folder).items():
        pictures.draw(chart, path)


def charts(paper: str, folder: Path = store.FOLDER) -> dict[Path, Any]:
    """The charts of a paper, by the path of the picture."""
    return {
        FOLDER / IMAGES / pictures.file_name(paper, name, number): chart
        for name, (_, record) in store.records(paper, folder).items()
        for number, chart in enumerate(record.charts, 1)
    }


def _sorted(entries: Entries) -> Entries:
    return dict(sorted(entries.items(), key=lambda entry: order_of(entry[0])))


def _index(found: dict[str, Entries]) -> str:
    rows, missing = [], []
    for paper, entries in found.items():
        counted = Counter(verdict(record) for _, record in entries.values())
        link = f"[{PAPERS[paper][0]}]({paper}.md)"
        rows.append([link, *(str(counted[name]) for name in VERDICTS), str(len(entries))])
        missing += [
            [f"{PAPERS[paper][0]}, {name}", record.missing]
            for name, (_, record) in entries.items()
            if record.missing
        ]
    total = Counter(verdict(r) for entries in found.values() for _, r in entries.values())
    every = sum(total.values())
    rows.append(["all", *(str(total[name]) for name in VERDICTS), str(every)])
    parts = [
        _INTRODUCTION,
        "\n".join(f"- [{PAPERS[paper][0]}]({paper}.md): {PAPERS[paper][1]}" for paper in found),
        _DEVICES,
        _VERDICTS,
        table(["", *VERDICTS, "in all"], rows),
        f"{total[NOT_TO_BE_HAD]} of {every} tables and figures, or "
        f"{total[NOT_TO_BE_HAD] / every:.0%}, are not available here.",
        "## Every table and figure",
        _overview(found),
    ]
    parts += ["## How schedulers are ranked", _RANKED, rankings.section()]
    if missing:
        parts += ["## What is missing", table(["", "what is missing"], missing)]
    return "\n\n".join(parts) + "\n"


_INTRODUCTION = """\
# The papers, figure by figure

The schedulers of this project come from papers. These pages put our numbers beside the tables and
figures of the papers:"""

_DEVICES = """\
The papers measure mostly on GPUs. Most of our numbers are simulated, because these GPUs were not at
hand. *Simulated from its data sheet* means that the operators that run side by side share the cores
and the bandwidth that the data sheet of the GPU gives. *Simulated block by block* means that a
program also follows the thread blocks of each kernel on the multiprocessors of the GPU. The section
"Thread blocks on a simulated GPU" of [Benchmarks](../benchmarks.md) says how.

`python -m benchmarks.figures` writes these pages from the files of `benchmarks/results/papers`.
`make papers` runs all quick experiments again. `python -m benchmarks.papers --list` lists all
experiments with their time."""

_VERDICTS = """\
Each table or figure of a paper has one of four verdicts. A program finds the verdict from our
numbers, the numbers of the paper and a stated range. *Reproduced* means that every check of the
experiment holds. *Contradicted* means that at least one check does not hold; the page of the paper
then says why. *Undecided* means that times were measured while other programs kept the machine
busy. These programs may have changed the times, so the checks count neither for the paper nor
against it. *Not available* means that something is missing here, such as a GPU."""


_RANKED = """\
A paper ranks schedulers, and so do the simulations whose numbers are stored here. The table counts
the pairs of schedulers that a paper ranks, and how many of these pairs our numbers
rank *alike* and *the other way*. A pair of ours is *equal* if it differs by less than 1%. Kendall's
*tau* is the difference between the first two counts, over all pairs. It is 1 if all pairs are
ranked alike, and 0 if as many pairs are ranked alike as the other way. HIOS's Figures 7 to 11
appear twice, because [its page](hios.md) has two evaluators."""


def _overview(found: dict[str, Entries]) -> str:
    rows = []
    for paper, entries in found.items():
        for name, (entry, record) in entries.items():
            made = entry["made"]
            holds = f"{sum(c.holds for c in record.checks)} of {len(record.checks)}"
            rows.append(
                [
                    f"[{PAPERS[paper][0]}, {name}]({paper}.md)",
                    entry["title"],
                    record.device,
                    verdict(record),
                    holds if record.checks else "",
                    f"{made['seconds']:.1f}" + (" (slow)" if entry["slow"] else ""),
                ]
            )
    return table(["", "what", "device", "verdict", "checks that hold", "seconds"], rows)


def _page(paper: str, entries: Entries) -> str:
    short, cite = PAPERS[paper]
    counted = Counter(verdict(record) for _, record in entries.values())
    said = ", ".join(f"{counted[name]} {name}" for name in VERDICTS)
    parts = [
        f"# {short}, figure by figure",
        f"{cite}. This page judges {len(entries)} tables and figures. The verdicts are: {said}.",
        *(part for name, (entry, record) in entries.items()
          for part in _section(paper, name, entry, record)),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def _section(paper: str, name: str, entry: dict[str, Any], record: Record) -> list[str]:
    made = entry["made"]
    parts = [
        f"## {name}: {entry['title']}",
        f"**{verdict(record).capitalize()}.** Device: {record.device}.",
        f"*The paper:* {record.says}",
    ]
    if record.missing:
        return [*parts, f"*What is missing:* {record.missing}"]
    parts.append(_checks(record.checks))
    for number, chart in enumerate(record.charts, 1):
        name_of = pictures.file_name(paper, name, number)
        parts.append(f"![{chart.title}]({IMAGES}/{name_of})")
    for each in record.tables:
        parts += [f"{each.title}:", table(each.head, each.rows)]
    if verdict(record) == CONTRADICTED:
        parts.append(f"*Why ours differs:* {record.why}")
    if verdict(record) == UNDECIDED:
        parts.append(
            "*Why it is undecided:* before these times were measured, other programs took "
            f"{record.busy:.0%} of the processor time, so the checks do not count. Run the "
            "experiment again on a quiet machine."
        )
    if record.remarks:
        parts.append(record.remarks)
    seed = f", {record.seed}" if record.seed else ""
    parts.append(
        f"Made by `{made['command']}` in {made['seconds']:.1f} s on {made['date'][:10]}, at commit "
        f"{at_commit(made['commit'])}, on {made['cores']} cores of {made['cpu']}, "
        f"{made['busy']:.0%} busy with other programs{seed}."
    )
    return parts


def _checks(checks: Any) -> str:
    rows = [
        [
            check.what,
            "" if check.paper is None else number(check.paper),
            number(check.ours),
            accepted(check),
            "holds" if check.holds else "**does not hold**",
        ]
        for check in checks
    ]
    return table(["check", "paper", "ours", "accepted", ""], rows)


def accepted(check: Check) -> str:
    """The numbers that a check accepts, as text."""
    low, high = check.least, check.most
    if low is not None and high is not None:
        return number(low) if low == high else f"{number(low)} to {number(high)}"
    if low is not None:
        return f"{'above' if _rounded(low) < low else 'at least'} {number(_rounded(low))}"
    limit = high or 0.0
    return f"{'below' if _rounded(limit) > limit else 'at most'} {number(_rounded(limit))}"


def _rounded(limit: float) -> float:
    """The bound of a check, from the limit that `record.above` or `record.below` stored.

    The checks `above` and `below` store the next number above or below their bound, so that the
    bound itself is not accepted.
    """
    return 0.0 if abs(limit) < sys.float_info.min else float(f"{limit:.12g}")


def number(value: float) -> str:
    """A number as text: whole numbers with all digits, others with four significant digits."""
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e7 else f"{value:.4g}"
