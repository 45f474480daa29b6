"""Makes the table in `docs/speed_check.rst` from `benchmarks/results/speed_check_rates.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "speed_check_rates.json"
PAGE = Path(__file__).parents[1] / "docs" / "speed_check_rates.txt"
_COLUMNS = (
    ("check", 1.03), ("check", 1.0), ("check", 0.98), ("check", 0.97), ("check", 0.95),
    ("auto", 1.0), ("auto", 0.95), ("slow auto", 1.0), ("slow auto", 0.95),
    ("compile", 1.0), ("compile", 0.97), ("compile", 0.95),
    ("slow compile", 1.0), ("slow compile", 0.95),
)  # fmt: skip


def table() -> str:
    """The results as a table in reStructuredText, with a row for each kind of noise."""
    found: list[dict[str, Any]] = json.loads(RESULTS.read_text())
    rates = {(row["noise"], row["who"], row["speed"]): row for row in found}
    rows = [["noise", *(f"{who}, {speed:.2f}" for who, speed in _COLUMNS), "rounds"]]
    for noise in dict.fromkeys(row["noise"] for row in found):
        of = [rates[(noise, *column)] for column in _COLUMNS]
        rows.append(
            [
                noise,
                *(f"{row['ships']:.1%}" for row in of),
                f"{max(row['rounds'] for row in of if 'compile' not in row['who']):.0f}",
            ]
        )
    cells = [
        f"   {'* ' if at == 0 else '  '}- {cell}" for row in rows for at, cell in enumerate(row)
    ]
    return "\n".join([".. list-table::", "   :header-rows: 1", "", *cells]) + "\n"
