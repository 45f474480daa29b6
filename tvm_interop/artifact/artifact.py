"""The compiled model as one file: `model.tar`.

The file is a tar file with these members:

- `manifest.json`: versions, target, how the model was scheduled, a SHA-256 of each other member,
  and where each weight begins;
- `plan.json`, and `schedule.json`, the schedule that the plan was made from;
- `kernels.so`, the compiled kernels;
- `weights.bin`, one block of bytes with all weights (see `weights`);
- `fallback.json`, a plan without kernel libraries, if `plan.json` needs a kernel library.

A model can be compiled for several shapes of its inputs. The file then has version 3, or version 4
if the shapes are batch sizes. Each further shape has its own copy of all members but the weights,
in `shapes/1/`, `shapes/2/`, ...; all shapes share one block of weights. Files of version 1 have
`weights.npz` in place of `weights.bin`.

`load` first checks everything in the file except the machine code (see `plan.validate`), and uses
the contents only after that. The machine code runs as soon as a `GraphModule` is made.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .._native.kernels import load_kernels_from
from ..errors import ArtifactError, DeviceError, PlanError, ScheduleError
from ..machine.cpu_features import missing_features
from ..machine.kernel_libraries import library_version, why_missing
from ..plan.check import read_plan
from ..plan.plan import Plan
from ..plan.validate import (
    check_batch_sizes,
    check_fallback,
    check_schedule,
    check_shapes,
    check_weights,
    decoded,
    weights_of,
)
from ..scheduling import Schedule
from . import weights as weights_file
from .manifest import Manifest, check_manifest
from .signature import signed_sha256, trusted_keys_of_environment
from .tar import Member, mapped, read_tar, write_tar

_LOG = logging.getLogger("tvm_interop")

VERSION = 4
_VERSION_OF_ONE_SHAPE, _VERSION_OF_SHAPES = 2, 3
"""The versions of a file with one input shape and of a file with several. A file is written in the
lowest version that can hold its contents, so that older releases can read the file."""
MAX_SHAPES = 64
"""The most input shapes that one artifact may be compiled for."""
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
"""The members that each input shape after the first has in a folder of its own."""
_REQUIRED = {"plan.json", "schedule.json", "kernels.so"}


@dataclass(repr=False)
class Artifact:
    """A compiled model: give it to `GraphModule`, or `save` it.

    Attributes
    ----------
    plan: which operator runs on which stream, and in what order.
    schedule: the schedule that the plan was made from.
    kernels: the bytes of the shared library; None if the artifact was loaded without kernels.
    weights: the constant tensors, by index into `plan.values`.
    manifest: the versions, the target, the scheduler and the result of the speed check.
    fallback: the plan that runs if a kernel library that `plan` needs is missing. It runs TVM's
        kernels alone, one operator after the other, and shares the weights of `plan`. None if
        `plan` needs no kernel library.
    path: the file that the artifact was read from or last saved to; None before that.
    others: artifacts of the same model for other shapes of its inputs. Their own `others` are
        empty.
    precision_choice: the precision that `compile` chose for precision `auto`, and why. None for
        any other precision, and for an artifact that was loaded.
    from_elsewhere: whether the artifact was loaded from a file, which may have been made for
        another machine.
    """

    plan: Plan
    schedule: Schedule
    kernels: bytes | None
    weights: dict[int, np.ndarray]
    manifest: Manifest
    fallback: Plan | None = None
    path: Path | None = field(default=None, compare=False)
    others: list[Artifact] = field(default_factory=list)
    precision_choice: str | None = field(default=None, compare=False)
    from_elsewhere: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"Artifact({self.summary()})"

    def summary(self) -> str:
        """Describe the artifact in one line: its file, operators, streams, inputs and outputs."""
        shapes = f", {1 + len(self.others)} shapes" if self.others else ""
        return f"{self.path or 'in memory'}: {self.plan.summary()}{shapes}"

    @property
    def input_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The input shapes that the model can run, as mappings from inputs' names to shapes.

        The first entry is for `plan`, which runs unless inputs of other shapes are given.
        """
        return [
            {plan.values[v].name: plan.values[v].shape for v in plan.inputs}
            for plan in (each.plan for each in (self, *self.others))
        ]

    def usable_plan(self) -> Plan:
        """Return `plan`, or log a warning and return `fallback` if a kernel library is missing.

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
        """Write the artifact to a file.

        An older file at `path` is replaced only when the new file is complete.

        Raises
        ------
        ArtifactError
            A weight is missing, or has another shape or type than the plan says. Or the artifact
            was loaded without its kernels. Or `others` holds another model, or the same input
            shapes twice.
        """
        models = (self, *self.others)
        check_shapes([model.plan for model in models])
        check_batch_sizes(self.manifest.batch_sizes, [model.plan for model in models])
        each = [model._weights_to_save() for model in models]
        table, places = weights_file.shared(each) if self.others else (each[0], [])
        offsets = weights_file.offsets_of(table)
        small: dict[str, bytes] = {}
        for i, (model, place) in enumerate(zip(self.others, places[1:], strict=True), 1):
            own = msgspec.structs.replace(
                model.manifest,
                sha256={},
                weights={v: offsets[index] for v, index in place.items()},
                version=_VERSION_OF_SHAPES,
            )
            texts = {"manifest.json": own.to_json(), **model._texts()}
            small.update((f"{_prefix(i)}{name}", data) for name, data in texts.items())
        small |= self._texts()
        manifest = msgspec.structs.replace(
            self.manifest,
            sha256={
                **{name: _sha256([data]) for name, data in small.items()},
                "weights.bin": _sha256(weights_file.chunks_of(table)),
            },
            weights={v: offsets[i] for v, i in places[0].items()} if self.others else offsets,
            version=self._version(),
        )
        members: dict[str, Iterable[bytes | memoryview]] = {"manifest.json": [manifest.to_json()]}
        members.update((name, [data]) for name, data in small.items())
        write_tar(path, {**members, "weights.bin": weights_file.chunks_of(table)})
        self.manifest = manifest
        self.path = Path(path)

    def _version(self) -> int:
        if self.manifest.batch_sizes:
            return VERSION
        return _VERSION_OF_SHAPES if self.others else _VERSION_OF_ONE_SHAPE

    def _weights_to_save(self) -> dict[int, np.ndarray]:
        plans = [self.plan, *([self.fallback] if self.fallback else [])]
        check_weights(plans, self.weights)
        needed = sorted({v for plan in plans for v in weights_of(plan)})
        return {v: self.weights[v] for v in needed}

    def _texts(self) -> dict[str, bytes]:
        """All members except the manifest and the weights, as bytes by name."""
        texts = {"plan.json": self.plan.to_json(), "schedule.json": self.schedule.to_json()}
        if self.fallback is not None:
            texts["fallback.json"] = self.fallback.to_json()
        return {name: text.encode() for name, text in texts.items()} | {
            "kernels.so": self.machine_code()
        }

    def load_kernels(self) -> Any:
        """Load the kernel library and return a module that gives each kernel by name.

        Raises
        ------
        ArtifactError
            The library was made for another system or processor and does not load here; or the
            artifact was loaded without its kernels.
        DeviceError
            No library can be loaded from the folder for temporary files.
        """
        missing = missing_features(self.manifest.cpu_features)
        if missing:
            # Without this error the library would load, but its first kernel would crash the
            # process.
            raise ArtifactError(
                f"the kernels need CPU instructions that this machine lacks: {', '.join(missing)}; "
                "compile the model on this machine, or name this machine's instructions in the "
                "target's `mattr`"
            )

        try:
            return load_kernels_from(self.machine_code())
        except (ArtifactError, DeviceError):
            raise
        except Exception as error:
            raise ArtifactError(
                f"the kernels were compiled for target `{self.manifest.target}` and do not "
                f"load here: {error}; compile the model on this machine"
            ) from error

    def machine_code(self) -> bytes:
        """The kernel library's bytes.

        Raises
        ------
        ArtifactError
            The artifact was loaded without its kernels.
        """
        if self.kernels is None:
            raise ArtifactError(
                "the artifact was loaded with kernels=False, so it cannot be run or saved; load it "
                "with kernels=True"
            )
        return self.kernels


def load(
    path: str | os.PathLike[str],
    *,
    kernels: bool = True,
    sha256: str | None = None,
    trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
) -> Artifact:
    """Read an artifact and check it.

    An artifact holds machine code. `load` runs none of it, but `GraphModule` runs it with all your
    rights. Make a `GraphModule` only from an artifact whose origin you trust. The digests in the
    file show damage, not origin: someone who changes the code can change the digests too. To accept
    only one particular file, give its `sha256`. To accept only files of certain signers, give their
    `trusted_keys`.

    Weights stay in the file and come into memory when they are used. Do not overwrite a file in
    place while it is in use; `save` and `compile` never do.

    Parameters
    ----------
    path: a file that `Artifact.save` or `compile` wrote.
    kernels: False leaves the machine code out: plan, schedule, weights and manifest can be looked
        at, and nothing can be run.
    sha256: the SHA-256 that the file must have, as `sha256sum` prints it; any other is refused.
    trusted_keys: files of public keys; the artifact must be signed with one of them (see `sign`).
        By default the files that TVM_INTEROP_TRUSTED_KEYS names, if kernels are loaded. Without
        any files, no signature is needed.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged or not an artifact. Its version is unknown, its
        digest is not `sha256`, or it is signed by none of `trusted_keys`. Or its plan is unsafe, or
        a number in it is out of bounds.
    InputError
        A key file holds no Ed25519 public key; `cryptography` is not installed (extra `sign`).
    """
    if trusted_keys is None and kernels:
        trusted_keys = trusted_keys_of_environment()
    try:
        if not Path(path).is_file():
            raise ArtifactError("it is no file; make one with `tvm-interop compile`")
        if trusted_keys:
            signed = signed_sha256(path, trusted_keys)
            if sha256 is not None and sha256.lower() != signed:
                raise ArtifactError(
                    f"the SHA-256 of the signed file is {signed}, and `sha256` is {sha256}; give "
                    "the file that you mean"
                )
            sha256 = signed
        artifact = _read(Path(path), kernels, sha256)
        artifact.from_elsewhere = True
        return artifact
    except (ArtifactError, PlanError, ScheduleError) as error:
        raise ArtifactError(f"`{path}`: {error}") from error
    except OSError as error:
        raise ArtifactError(f"`{path}`: it cannot be read: {error.strerror or error}") from error


def _read(path: Path, kernels: bool, sha256: str | None) -> Artifact:
    prefixes = ["", *(_prefix(i) for i in range(1, MAX_SHAPES))]
    kept = {
        prefix + name: most
        for prefix in prefixes
        for name, most in _KEPT.items()
        if kernels or name != "kernels.so"
    }
    with open(path, "rb") as file:
        members = read_tar(file, kept, sha256)
        manifest = _manifest(members)
        block = None if manifest.version == 1 else mapped(file, members["weights.bin"])
    first = _model(members, "", manifest, block)
    others = []
    for prefix in _prefixes_in(members):
        own = decoded(f"{prefix}manifest.json", _data(members, f"{prefix}manifest.json"), Manifest)
        check_manifest(own)
        others.append(_model(members, prefix, own, block))
    plans = [first.plan, *(other.plan for other in others)]
    check_shapes(plans)
    check_batch_sizes(manifest.batch_sizes, plans)
    return replace(first, others=others, path=path)


def _model(
    members: dict[str, Member], prefix: str, manifest: Manifest, block: np.ndarray | None
) -> Artifact:
    """Read the model for one shape of its inputs.

    Parameters
    ----------
    prefix: the folder of the shape's members in the tar file; empty for the first shape.
    block: the bytes of all weights; None in version 1, which has `weights.npz`.
    """
    plan = read_plan(_data(members, f"{prefix}plan.json"))
    fallback = None
    if f"{prefix}fallback.json" in members:
        fallback = read_plan(_data(members, f"{prefix}fallback.json"))
        check_fallback(fallback, plan)
    plans = (plan, *([fallback] if fallback else []))
    wanted = {v: value for each in plans for v, value in weights_of(each).items()}
    if block is None:
        weights = weights_file.from_npz(_data(members, "weights.npz"), wanted)
    else:
        weights = weights_file.views(block, manifest.weights, wanted)
    check_weights(plans, weights)
    text = _data(members, f"{prefix}schedule.json").decode("utf-8", "replace")
    schedule = Schedule.from_json(text)
    check_schedule(schedule, plan)
    return Artifact(
        plan=plan,
        schedule=schedule,
        kernels=members[f"{prefix}kernels.so"].data,
        weights=weights,
        manifest=manifest,
        fallback=fallback,
    )


def _prefix(shape: int) -> str:
    """The folder in the tar file that holds the members of input shape number `shape`.

    Shapes are numbered from 0. Shape 0 has no folder.
    """
    return f"shapes/{shape}/"


def _prefixes_in(members: Mapping[str, object]) -> list[str]:
    """The folders of the input shapes 1, 2, ..., up to the first folder that is missing."""
    found = []
    for i in range(1, MAX_SHAPES):
        if f"{_prefix(i)}plan.json" not in members:
            break
        found.append(_prefix(i))
    return found


def _manifest(members: dict[str, Member]) -> Manifest:
    """Read the manifest, and check that all other members have the digests it lists."""
    if "manifest.json" not in members:
        raise ArtifactError(
            "it is a tar file but no artifact of tvm_interop: it has no `manifest.json`"
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
    optional = {f"{prefix}fallback.json" for prefix in ("", *prefixes)}
    for prefix in prefixes:
        required |= {prefix + name for name in _OF_A_SHAPE if name != "fallback.json"}
    for name in sorted({*required, *manifest.sha256, *members} - {"manifest.json"}):
        if name not in required | optional:
            raise ArtifactError(
                f"it has a member `{name!a}`, and artifacts have no such member; compile the model "
                "again"
            )
        if name not in members or members[name].sha256 != manifest.sha256.get(name):
            state = "damaged" if name in members else "missing"
            raise ArtifactError(f"its `{name}` is {state}; compile the model again")
    return manifest


class _Head(msgspec.Struct):
    """The one field of a manifest that every version has: its version."""

    version: int | None = None


def _data(members: dict[str, Member], name: str) -> bytes:
    data = members[name].data
    assert data is not None, "it is among those that are kept"
    return data


def _sha256(chunks: Iterable[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
