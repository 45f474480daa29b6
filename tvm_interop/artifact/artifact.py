"""The compiled model as one file: `model.tar`.

The file is a tar file with these members:

- `manifest.json`: versions, target, how the model was scheduled, a SHA-256 of each other member,
  and where each weight begins
- `plan.json`, and `schedule.json`, the schedule that the plan was made from
- `kernels.so`: the compiled kernels
- `weights.bin`: one block of bytes with all weights (see `weights`)
- `fallback.json`: a plan without kernel libraries, if `plan.json` needs a kernel library

A model can be compiled for several sets of input shapes. Each set after the first has its own copy
of all members but the weights, in `shapes/1/`, `shapes/2/`, ... All sets share one block of
weights. The version of a file is 2 for one set, and 3 for several sets. It is 4 if the sets are for
batch sizes, and 5 if they cover ranges of sizes. It is 6 if the size of an output depends on values
that the model computes, and 7 if an input or output is strings. Files of version 1 have
`weights.npz` in place of `weights.bin`.

`load` first checks everything in the file except the machine code (see `plan.validate`), and uses
the contents only after that. The machine code runs as soon as a `GraphModule` is made.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._native.runtime import NativeModel
from ..errors import (
    ArtifactError,
    DeviceError,
    InputError,
    TVMInteropError,
    only_runtime,
)
from ..machine.library_files import ONEDNN
from .trusted_keys import keys_of_environment

if TYPE_CHECKING:
    import numpy as np

    from ..plan.plan import Plan
    from ..scheduling import Schedule
    from .manifest import Manifest
    from .ranges import Ranges, RequestCost

_LOG = logging.getLogger("tvm_interop")

_READ_LATER = ("plan", "schedule", "kernels", "weights", "manifest", "fallback", "others")
"""The fields of `Artifact` that `load` does not read. They are read from the file when they are
used.
"""
_CHANGEABLE = ("weights", "others")
"""The fields in `_READ_LATER` whose values the caller can change in place."""


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
    fallback: the plan that runs if a kernel library that `plan` needs is missing. It runs
        TVM's kernels only, one operator after the other, and shares the weights of `plan`. None if
        `plan` needs no kernel library.
    path: the file that the artifact was read from or last saved to; None before that.
    others: artifacts of the same model for other shapes of its inputs. Their own `others` are
        empty.
    precision_choice: if the `precision` of `compile` was `auto`, the chosen precision and the
        reason. None for other precisions, and for an artifact that was loaded.
    from_elsewhere: whether the artifact was loaded from a file. Such a file may have been made for
        another machine.
    """

    plan: Plan
    schedule: Schedule
    kernels: bytes | None
    weights: dict[int, np.ndarray]
    manifest: Manifest
    fallback: Plan | None = field(default_factory=lambda: None)
    path: Path | None = field(default=None, compare=False)
    others: list[Artifact] = field(default_factory=list)
    precision_choice: str | None = field(default=None, compare=False)
    from_elsewhere: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"Artifact({self.summary()})"

    def __getattr__(self, name: str) -> Any:
        # `load` does not set the fields in `_READ_LATER`. When such a field is first used, Python
        # finds no value and calls this method, which reads the field from the file.
        unread = self.__dict__.get("_unread")
        if name not in _READ_LATER or unread is None:
            raise AttributeError(f"an Artifact has no attribute `{name}`")
        value = self.__dict__[name] = unread.fields()[name]
        if name in _CHANGEABLE:
            # The caller may change this value in place, which the native model would not see. So
            # the native model is no longer used.
            self.__dict__["_native"] = None
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _READ_LATER and "_native" in self.__dict__:
            # The artifact now differs from the file that the native library loaded, so the native
            # model is no longer used.
            self.__dict__["_native"] = None
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @property
    def native(self) -> NativeModel | None:
        """The model as the native library loaded it; None if that library cannot run this
        artifact."""
        native: NativeModel | None = self.__dict__.get("_native")
        return native

    def of_shape(self, shape: int) -> Artifact:
        """The artifact for the input shapes with the index `shape` in `input_shapes`.

        The caller must not change the artifact.
        """
        if shape == 0:
            return self
        others = self.__dict__["_unread"].fields()["others"] if self.native else self.others
        other: Artifact = others[shape - 1]
        return other

    def at_home(self) -> Artifact:
        """Return the same artifact, but with `from_elsewhere` set to False.

        A `GraphModule` made from the returned artifact does not warn if the artifact uses fewer
        cores than the process may use.
        """
        same = object.__new__(Artifact)
        same.__dict__.update(self.__dict__, from_elsewhere=False)
        return same

    def summary(self) -> str:
        """Describe the artifact in one line: its file, operators, streams, inputs and outputs."""
        shapes = f", {len(self.input_shapes)} shapes" if len(self.input_shapes) > 1 else ""
        try:
            model = self.plan.summary()
        except DeviceError:  # The runtime-only package cannot read plans.
            assert self.native is not None
            inputs, outputs = (
                ", ".join(f"{port.name} {port.dtype}{list(port.shape)}" for port in ports[0])
                for ports in (self.native.inputs, self.native.outputs)
            )
            model = f"inputs {inputs}, outputs {outputs}"
        return f"{self.path or 'in memory'}: {model}{shapes}"

    @property
    def input_shapes(self) -> list[dict[str, tuple[int, ...]]]:
        """The input shapes that the model can run, as mappings from inputs' names to shapes.

        The first entry has the input shapes of `plan`, which runs unless inputs of other shapes are
        given.
        """
        if self.native is not None:
            return [{port.name: port.shape for port in ports} for ports in self.native.inputs]
        return [
            {plan.values[v].name: plan.values[v].shape for v in plan.inputs}
            for plan in (each.plan for each in (self, *self.others))
        ]

    @property
    def cores(self) -> int:
        """The number of cores that the model was compiled for, at the first set of input shapes."""
        if self.native is not None:
            return self.native.num_threads(0)
        return sum(stream.threads for stream in self.plan.streams)

    @property
    def is_for_gpus(self) -> bool:
        """Whether the model was compiled for GPUs."""
        return self.native is None and any(
            stream.device.startswith("cuda") for stream in self.plan.streams
        )

    @property
    def ranges(self) -> Ranges | None:
        """The dimensions that may have any size within a range; None if the model has no ranges."""
        from .ranges import ranges_of

        rows = self.manifest.row_sizes
        if rows is None:
            return None
        each = (self.of_shape(shape) for shape in range(len(rows.sizes)))
        known = [(one.manifest.speed_check, one.schedule.makespan) for one in each]
        return ranges_of(rows, self.input_shapes, known)

    def cost_of(self, request: Mapping[str, int]) -> RequestCost:
        """Say at which compiled sizes a request would run, and the cost; see `Ranges.cost_of`.

        Raises
        ------
        InputError
            The model has no dimension with a range, or a size of the request is out of its range.
        """
        ranges = self.ranges
        if ranges is None:
            raise InputError(
                f"`{self.path or 'the artifact'}` was compiled for no range of sizes: leave the "
                "sizes of the request out, or compile the model with `shapes`"
            )
        return ranges.cost_of(request)

    def usable_plan(self) -> Plan:
        """Return `plan`, or log a warning and return `fallback` if a kernel library is missing.

        Raises
        ------
        ArtifactError
            A kernel library that `plan` needs is missing, and the artifact has no `fallback`.
        """
        from ..machine.kernel_libraries import library_version, why_missing

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
            A weight is missing, or its shape or type is not the one in the plan. Or the artifact
            was loaded without its kernels. Or `others` holds another model, or the same input
            shapes twice.
        """
        from .layout import Contents
        from .writing import write

        each = [
            Contents(m.plan, m.schedule, m.machine_code(), m.weights, m.manifest, m.fallback)
            for m in (self, *self.others)
        ]
        self.manifest = write(each, path)
        self.path = Path(path)

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
        from .._native.kernels import load_kernels_from
        from ..machine.cpu_features import missing_features

        missing = missing_features(self.manifest.cpu_features)
        if missing:
            # Without this check the library would load, but its first kernel would crash the
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

    An artifact holds machine code. `load` runs none of this code, but `GraphModule` runs it with
    all your rights. Make a `GraphModule` only from an artifact whose origin you trust. The digests
    in the file show whether the file is damaged. They do not show who made the file: someone who
    changes the code can change the digests too. To accept only one particular file, give its
    `sha256`. To accept only files of certain signers, give their `trusted_keys`.

    The native library reads and checks the file. If the native library cannot run the model, for
    example because the model is for a GPU, Python reads the file. `plan`, `schedule` and the other
    fields are read when they are used.

    Weights stay in the file, and are read into memory when they are used. So do not overwrite the
    file in place while its artifact is in use. `save` and `compile` never overwrite a file in
    place.

    Parameters
    ----------
    path: a file that `Artifact.save` or `compile` wrote.
    kernels: False leaves the machine code out. The artifact cannot run then, but its plan,
        schedule, weights and manifest can be read.
    sha256: the SHA-256 that the file must have, as `sha256sum` prints it; other files are refused.
    trusted_keys: files of public keys; the artifact must be signed with one of them (see `sign`).
        The default is the files that TVM_INTEROP_TRUSTED_KEYS names, if kernels are loaded. If no
        files are given, no signature is needed.

    Raises
    ------
    ArtifactError
        The file is missing, truncated, damaged or not an artifact. Its version is unknown, its
        digest is not `sha256`, or it is signed by none of `trusted_keys`. Or its plan is unsafe, or
        a number in the file is out of bounds.
    InputError
        A key file holds no Ed25519 public key, or the package `cryptography` is not installed
        (extra `sign`).

    Examples
    --------
    >>> artifact = load("model.tar")
    >>> artifact.schedule.scheduler
    'sequential'
    """
    if trusted_keys is None and kernels:
        trusted_keys = keys_of_environment()
    try:
        if not Path(path).is_file():
            raise ArtifactError("it is not a file; make an artifact with `tvm-interop compile`")
        if trusted_keys:
            from .signature import signed_sha256

            signed = signed_sha256(path, trusted_keys)
            if sha256 is not None and sha256.lower() != signed:
                raise ArtifactError(
                    f"the SHA-256 of the signed file is {signed}, and `sha256` is {sha256}; give "
                    "the file that you mean"
                )
            sha256 = signed
        unread = _Unread(path, kernels, sha256)
        native = unread.native_model() if kernels else None
        artifact = object.__new__(Artifact)
        artifact.__dict__.update(
            path=Path(path), from_elsewhere=True, _native=native, _unread=unread
        )
        if native is None:
            artifact.__getattr__("plan")
        return artifact
    except ArtifactError as error:
        raise ArtifactError(f"`{path}`: {error}") from error
    except OSError as error:
        raise ArtifactError(
            f"`{path}`: it cannot be read: {error.strerror or error}; give the path of an artifact "
            "that you may read"
        ) from error


