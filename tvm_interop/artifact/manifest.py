"""What an artifact says of itself: versions, target, digests, how its speed was checked."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from ..errors import ArtifactError
from ..program.library_op import kinds

_SHA256 = re.compile(r"[0-9a-f]{64}")


class SpeedCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the schedule fared against sequential execution of the same kernels, interleaved.

    Attributes
    ----------
    sequential_us, scheduled_us: medians, in microseconds.
    noise_ratio: sequential execution against itself: how far from 1 chance alone went.
    shipped: which of the two the artifact runs.
    rounds: in how many rounds each ran once; 0 in artifacts of older versions, as the two below are
        None there.
    paired_ratio: scheduled over sequential, by pairs of one round.
    interval: where that ratio lies with 90% confidence: the schedule ships where the upper end is
        below 0.99. None where there were too few rounds to say.
    """

    sequential_us: float
    scheduled_us: float
    noise_ratio: float
    shipped: Literal["scheduled", "sequential"]
    rounds: int = 0
    paired_ratio: float | None = None
    interval: tuple[float, float] | None = None

    @property
    def ratio(self) -> float:
        """Scheduled over sequential: below 1 is faster."""
        if self.paired_ratio is not None:
            return self.paired_ratio
        return self.scheduled_us / self.sequential_us


class Precision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a model computes in bfloat16, and how far its outputs are from those in float32.

    Attributes
    ----------
    keep_f32: names or kinds of operators that stay in float32, as they were given.
    error: the Euclidean norm of the difference over that of the float32 output; of several outputs
        the largest.
    largest_difference: the largest difference of two numbers over the largest float32 number.
    inputs: what it ran on.
    name: of the precision.
    """

    keep_f32: tuple[str, ...]
    error: float
    largest_difference: float
    inputs: Literal["random", "given"]
    name: Literal["bf16"] = "bf16"


class Quantised(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which operators of a quantised model are computed in integers of 8 bits.

    Attributes
    ----------
    int8: how many are, by kind (`conv2d`, `matmul`, `max_pool2d`).
    floats: names of those that read quantised tensors and compute in floats, by kind (`add`, ...).
    """

    int8: dict[str, int]
    floats: dict[str, tuple[str, ...]]

    @property
    def has_products_in_floats(self) -> bool:
        """Whether a convolution or matrix product gains no speed from its quantised inputs."""
        return any(map(_is_product, self.floats))

    def __str__(self) -> str:
        done = ", ".join(f"{number} {kind}" for kind, number in sorted(self.int8.items()))
        rest = ", ".join(
            f"{len(names)} {kind}" + (f" ({_some(names)})" if _is_product(kind) else "")
            for kind, names in sorted(self.floats.items())
        )
        return (
            f"{sum(self.int8.values())} operators in int8{': ' if done else ''}{done}; "
            f"{sum(map(len, self.floats.values()))} in floats between the model's roundings"
            + (f": {rest}" if rest else "")
        )


def _is_product(name: str) -> bool:
    kind = kinds().get(name)
    return kind is not None and kind.multiplies


def _some(names: tuple[str, ...], limit: int = 3) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


class KernelCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which kernels ran against a reference of theirs before they shipped.

    Attributes
    ----------
    checked: how many of TVM's did.
    libraries: how many of other libraries did, each for operators that are alike.
    too_large: how many of TVM's did not, since they would take too long, or too much memory.
    plain: those that were wrong: of TVM's as they were compiled, so that they ship without a
        schedule or vectors; of libraries, for which TVM's kernel ships. Both are slower. What was
        wrong, by name of the kernel, or of the operator.
    unchecked: why none of TVM's did; None where they did.
    """

    checked: int = 0
    libraries: int = 0
    too_large: int = 0
    plain: dict[str, str] = {}
    unchecked: str | None = None


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an artifact is, and what made it.

    Attributes
    ----------
    cpu_features: the instructions its kernels need beyond the processor's oldest, as LLVM names
        them.
    sha256: of each other member.
    precision: what it computes in, if that is not float32.
    quantised: of a quantised model, what is computed in integers and what is not.
    kernel_check: whether the kernels were checked, and what came of it; None in artifacts of older
        versions.
    weights: where each weight begins in `weights.bin`, in bytes, by index into `plan.values`.
    batch_sizes: where the shapes of an artifact are batch sizes: that of each shape, in order. The
        first axis of all inputs and outputs is then the batch, and its rows are computed apart.
    """

    tvm_interop_version: str
    tvm_version: str
    target: str
    scheduler: str
    structural_hash: str
    cpu_features: tuple[str, ...] = ()
    speed_check: SpeedCheck | None = None
    precision: Precision | None = None
    quantised: Quantised | None = None
    kernel_check: KernelCheck | None = None
    sha256: dict[str, str] = {}
    weights: dict[int, int] = {}
    batch_sizes: tuple[int, ...] = ()
    format: Literal["tvm_interop.artifact"] = "tvm_interop.artifact"
    version: Literal[1, 2, 3, 4] = 2

    def to_json(self) -> bytes:
        """As JSON text; without fields that say nothing, so that older versions read it."""
        fields = msgspec.to_builtins(self)
        for name in ("batch_sizes", "kernel_check", "precision", "quantised"):
            if not fields[name]:
                del fields[name]
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)


def check_manifest(manifest: Manifest) -> None:
    """See that what it says can be reckoned with.

    Raises
    ------
    ArtifactError
        Names the field.
    """
    for name, digest in manifest.sha256.items():
        if not _SHA256.fullmatch(digest):
            raise ArtifactError(f"`manifest.json` has a digest of `{name}` that is no SHA-256")
    precision = manifest.precision
    for field in ("error", "largest_difference") if precision is not None else ():
        if not getattr(precision, field) >= 0:
            raise ArtifactError(f"`manifest.json` has a `{field}` of {getattr(precision, field)}")
    checked = manifest.speed_check
    if checked is not None:
        for field, number in msgspec.structs.asdict(checked).items():
            if isinstance(number, int | float) and not 0 <= number < math.inf:
                raise ArtifactError(f"`manifest.json` has a `{field}` of {number}")
        if checked.sequential_us == 0:
            raise ArtifactError("`manifest.json` has sequential execution take no time")
