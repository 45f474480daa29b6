"""Runs the tests that all executors must pass, on this CPU and on a server."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chains import chain_kernels
from tests.conformance import InstanceSuite, crossing_chains, crossing_plan
from tests.rpc import Farm, running_farm
from tvm_interop import Artifact, Schedule, load
from tvm_interop._native.kernels import load_kernels_from
from tvm_interop._version import __version__
from tvm_interop.artifact.manifest import Manifest
from tvm_interop.execution.cpu import Instance
from tvm_interop.execution.instance import PlanInstance
from tvm_interop.execution.native import NativeInstance
from tvm_interop.execution.rpc import RemoteInstance


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("chains")
    chain_kernels(folder)
    plan, program = crossing_plan("cpu:0"), crossing_chains()
    names = tuple(op.name for op in program.operators)
    return Artifact(
        plan=plan,
        schedule=Schedule("by hand", names, streams=[list(range(len(names)))]),
        kernels=(folder / "chain.so").read_bytes(),
        weights=program.weights,
        manifest=Manifest(__version__, "", "llvm", "by hand", ""),
    )


class TestCpu(InstanceSuite):
    reads_in_place = True

    @pytest.fixture
    def instance(self, artifact: Artifact) -> PlanInstance:
        assert artifact.kernels is not None
        return Instance(artifact.plan, load_kernels_from(artifact.kernels), artifact.weights)

    other = instance


class TestNative(InstanceSuite):
    reads_in_place = True
    changes_weights = False

    @pytest.fixture
    def instance(self, artifact: Artifact, tmp_path: Path) -> PlanInstance:
        artifact.save(tmp_path / "chains.tar")
        loaded = load(tmp_path / "chains.tar")
        assert loaded.native is not None
        return NativeInstance(loaded)

    other = instance


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    yield from running_farm(servers=2)


@pytest.mark.slow
class TestServer(InstanceSuite):
    @pytest.fixture(autouse=True)
    def both_servers_free(self, farm: Farm) -> None:
        gc.collect()  # Frees the servers of the previous test.
        farm.wait_for(2)

    @pytest.fixture
    def instance(self, artifact: Artifact, farm: Farm) -> PlanInstance:
        return RemoteInstance(artifact, farm.address)

    other = instance
