"""Defines `CompileOptions`, the options of a compilation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..artifact.chosen_kernels import ChosenKernels
from ..errors import InputError
from ..latency import LatencyModel, Link
from ..machine.target_text import read_target
from ..measure.measured import Progress
from .time_budget import TimeBudget

MERGING = ("ios-both", "ios-merge")
"""The schedulers that merge operators."""


@dataclass
class CompileOptions:
    """The options of a compilation.

    Attributes
    ----------
    target: a TVM target, or text that `read_target` reads, such as `llvm -mcpu=core-avx2`.
    streams: the number of streams that run side by side. None takes one for each thread of this
        process on a CPU (see `num_threads`). On a GPU it takes the width of the operator graph, but
        at most 8. The scheduler `opara` is an exception: it then opens as many streams as its
        algorithm asks for.
    threads: the number of threads that each stream's kernels may use on a CPU; None divides the
        cores evenly among the streams.
    parts: the largest number of parts into which a large operator is divided. The parts run side by
        side. None takes one part for each stream, or no division if kernels use several threads.
    latency_db: file of measured latencies. None takes the default file, and ":memory:" keeps
        latencies in memory only.
    progress: called with the progress of measurements.
    providers: the providers of kernels to choose from: `tvm`, `onednn` for a CPU, `cudnn` and
        `cublaslt` for a GPU. None takes all that are installed. If a library is missing, TVM's
        kernels replace the library's kernels, and a warning is logged; for a GPU see `CudaBackend`.
    tuning_records: for a CPU: folder of records that `tvm-interop tune --kernels` wrote; None uses
        no records.
    archs: for a GPU: architectures to compile kernels for, such as `sm_90`. None takes the
        architecture that `target` names. If `target` names none, None takes the architecture of
        this machine's GPU. Without a GPU, it takes `sm_80` and `sm_90` (A100 and H100).
    stream_priorities: for a GPU: whether the stream that runs most of the longest chain of
        operators has high priority. In a chain, each operator waits for the operator before it, or
        follows that operator on the same stream. The longest chain has the largest sum of
        latencies, or the most operators if latencies are unknown.
    latency: the latency model for schedulers that are given no other model; None measures on this
        machine.
    link: the link between two GPUs. The latencies of copies are computed from it, unless latencies
        are measured. None takes the device description's link.
    allow_tf32: for a GPU: whether kernel libraries may round factors of float32 products to TF32.
    precision: `f32`, or `bf16` for a CPU with AVX512-BF16. With `bf16`, convolutions and matrix
        products round their factors to bfloat16, and operators pass bfloat16 tensors on (see
        `lowering.narrow_storage`).
    fresh: whether to build kernels and choose the schedule anew, even if they were kept from
        earlier compilations. Latencies in the database stay as they are.
    keep_f32: with `bf16`, the operators that stay in float32: names, or kinds such as `matmul`,
        with `*` and `?` as in file names.
    cross_compiler: the compiler that links kernels for another kind of CPU than this one, such as
        `aarch64-linux-gnu-g++`. Options may follow its name. None takes the environment variable
        `CXX`, or the system's compiler if that is not set.
    fallback: whether the artifact also holds TVM's kernels for the operators that kernel libraries
        run, and a plan with these kernels for machines without the libraries.
    winograd: for a CPU: whether convolutions with filters of 3x3 and strides of 1 are computed by
        Winograd's algorithm where that is faster (see `docs/numbers.rst`).
    like: for a CPU: kernels and layouts that were chosen for the same model at other shapes of its
        inputs. They are used again. None measures which kernels are the fastest.
    time_budget: seconds that the compilation may take; None for no limit. The time starts to run
        when this object is made. In a copy made by `dataclasses.replace` the time goes on.
    """

    target: Any = "llvm"
    streams: int | None = None
    threads: int | None = None
    latency_db: str | os.PathLike[str] | None = None
    progress: Progress | None = None
    providers: Sequence[str] | None = None
    parts: int | None = None
    archs: Sequence[str] | None = None
    tuning_records: str | os.PathLike[str] | None = None
    stream_priorities: bool = False
    latency: LatencyModel | None = None
    link: Link | None = None
    allow_tf32: bool = False
    precision: Literal["f32", "bf16"] = "f32"
    keep_f32: Sequence[str] = ()
    fresh: bool = False
    cross_compiler: str | None = None
    fallback: bool = True
    winograd: bool = True
    like: ChosenKernels | None = None
    time_budget: float | TimeBudget | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            self.target = read_target(self.target)
        if self.precision not in ("f32", "bf16"):
            raise InputError(f"`precision` is {self.precision!r}; give `f32` or `bf16`")
        if self.keep_f32 and self.precision == "f32":
            raise InputError("`keep_f32` is for `precision` bf16: with f32 all stays in float32")
        if self.time_budget is not None and not isinstance(self.time_budget, TimeBudget):
            self.time_budget = TimeBudget.of(self.time_budget)

    @property
    def budget(self) -> TimeBudget:
        """The time that the compilation may take. It has no limit if the options give none."""
        return self.time_budget if isinstance(self.time_budget, TimeBudget) else TimeBudget()


def positive(what: str, given: int | None, default: int) -> int:
    """The number given for option `what`, or `default` if `given` is None.

    Raises
    ------
    InputError
        The number is below 1.
    """
    if given is None:
        return default
    if given < 1:
        raise InputError(f"`{what}` must be at least 1, got {given}")
    return given
