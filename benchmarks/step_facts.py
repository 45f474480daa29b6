"""Keeps the findings of a step of the visit to a GPU (`gpu_visit.py`), in a JSON file.

The file is rewritten after each finding, so the findings of a step that is killed are not lost.
This module needs only Python.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DONE, WRONG, MISSING = 0, 1, 77
"""Exit codes of a step: it ran; it found something wrong; something that it needs is missing."""
MISSING_KEY, WRONG_KEY = "missing", "wrong"


class Facts:
    """The findings (facts) of one step, by name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[str, Any] = {}

    def tell(self, **facts: Any) -> None:
        """Add facts, and write all facts to the file."""
        self._found |= facts
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._found, indent=1, default=str) + "\n")
        os.replace(part, self._path)

    def say(self, **facts: Any) -> None:
        """Add facts as `tell` does, and print them."""
        for name, fact in facts.items():
            print(f"  {name}: {fact}", flush=True)
        self.tell(**facts)

    def exit_code(self, *, missing: Sequence[str] = (), wrong: Sequence[str] = ()) -> int:
        """Write the reasons why the step is not done, and return the step's exit code.

        Parameters
        ----------
        missing: sentences about the things that the step needs and this machine lacks.
        wrong: the faults that the step found. If there are any, the exit code is the code for
            faults, even if something is missing too.
        """
        for reason in (*missing, *wrong):
            print(f"  {reason}", flush=True)
        self.tell(**{MISSING_KEY: list(missing), WRONG_KEY: list(wrong)})
        return WRONG if wrong else MISSING if missing else DONE
