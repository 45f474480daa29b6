"""Reads an artifact's file in Python, to give access to its plan, schedule and weights.

The native library has its own reader of artifacts, which `GraphModule` uses. That reader accepts
the same files as this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO

import msgspec
import numpy as np

from ..errors import ArtifactError, PlanError, ScheduleError
from ..plan.check import read_plan
from ..plan.several_shapes import check_batch_sizes, check_shapes
from ..plan.validate import (
    check_fallback,
    check_schedule,
    check_weights,
    decoded,
    weights_of,
)
from ..scheduling import Schedule
from . import weights as weights_file
from .layout import (
    MAX_SHAPES,
    VERSION,
    Contents,
    check_counted,
    check_rows,
    check_strings,
    prefix,
)
from .manifest import Manifest, check_manifest
from .tar import COPY_AGAIN, GIVE_THE_RIGHT_FILE, Member, mapped, read_tar

COMPILE_AGAIN = "compile the model again"

_KEPT = {
    "manifest.json": 2**24,
    "plan.json": 2**28,
    "schedule.json": 2**28,
    "fallback.json": 2**28,
    "kernels.so": 2**32,
    "weights.npz": 2**36,
}
"""The members that are read into memory, each with its largest allowed size in bytes."""
_OF_A_SHAPE = ("manifest.json", "plan.json", "schedule.json", "fallback.json", "kernels.so")
"""The members that each set of input shapes after the first has again, in its own folder."""
_REQUIRED = {"plan.json", "schedule.json", "kernels.so"}


def read(file: BinaryIO, kernels: bool, sha256: str | None) -> list[Contents]:
    """Read an open artifact's contents for each set of input shapes, and check everything but the
    machine code.

    Parameters
    ----------
    kernels: whether to read the machine code too.
    sha256: the digest that the file must have, in hexadecimal; None for any.

    Raises
    ------
    ArtifactError
        The file is not an artifact, or is damaged or unsafe. The message ends with advice.
    """
    try:
        return _read(file, kernels, sha256)
    except (ArtifactError, PlanError, ScheduleError) as error:
        text = str(error)
        advised = text.endswith((COMPILE_AGAIN, COPY_AGAIN, GIVE_THE_RIGHT_FILE))
        raise ArtifactError(text if advised else f"{text}; {COMPILE_AGAIN}") from error


def _read(file: BinaryIO, kernels: bool, sha256: str | None) -> list[Contents]:
    prefixes = ["", *(prefix(i) for i in range(1, MAX_SHAPES))]
    kept = {
        folder + name: most
        for folder in prefixes
        for name, most in _KEPT.items()
        if kernels or name != "kernels.so"
    }
    members = read_tar(file, kept, sha256)
    manifest = _manifest(members)
    block = None if manifest.version == 1 else mapped(file, members["weights.bin"])
    models = [_model(members, "", manifest, block)]
    for folder in _prefixes_in(members):
        name = f"{folder}manifest.json"
        own = decoded(name, _data(members, name), Manifest)
        check_manifest(own)
        models.append(_model(members, folder, own, block))
    plans = [model.plan for model in models]
    check_shapes(plans)
    check_batch_sizes(manifest.batch_sizes, plans)
    check_rows(manifest.row_sizes, plans)
    check_counted(manifest, plans)
    check_strings(manifest, plans)
    return models


def _model(
    members: dict[str, Member], folder: str, manifest: Manifest, block: np.ndarray | None
) -> Contents:
    """Read the model for one set of input shapes.

    Parameters
    ----------
    folder: the folder in the tar file that holds the members for this set of input shapes; empty
        for the first set.
    block: the bytes of all weights; None in version 1, which has `weights.npz`.
    """
    plan = read_plan(_data(members, f"{folder}plan.json"))
    fallback = None
    if f"{folder}fallback.json" in members:
        fallback = read_plan(_data(members, f"{folder}fallback.json"))
        check_fallback(fallback, plan)
    plans = (plan, *([fallback] if fallback else []))
    wanted = {v: value for each in plans for v, value in weights_of(each).items()}
    if block is None:
        weights = weights_file.from_npz(_data(members, "weights.npz"), wanted)
    else:
        weights = weights_file.views(block, manifest.weights, wanted)
    check_weights(plans, weights)
    text = _data(members, f"{folder}schedule.json").decode("utf-8", "replace")
    schedule = Schedule.from_json(text)
    check_schedule(schedule, plan)
    return Contents(
        plan=plan,
        schedule=schedule,
        kernels=members[f"{folder}kernels.so"].data,
        weights=weights,
        manifest=manifest,
        fallback=fallback,
    )


def _prefixes_in(members: Mapping[str, object]) -> list[str]:
    """The folders of the sets of input shapes 1, 2, ..., up to the first folder that is missing."""
    found = []
    for i in range(1, MAX_SHAPES):
        if f"{prefix(i)}plan.json" not in members:
            break
        found.append(prefix(i))
    return found


def _manifest(members: dict[str, Member]) -> Manifest:
    """Read the manifest, and check that all other members have the digests that it lists."""
    if "manifest.json" not in members:
        raise ArtifactError(
            "it is a tar file but not an artifact of tvm_interop: it has no `manifest.json`; "
            f"{COPY_AGAIN}"
        )
    data = _data(members, "manifest.json")
    head = decoded("manifest.json", data, _Head)
    if head.version is not None and head.version > VERSION:
        raise ArtifactError(
            f"it is an artifact of version {head.version}, and this tvm_interop reads versions up "
            f"to {VERSION}; upgrade tvm_interop, or compile the model again"
        )
    manifest = decoded("manifest.json", data, Manifest)
    check_manifest(manifest)
    required = _REQUIRED | {"weights.npz" if manifest.version == 1 else "weights.bin"}
    prefixes = _prefixes_in(members) if manifest.version >= 3 else []
    optional = {f"{folder}fallback.json" for folder in ("", *prefixes)}
    for folder in prefixes:
        required |= {folder + name for name in _OF_A_SHAPE if name != "fallback.json"}
    for name in sorted({*required, *manifest.sha256, *members} - {"manifest.json"}):
        if name not in required | optional:
            raise ArtifactError(f"it has a member `{name!a}`, and artifacts have no such member")
        if name not in members or members[name].sha256 != manifest.sha256.get(name):
            state = "damaged" if name in members else "missing"
            raise ArtifactError(f"its `{name}` is {state}")
    return manifest


class _Head(msgspec.Struct):
    """The field that the manifests of all versions have: the version."""

    version: int | None = None


def _data(members: dict[str, Member], name: str) -> bytes:
    data = members[name].data
    assert data is not None, "the data of this member is kept in memory"
    return data
