"""Tests the time budget of `compile`: left-out steps are reported, and results are right.

The tests use a simulated clock, so they do not depend on the speed of the machine.
"""

from __future__ import annotations

import itertools
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tvm_interop
from tests import nets
from tests.prices import GivenTimer
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import checked_kernels, checked_libraries, new_processes, time_budget
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.cpu import LoweredForCpu
from tvm_interop.compiler.time_budget import TimeBudget
from tvm_interop.errors import OutOfTimeError
from tvm_interop.kernels.build import kernel_hashes
from tvm_interop.kernels.numpy_kernel import NumpyKernel
from tvm_interop.latency import LatencyTable
from tvm_interop.machine.kernel_libraries import library_version
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.program.kinds.conv2d import Conv2d
from tvm_interop.program.program import Program
from tvm_interop.scheduling import Schedule, budget

# Some tests compile for more streams than this machine may have cores. The streams then take turns.
pytestmark = pytest.mark.filterwarnings("ignore:the model was compiled for")

NO_SPEED_CHECK = "the speed check, so the model runs sequentially"


class Clock:
    """The clock of all budgets. It stands still, except where a test moves it."""

    def __init__(self) -> None:
        self.s = 0.0

    def takes(self, seconds: float, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, changed so that each call advances this clock by `seconds`."""

        def slow(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.s += seconds
            return result

        return slow


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(budget, "now_s", lambda: clock.s)
    # New processes would measure with the real clock, and so decide differently from run to run.
    monkeypatch.setattr(new_processes, "confirm_in_new_processes", lambda _, made, checked: checked)
    monkeypatch.setattr(checked_kernels, "_right", set())
    monkeypatch.setattr(checked_libraries, "_right", set())
    return clock


@pytest.fixture
def jobs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of numbers of stages: each measuring job adds the number of its stages.

    A job takes 1 s of `clock`.

    The schedule that is found is always twice as fast as sequential execution.
    """
    done: list[int] = []

    class Slow(GivenTimer):
        def _rounds(self, stages: Sequence[Any]) -> Any:
            clock.s += 1
            done.append(len(stages) - 1)
            return super()._rounds(stages)

    def stage_timer(self: Any, program: Program, streams: int, threads: int) -> GivenTimer:
        def op_us(op: int) -> float:
            operator = program.operators[op]
            values = (*operator.inputs, *operator.outputs)
            return sum(program.values[v].nbytes for v in values) / 1e3

        return Slow(op_us, streams)

    def measure(self: Any, schedules: Sequence[Schedule]) -> Any:
        return itertools.repeat([100.0, 100.0, *[50.0] * len(schedules[2:])])

    monkeypatch.setattr(LoweredForCpu, "stage_timer", stage_timer)
    monkeypatch.setattr(Compilation, "measure", measure)
    return done


def compiled(**options: Any) -> tvm_interop.Artifact:
    given = {"streams": 2, "latency_db": ":memory:", "providers": ["tvm"], **options}
    return tvm_interop.compile(nets.inception_like(), **given)


def bits(artifact: tvm_interop.Artifact) -> bytes:
    module = tvm_interop.GraphModule(artifact)
    module.run(**nets.feeds(nets.inception_like()))
    return module.get_output(0).numpy().tobytes()


@pytest.fixture(scope="module")
def sequential() -> tvm_interop.Artifact:
    """Sequential execution with TVM's kernels."""
    return compiled(scheduler="sequential")


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("there is no time for this")


def by_hand(providers: Sequence[str] | None) -> Schedule:
    """A schedule on two streams, made without measurements."""
    options = CompileOptions(streams=2, latency_db=":memory:", providers=providers, time_budget=0)
    compilation = Compilation(nets.inception_like(), options)
    us = LatencyTable([1.0] * compilation.graph.num_ops)
    made = compilation.schedule("greedy", us)
    assert made.num_streams == 2
    return made


@pytest.mark.parametrize("scheduler", ["auto", "ios", "ios-both", "nimble"])
def test_without_time_nothing_is_measured_or_checked(
    scheduler: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeasuredLatency, "_measure", forbidden)
    monkeypatch.setattr(Compilation, "measure", forbidden)
    monkeypatch.setattr(checked_kernels, "find_faults", forbidden)
    monkeypatch.setattr(checked_libraries, "find_faults", forbidden)
    artifact = compiled(scheduler=scheduler, providers=None, time_budget=0)
    manifest = artifact.manifest
    assert artifact.schedule.scheduler == manifest.scheduler == "sequential"
    assert manifest.speed_check is None
    check = manifest.kernel_check
    assert check is not None
    assert (check.checked, check.libraries) == (0, 0)
    assert check.unchecked == "the time budget left no time for it"
    told = list(manifest.not_tried)
    assert f"scheduler `{scheduler}` and the speed check, so the model runs sequentially" in told
    assert any(text.endswith("kernels of TVM") for text in told)
    if library_version("onednn") is not None:
        assert "measuring which kernel is the fastest for each operator" in told
        assert any(text.endswith("kernels of libraries") for text in told)
        assert any(op.library == "onednn" for op in artifact.plan.operators)
    side_by_side = compiled(schedule=by_hand(None), providers=None, keep_slower=True, time_budget=0)
    assert len(side_by_side.plan.streams) == 2
    assert bits(artifact) == bits(side_by_side)


@pytest.mark.skipif(library_version("onednn") is None, reason="no oneDNN")
def test_without_time_tvm_runs_what_it_usually_runs_faster() -> None:
    net = nets.Net()
    net.input("image", (1, 8, 12, 12))
    net.input("rows", (4, 32))
    net.conv("image", "conv", (8, 12), 3)  # 12 channels are not blocked.
    net.op("GlobalAveragePool", ["conv"], "mean")
    net.op("MatMul", ["rows", net.weight(32, 1)], "column")
    net.op("MatMul", ["rows", net.weight(32, 48)], "columns")
    model = net.model("conv", "mean", "column", "columns")
    artifact = tvm_interop.compile(model, latency_db=":memory:", time_budget=0)
    plan = artifact.plan
    libraries = {plan.values[op.outputs[0]].shape: op.library for op in plan.operators}
    assert libraries[(1, 12, 12, 12)] == libraries[(4, 48)] == "onednn"
    assert libraries[(1, 12, 1, 1)] is libraries[(4, 1)] is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_without_time_a_model_for_a_gpu_runs_sequentially() -> None:
    artifact = compiled(
        target="cuda", archs=["sm_90"], scheduler="nimble", providers=None, time_budget=0
    )
    assert len(artifact.plan.streams) == 1
    assert any("`nimble`" in text for text in artifact.manifest.not_tried)
    assert artifact.manifest.kernel_check is not None
    assert artifact.manifest.kernel_check.unchecked == "the kernels are for a GPU"


@pytest.mark.skipif(library_version("onednn") is None, reason="oneDNN is not here")
@pytest.mark.parametrize("seconds", [1, 6, 12])
def test_the_deadline_falls_while_kernels_are_measured(
    seconds: float, clock: Clock, jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def choice(**options: Any) -> tuple[tvm_interop.Artifact, int]:
        clock.s = 0
        jobs.clear()
        made = compiled(providers=None, scheduler="sequential", **options)
        return made, len(jobs)

    whole, needed = choice()
    assert whole.manifest.not_tried == ()
    cut, done = choice(time_budget=seconds)
    assert done <= math.floor(time_budget.CHOICE_SHARE * seconds) + 1 < needed + 1
    assert "measuring kernels on blocked tensors" in cut.manifest.not_tried
    given = [op.library for op in cut.plan.operators]
    assert "onednn" in given
    assert any(value.layout != "plain" for value in cut.plan.values), "a rule chose it"
    schedule = by_hand(None)
    clock.s = 0
    side_by_side = compiled(
        providers=None, schedule=schedule, keep_slower=True, time_budget=seconds
    )
    assert bits(cut) == bits(side_by_side)


@pytest.mark.skipif(library_version("onednn") is None, reason="oneDNN is not here")
def test_what_was_measured_in_time_decides(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the measurements, TVM's kernels are ten times faster than the library's kernels."""

    class Priced(GivenTimer):
        def _rounds(self, stages: Sequence[Any]) -> Any:
            clock.s += 1
            return super()._rounds(stages)

    def stage_timer(self: Any, program: Program, streams: int, threads: int) -> GivenTimer:
        return Priced(lambda op: 10.0 if program.operators[op].library is None else 100.0, streams)

    monkeypatch.setattr(LoweredForCpu, "stage_timer", stage_timer)
    # Make blocks of a blocked layout have 16 channels on any CPU. On CPUs without AVX-512 they have
    # 8 channels, and a rule would choose the kernels of most operators without measuring them.
    monkeypatch.setattr("tvm_interop.compiler.cpu.blocked_layout", lambda _: "blocked16")
    # Otherwise two of the convolutions would go to the library without a measurement.
    monkeypatch.setattr(Conv2d, "tvm_may_win_on_cpu", True)

    def libraries(seconds: float) -> tuple[int, tuple[str, ...]]:
        clock.s = 0
        made = compiled(providers=None, scheduler="sequential", time_budget=seconds)
        return sum(op.library is not None for op in made.plan.operators), made.manifest.not_tried

    by_rule, _ = libraries(0)
    assert libraries(1000) == (0, ())
    for seconds in itertools.count(20, 2):
        number, told = libraries(seconds)
        if number < by_rule:
            break
    assert number > 0
    assert any("measuring the kernels of" in text for text in told)


@pytest.mark.parametrize("scheduler", ["auto", "ios", "greedy", "learned ios", "learned greedy"])
def test_the_deadline_falls_in_the_search(
    scheduler: str, clock: Clock, jobs: list[int], sequential: tvm_interop.Artifact
) -> None:
    options: dict[str, Any] = {"scheduler": scheduler}
    if scheduler.startswith("learned"):
        pytest.importorskip("xgboost")
        options = {"scheduler": scheduler.split()[1], "latency": "learned"}
    whole = compiled(**options)
    assert whole.manifest.not_tried == ()
    needed = len(jobs)
    assert needed > 0
    ways = set()
    for seconds in (4**n for n in range(6)):
        clock.s = 0
        jobs.clear()
        cut = compiled(**options, time_budget=seconds)
        assert bits(cut) == bits(sequential)
        # The job that has begun may take one more second.
        assert clock.s <= time_budget.SCHEDULE_SHARE * seconds + 1
        if not cut.manifest.not_tried:
            break
        checked = cut.manifest.speed_check
        ways.add(checked is not None)
        if checked is None:
            assert cut.plan == sequential.plan
    else:
        raise AssertionError("no budget was enough")
    assert False in ways, "some budget must end before the speed of a schedule is checked"
    if scheduler in ("auto", "ios"):
        assert True in ways, "some budget must leave time to check the best schedule so far"


def test_the_deadline_falls_before_the_speed_check(
    clock: Clock, jobs: list[int], sequential: tvm_interop.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Compilation, "schedule", clock.takes(500, Compilation.schedule))
    for given in ({"scheduler": "greedy"}, {"schedule": by_hand(["tvm"])}):
        clock.s = 0
        cut = compiled(**given, time_budget=500)
        if "schedule" in given:
            assert cut.schedule.num_streams == 2
            continue
        assert cut.schedule.scheduler == "sequential"
        assert cut.manifest.speed_check is None
        assert NO_SPEED_CHECK in cut.manifest.not_tried
        assert bits(cut) == bits(sequential)
    clock.s = 0
    kept = compiled(scheduler="greedy", time_budget=500, keep_slower=True)
    assert kept.schedule.scheduler == "greedy"
    assert bits(kept) == bits(sequential)


def test_a_schedule_by_hand_needs_time_for_its_check(
    clock: Clock,
    sequential: tvm_interop.Artifact,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cut = compiled(schedule=by_hand(["tvm"]), time_budget=0)
    assert cut.schedule.scheduler == "sequential"
    assert NO_SPEED_CHECK in cut.manifest.not_tried
    assert bits(cut) == bits(sequential)
    (tmp_path / "mine.json").write_text(by_hand(None).to_json())
    onnx.save(nets.inception_like(), tmp_path / "net.onnx")
    given = ["--schedule", str(tmp_path / "mine.json"), "--streams", "2", "--time-budget", "0"]
    out = str(tmp_path / "net.tar")
    assert run_app(["compile", str(tmp_path / "net.onnx"), "-o", out, *given]) == 0
    assert "its speed was not checked in time" in capsys.readouterr().out


def test_rounds_of_the_speed_check_end_with_the_time(
    clock: Clock, jobs: list[int], sequential: tvm_interop.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(self: Any, schedules: Sequence[Schedule]) -> Any:
        while True:
            clock.s += 100
            yield [100.0, 100.0, *[99.5] * len(schedules[2:])]

    monkeypatch.setattr(Compilation, "measure", measure)
    cut = compiled(scheduler="nimble", time_budget=500)
    checked = cut.manifest.speed_check
    assert checked is not None
    assert checked.shipped == "sequential"
    assert checked.rounds == 4
    assert "more than 4 rounds of the speed check" in cut.manifest.not_tried
    assert bits(cut) == bits(sequential)


def test_the_deadline_falls_while_kernels_are_checked(
    clock: Clock, sequential: tvm_interop.Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_budget, "_PIECE", 2)
    whole = compiled(scheduler="sequential").manifest.kernel_check
    assert whole is not None
    assert whole.checked > 4
    checked_kernels._right.clear()
    find = clock.takes(1, checked_kernels.find_faults)
    monkeypatch.setattr(checked_kernels, "find_faults", find)
    cut = compiled(scheduler="sequential", time_budget=2)
    check = cut.manifest.kernel_check
    assert check is not None
    assert check.checked == 4
    assert check.unchecked is None
    assert f"checking {whole.checked - 4} kernels of TVM" in cut.manifest.not_tried
    assert bits(cut) == bits(sequential)
    # The verdicts on the first four kernels are kept, so the second compilation checks the next
    # four.
    clock.s = 0
    again = compiled(scheduler="sequential", time_budget=2).manifest.kernel_check
    assert again is not None
    assert again.checked == min(8, whole.checked)


def test_a_fault_that_is_found_is_mended_after_the_deadline(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_budget, "_PIECE", 1)
    find = checked_kernels.find_faults
    calls: list[str] = []

    def faulty(kernels: Sequence[Any], count: Any = None) -> Any:
        clock.s += 1
        found = find(kernels, count)
        # A kernel that differs from NumPy is compared again, with a plain build.
        is_again = len(calls) == 1 and not isinstance(kernels[0].reference, NumpyKernel)
        if not calls or is_again:
            found.faults[kernels[0].name] = "it is odd"
        calls.append(kernels[0].name)
        return found

    monkeypatch.setattr(checked_kernels, "find_faults", faulty)
    check = compiled(scheduler="sequential", time_budget=1).manifest.kernel_check
    assert check is not None
    assert check.plain == {calls[0]: "it is odd"}
    assert check.checked == 1
    assert set(calls) == {calls[0]}, "another kernel was checked"


@pytest.mark.skipif(library_version("onednn") is None, reason="oneDNN is not here")
@pytest.mark.usefixtures("jobs")
def test_the_deadline_falls_while_kernels_of_libraries_are_checked(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_budget, "_PIECE", 2)
    given: dict[str, Any] = {"scheduler": "sequential", "providers": ["onednn"]}
    whole = compiled(**given).manifest.kernel_check
    assert whole is not None
    assert whole.libraries > 2
    checked_libraries._right.clear()
    find = clock.takes(1000, checked_libraries.find_faults)
    monkeypatch.setattr(checked_libraries, "find_faults", find)
    cut = compiled(**given, time_budget=1000)
    check = cut.manifest.kernel_check
    assert check is not None
    assert check.libraries == 2
    assert f"checking {whole.libraries - 2} kernels of libraries" in cut.manifest.not_tried
    assert len(checked_libraries._right) == 2
    assert bits(cut) == bits(compiled(**given))


def test_enough_time_changes_nothing(clock: Clock, jobs: list[int]) -> None:
    unlimited, limited = compiled(), compiled(time_budget=10_000)
    assert limited.manifest == unlimited.manifest
    assert limited.schedule.to_json() == unlimited.schedule.to_json()
    assert b"not_tried" not in limited.manifest.to_json()


def test_what_was_cut_is_not_kept_but_what_was_kept_is_found(
    tmp_path: Path, clock: Clock, jobs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TVM_INTEROP_KEPT", raising=False)
    db = tmp_path / "latency.db"
    for seconds in (0, 3):
        clock.s = 0
        assert compiled(latency_db=db, time_budget=seconds).manifest.not_tried
    whole = compiled(latency_db=db)
    assert whole.schedule.num_streams == 2
    monkeypatch.setattr(Compilation, "schedule", forbidden)
    clock.s = 0
    found = compiled(latency_db=db, time_budget=3)
    assert found.schedule.to_json() == whole.schedule.to_json()
    assert compiled(latency_db=db, time_budget=0).schedule.scheduler == "sequential"


def test_each_shape_has_its_share(clock: Clock, jobs: list[int]) -> None:
    def made(seconds: float) -> tuple[tuple[str, ...], ...]:
        clock.s = 0
        artifact = tvm_interop.compile(
            nets.branches(batch="n"),
            batch_sizes=[1, 2],
            scheduler="greedy",
            streams=2,
            providers=["tvm"],
            latency_db=":memory:",
            time_budget=seconds,
        )
        return tuple(each.manifest.not_tried for each in (artifact, *artifact.others))

    assert made(10_000) == ((), ())
    assert all(made(0))
    assert all(made(1)), "half a second must be too little for each of the shapes"
    assert clock.s >= 1


def test_a_latency_model_answers_what_it_knows_after_the_deadline(clock: Clock) -> None:
    options = CompileOptions(streams=2, latency_db=":memory:", providers=["tvm"])
    compilation = Compilation(nets.inception_like(), options)
    ops = range(compilation.graph.num_ops)
    hashes = kernel_hashes(compilation.program.kernels)
    timer = GivenTimer(lambda op: 10.0, 2)
    model = MeasuredLatency(compilation.program, hashes, timer, budget=TimeBudget(5))
    known = model.stages([[[0]], [[1]]])
    clock.s = 6
    np.testing.assert_array_equal(model.stages([[[0]], [[1]]]), known)
    with pytest.raises(OutOfTimeError, match="`time_budget`"):
        model.stages([[[op]] for op in ops])
    assert model.measure_again([[[0]], [[1]]]) == 0
    np.testing.assert_array_equal(model.stages([[[0]], [[1]]]), known)


def test_parts_of_a_budget_share_a_list_and_its_models_do_not(clock: Clock) -> None:
    whole = TimeBudget(8)
    part, model = whole.share(0.5), whole.for_one_of(2)
    part.leave_out("this")
    part.leave_out("this")
    model.leave_out("that")
    assert (whole.not_tried, model.not_tried) == (["this"], ["that"])
    assert (part.left_s(), model.left_s()) == (4, 4)
    clock.s = 5
    assert part.is_spent
    assert not whole.is_spent
    assert not TimeBudget().is_limited
    assert list(TimeBudget().pieces(range(20))) == [range(20)]
    assert list(part.pieces(range(20))) == []
