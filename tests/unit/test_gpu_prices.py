"""Tests schedules for GPUs that this machine lacks, and where their latencies come from."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

import tvm_interop
from tests.nets import inception_like
from tvm_interop import DeviceError, InputError
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.errors import LatencyError
from tvm_interop.latency import Link
from tvm_interop.latency.measurement import Record, Setting, stage_key
from tvm_interop.measure.store import LatencyStore
from tvm_interop.measure.workloads import workload_hash

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
FAST = Link(bytes_a_us=1e9)
"""A link so fast that two GPUs are worthwhile even for this small network, if each GPU runs one
operator at a time.
"""


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return Compilation(inception_like(), CompileOptions("cuda", archs=["sm_86"]))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "latency.db"


def fill(path: Path, compilation: Compilation, device: str, us: float = 50.0) -> None:
    """Fill the database with a latency of each operator, as if measured on `device`."""
    setting = Setting(device=device, driver="", cores=0, tvm_version="0.27", streams=4, threads=1)
    hashes = {
        workload_hash(op, compilation._lowered.kernels.hashes)
        for op in compilation.program.operators
    }
    records = []
    for digest in hashes:
        key = stage_key(setting, False, [[digest], [], [], []])
        records.append(
            Record(
                key=key,
                latency_us=us,
                samples=9,
                measured_at="",
                groups=((digest,),),
                setting=setting,
            )
        )
    LatencyStore(path).put(records)


def with_options(compilation: Compilation, **options: object) -> Compilation:
    """Compile the model of these tests with other options, such as a database or a link."""
    made = CompileOptions("cuda", archs=["sm_86"], **options)  # type: ignore[arg-type]
    return Compilation(inception_like(), made)


def test_prices_by_a_data_sheet(compilation: Compilation) -> None:
    made = compilation.schedule("multi-gpu", "a40", gpus=2)
    assert made.stats["prices"].startswith("the data sheet of `a40`, not measured")
    assert "56.25 GB/s" in made.stats["prices"]
    # Copies take longer than these small operators, so one GPU does all the work.
    assert len(set(made.devices)) <= 1


def test_a_link_of_ones_own(compilation: Compilation) -> None:
    fast = with_options(compilation, link=FAST)
    made = fast.schedule("multi-gpu", "a40", gpus=2, intra="none")
    assert set(made.devices) == {0, 1}
    plan = fast.plan(made)
    assert plan.devices == ("cuda:0", "cuda:1")


def test_prices_from_the_database(compilation: Compilation, store: Path) -> None:
    fill(store, compilation, "NVIDIA A40 sm_86")
    known = with_options(compilation, latency_db=store, link=FAST)
    made = known.schedule("heft", "database", gpus=2)
    assert "measured on `NVIDIA A40 sm_86`" in made.stats["prices"]
    assert made.makespan is not None
    assert made.makespan % 50 < 1  # Each operator takes 50 us, and copies take almost no time.


def test_without_a_gpu_the_database_is_asked_unbidden(
    compilation: Compilation, store: Path
) -> None:
    known = with_options(compilation, latency_db=store)
    with pytest.raises(
        DeviceError, match=r"latencies of 0 of the model's .* a100, a40, h100.* v100"
    ):
        known.schedule("hios-lp", gpus=2)
    fill(store, compilation, "NVIDIA A40 sm_86")
    made = known.schedule("hios-lp", gpus=2)
    assert "from" in made.stats["prices"]
    # The database has no bandwidth of links. The GPU is called `NVIDIA A40`, so the bandwidth comes
    # from the device description `a40`.
    assert "56.25 GB/s" in made.stats["prices"]


def test_several_gpus_in_the_database(compilation: Compilation, store: Path) -> None:
    fill(store, compilation, "NVIDIA A40 sm_86")
    fill(store, compilation, "NVIDIA Nobody sm_86", us=20.0)
    known = with_options(compilation, latency_db=store)
    with pytest.raises(InputError, match="`NVIDIA A40 sm_86`, `NVIDIA Nobody sm_86`; say which"):
        known.schedule("heft", "database", gpus=2)
    assert known.schedule("heft", "database:a40", gpus=2).makespan
    with pytest.raises(LatencyError, match="the link between two `NVIDIA Nob"):
        known.schedule("heft", "database:nobody", gpus=2)


def test_a_device_that_nobody_described(compilation: Compilation) -> None:
    with pytest.raises(InputError, match="no device description `z80`; there are a100, a40"):
        compilation.schedule("heft", "z80", gpus=2)


@needs_nvcc
def test_an_artifact_for_two_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(inception_like(), tmp_path / "net.onnx")
    out = str(tmp_path / "model.tar")
    arguments = ["compile", str(tmp_path / "net.onnx"), "--target", "cuda", "--gpus", "2"]
    arguments += ["--scheduler", "multi-gpu", "--latency", "a40", "-o", out, "--arch", "sm_90"]
    arguments += ["--link-gb-s", "100000", "--link-us", "0", "--intra", "none"]
    assert run_app(arguments) == 0
    said = capsys.readouterr().out
    assert "on cuda:0, cuda:1, with" in said
    assert "latencies: the data sheet of `a40`, not measured" in said
    assert "not checked against sequential execution" in said
    artifact = tvm_interop.load(out)
    assert artifact.plan.devices == ("cuda:0", "cuda:1")
    assert len(artifact.schedule.gpu_stages) == 2
    assert run_app(["show", out, "--no-run", "-o", str(tmp_path / "page.html")]) == 0
    assert "streams of cuda:0, cuda:1" in capsys.readouterr().out
    assert run_app([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["devices"] == ["cuda:0", "cuda:1"]
    assert facts["copies"] == sum(op.is_copy for op in artifact.plan.operators) > 0


def test_options_of_no_use_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (["--latency", "z80"], "--latency is `z80`"),
        (["--link-us", "3"], "--link-us goes with --link-gb-s"),
        (["--link-gb-s", "0"], "give a number above 0"),
    ):
        assert run_app(["compile", "squeezenet", "--target", "cuda", *arguments]) != 0
        assert says in capsys.readouterr().err
