"""Tests the runner of a visit to a GPU (a list of steps) with small steps that need no GPU."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_steps, gpu_visit
from benchmarks.gpu_bundle import NETWORKS, refuse_other_pythons
from benchmarks.gpu_bundle_models import CASES, CPU_NETWORKS, IN_FLOAT16
from benchmarks.gpu_visit import Step, Visit, steps_of
from benchmarks.step_facts import Facts
from tvm_interop import TVMInteropError

REPOSITORY = Path(__file__).resolve().parents[2]
SECONDS_OF_A_CALL = 570
"""How long a command may run on the GPU's machine: 10 minutes, less the start of the machine."""


def step(name: str, text: str, limit_s: int = 30, **environment: str) -> Step:
    """A step that runs Python code. The code reports its findings through the object `facts`."""
    head = "import os, sys, time; from pathlib import Path; from benchmarks.step_facts import Facts"
    return Step(
        name, 1, limit_s, ("-c", f"{head}\nfacts = Facts(Path('{{out}}'))\n{text}"), environment
    )


FINE = step("fine", "facts.say(answer=42)")
LACKING = step("lacking", "sys.exit(facts.exit_code(missing=['no nvcc']))")
BROKEN = step("broken", "facts.tell(before=1); raise RuntimeError('the GPU is gone')")
WRONG = step("wrong", "sys.exit(facts.exit_code(missing=['no ncu'], wrong=['numbers']))")
ENDLESS = step("endless", "facts.tell(before=2); time.sleep(600)", limit_s=1)


@pytest.fixture
def visit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Visit:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    return Visit(tmp_path, tmp_path / "results", tmp_path / "copy")


def kept(folder: Path) -> dict[str, Any]:
    """The state of each step according to `visit.json` in `folder`."""
    steps: dict[str, Any] = json.loads((folder / "visit.json").read_text())["steps"]
    return steps


def test_a_step_that_ends_badly_costs_no_other_step(visit: Visit, tmp_path: Path) -> None:
    steps = [ENDLESS, BROKEN, WRONG, LACKING, FINE]
    for each in steps:
        visit.run(each, each.limit_s)
    found = kept(tmp_path / "results")
    assert {name: record["state"] for name, record in found.items()} == {
        "endless": "killed",
        "broken": "failed",
        "wrong": "failed",
        "lacking": "missing",
        "fine": "done",
    }
    # Facts that a step found before it ended are kept.
    assert found["endless"]["found"] == {"before": 2}
    assert found["broken"]["found"] == {"before": 1}
    assert found["fine"]["found"] == {"answer": 42}
    assert found["endless"]["why"] == "it took over 1 s"
    assert found["broken"]["why"] == "exit code 1; visit.log has its output"
    assert found["wrong"]["why"] == "no ncu; numbers"
    assert found["lacking"]["why"] == "no nvcc"
    assert "the GPU is gone" in (tmp_path / "results" / "visit.log").read_text()
    assert kept(tmp_path / "copy") == found
    assert gpu_visit.report(visit, steps) == 1
    assert gpu_visit.report(visit, [LACKING, FINE]) == 0


def test_results_are_kept_after_each_step(visit: Visit, tmp_path: Path) -> None:
    visit.run(FINE, 30)
    before = kept(tmp_path / "copy")
    assert before["fine"]["state"] == "done"
    looking = f"facts.tell(seen=Path('{tmp_path}/copy/visit.json').read_text().count('running'))"
    visit.run(step("looking", looking), 30)
    assert kept(tmp_path / "copy")["looking"]["found"] == {"seen": 1}


def test_a_step_has_variables_of_its_own(visit: Visit, tmp_path: Path) -> None:
    text = "facts.tell(got=os.environ.get('CUDA_DEVICE_MAX_CONNECTIONS'))"
    visit.run(step("32", text, CUDA_DEVICE_MAX_CONNECTIONS="32"), 30)
    visit.run(step("none", text), 30)
    found = kept(tmp_path / "results")
    assert [found[name]["found"]["got"] for name in ("32", "none")] == ["32", None]


def test_a_step_leaves_no_processes_behind(visit: Visit, tmp_path: Path) -> None:
    left = "import subprocess; p = subprocess.Popen(['sleep', '600']); facts.tell(pid=p.pid)"
    for each in (step("done", left), step("killed", f"{left}; time.sleep(600)", limit_s=2)):
        visit.run(each, each.limit_s)
        assert is_gone(kept(tmp_path / "results")[each.name]["found"]["pid"])


def test_files_stay_small(visit: Visit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_visit, "MOST_FACTS_BYTES", 1000)
    monkeypatch.setattr(gpu_visit, "MOST_LOG_BYTES", 3000)
    visit.run(step("many", "facts.tell(many='x' * 2000)\nfor i in range(999): print(i)"), 30)
    assert "more than 1000" in kept(tmp_path / "results")["many"]["found"]["left out"]
    assert (tmp_path / "results" / "visit.log").stat().st_size < 3100
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert len(list((tmp_path / "copy").iterdir())) == 2


