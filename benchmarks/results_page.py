"""Makes `docs/results.md`, a list of all result files with commit, date, command and machine.

    python -m benchmarks.results_page            # print the page, with the age of each file
    python -m benchmarks.results_page --record   # note the files that are new or were measured anew

`--record` writes `benchmarks/results/provenance.json`. For each result file that is new or was
changed, it notes the commit, the date and the command that the file itself contains. If the file
contains none, it notes the commit that is checked out, today's date, and the command in
`_COMMANDS`. A test fails if a result file was changed and not noted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .machine_state import commit
from .markdown import table

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
_PROVENANCE = RESULTS / "provenance.json"
_AGE = "age, in commits"
_COMMANDS = {
    "all_cores": "python -m benchmarks.all_cores",
    "block_simulation": "python -m benchmarks.block_simulation",
    "busy_machine": "python -m benchmarks.busy_machine",
    "compile_time": "python -m benchmarks.compile_time",
    "explain_verdicts": "python -m benchmarks.explain_verdicts",
    "hios/curves": "python -m benchmarks.hios_curves",
    "inception_v3": "make bench",
    "kernel_demands": "python -m benchmarks.kernel_demands --full",
    "kernels": "python -m benchmarks.kernels",
    "learned_search": "python -m benchmarks.learned_search --exhaustive",
    "learned_search_large": "python -m benchmarks.learned_search randwire nasnet_a --only-learned",
    "operators": "python -m benchmarks.operators",
    "papers/": "python -m benchmarks.papers",
    "quantised": "python -m benchmarks.zoo, on files of benchmarks.quantised_export",
    "schedulers/": "python -m benchmarks.schedulers",
    "serving/comparison": "python -m benchmarks.serving",
    "serving/figures": "python -m benchmarks.serving --figures",
    "serving/load": "python -m benchmarks.serving_load",
    "serving/reality": "python -m benchmarks.serving_reality",
    "serving/top/": "python -m benchmarks.top",
    "serving/top_measured": "python -m benchmarks.top_measured",
    "serving/top_summary": "python -m benchmarks.top --report",
    "serving/top_whole/": "python -m benchmarks.top_whole",
    "shipped_schedules": "python -m benchmarks.shipped_schedules FOLDER",
    "speed_check_rates": "python -m benchmarks.speed_check_rates",
    "squeezenet": "make bench",
    "start_up": "python -m benchmarks.start_up",
    "start_up_large": "python -m benchmarks.start_up",
    "stages_priced": "python -m benchmarks.stages_priced",
    "streams_or_parts": "python -m benchmarks.streams_or_parts",
    "two_releases": "python -m benchmarks.two_releases OLD_PYTHON ARTIFACT ...",
    "two_cores": "python -m benchmarks.two_cores",
    "whole_networks": "python -m benchmarks.whole_networks",
    "zoo": "python -m benchmarks.zoo",
    "zoo_batch8": "python -m benchmarks.zoo",
    "zoo_drawn": "python -m benchmarks.zoo",
    "zoo_kinds": "python -m benchmarks.zoo",
}
"""The command that makes each result file. A key is a file without its ending, or a folder with `/`
at its end."""
_SIMULATED = (
    "block_simulation", "hios/", "serving/comparison", "serving/figures", "serving/top/",
    "serving/top_summary", "serving/top_whole/", "speed_check_rates", "stages_priced",
)  # fmt: skip
_UNTIMED = ("kernel_demands",)
_INTRODUCTION = f"""\
# Results

The figures in this documentation come from the files of `benchmarks/results` that are listed here.
`python -m benchmarks.figures` writes this page. A test fails if the page differs from the files. It
also fails if a file has changed and nobody has noted the command that made it.

*Commit* is the commit that a file names. If a file names none, it is the commit that was checked
out when the file was recorded. The ending `-dirty` means that the file was made by that commit with
changes that were not committed yet. So that commit alone does not give exactly the code behind the
figures. If *machine* says "simulated", the times come from data sheets and not from a clock. The
column "{_AGE}" is added when the site is built, or by `python -m benchmarks.results_page`. The
older a file is, the less it says of today's code."""


def page() -> str:
    """The page as Markdown, without the ages of files, which would change with each commit."""
    rows = [
        [
            f"`{name}`",
            *(found[key] for key in ("date", "commit", "machine")),
            f"`{found['command']}`",
        ]
        for name, found in _rows()
    ]
    return (
        _INTRODUCTION
        + "\n\n"
        + table(["file", "date", "commit", "machine", "command"], rows)
        + "\n"
    )


