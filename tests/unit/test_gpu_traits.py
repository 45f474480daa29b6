"""Tests the demands of operators on a GPU's multiprocessors, from kernels to the command line."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tvm_interop
from tests.library_cases import conv2d, matmul
from tests.nets import branches, chain, inception_like
from tvm_interop import ArtifactError, DeviceError
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.artifact.gpu_demand import gpu_demands
from tvm_interop.artifact.manifest import check_manifest
from tvm_interop.cli.app import run_app
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.explaining.operator import explain_operator, operator_text
from tvm_interop.machine.gpu_traits import assumed_demand, demands_arch, gpu_traits, launches_of
from tvm_interop.program.kernel_demand import GpuKernel, KernelDemand
from tvm_interop.program.library_op import LibraryOp, library_op
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.viz.record import planned

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
ARCHS = ("sm_80", "sm_90")


def conv(image: int, channels: tuple[int, int], **fields: Any) -> LibraryOp:
    read, made = channels
    weight = (made, read // fields.get("groups", 1), 3, 3)
    return conv2d((1, read, image, image), weight, (1, made, image, image), **fields)


def test_the_sizes_of_products() -> None:
    assert conv(14, (64, 96)).product_sizes == (1, 196, 96)
    assert conv(14, (64, 96), groups=32).product_sizes == (32, 196, 3)
    assert matmul((2, 5, 30, 40), (40, 70)).product_sizes == (1, 300, 70)
    assert matmul((2, 5, 30, 40), (2, 5, 40, 70)).product_sizes == (10, 30, 70)


def test_a_library_is_assumed_to_take_the_default_tile_of_cutlass() -> None:
    # The result has 196 pixels and 200 channels, in tiles of 128 x 128. Shared memory holds tiles
    # of both factors, 128 + 128 rows of 8 numbers, for each of two pipeline stages.
    asked = assumed_demand(conv(14, (64, 200)), "sm_90")
    assert asked == KernelDemand("conv2d", 4, 256, 128, 2 * 256 * 8 * 4, assumed=True)
    half = conv(14, (64, 200), dtype="float16")
    # On tensor cores, tiles have 128 x 256 numbers. Shared memory holds 128 + 256 rows of 64
    # numbers for each of three pipeline stages, if they fit.
    assert assumed_demand(half, "sm_90").static_shared_bytes == 3 * 384 * 64 * 2
    assert assumed_demand(half, "sm_90").blocks == 2
    assert assumed_demand(half, "sm_86").static_shared_bytes == 2 * 384 * 32 * 2
    assert assumed_demand(half, "sm_75").static_shared_bytes == 2 * 384 * 32 * 2
    with_tf32 = conv(14, (64, 200)).with_tf32()
    assert assumed_demand(with_tf32, "sm_80") == assumed_demand(half, "sm_80")


def test_kinds_without_an_assumed_kernel_are_named() -> None:
    softmax = library_op(op="softmax", shapes=((4, 8), (4, 8)), layouts=("plain",) * 2)
    with pytest.raises(DeviceError, match="which resources a library's kernel for `softmax`"):
        assumed_demand(softmax, "sm_80")


def two_operators(**changes: object) -> Program:
    values = [Value(name, (64, 64), "float32") for name in "xyz"]
    first = Operator("first", "k", (0,), (1,), kernel_flops=7)
    second = Operator("second", "view", (1,), (2,), **changes)  # type: ignore[arg-type]
    return Program(values, [first, second], (0,), (2,))


KERNELS = {
    "k": GpuKernel(
        7,
        {
            "sm_80": (KernelDemand("k0", 4, 64, 16), KernelDemand("k1", 4, 1024, 16)),
            "sm_90": (KernelDemand("k0", 4, 64, 16),),
        },
    )
}


def test_the_demand_is_the_largest_share_of_all_launches() -> None:
    first, second = gpu_traits(two_operators(), KERNELS, "sm_80")
    assert (first.demand, second.demand) == (0.5, 0.0)
    assert [kernel.function for kernel in first.kernels] == ["k0", "k1"]
    assert gpu_traits(two_operators(), KERNELS, "sm_90")[0].demand == 64 / 2048


def test_flops_come_from_the_kernel_if_the_operator_has_none() -> None:
    program = two_operators()
    program.operators[0] = dataclasses.replace(program.operators[0], kernel_flops=0)
    assert gpu_traits(program, KERNELS, "sm_80")[0].flops == 7


def test_kernels_for_other_architectures_are_refused() -> None:
    with pytest.raises(DeviceError, match="`first` was compiled for sm_80, sm_90, not for sm_86"):
        gpu_traits(two_operators(), KERNELS, "sm_86")


def test_an_unknown_architecture_leaves_demands_out(caplog: pytest.LogCaptureFixture) -> None:
    assert demands_arch(["sm_80", "sm_90", "sm_999"]) == "sm_90"
    assert demands_arch(["sm_999"]) is None
    with caplog.at_level(logging.WARNING):
        traits = gpu_traits(two_operators(), KERNELS, None)
    assert [each.demand for each in traits] == [None, None]
    assert "not known" in caplog.text


def test_a_librarys_operator_has_an_assumed_launch() -> None:
    product = matmul((300, 64), (64, 70))
    op = two_operators(description=product, library="cublaslt").operators[1]
    (launch,) = launches_of(op, KERNELS, "sm_80")
    assert launch.assumed
    assert launch.blocks == 3


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return Compilation(branches(), CompileOptions("cuda", archs=list(ARCHS), latency_db=":memory:"))


@pytest.fixture(scope="module")
def artifact(compilation: Compilation) -> Artifact:
    return compilation.artifact(compilation.schedule("opara"))


@needs_nvcc
def test_demands_are_read_when_kernels_are_compiled(compilation: Compilation) -> None:
    assert all(found.kernels for found in compilation.traits)
    for found in compilation.traits:
        for kernel in found.kernels:
            assert not kernel.assumed
            assert 1 <= kernel.threads <= 1024
            assert 1 <= kernel.registers <= 255
            assert kernel.function.endswith("_kernel")
        assert found.demand is not None
        assert 0 < found.demand <= 1


@needs_nvcc
def test_opara_orders_by_them(compilation: Compilation) -> None:
    """If the demands of the operators change, Opara's order of launches changes."""
    made = compilation.schedule("opara")
    assert made == tvm_interop.schedule(compilation.graph, "opara", traits=compilation.traits)
    turned = [dataclasses.replace(t, demand=1 - (t.demand or 0)) for t in compilation.traits]
    other = tvm_interop.schedule(compilation.graph, "opara", traits=turned)
    assert other.launch_order != made.launch_order


