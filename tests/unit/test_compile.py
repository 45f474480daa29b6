"""Tests `compile`: which schedule an artifact gets, which input is refused, which files are
written."""

from __future__ import annotations

import functools
import itertools
import json
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.nets import chain, inception_like
from tvm_interop import (
    DeviceError,
    GraphModule,
    InputError,
    Schedule,
    ScheduleError,
    UnsupportedModelError,
)
from tvm_interop.compiler.api import Compilation, CompileOptions

# Some tests compile for more streams than this machine may have cores. The streams then take turns.
pytestmark = pytest.mark.filterwarnings("ignore:the model was compiled for")

DATA = np.random.default_rng(0).standard_normal((1, 8, 14, 14)).astype("float32")


def result(artifact: tvm_interop.Artifact) -> np.ndarray:
    module = GraphModule(artifact)
    module.run(x=DATA)
    return module.get_output(0).numpy()


@pytest.fixture(scope="module")
def sequential() -> np.ndarray:
    return result(tvm_interop.compile(inception_like(), scheduler="sequential"))


# Schedulers that merge operators. Their results have other bits than sequential execution gives.
# See `test_ios_merge`.
MERGING = {"ios-merge", "ios-both"}


@pytest.fixture(scope="module")
def compilation_for() -> Callable[[int], Compilation]:
    """A compilation for a number of streams. Its kernels serve all schedulers."""
    return functools.cache(
        # All compilations use the same measured latencies, so they choose the same kernels.
        lambda streams: Compilation(inception_like(), CompileOptions(streams=streams))
    )


@pytest.mark.parametrize("scheduler", sorted({*tvm_interop.schedulers()} - MERGING))
@pytest.mark.parametrize("streams", [1, 2, 5])
def test_every_scheduler_gives_the_same_bits(
    scheduler: str,
    streams: int,
    sequential: np.ndarray,
    compilation_for: Callable[[int], Compilation],
) -> None:
    if streams == 2:
        artifact = tvm_interop.compile(
            inception_like(), scheduler=scheduler, streams=streams, keep_slower=True
        )
    else:
        compilation = compilation_for(streams)
        artifact = compilation.artifact(compilation.schedule(scheduler))
    assert len(artifact.plan.streams) <= streams
    for _ in range(3):
        np.testing.assert_array_equal(result(artifact), sequential)


def test_what_is_slower_does_not_ship(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each round sequential execution runs twice, and the schedule takes longer than both."""
    rounds = itertools.repeat([10.0, 11.0, 12.0])
    monkeypatch.setattr(Compilation, "measure", lambda self, schedules: rounds)
    compilation = Compilation(chain(), CompileOptions(streams=2, latency_db=":memory:"))
    names = compilation.graph.names
    silly = Schedule("silly", names, streams=[range(0, 6, 2), range(1, 6, 2)])
    checked = compilation.check_speed(silly)
    assert checked.shipped == "sequential"
    artifact = compilation.artifact(silly, checked)
    assert len(artifact.plan.streams) == 1
    assert artifact.manifest.speed_check == checked
    assert artifact.manifest.scheduler == "silly"
    kept = tvm_interop.compile(chain(), schedule=silly, keep_slower=True)
    assert len(kept.plan.streams) == 2


def test_a_schedule_of_ones_own(tmp_path: Path, sequential: np.ndarray) -> None:
    artifact = tvm_interop.compile(
        inception_like(), scheduler="greedy", streams=2, keep_slower=True
    )
    edited = Schedule.from_json(artifact.schedule.to_json())
    again = tvm_interop.compile(inception_like(), schedule=edited, keep_slower=True)
    assert again.plan == artifact.plan
    np.testing.assert_array_equal(result(again), sequential)


def test_a_broken_schedule_is_refused() -> None:
    names = Compilation(inception_like()).graph.names
    backwards = Schedule("by hand", names, streams=[range(len(names))[::-1]])
    with pytest.raises(ScheduleError, match="`"):
        tvm_interop.compile(inception_like(), schedule=backwards)
    other = Schedule("by hand", ("a", "b"), streams=[[0, 1]])
    with pytest.raises(ScheduleError, match="`a`"):
        tvm_interop.compile(inception_like(), schedule=other)


def test_nothing_is_left_when_compiling_fails(tmp_path: Path) -> None:
    out = tmp_path / "model.tar"
    with pytest.raises(ScheduleError, match="oops"):
        tvm_interop.compile(inception_like(), scheduler="oops", out=out)
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    with pytest.raises(UnsupportedModelError, match=r"bad\.onnx"):
        tvm_interop.compile(bad, out=out)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.onnx"]


def test_where_to_write_is_checked_first(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder"):
        tvm_interop.compile("never read", out=tmp_path / "nowhere" / "model.tar")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the target is x86's")
def test_targets_are_read_as_on_the_command_line() -> None:
    text = "llvm -mcpu=core-avx2 -mattr=+fma"
    artifact = tvm_interop.compile(chain(), target=text, scheduler="sequential")
    target = json.loads(artifact.manifest.target)
    assert (target["mcpu"], target["mattr"]) == ("core-avx2", ["+fma"])
    with pytest.raises(DeviceError, match=r"no CPU `core-avx3` .*did you mean `core-avx2`"):
        tvm_interop.compile(chain(), target="llvm -mcpu=core-avx3")
    with pytest.raises(DeviceError, match="`-speed` has no meaning"):
        tvm_interop.compile(chain(), target="llvm -speed=high")


def test_targets() -> None:
    with pytest.raises(DeviceError, match="`opencl` is not supported"):
        tvm_interop.compile(chain(), target="opencl")
    with pytest.raises(DeviceError, match="not a target that TVM knows"):
        tvm_interop.compile(chain(), target="abacus")


def test_streams_and_threads_are_counts() -> None:
    with pytest.raises(InputError, match="`streams` must be at least 1"):
        tvm_interop.compile(chain(), streams=0)
    with pytest.raises(InputError, match="`threads` must be at least 1"):
        tvm_interop.compile(chain(), threads=-1)


def test_a_scheduler_of_the_users_own(sequential: np.ndarray) -> None:
    if "by_parity" not in tvm_interop.schedulers():

        @tvm_interop.register_scheduler("by_parity")
        def by_parity(graph, latency, *, streams=2):  # type: ignore[no-untyped-def]
            order = graph.topological_order()
            return Schedule(
                "by_parity", graph.names, streams=[order[s::streams] for s in range(streams)]
            )

    artifact = tvm_interop.compile(inception_like(), scheduler="by_parity", keep_slower=True)
    np.testing.assert_array_equal(result(artifact), sequential)