class _Unread:
    """A file of an artifact. Python has not read its contents yet."""

    def __init__(self, path: str | os.PathLike[str], kernels: bool, sha256: str | None) -> None:
        self._path, self._kernels, self._sha256 = path, kernels, sha256
        self._fields: dict[str, Any] | None = None
        self._refusal = ""  # Why the native library refused the file; empty if it did not.
        self._file = open(path, "rb")  # noqa: SIM115  `fields` or `__del__` closes it.

    def __del__(self) -> None:
        if "_file" in self.__dict__:  # `open` may have failed.
            self._file.close()

    def native_model(self) -> NativeModel | None:
        """Load the file in the native library; return None if the library refuses it.

        If the native library refuses the file, Python code reads it later, and says what is wrong
        with it. Python code also reads models for GPUs, because their inputs and outputs may be
        tensors on the GPU.
        """
        try:
            native = NativeModel(os.fspath(self._path), self._sha256, ONEDNN.find())
        except (TVMInteropError, MemoryError) as error:
            _LOG.debug("the native library does not load the artifact: %s", error)
            self._refusal = str(error).removeprefix(f"`{self._path}`: ")
            return None
        if native.is_for_gpu:
            self._refusal = (
                "the model was compiled for a GPU: install `tvm-interop` to run it in Python, or "
                "run it through the C interface"
            )
            return None
        opened, loaded = os.fstat(self._file.fileno()), os.stat(self._path)
        is_same = (opened.st_dev, opened.st_ino) == (loaded.st_dev, loaded.st_ino)
        # Another file may have replaced the opened file at this path. The native library may then
        # have read the new file.
        return native if is_same else None

    def fields(self) -> dict[str, Any]:
        """Return the fields in `_READ_LATER` by name; the first call reads the file."""
        if self._fields is None:
            try:
                from .reading import read
            except ModuleNotFoundError as error:
                if self._refusal:
                    raise ArtifactError(self._refusal) from error
                raise only_runtime("reading the plan of an artifact") from error
            with self._file as file:
                first, *others = read(file, self._kernels, self._sha256)
            self._fields = {**first._asdict(), "others": [Artifact(*other) for other in others]}
        return self._fields
