"""Tests that GitHub's workflows and the pre-commit hooks run the targets and tools of `make`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def test_workflows_run_targets_of_make_and_pin_their_actions() -> None:
    assert WORKFLOWS
    for path in WORKFLOWS:
        text = path.read_text()
        for command in re.findall(r"run: (.*)", text):
            target = command.removeprefix("make ")
            assert re.search(rf"^{re.escape(target)}:", MAKEFILE, flags=re.MULTILINE), command
        for action in re.findall(r"uses: (.*)", text):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_every_tool_of_make_lint_runs_before_a_commit() -> None:
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, flags=re.MULTILINE)
    assert recipe is not None
    tools = {line.split("/", 1)[1].split()[0] for line in recipe[1].splitlines()}
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert len(tools) >= 5
    assert tools <= set(re.findall(r"entry: \.venv/bin/([\w-]+)", hooks))
