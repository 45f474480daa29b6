"""Tests that the faults which we report to other projects still exist. When a fault is gone, our
workaround can go too."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "upstream" / "tvm_onnx_importer.py"


def test_tvm_alone_gets_each_of_these_models_wrong() -> None:
    cases = [case.name for case in runpy.run_path(str(SCRIPT))["CASES"]]
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], capture_output=True, text=True, check=True, timeout=300
    )
    lines = done.stdout.splitlines()
    assert [n for n in cases if not any(line.startswith(f"{n}: ") for line in lines)] == []
