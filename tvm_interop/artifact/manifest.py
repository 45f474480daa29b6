"""The manifest of an artifact: versions, target, digests, and the results of the compiler's checks.

`manifest.json` in the artifact's tar file is the JSON form of `Manifest`.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from ..errors import ArtifactError
from ..plain_data import LARGEST
from ..program.kernel_demand import GpuKernel
from ..program.library_op import kinds
from .program_check import ProgramCheck, check_errors

_SHA256 = re.compile(r"[0-9a-f]{64}")


class SpeedCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The schedule's latency, measured against sequential execution of the same kernels.

    The schedule and sequential execution ran in turns, in the same rounds. If the schedule was
    faster in the process that compiled, several new processes ran the schedule and sequential
    execution again. The numbers then come from the new processes (see `compiler.new_processes`).

    Attributes
    ----------
    sequential_us, scheduled_us: median latencies, in microseconds.
    noise_ratio: the ratio of two measurements of sequential execution in the same rounds. Without
        noise it would be 1.
    shipped: how the artifact runs: `scheduled` if the schedule passed the speed check, otherwise
        `sequential`.
    rounds: the number of rounds that were measured, in all processes together. 0 in artifacts of
        older versions.
    paired_ratio: the scheduled latency divided by the sequential latency. It is estimated from the
        ratio in each round, or from the ratio in each new process. None in artifacts of older
        versions.
    interval: the confidence interval of `paired_ratio`, at a level of 90% or more. The artifact
        runs the schedule only if the upper end is below 0.99. None if there were too few rounds or
        processes, and in artifacts of older versions.
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
        """Scheduled latency divided by sequential latency; below 1, the schedule is faster."""
        if self.paired_ratio is not None:
            return self.paired_ratio
        return self.scheduled_us / self.sequential_us


class Precision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The differences between the outputs of a model in bfloat16 and in float32.

    Attributes
    ----------
    keep_f32: names or kinds of operators that stay in float32, as the caller gave them.
    error: the Euclidean norm of the difference between the output and the float32 output, divided
        by the norm of the float32 output. If there are several outputs, this is their largest
        error.
    largest_difference: the largest absolute difference between a number of an output and the same
        number in float32, divided by the largest absolute number of this output in float32. If
        there are several outputs, this is the largest of their differences.
    inputs: whether the model ran on random inputs or on inputs that the user gave.
    name: the name of the precision.
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
    int8: the number of operators computed in 8-bit integers, by kind (`conv2d`, `matmul`,
        `max_pool2d`).
    floats: names of the operators that read quantised tensors and compute in floats, by kind
        (`add`, ...).
    """

    int8: dict[str, int]
    floats: dict[str, tuple[str, ...]]

    @property
    def has_products_in_floats(self) -> bool:
        """Whether any convolution or matrix product with quantised inputs computes in floats."""
        return any(map(_is_product, self.floats))

    def __str__(self) -> str:
        done = ", ".join(f"{number} {kind}" for kind, number in sorted(self.int8.items()))
        rest = ", ".join(
            f"{len(names)} {kind}" + (f" ({_some(names)})" if _is_product(kind) else "")
            for kind, names in sorted(self.floats.items())
        )
        return (
            f"{sum(self.int8.values())} operators in int8{': ' if done else ''}{done}; "
            f"{sum(map(len, self.floats.values()))} with quantised inputs compute in floats"
            + (f": {rest}" if rest else "")
        )


def _is_product(name: str) -> bool:
    kind = kinds().get(name)
    return kind is not None and kind.multiplies


def _some(names: tuple[str, ...], limit: int = 3) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")


class KernelCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which kernels were compared with a reference when the model was compiled, and which failed.

    Attributes
    ----------
    checked: the number of TVM's kernels that were compared.
    libraries: the number of kernels of other libraries that were compared. A kernel that several
        operators use is counted only once.
    too_large: the number of TVM's kernels that were not compared because that would take too much
        time or memory.
    plain: the fault, in words, of each kernel that failed and was replaced by a slower kernel. A
        TVM kernel is listed by its own name, and was replaced by the same kernel built without a
        schedule or vector instructions. A library's kernel is listed by the operator's name, and
        was replaced by TVM's kernel.
    unchecked: why none of TVM's kernels was compared; None if the kernels were compared.
    """

    checked: int = 0
    libraries: int = 0
    too_large: int = 0
    plain: dict[str, str] = {}
    unchecked: str | None = None


class MergeCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The differences between the results of merged operators and of the operators they replace.

    The merged and the separate operators ran on the same random inputs when the model was compiled.

    Attributes
    ----------
    differences: for each merged operator, by its name, the largest absolute difference between its
        results and the separate operators' results. It is divided by the largest absolute number in
        the separate operators' results. None if the results were not compared.
    unchecked: why nothing was compared; None if the operators were compared.
    """

    differences: dict[str, float | None]
    unchecked: str | None = None

    @property
    def largest(self) -> float | None:
        """The largest number in `differences`; None if one of these numbers is None."""
        known = [far for far in self.differences.values() if far is not None]
        return max(known) if known and len(known) == len(self.differences) else None

    def __str__(self) -> str:
        count = len(self.differences)
        what = "1 merged operator" if count == 1 else f"{count} merged operators"
        if self.largest is None:
            reason = "" if self.unchecked is None else f": {self.unchecked}"
            return f"{what}, not checked against the separate operators{reason}"
        return (
            f"{what}; the results differ from those of the separate operators by at most "
            f"{self.largest:.2g} of the largest output, on random inputs"
        )


class RowMask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mask: an input that says, usually by 1 and 0, which positions of a sequence the model uses.

    If the inputs of a run are padded to a longer sequence, the mask is 0 at the new positions.
    `lowering.masked_positions` has proven that the outputs then stay right if the mask's numbers
    meet the condition that `one_at` names. Each padded run checks this condition.

    Attributes
    ----------
    input: the name of the input.
    one_at: where the mask must be 1. `first`: at the first position, for all indices of the other
        dimensions. `any`: at one position or more. If there are two ranges, each row of the first
        range needs a position at which the mask is 1. `all`: at all positions. For `first`, `any`
        and `all`, all numbers of the mask must also be from 0 to 1. `nowhere` sets no condition.
    """

    input: str
    one_at: Literal["first", "any", "all", "nowhere"]


class SecondRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second dimension with a range, and its size in each set of input shapes of the artifact."""

    dimension: str
    sizes: tuple[int, ...]


class RowSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The numbers of rows that a model was compiled for, so that it runs any number within a range.

    A run may have any number of rows within the range. If the model was not compiled for this
    number of rows, the inputs are padded with further rows, up to the next larger number that it
    was compiled for. The outputs stay right, because each row of an output depends only on the same
    row of the inputs. `lowering.independent_rows` has proven this. Instead of rows, the dimension
    may have the positions of a sequence, which influence each other. In this case,
    `lowering.masked_positions` has proven that added positions do not change the results at the
    given positions.

    The artifact has several sets of input shapes. The rows of an input or output lie along the
    dimension whose size differs between these sets. An input or output that has the same shape in
    all sets has no rows.

    If there are two ranges, the model was compiled for each combination of their sizes. The rows of
    the first range are independent, and the rows of the second range may be positions of a
    sequence.

    Attributes
    ----------
    dimension: the name of the dimension, such as `batch`.
    sizes: the number of rows in each of the artifact's sets of input shapes, in order.
    masks: the inputs that are padded with 0 if the last range is the length of a sequence. All
        other inputs are padded with copies of their last row.
    second: the second range; None if there is only one range.
    """

    dimension: str
    sizes: tuple[int, ...]
    masks: tuple[RowMask, ...] = ()
    second: SecondRange | None = None

    @property
    def where_one(self) -> dict[str, str]:
        """Where each mask must be 1, as `RowMask.one_at` says, by the mask's name."""
        return {mask.input: mask.one_at for mask in self.masks}

    @property
    def ranges(self) -> dict[str, tuple[int, ...]]:
        """For each dimension with a range, by its name, its size in each set of input shapes.

        Raises
        ------
        ArtifactError
            Both ranges belong to the same dimension.
        """
        if self.second is None:
            return {self.dimension: self.sizes}
        if self.second.dimension == self.dimension:
            raise ArtifactError(
                f"there are two ranges of `{self.dimension}`; there may be only one"
            )
        return {self.dimension: self.sizes, self.second.dimension: self.second.sizes}

    @property
    def mean_filling(self) -> float:
        """The cost of padding, averaged over all sizes of the ranges.

        The cost is the number of rows that a run computes, divided by the number of rows of its
        inputs.
        """
        found = 1.0
        for sizes in self.ranges.values():
            compiled, given = sorted(set(sizes)), range(min(sizes), max(sizes) + 1)
            ratios = (compiled[bisect.bisect_left(compiled, n)] / n for n in given)
            found *= sum(ratios) / len(given)
        return found

    def __str__(self) -> str:
        told = " and ".join(
            f"{name} {min(sizes)} to {max(sizes)}" for name, sizes in self.ranges.items()
        )
        listed = " times ".join(
            ", ".join(map(str, sorted(set(sizes)))) for sizes in self.ranges.values()
        )
        return f"{told}, compiled for {listed}; other sizes are padded" + "".join(
            f", `{mask.input}` with 0" for mask in self.masks
        )


class CountedOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output whose size along an axis depends on values that the model computes.

    The output's tensor in the plan has the largest size that can occur. Its elements beyond the
    size of a run have no meaning.

    Attributes
    ----------
    output: the position of the output among the plan's outputs.
    axis: the axis whose size varies.
    count: the position, among the plan's outputs, of a tensor with one int64, which is the size.
        The tensors of sizes are the last outputs of a plan, and are not outputs of the model.
    """

    output: int
    axis: int
    count: int


class StringOutput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An output that is a tensor of strings, such as the labels of a classifier.

    The plan computes the position of each string in a list.

    Attributes
    ----------
    output: the position of the output among the plan's outputs, where it is an int64.
    strings: the list of strings.
    """

    output: int
    strings: tuple[str, ...]


class StringInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input that is a tensor of strings, such as categories that the model encodes.

    The plan reads the position of each string in a list, or -1 for a string that is not listed.

    Attributes
    ----------
    input: the position of the input among the plan's inputs, where it is an int64.
    strings: the list of strings.
    """

    input: int
    strings: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of an artifact: its content, and how it was made.

    Attributes
    ----------
    cpu_features: the CPU features that the kernels need and that not every CPU of the architecture
        has, by LLVM's names.
    sha256: the SHA-256 of each other member, by its name.
    precision: the precision the model computes in; None for float32.
    quantised: which operators of a quantised model compute in integers; None for other models.
    kernel_check: which kernels were checked, and with what result; None in artifacts of older
        versions.
    merge_check: the differences between the results of merged and of separate operators; None if no
        operators are merged, and in artifacts of older versions.
    program_check: the differences between PyTorch's outputs and the outputs of the artifact, for a
        program of `torch.export`; None for other models, and in artifacts of older versions.
    weights: where each weight begins in `weights.bin`, in bytes, by index into `plan.values`.
    gpu_kernels: the GPU resources that each of TVM's kernels needs, by the kernel's name. Empty for
        CPUs, and in artifacts of older versions.
    not_tried: the steps that the compilation left out because its time budget was spent, in words.
        The tuple is empty if nothing was left out, if there was no time budget, and in artifacts of
        older versions.
    unaligned_inputs: whether a run on a CPU may read inputs at any address that is a multiple of
        the element's size. If False, as in artifacts of older versions, the kernels need addresses
        that are a multiple of 64 bytes.
    batch_sizes: if the sets of input shapes stand for batch sizes, the batch size of each set, in
        order; otherwise empty. With batch sizes, the first axis of all inputs and outputs is the
        batch, and each row is computed independently.
    row_sizes: if the model runs any number of rows within a range, the number of rows in each set
        of input shapes, in order; None otherwise.
    counted: the outputs whose size depends on values that the model computes.
    string_inputs, string_outputs: the inputs and the outputs that are strings.
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
    merge_check: MergeCheck | None = None
    program_check: ProgramCheck | None = None
    sha256: dict[str, str] = {}
    weights: dict[int, int] = {}
    batch_sizes: tuple[int, ...] = ()
    gpu_kernels: dict[str, GpuKernel] = {}
    not_tried: tuple[str, ...] = ()
    unaligned_inputs: bool = False
    row_sizes: RowSizes | None = None
    counted: tuple[CountedOutput, ...] = ()
    string_inputs: tuple[StringInput, ...] = ()
    string_outputs: tuple[StringOutput, ...] = ()
    format: Literal["tvm_interop.artifact"] = "tvm_interop.artifact"
    version: Literal[1, 2, 3, 4, 5, 6, 7] = 2

    def to_json(self) -> bytes:
        """The manifest as JSON text.

        Newer fields that are empty are left out, so that older versions can read the text.
        """
        fields = msgspec.to_builtins(self)
        for name in _LEFT_OUT_IF_EMPTY:
            if not fields[name]:
                del fields[name]
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)


_LEFT_OUT_IF_EMPTY = (
    "batch_sizes", "counted", "gpu_kernels", "kernel_check", "merge_check", "not_tried",
    "precision",
    "program_check", "quantised", "row_sizes", "string_inputs", "string_outputs",
    "unaligned_inputs",
)  # fmt: skip


def _counts(manifest: Manifest) -> Iterator[tuple[str, int]]:
    """The counts, indices and offsets in the manifest, each with its name for error messages."""
    checked, quantised = manifest.kernel_check, manifest.quantised
    if manifest.speed_check is not None:
        yield "a `rounds`", manifest.speed_check.rounds
    if checked is not None:
        for field in ("checked", "libraries", "too_large"):
            yield f"a `{field}`", getattr(checked, field)
    if quantised is not None:
        yield from ((f"a number of `{kind}`", number) for kind, number in quantised.int8.items())
    for kernel in manifest.gpu_kernels.values():
        yield "a number of `flops`", kernel.flops
    for value, offset in manifest.weights.items():
        yield "a weight with an index", value
        if offset > 0:  # Negative offsets are left to the reader of weights, which refuses them.
            yield "a weight at a place", offset


def check_manifest(manifest: Manifest) -> None:
    """Check the manifest's digests and numbers.

    Raises
    ------
    ArtifactError
        A digest is not a SHA-256, or a number is out of bounds; the message names the field.
    """
    for name, digest in manifest.sha256.items():
        if not _SHA256.fullmatch(digest):
            raise ArtifactError(f"`manifest.json` has a digest of `{name}` that is not a SHA-256")
    for what, number in _counts(manifest):
        if not 0 <= number <= LARGEST:
            raise ArtifactError(
                f"`manifest.json` has {what} of {number}; it must be 0 to {LARGEST}"
            )
    for name, kernel in manifest.gpu_kernels.items():
        for demand in (each for launches in kernel.launches.values() for each in launches):
            fault = demand.fault()
            if fault is not None:
                raise ArtifactError(f"`manifest.json` has, for the kernel `{name}`, {fault}")
    precision = manifest.precision
    for field in ("error", "largest_difference") if precision is not None else ():
        if not getattr(precision, field) >= 0:
            raise ArtifactError(
                f"`manifest.json` has a `{field}` of {getattr(precision, field)}; it must be 0 or "
                "more"
            )
    merged = manifest.merge_check
    for name, far in merged.differences.items() if merged is not None else ():
        if far is not None and not 0 <= far < math.inf:
            raise ArtifactError(
                f"`manifest.json` says that merging the operator `{name}` changed its results by "
                f"{far}; this difference must be finite, 0 or more"
            )
    if manifest.program_check is not None:
        check_errors(manifest.program_check)
    checked = manifest.speed_check
    if checked is not None:
        for field, number in msgspec.structs.asdict(checked).items():
            if isinstance(number, int | float) and not 0 <= number < math.inf:
                raise ArtifactError(
                    f"`manifest.json` has a `{field}` of {number}; it must be finite, 0 or more"
                )
        if checked.sequential_us == 0:
            raise ArtifactError(
                "`manifest.json` says that sequential execution took 0 us; it must take longer"
            )
