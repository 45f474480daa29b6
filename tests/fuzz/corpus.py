"""Valid inputs, from which the module `inputs` makes invalid inputs."""

from __future__ import annotations

import functools
import io
import lzma
import tarfile
import tempfile
from pathlib import Path

import onnx

from tests import nets
from tests.fake_cuda.random_program import random_program, random_schedule
from tests.unit.test_artifact_validation import joined_plan, pool
from tvm_interop import OpGraph, Schedule, load, schedule
from tvm_interop.latency.base import LatencyTable
from tvm_interop.plan.make import make_plan
from tvm_interop.program.program import Program

ARTIFACTS = Path(__file__).parents[1] / "data" / "artifacts"


@functools.cache
def artifacts() -> dict[str, dict[str, bytes]]:
    """The members of artifacts, by name.

    There are artifacts of both versions of the format, each with and without kernel libraries.
    """
    found: dict[str, dict[str, bytes]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for packed in sorted(ARTIFACTS.glob("*.tar.xz")):
            path = Path(folder) / packed.stem
            path.write_bytes(lzma.decompress(packed.read_bytes()))
            found[packed.stem] = members(path.read_bytes())
            load(path).save(path)
            found[f"now {packed.stem}"] = members(path.read_bytes())
    return found


def members(data: bytes) -> dict[str, bytes]:
    """The files in a tar file."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


@functools.cache
def program() -> Program:
    """The program that most of the plans and schedules below are for."""
    return random_program(seed=3)


@functools.cache
def plans() -> list[str]:
    """Plans as JSON: several streams, divided operators, one and two GPUs, and a kernel library."""
    import msgspec

    own = [
        make_plan(program(), random_schedule(program(), streams, seed=streams))
        for streams in (1, 3)
    ]
    on_gpus = [
        make_plan(
            program(), random_schedule(program(), 4, seed=1, devices=devices), device="cuda:0"
        )
        for devices in ((0,), (0, 1))
    ]
    joined = joined_plan()
    described = tuple(
        msgspec.structs.replace(op, library="onednn", description=pool(("plain", "plain")))
        if op.name == "L"
        else op
        for op in joined.operators
    )
    of_library = msgspec.structs.replace(joined, operators=described)
    texts = [plan.to_json() for plan in (*own, *on_gpus, joined, of_library)]
    return [*texts, joined.to_json().replace("cpu:0", "cuda:0")]


@functools.cache
def graph() -> OpGraph:
    """The operator graph that the valid schedules are for."""
    return program().graph()


@functools.cache
def latencies() -> LatencyTable:
    """The latencies of the operators of `graph`."""
    return LatencyTable([1.0 + i % 5 for i in range(graph().num_ops)])


@functools.cache
def schedules() -> list[str]:
    """Schedules as JSON: with stages, with streams, with a timeline, with devices."""
    made = [schedule(graph(), name, latency=latencies()) for name in ("ios", "lios", "opara")]
    by_hand = Schedule("by hand", graph().names, streams=[list(range(graph().num_ops))])
    on_gpus = random_schedule(program(), 4, seed=1, devices=(0, 1))
    return [each.to_json() for each in (*made, by_hand, on_gpus)]


@functools.cache
def models() -> list[onnx.ModelProto]:
    """Small networks of several kinds."""
    return [
        nets.branches(), nets.attention(), nets.norms(), nets.split(), nets.two_inputs(),
        nets.chain(2), nets.branches(batch="n"),
    ]  # fmt: skip