def is_gone(pid: int) -> bool:
    """Whether a process ends within a few seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """A function that starts a visit of three steps. The second step sleeps when it first runs."""
    sleeping = "facts.tell(pid=os.getpid())\nif not Path('go').exists(): time.sleep(600)"
    steps = [FINE, step("middle", sleeping, limit_s=100), step("last", "facts.tell(last=1)")]
    script = (
        "from benchmarks import gpu_visit\nfrom benchmarks.gpu_visit import Step\n"
        f"gpu_visit.steps_of = lambda bundle: {steps!r}\n"
        "raise SystemExit(gpu_visit.main())"
    )

    def start(*options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script, "--bundle", str(tmp_path), *options],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )

    return start


def stop_in_the_middle(tmp_path: Path, started: subprocess.Popen[str], how: int) -> int:
    """End a visit while its second step runs; return the step's process."""
    facts = tmp_path / "results" / "step.json"
    while not (facts.exists() and "pid" in facts.read_text()):
        assert started.poll() is None
        time.sleep(0.05)
    pid = int(json.loads(facts.read_text())["pid"])
    started.send_signal(how)
    started.communicate()
    return pid


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_visit_that_was_stopped_goes_on(
    program: Callable[..., subprocess.Popen[str]], tmp_path: Path, how: int
) -> None:
    pid = stop_in_the_middle(tmp_path, program(), how)
    assert is_gone(pid)  # A step that goes on running would keep the GPU busy.
    assert kept(tmp_path / "results")["middle"]["state"] == "running"
    again = program()
    printed, _ = again.communicate()
    assert again.returncode == 1
    assert "== fine: done before" in printed
    assert "middle: an earlier visit ended in the middle of this step" in printed
    found = kept(tmp_path / "results")
    assert [found[name]["state"] for name in ("fine", "middle", "last")] == [
        "done",
        "stopped",
        "done",
    ]
    (tmp_path / "go").touch()
    only = program("--only", "middle")
    only.communicate()
    assert only.returncode == 0
    assert kept(tmp_path / "results")["middle"]["state"] == "done"
    last = program()
    assert "3 steps: 3 done" in last.communicate()[0]
    assert last.returncode == 0


def test_steps_that_the_minutes_do_not_reach_run_later(
    program: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    short = program("--minutes", "0")
    assert "fine: not begun. out of time" in short.communicate()[0]
    assert short.returncode == 1
    long = program("--minutes", "5")
    assert "3 steps: 3 done" in long.communicate()[0]


def test_unknown_steps_are_refused(program: Callable[..., subprocess.Popen[str]]) -> None:
    assert program("--only", "tiem").wait() == 1
    listed = program("--list")
    assert "100 s  middle" in listed.communicate()[0]


def test_each_call_fits_into_ten_minutes(tmp_path: Path) -> None:
    cases = [*CASES, *(f"{name}_float16" for name in IN_FLOAT16), "two_attentions"]
    for part, names in (("networks", NETWORKS), ("cases", cases), ("cpu", CPU_NETWORKS)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "order.txt").write_text("\n".join(names))
    seconds: dict[int, int] = {}
    for each in steps_of(tmp_path):
        seconds[each.call] = seconds.get(each.call, 0) + each.limit_s
    assert set(seconds) == {1, 2, 3, 4, 5}
    assert max(seconds.values()) <= SECONDS_OF_A_CALL
    names_of_steps = [each.name for each in steps_of(tmp_path)]
    assert len(set(names_of_steps)) == len(names_of_steps)
    assert {f"time {name}" for name in NETWORKS} <= set(names_of_steps)


def test_tools_that_are_missing_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_steps, "cuda_tool", lambda name: None)
    out = tmp_path / "facts.json"
    for name, thing in (("probes", "nvcc"), ("sanitizer", "compute-sanitizer")):
        assert gpu_steps.STEPS[name](tmp_path, Facts(out)) == 77
        assert json.loads(out.read_text())["missing"][0].startswith(f"{thing} is not installed")
    for name, thing in (("ncu", "ncu"), ("sanitizer", "compute-sanitizer")):
        assert gpu_steps.STEPS_OF_NETWORKS[name](tmp_path, Facts(out), "squeezenet") == 77
        assert json.loads(out.read_text())["missing"][0].startswith(f"{thing} is not installed")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["ncu"], "needs a network"), (["probes", "--network", "a"], "looks at no network")],
)
def test_steps_of_networks_are_told_apart(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = [*arguments, "--bundle", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["gpu_steps", *given])
    with pytest.raises(SystemExit):
        gpu_steps.main()
    assert said in capsys.readouterr().err


def test_what_is_for_failures_runs_only_after_them(visit: Visit, tmp_path: Path) -> None:
    looking = replace(FINE, name="looking", after_failure_of=("wrong", "other"))
    assert not visit.is_needed(looking)
    visit.leave_out(looking)
    assert kept(tmp_path / "results")["looking"]["state"] == "not needed"
    assert gpu_visit.report(visit, [looking]) == 0
    visit.run(LACKING, 30)
    assert not visit.is_needed(replace(looking, after_failure_of=("lacking",)))
    visit.run(WRONG, 30)
    assert visit.is_needed(looking)
    visit.run(looking, 30)
    assert kept(tmp_path / "results")["looking"]["state"] == "done"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
def test_the_probes_compile(tmp_path: Path) -> None:
    source = REPOSITORY / "benchmarks" / "gpu_probes.cu"
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-Xcompiler=-Wall,-Wextra,-Werror", "-o"]
    subprocess.run([*command, str(tmp_path / "probes"), str(source)], check=True)


def test_modules_for_another_python_are_refused(tmp_path: Path) -> None:
    for name in ("a.abi3.so", "libb.so", "c.cpython-312-x86_64-linux-gnu.so"):
        (tmp_path / name).touch()
    refuse_other_pythons(tmp_path, "3.12")
    (tmp_path / "d.cpython-311-x86_64-linux-gnu.so").touch()
    with pytest.raises(TVMInteropError, match=r"`d\.cpython-311.* is not for Python 3\.12"):
        refuse_other_pythons(tmp_path, "3.12")