def dated(section: list[str], *names: str) -> list[str]:
    """Return a section of a page with the dates of its result files below the heading.

    Parameters
    ----------
    section: the parts of the section. The first begins with the heading.
    names: the result files, without folder `results` and suffix.
    """
    known = _known()
    by_date: dict[str, list[str]] = {}
    for name in names:
        by_date.setdefault(known[name]["date"], []).append(f"`{name}.json`")
    told = "; ".join(f"{', '.join(files)}, {date}" for date, files in sorted(by_date.items()))
    heading, _, rest = section[0].partition("\n\n")
    return [heading, f"*Result files: {told}.*", *([rest] if rest else []), *section[1:]]


def with_ages(text: str) -> str:
    """The page with a column that says how many commits ago each file was recorded."""
    lines = []
    for line in text.splitlines():
        cells = line.split(" | ")
        if line.startswith("| file"):
            line += f" {_AGE} |"
        elif line.startswith("| ---"):
            line += " --: |"
        elif line.startswith("| `"):
            line += f" {_age(cells[2])} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def unrecorded() -> list[str]:
    """Names of result files that are new, changed or deleted since `--record` last ran."""
    known = _known()
    there = {_name(path): _digest(path) for path in _files()}
    return sorted(
        name for name in {*known, *there} if known.get(name, {}).get("sha256") != there.get(name)
    )


def record() -> None:
    """Note commit, date and command of each file that is new or changed."""
    known = _known()
    changed = set(unrecorded())
    found: dict[str, dict[str, str]] = {}
    for path in _files():
        name = _name(path)
        found[name] = _described(path) if name in changed else known[name]
    _PROVENANCE.write_text(json.dumps(found, indent=1) + "\n")


def _described(path: Path) -> dict[str, str]:
    loaded = json.loads(path.read_text())
    machine = loaded.get("machine") if isinstance(loaded, dict) else None
    said = machine if isinstance(machine, dict) else {}
    return {
        "sha256": _digest(path),
        "commit": said.get("commit") or commit() or "unknown",
        "date": (said.get("date") or datetime.now(timezone.utc).isoformat())[:10],
        "command": said.get("command") or _command(_name(path)),
        "machine": _machine_name(_name(path), machine),
    }


def _machine_name(name: str, machine: Any) -> str:
    """The machine on which a result file was measured, as the file itself says.

    Parameters
    ----------
    machine: the entry `machine` of the file.
    """
    if isinstance(machine, dict):
        gpu = f", {machine['gpu'].split(',')[0]}" if "gpu" in machine else ""
        return f"{machine['cpu'].split(' [')[0]}, {machine['cores']} cores{gpu}"
    if isinstance(machine, str):
        return f"{machine.split(' [')[0]}, {machine.rpartition(' x')[2]} cores"
    if name in _UNTIMED:
        return "none, because nothing is timed"
    return "simulated" if name.startswith(_SIMULATED) else "not recorded"


def _command(name: str) -> str:
    folder = name.rpartition("/")[0] + "/"
    return _COMMANDS[name] if name in _COMMANDS else _COMMANDS[folder]


def _rows() -> Iterator[tuple[str, dict[str, str]]]:
    """The rows of the page: the name and the provenance of each file.

    The many small files of TOP's benchmarks share a row for each folder, date and commit.
    """
    together: dict[tuple[str, str, str], list[str]] = {}
    known = _known()
    for name, found in known.items():
        folder = name.rpartition("/")[0] + "/"
        if folder in ("serving/top/", "serving/top_whole/"):
            together.setdefault((folder, found["date"], found["commit"]), []).append(name)
        else:
            yield name + ".json", found
    for (folder, _, _), names in sorted(together.items()):
        yield f"{folder}, {len(names)} files", known[names[0]]


def _age(at: str) -> str:
    counted = subprocess.run(
        ["git", "rev-list", "--count", f"{at}..HEAD"],
        cwd=RESULTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return counted.stdout.strip() if counted.returncode == 0 else "unknown"


def _known() -> dict[str, dict[str, str]]:
    loaded: dict[str, dict[str, str]] = json.loads(_PROVENANCE.read_text())
    return loaded


def _files() -> list[Path]:
    return sorted(path for path in RESULTS.rglob("*.json") if path != _PROVENANCE)


def _name(path: Path) -> str:
    return path.relative_to(RESULTS).with_suffix("").as_posix()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help="note files that are new or changed")
    if parser.parse_args().record:
        record()
    else:
        print(with_ages(page()), end="")


if __name__ == "__main__":
    main()