@needs_nvcc
def test_an_artifact_keeps_them(artifact: Artifact, tmp_path: Path) -> None:
    kernels = artifact.manifest.gpu_kernels
    assert {op.kernel for op in artifact.plan.operators} <= set(kernels)
    assert all(set(kernel.launches) == set(ARCHS) for kernel in kernels.values())
    artifact.save(tmp_path / "model.tar")
    assert tvm_interop.load(tmp_path / "model.tar").manifest.gpu_kernels == kernels


@needs_nvcc
def test_show_draws_and_lists_them(
    artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact.save(tmp_path / "model.tar")
    page = tmp_path / "page.html"
    assert (
        run_app(["show", str(tmp_path / "model.tar"), "--no-run", "-o", str(page), "--json"]) == 0
    )
    (record,) = json.loads(capsys.readouterr().out)["records"]
    demands = gpu_demands(artifact, artifact.plan)
    assert demands
    for op in record["operators"]:
        assert op["gpu"] == demands[op["name"]].as_dict()
        assert op["gpu"]["arch"] == "sm_90"
    assert "blocks of" in page.read_text()
    for op in planned(artifact, "net").operators:
        assert op.gpu == demands[op.name]


@needs_nvcc
def test_explain_says_them(artifact: Artifact) -> None:
    name = artifact.plan.operators[0].name
    explained = explain_operator(artifact, name)
    assert explained.gpu == gpu_demands(artifact, artifact.plan)[name]
    assert "sm_90 holds" in operator_text(explained)
    assert "registers each" in operator_text(explained)
    facts = json.loads(json.dumps(explained.as_dict()))["gpu"]
    assert facts["kernels"][0]["function"] == explained.gpu.kernels[0].function


def test_a_cpu_has_none() -> None:
    explained = explain_operator(
        chain(), "c0/Conv", measure=False, options=CompileOptions(latency_db=":memory:")
    )
    assert explained.gpu is None


@needs_nvcc
@pytest.mark.parametrize(
    ("field", "number", "says"),
    [
        ("threads", 0, "a `threads` of 0; it must be 1 to"),
        ("blocks", -1, "a `blocks` of -1"),
        ("registers", 2**63, "a `registers` of"),
        ("static_shared_bytes", -1, "a `static_shared_bytes` of -1"),
    ],
)
def test_numbers_of_no_launch_are_refused(
    artifact: Artifact, field: str, number: int, says: str
) -> None:
    wrong = msgspec.structs.replace(KERNELS["k"].launches["sm_90"][0], **{field: number})
    manifest = msgspec.structs.replace(
        artifact.manifest, gpu_kernels={"k": GpuKernel(0, {"sm_90": (wrong,)})}
    )
    with pytest.raises(ArtifactError, match=f"for the kernel `k`, {says}"):
        check_manifest(manifest)


@needs_nvcc
def test_streams_are_folded_only_if_asked() -> None:
    def streams(asked: int | None) -> int:
        options = CompileOptions("cuda", archs=["sm_90"], streams=asked, latency_db=":memory:")
        return Compilation(inception_like(), options).schedule("opara").num_streams

    assert streams(None) > streams(2) == 2
