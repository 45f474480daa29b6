"""The compiled model as one file: `model.tar`.

Members: `manifest.json` (versions, target, how it was scheduled, a SHA-256 of each other member),
`plan.json`, `schedule.json`, `kernels.so`, `weights.npz` (plain arrays, no pickle), and
`fallback.json`, a plan without kernel libraries, where `plan.json` needs one. Whatever reads one
checks it whole before anything in it is used.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from .atomic_file import replacing
from .cpu_features import missing_features
from .errors import ArtifactError
from .instance import load_kernels
from .kernel_libraries import library_version, why_missing
from .plan import Plan
from .scheduling import Schedule

_LOG = logging.getLogger("tvm_interop")

_MEMBERS = ("plan.json", "schedule.json", "kernels.so", "weights.npz")


class SpeedCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the schedule fared against sequential execution of the same kernels, interleaved.

    Attributes
    ----------
    sequential_us, scheduled_us: medians, in microseconds.
    noise_ratio: sequential execution against itself: how far from 1 chance alone went.
    shipped: which of the two the artifact runs.
    """

    sequential_us: float
    scheduled_us: float
    noise_ratio: float
    shipped: Literal["scheduled", "sequential"]

    @property
    def ratio(self) -> float:
        """Scheduled over sequential: below 1 is faster."""
        return self.scheduled_us / self.sequential_us


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an artifact is, and what made it.

    Attributes
    ----------
    cpu_features: the instructions its kernels need beyond the processor's oldest, as LLVM names
        them.
    """

    tvm_interop_version: str
    tvm_version: str
    target: str
    scheduler: str
    structural_hash: str
    cpu_features: tuple[str, ...] = ()
    speed_check: SpeedCheck | None = None
    sha256: dict[str, str] = {}
    format: Literal["tvm_interop.artifact"] = "tvm_interop.artifact"
    version: Literal[1] = 1


@dataclass
class Artifact:
    """A compiled model: give it to `GraphModule`, or `save` it.

    Attributes
    ----------
    plan: what runs where, and in what order.
    schedule: what the plan was made from.
    kernels: the shared library's bytes.
    weights: the constant tensors, by index into `plan.values`.
    manifest: versions, target, scheduler, the speed check.
    fallback: what runs, on TVM's kernels alone and one operator after the other, where a kernel
        library that `plan` needs is missing; of the same values. None where it needs none.
    """

    plan: Plan
    schedule: Schedule
    kernels: bytes
    weights: dict[int, np.ndarray]
    manifest: Manifest
    fallback: Plan | None = None
    path: Path | None = field(default=None, compare=False)

    def usable_plan(self) -> Plan:
        """`plan`; `fallback` where a kernel library is missing here, which is logged.

        Raises
        ------
        ArtifactError
            A library is missing, and there is no fallback.
        """
        for name in sorted({op.library for op in self.plan.operators if op.library is not None}):
            if library_version(name) is not None:
                continue
            if self.fallback is None:
                raise ArtifactError(
                    f"the model was compiled for kernel library `{name}`, which is missing here: "
                    f"{why_missing(name)}; install `tvm-interop[{name}]`, or compile it again"
                )
            _LOG.warning(
                "the model was compiled for kernel library `%s`, which is missing here (%s): "
                "TVM's kernels run, one after the other; install `tvm-interop[%s]`",
                name,
                why_missing(name),
                name,
            )
            return self.fallback
        return self.plan

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the artifact; an older file of that name is replaced only once this is whole."""
        members = {
            "plan.json": self.plan.to_json().encode(),
            "schedule.json": self.schedule.to_json().encode(),
            "kernels.so": self.kernels,
            "weights.npz": _pack_weights(self.weights),
            **({"fallback.json": self.fallback.to_json().encode()} if self.fallback else {}),
        }
        manifest = msgspec.structs.replace(
            self.manifest, sha256={name: _sha256(data) for name, data in members.items()}
        )
        text = msgspec.json.format(msgspec.json.encode(manifest), indent=2)
        with replacing(path) as temporary, tarfile.open(temporary, "w") as tar:
            for name, data in {"manifest.json": text, **members}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        self.manifest = manifest
        self.path = Path(path)

    def load_kernels(self) -> Any:
        """Load the kernel library; the module hands out each kernel by name.

        Raises
        ------
        ArtifactError
            The library does not load here: made for another system or processor.
        """
        missing = missing_features(self.manifest.cpu_features)
        if missing:
            # Loading would do no harm; the first kernel would end the process.
            raise ArtifactError(
                f"the kernels need CPU instructions that this machine lacks: {', '.join(missing)}; "
                "compile the model on this machine, or for it with the target's `mattr`"
            )

        # The loader wants a file; once mapped, the file may go.
        with tempfile.TemporaryDirectory(prefix="tvm_interop_") as folder:
            library = Path(folder) / "kernels.so"
            library.write_bytes(self.kernels)
            try:
                return load_kernels(library)
            except Exception as error:
                raise ArtifactError(
                    f"the kernels were compiled for target `{self.manifest.target}` and do not "
                    f"load here: {error}; compile the model on this machine"
                ) from error


