"""Artifacts that were changed on purpose. Their machine code is unchanged, and digests are correct.

A changed artifact must give one of our errors, or the results of its own plan. These results are
the output bits if the plan's operators run one after the other, with each tensor in its own memory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from tests.native_runtime import load_in_both
from tvm_interop import load
from tvm_interop._native.kernels import load_kernels_from
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.errors import ArtifactError, TVMInteropError
from tvm_interop.execution.cpu import Instance
from tvm_interop.execution.native import NativeInstance
from tvm_interop.plan.plan import Plan
from tvm_interop.program.storage import ALIGNMENT

from . import corpus, inputs
from .compiled import compiled

MOST_S = 2.0
"""The processor time, in seconds, that may be needed to check a file or to run it."""
MOST_FILE_BYTES = 10**6
_MOST_THREADS = 8
_MOST_TENSOR_BYTES = 2**26
"""Plans with more threads or memory are not run.

Such plans may be valid, but running them would take long and show nothing new.
"""


@functools.cache
def sources() -> dict[str, dict[str, bytes]]:
    return {name: corpus.members(data) for name, data in compiled().items()}


@st.composite
def remade(draw: st.DrawFn) -> bytes:
    """Artifacts with a changed manifest, plan, schedule or weights, and with correct digests."""
    members = dict(sources()[draw(st.sampled_from(sorted(sources())))])
    names = sorted(name for name in members if not name.endswith("kernels.so"))
    for _ in range(draw(st.sampled_from([1, 1, 1, 2]))):
        name = draw(st.sampled_from([*names, *(n for n in names if n.endswith("plan.json"))]))
        members[name] = _changed(draw, name, members[name])
    sign(members)
    return inputs.tar_of(members, None)


def _changed(draw: st.DrawFn, name: str, data: bytes) -> bytes:
    if not name.endswith(".json"):
        return draw(inputs.damaged(data))
    document = document_of(data)
    if document is None:
        return data
    changed = draw(inputs.edited(document))
    if draw(st.integers(0, 19)) == 0:
        _multiply(draw, changed)
    return inputs.json_text(changed).encode("utf-8", "surrogatepass")


def _multiply(draw: st.DrawFn, document: Any) -> None:
    """Repeat the entries of one list until the file has half of its largest allowed size."""
    lists = [found for found in _lists(document) if found]
    if not lists:
        return
    grown = draw(st.sampled_from(lists))
    times = MOST_FILE_BYTES // 2 // max(len(json.dumps(grown)), 1)
    entries = [json.loads(json.dumps(entry)) for entry in grown * times]
    if draw(st.booleans()):
        for i, entry in enumerate(entries):
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                entry["name"] += str(i)
    grown.extend(entries)


def _lists(document: Any) -> list[list[Any]]:
    found = [document] if isinstance(document, list) else []
    if isinstance(document, dict | list):
        below = document.values() if isinstance(document, dict) else document
        found += [each for entry in below for each in _lists(entry)]
    return found


def document_of(data: bytes) -> Any:
    """The JSON document in `data`. None if it is not valid JSON or nested too deeply."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def sign(members: dict[str, bytes]) -> None:
    """Correct the digests, as far as the manifest still has digests."""
    manifest = document_of(members["manifest.json"])
    if isinstance(manifest, dict) and isinstance(manifest.get("sha256"), dict):
        for name in manifest["sha256"].keys() & members.keys():
            manifest["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
        text = inputs.json_text(manifest)
        members["manifest.json"] = text.encode("utf-8", "surrogatepass")


def check(data: bytes) -> bool:
    """Check the file, load it, and run each of its plans. Return False if it is refused."""
    Path("model.tar").write_bytes(data)
    try:
        with _bounded("load(kernels=False)", data):
            looked_at = load("model.tar", kernels=False)
    except ArtifactError:
        looked_at = None
    try:
        with _bounded("load", data):
            loaded = load_in_both("model.tar")
    except ArtifactError:
        assert looked_at is None, "load(kernels=False) accepts a file that load refuses"
        return False
    assert looked_at is not None
    assert looked_at.plan == loaded.plan
    for shape, each in enumerate((loaded, *loaded.others)):
        with _bounded("a run", data), contextlib.suppress(TVMInteropError):
            _run(each, loaded, shape)
    return True


def _run(artifact: Artifact, whole: Artifact, shape: int) -> None:
    """Run each plan of `artifact`, the part of the artifact `whole` for shape number `shape`."""
    kernels = _our_kernels()[artifact.machine_code()]
    for plan in (artifact.usable_plan(), artifact.fallback):
        if plan is not None and _is_small(plan):
            results = [
                _outputs(each, kernels, artifact.weights) for each in (plan, in_order(plan), plan)
            ]
            assert results[0] == results[1] == results[2], "the outputs of a plan differ by run"
            if plan is artifact.plan and whole.native is not None:
                natively = _native_outputs(whole, shape)
                assert results[0] == natively, "the outputs of the native library differ"


def _outputs(plan: Plan, kernels: Any, weights: dict[int, np.ndarray]) -> list[bytes]:
    instance = Instance(plan, kernels, weights)
    for v in plan.inputs:
        value = plan.values[v]
        numbers = np.random.default_rng(v).integers(-3, 4, value.shape)
        instance.write(v, numbers.astype(instance.arrays[v].dtype))
    instance.run()
    return [instance.read(v).tobytes() for v in plan.outputs]


def _native_outputs(whole: Artifact, shape: int) -> list[bytes]:
    instance = NativeInstance(whole, shape)
    for port, v in zip(instance.inputs, instance.plan.inputs, strict=True):
        numbers = np.random.default_rng(v).integers(-3, 4, port.shape)
        instance.write(port.value, numbers.astype(instance.read(port.value).dtype))
    instance.run()
    return [instance.read(port.value).tobytes() for port in instance.outputs]


def in_order(plan: Plan) -> Plan:
    """A copy of `plan` with all operators on one stream, in their order.

    No two tensors share memory of the arena.
    """
    at = 0
    values = []
    for value in plan.values:
        if value.storage == "arena":
            values.append(msgspec.structs.replace(value, offset=at))
            at += -(-value.nbytes // ALIGNMENT) * ALIGNMENT
        else:
            values.append(value)
    return msgspec.structs.replace(
        plan,
        streams=plan.streams[:1],
        values=tuple(values),
        operators=tuple(msgspec.structs.replace(op, stream=0, waits=()) for op in plan.operators),
        arena_bytes=at,
        arenas={},
    )


def _is_small(plan: Plan) -> bool:
    threads = sum(stream.threads for stream in plan.streams)
    nbytes = sum(math.prod(value.stored_shape) * 8 for value in plan.values)
    on_cpu = all(device.startswith("cpu") for device in plan.devices)
    return threads <= _MOST_THREADS and nbytes <= _MOST_TENSOR_BYTES and on_cpu


@functools.cache
def _our_kernels() -> dict[bytes, Any]:
    """The kernels that this fuzz test compiled, loaded once. Other machine code is never run."""
    code = {
        data
        for members in sources().values()
        for name, data in members.items()
        if name.endswith("kernels.so")
    }
    return {each: load_kernels_from(each) for each in code}


@contextlib.contextmanager
def _bounded(what: str, data: bytes) -> Iterator[None]:
    """Context with limited processor time. Time of other processes does not count."""
    began = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - began
        assert took < MOST_S or len(data) > MOST_FILE_BYTES, f"{what} took {took:.1f} s"
