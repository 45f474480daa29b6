"""Tests that `pytest --room` picks exactly the test files of one room (an area of the package)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tvm_interop
from tests.conftest import LONG, pytest_collection_modifyitems
from tests.rooms import ROOMS

UNIT = Path(__file__).parent
PACKAGE = Path(tvm_interop.__file__).parent


def test_rooms_and_files_are_there() -> None:
    elsewhere = {"benchmarks", "tests"}
    rooms = {path.stem for path in PACKAGE.iterdir()}
    assert ROOMS.keys() - elsewhere <= rooms
    listed = {name for names in ROOMS.values() for name in names}
    assert {name for name in listed if not (UNIT / f"test_{name}.py").is_file()} == set()


def picked(room: str | None, *files: str) -> tuple[list[str], list[str]]:
    """The test files that run for a room, and the test files that do not."""
    deselected: list[Any] = []
    config: Any = SimpleNamespace(
        getoption=lambda name: room,
        hook=SimpleNamespace(pytest_deselected=lambda items: deselected.extend(items)),
    )
    items: list[Any] = [SimpleNamespace(path=UNIT.parent / file) for file in files]
    pytest_collection_modifyitems(config, items)
    return [item.path.name for item in items], [item.path.name for item in deselected]


def test_one_room_is_run_alone_and_a_file_of_no_room_with_all() -> None:
    files = ("unit/test_plan.py", "unit/test_viz.py", "unit/test_new.py", "golden/test_x.py")
    assert picked("plan", *files) == (["test_plan.py", "test_new.py"], ["test_viz.py", "test_x.py"])
    assert picked(None, *files) == ([Path(file).name for file in files], [])


def test_long_files_run_first() -> None:
    files = ("golden/test_x.py", *(f"unit/{name}" for name in LONG), "unit/test_viz.py")
    assert picked(None, *files)[0] == [*LONG, "test_x.py", "test_viz.py"]
    assert all((UNIT / name).is_file() for name in LONG)


def test_an_unknown_room_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match=r"no room `plam` \(did you mean `plan`\?\)"):
        picked("plam")
