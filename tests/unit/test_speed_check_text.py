"""Tests the line about the speed check that `compile` prints."""

from __future__ import annotations

import msgspec
import pytest

import tvm_interop
from tests.nets import branches, chain
from tvm_interop import Artifact
from tvm_interop.artifact.manifest import SpeedCheck
from tvm_interop.cli.speed_check_text import speed_check_line


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    return tvm_interop.compile(branches(), scheduler="sequential", latency_db=":memory:")


def line(artifact: Artifact, scheduler: str, checked: SpeedCheck | None) -> str | None:
    artifact.manifest = msgspec.structs.replace(
        artifact.manifest, scheduler=scheduler, speed_check=checked
    )
    return speed_check_line(artifact)


SLOW = SpeedCheck(1000.0, 978.0, 1.003, "sequential", 24, 0.978, (0.959, 0.997))
FAST = SpeedCheck(1000.0, 900.0, 1.003, "scheduled", 24, 0.9, (0.88, 0.92))


def test_what_was_needed_and_measured_and_what_ships(artifact: Artifact) -> None:
    assert line(artifact, "auto", None) is None
    assert line(artifact, "auto", SLOW) == (
        "speed check: the fastest schedule found takes 0.978 of sequential execution's time "
        "(medians 0.978 and 1.000 ms, sequential against itself 1.003) in 24 rounds. At a "
        "significance level of 5% it is below 0.997; to ship, it must be below 0.990: sequential "
        "execution ships"
    )
    told = line(artifact, "ios", SLOW)
    assert told is not None
    assert told.endswith("ships (--keep-slower ships the schedule anyway)")
    assert "`ios` takes" in told
    told = line(artifact, "auto", FAST)
    assert told is not None
    assert told.endswith("must be below 0.990: it ships")
    assert "in 24 rounds that had no part in choosing it. At a significance level of 5%" in told
    assert "it is below 0.920" in told
    # The schedule comes from a file that `auto` wrote earlier, so no schedule was chosen now.
    told = speed_check_line(artifact, "mine.json")
    assert told is not None
    assert told.startswith("speed check: `mine.json` takes 0.900")
    assert "choosing" not in told
    old = SpeedCheck(1000.0, 900.0, 1.0, "scheduled")
    told = line(artifact, "greedy", old)
    assert told is not None
    assert "too few rounds to say more" in told


def test_nothing_to_schedule() -> None:
    alone = tvm_interop.compile(
        chain(), scheduler="sequential", latency_db=":memory:", streams=1, threads=1
    )
    assert line(alone, "auto", SLOW) == (
        "nothing to schedule: no two operators are independent of each other"
    )


def test_sequential_execution_that_a_scheduler_chose_is_told() -> None:
    alone = tvm_interop.compile(chain(), scheduler="greedy", latency_db=":memory:")
    assert speed_check_line(alone) == (
        "no speed check: the schedule found by `greedy` is sequential execution"
    )
