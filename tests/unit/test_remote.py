"""Tests artifacts on a server of TVM's RPC, with a tracker and a server on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.nets import inception_like
from tests.rpc import KEY, Farm, free_port, kill, need_rpc, running_farm
from tvm_interop import (
    Artifact,
    ArtifactError,
    DeviceError,
    ExecutionError,
    GraphModule,
    InputError,
)
from tvm_interop.cli.app import run_app
from tvm_interop.execution.rpc_server import ServerAddress
from tvm_interop.machine.cpu_features import missing_features, parse_cpuinfo
from tvm_interop.tvmc import main as tvmc


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    yield from running_farm(servers=1)


@pytest.fixture(scope="module")
def tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with operators on two streams, reshapes and an arena."""
    path = tmp_path_factory.mktemp("remote") / "net.tar"
    artifact = tvm_interop.compile(
        inception_like(), scheduler="greedy", out=path, streams=2, threads=1, keep_slower=True,
        providers=["tvm"], latency_db=":memory:",
    )  # fmt: skip
    assert len(artifact.plan.streams) == 2
    return path


@pytest.fixture
def artifact(tar: Path) -> Artifact:
    return tvm_interop.load(tar)


def random_inputs(module: GraphModule) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes, dtypes = module.get_input_info()
    return {name: rng.standard_normal(shapes[name]).astype(dtypes[name]) for name in shapes}


def with_library(artifact: Artifact) -> Artifact:
    """Return the artifact as if a kernel library ran an operator of its plan."""
    first, *others = artifact.plan.operators
    changed = (msgspec.structs.replace(first, library="onednn"), *others)
    artifact.fallback = artifact.plan
    artifact.plan = msgspec.structs.replace(artifact.plan, operators=changed)
    return artifact


@pytest.mark.slow
def test_the_bits_are_those_of_a_run_here(farm: Farm, artifact: Artifact) -> None:
    farm.wait_for(1)
    here, there = GraphModule(artifact), GraphModule(artifact, farm.address)
    for seed in range(2):
        inputs = {name: array + seed for name, array in random_inputs(here).items()}
        here.run(**inputs)
        there.run(**inputs)
        for i in range(here.get_num_outputs()):
            np.testing.assert_array_equal(there.get_output(i).numpy(), here.get_output(i).numpy())
    assert there.benchmark(repeat=2, number=3).median > 0
    assert there.benchmark(repeat=2, number=3, end_to_end=True).median > 0
    rows = there.profile()
    assert {row.name for row in rows} == {op.name for op in artifact.plan.operators}
    assert {row.stream for row in rows} == {0, 1}
    assert all(row.end_us > row.start_us >= 0 for row in rows)
    with pytest.raises(DeviceError, match="set_input"):
        there.set_input_zero_copy(0, next(iter(inputs.values())))
    with pytest.raises(InputError, match="servers"):
        tvm_interop.measure_interleaved({"here": here, "there": there}, repeats=1)
    del there
    farm.wait_for(1)


@pytest.mark.slow
def test_on_the_command_line(
    farm: Farm, tar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    farm.wait_for(1)
    where = ["--rpc-tracker", farm.tracker_at, "--rpc-key", KEY]
    assert run_app(["run", str(tar), "-o", str(tmp_path / "here.npz")]) == 0
    assert run_app([
        "run", str(tar), *where, "-o", str(tmp_path / "there.npz"), "--print-time", "--json",
        "--profile", str(tmp_path / "trace.json"),
    ]) == 0  # fmt: skip
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["time_ms"]["median"] > 0
    assert json.loads((tmp_path / "trace.json").read_text())
    with np.load(tmp_path / "here.npz") as here, np.load(tmp_path / "there.npz") as there:
        assert here.files == there.files
        for name in here.files:
            np.testing.assert_array_equal(there[name], here[name])
    farm.wait_for(1)
    assert tvmc(["run", *where, "--device", "cpu", "--print-time", str(tar)]) == 0
    assert "time in ms" in capsys.readouterr().out
    farm.wait_for(1)


@pytest.mark.slow
def test_tvms_kernels_run_where_a_library_is_wanted(
    farm: Farm, artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    farm.wait_for(1)
    module = GraphModule(with_library(artifact), farm.address)
    assert "`onednn`" in caplog.text
    assert module.plan is artifact.fallback
    module.run(**random_inputs(module))
    assert np.isfinite(module.get_output(0).numpy()).all()
    del module
    farm.wait_for(1)


@pytest.mark.slow
def test_a_server_that_lacks_instructions(farm: Farm, artifact: Artifact) -> None:
    farm.wait_for(1)
    artifact.manifest = msgspec.structs.replace(artifact.manifest, cpu_features=("avx9000",))
    with pytest.raises(ArtifactError, match=r"the server lacks: avx9000.*mattr"):
        GraphModule(artifact, farm.address)
    farm.wait_for(1)


@pytest.mark.slow
def test_a_server_without_our_runtime(farm: Farm, artifact: Artifact) -> None:
    bare = farm.start_server(key="bare", runtime=False)
    try:
        farm.wait_for(1, key="bare")
        address = ServerAddress(farm.address.host, farm.address.port, "bare")
        with pytest.raises(DeviceError, match="--load-library"):
            GraphModule(artifact, address)
    finally:
        kill(bare)


@pytest.mark.slow
def test_a_server_that_dies(farm: Farm, artifact: Artifact) -> None:
    doomed = farm.start_server(key="doomed")
    farm.wait_for(1, key="doomed")
    module = GraphModule(artifact, ServerAddress(farm.address.host, farm.address.port, "doomed"))
    inputs = random_inputs(module)
    module.run(**inputs)
    kill(doomed)
    for attempt in (module.run, lambda: module.set_input(**inputs), lambda: module.get_output(0)):
        with pytest.raises(ExecutionError, match="the server"):
            attempt()


def test_a_library_without_a_fallback_is_refused(artifact: Artifact) -> None:
    artifact = with_library(artifact)
    artifact.fallback = None
    with pytest.raises(ArtifactError, match=r"`onednn`.*--providers tvm"):
        GraphModule(artifact, ServerAddress("127.0.0.1", 1, KEY))


def test_a_model_for_a_gpu_is_refused(artifact: Artifact) -> None:
    streams = tuple(msgspec.structs.replace(s, device="cuda:0") for s in artifact.plan.streams)
    artifact.plan = msgspec.structs.replace(artifact.plan, streams=streams)
    with pytest.raises(DeviceError, match="`llvm`"):
        GraphModule(artifact, ServerAddress("127.0.0.1", 1, KEY))


def test_wrong_requests(tar: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need_rpc()
    for words, said in (
        (["--rpc-key", KEY], "--rpc-tracker"),
        (["--rpc-tracker", "nowhere", "--rpc-key", KEY], "HOST:PORT"),
        (["--rpc-tracker", f"127.0.0.1:{free_port()}", "--rpc-key", KEY], "no tracker answers"),
    ):
        assert run_app(["run", str(tar), *words]) == 2
        assert said in capsys.readouterr().err


def test_features_of_another_cpu() -> None:
    theirs = parse_cpuinfo(["flags\t\t: fpu pni avx2 fma\n"])
    assert missing_features(("avx2", "avx512f"), theirs) == ["avx512f"]
    assert missing_features(("avx512f",), parse_cpuinfo([""])) == []
