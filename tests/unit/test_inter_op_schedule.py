"""Tests the pass `InterOpSchedule` with `Sequential`, `PassContext` and instruments."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax

import tvm_interop
from tests.nets import inception_like
from tvm_interop import GraphModule, LatencyTable, Schedule, ScheduleError
from tvm_interop.compiler.annotate import annotated_schedule
from tvm_interop.frontend import load_model
from tvm_interop.transform import InterOpSchedule

DATA = np.random.default_rng(0).standard_normal((1, 8, 14, 14)).astype("float32")


def stock_result(module: tvm.IRModule) -> np.ndarray:
    machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(DATA)).numpy()


@pytest.fixture(scope="module")
def imported() -> tvm.IRModule:
    return load_model(inception_like())


@pytest.fixture(scope="module")
def scheduled(imported: tvm.IRModule) -> tvm.IRModule:
    return InterOpSchedule("ios", streams=2)(imported)


def test_it_hangs_where_tvms_passes_do() -> None:
    assert relax.transform.InterOpSchedule is InterOpSchedule
    assert isinstance(InterOpSchedule(), tvm.transform.Pass)
    assert tvm.transform.PassContext.current() is not None


def test_it_annotates(scheduled: tvm.IRModule) -> None:
    schedule = annotated_schedule(scheduled)
    assert isinstance(schedule, Schedule)
    assert schedule.scheduler == "ios"
    assert schedule.num_streams == 2
    assert "b5/Conv" in schedule.op_names


def test_stock_tvm_runs_the_result_with_the_same_numbers(
    imported: tvm.IRModule, scheduled: tvm.IRModule
) -> None:
    np.testing.assert_allclose(stock_result(scheduled), stock_result(imported), rtol=1e-5)


def test_compile_takes_the_annotated_module(scheduled: tvm.IRModule) -> None:
    artifact = tvm_interop.compile(scheduled, scheduler="sequential", keep_slower=True)
    assert artifact.schedule == annotated_schedule(scheduled)
    module = GraphModule(artifact)
    module.run(x=DATA)
    np.testing.assert_allclose(module.get_output(0).numpy(), stock_result(scheduled), rtol=1e-5)


def test_the_annotation_survives_saving(scheduled: tvm.IRModule) -> None:
    again = tvm.ir.load_json(tvm.ir.save_json(scheduled))
    assert annotated_schedule(again) == annotated_schedule(scheduled)


def test_in_a_pipeline_with_instruments_and_a_target(imported: tvm.IRModule) -> None:
    seen: list[str] = []

    @tvm.instrument.pass_instrument
    class Names:
        def run_after_pass(self, module: tvm.IRModule, info: object) -> None:
            seen.append(info.name)  # type: ignore[attr-defined]

    pipeline = tvm.transform.Sequential(
        [relax.transform.FoldConstant(), InterOpSchedule("greedy", streams=2)]
    )
    with tvm.target.Target("llvm"), tvm.transform.PassContext(instruments=[Names()]):
        module = pipeline(imported)
    assert "InterOpSchedule" in seen
    assert annotated_schedule(module) is not None


def test_a_latency_model_of_ones_own(imported: tvm.IRModule) -> None:
    lowered = InterOpSchedule("sequential", streams=3)(imported)
    operators = len(annotated_schedule(lowered).op_names)
    table = LatencyTable([10.0] * operators)
    schedule = annotated_schedule(InterOpSchedule("lios", latency=table, streams=3)(imported))
    assert schedule.num_streams == 3
    assert schedule.makespan % 10 == 0


def test_it_can_run_twice(scheduled: tvm.IRModule) -> None:
    again = InterOpSchedule("lios", streams=2)(scheduled)
    assert annotated_schedule(again).scheduler == "lios"
    assert annotated_schedule(again).op_names == annotated_schedule(scheduled).op_names


def test_bad_options_are_named(imported: tvm.IRModule) -> None:
    with pytest.raises(ScheduleError, match="`oops`"):
        InterOpSchedule("oops")(imported)
    with pytest.raises(ScheduleError, match="`colour`"):
        InterOpSchedule("ios", colour="red")(imported)


@pytest.mark.parametrize(
    "imports",
    [
        "import tvm_interop, tvm",
        "import tvm.relax, tvm_interop",
        "import tvm_interop.program.graph",
    ],
)
def test_the_pass_is_there_whichever_is_imported_first(imports: str) -> None:
    script = f"{imports}; import tvm; print(tvm.relax.transform.InterOpSchedule.__module__)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ran.stdout == "tvm_interop.compiler.inter_op_schedule\n", ran.stderr
