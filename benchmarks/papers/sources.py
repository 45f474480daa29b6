"""Says when a result file that an experiment reads was made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def read(name: str) -> Any:
    """The contents of the result file `benchmarks/results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text())


def made(*names: str) -> str:
    """A sentence for each result file: its date, its commit and the command that made it."""
    known = json.loads((RESULTS / "provenance.json").read_text())
    said = []
    for name in names:
        found = known[name]
        said.append(
            f"`{name}.json` was made on {found['date']} at commit {found['commit']} by "
            f"`{found['command']}`."
        )
    return " ".join(said)