def load(path: str | os.PathLike[str]) -> Artifact:
    """Read an artifact and check it whole.

    Parameters
    ----------
    path: a file `Artifact.save` or `compile` wrote.

    Raises
    ------
    ArtifactError
        Not there, truncated, damaged, not an artifact, or of a version this one cannot read.
    PlanError
        Its plan is unsafe.
    """
    members = _read_tar(Path(path))
    manifest = _read_manifest(path, members)
    for name in (*_MEMBERS, *({"fallback.json"} & manifest.sha256.keys())):
        if name not in members or _sha256(members[name]) != manifest.sha256.get(name):
            state = "damaged" if name in members else "missing"
            raise ArtifactError(f"`{path}`: its `{name}` is {state}; compile the model again")
    plan = Plan.from_json(members["plan.json"])
    weights = _unpack_weights(path, members["weights.npz"])
    fallback = Plan.from_json(members["fallback.json"]) if "fallback.json" in members else None
    for each in (plan, *([fallback] if fallback else [])):
        _check_weights(path, each, weights)
    return Artifact(
        plan=plan,
        schedule=Schedule.from_json(members["schedule.json"].decode()),
        kernels=members["kernels.so"],
        weights=weights,
        manifest=manifest,
        fallback=fallback,
        path=Path(path),
    )


def _read_tar(path: Path) -> dict[str, bytes]:
    if not path.is_file():
        raise ArtifactError(f"`{path}` is no file; make one with `tvm-interop compile`")
    try:
        with tarfile.open(path, "r:") as tar:
            # Never extracted to disk: only the bytes of plain members are read.
            return {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError, OSError) as error:
        raise ArtifactError(
            f"`{path}` is truncated or no artifact of tvm_interop ({error}); "
            "compile the model again with `tvm-interop compile`"
        ) from error


def _read_manifest(path: str | os.PathLike[str], members: dict[str, bytes]) -> Manifest:
    if "manifest.json" not in members:
        raise ArtifactError(
            f"`{path}` is a tar file but no artifact of tvm_interop: it has no `manifest.json`"
        )
    try:
        head = msgspec.json.decode(members["manifest.json"])
    except msgspec.DecodeError as error:
        raise ArtifactError(f"`{path}`: its `manifest.json` is damaged: {error}") from error
    version = head.get("version") if isinstance(head, dict) else None
    if isinstance(version, int) and version > 1:
        raise ArtifactError(
            f"`{path}` is an artifact of version {version}, this tvm_interop reads version 1; "
            "upgrade tvm_interop, or compile the model again"
        )
    try:
        return msgspec.convert(head, Manifest)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"`{path}`: its `manifest.json` is not ours: {error}") from error


def _pack_weights(weights: dict[int, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{str(v): array for v, array in weights.items()})
    return buffer.getvalue()


def _unpack_weights(path: str | os.PathLike[str], data: bytes) -> dict[int, np.ndarray]:
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {int(name): arrays[name] for name in arrays.files}
    except (ValueError, OSError) as error:
        raise ArtifactError(f"`{path}`: its `weights.npz` cannot be read: {error}") from error


def _check_weights(
    path: str | os.PathLike[str], plan: Plan, weights: dict[int, np.ndarray]
) -> None:
    for v, value in enumerate(plan.values):
        if value.storage != "weight" or value.copy_of is not None:
            continue
        if v not in weights:
            raise ArtifactError(f"`{path}` has no data for weight `{value.name}`")
        if weights[v].shape != value.shape or str(weights[v].dtype) != value.dtype:
            raise ArtifactError(
                f"`{path}`: weight `{value.name}` is {weights[v].dtype}{weights[v].shape}, "
                f"the plan says {value.dtype}{value.shape}"
            )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
