"""What a model is compiled for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import InputError
from ..latency import LatencyModel, Link
from ..machine.target_text import read_target
from ..measure.measured import Progress

MERGING = ("ios-both", "ios-merge")
"""The schedulers that merge operators."""


@dataclass
class CompileOptions:
    """What a model is compiled for.

    Attributes
    ----------
    target: a TVM target, or text as `read_target` has it: `llvm -mcpu=core-avx2`.
    streams: CPU streams to run side by side; None takes as many as the model can use and the
        process has cores for.
    threads: threads each stream's kernels may use; None shares the cores out evenly.
    parts: how many operators a large one is divided into, at most, to run side by side like any
        others; None takes one a stream, or no such division where kernels use several threads.
    latency_db: file of measured latencies; None takes the default one, ":memory:" keeps none.
    progress: told how measuring goes.
    providers: whose kernels to choose from, `tvm` and kernel libraries: `onednn` for a CPU, `cudnn`
        and `cublaslt` for a GPU. None takes all that are there. One that is missing is logged, and
        TVM's kernels do its work; for a GPU see `CudaBackend`.
    archs: for a GPU: architectures to compile kernels for, such as `sm_90`; None takes the GPU's
        that is here, or else A100's and H100's.
    stream_priorities: for a GPU: whether it prefers the stream that carries most of the longest
        chain of operators, by their latencies, or by their number where none are known.
    latency: prices operators and stages, unless a scheduler is given another; None measures here.
    link: between two GPUs, for prices by a device's description or from the database; None takes
        the description's.
    allow_tf32: for a GPU: whether kernel libraries may round factors of float32 products to TF32.
    precision: `f32`, or for a CPU that has AVX512-BF16 `bf16`: convolutions and matrix products
        round their factors to bfloat16, and operators hand it on (see `lowering.narrow_storage`).
    fresh: build and measure anew what was kept from earlier compilations; latencies in the database
        stay as they are.
    keep_f32: with `bf16`, the operators that stay in float32: names, or kinds such as `matmul`,
        with `*` and `?` as in file names.
    cross_compiler: what links kernels for a target that is no CPU like this one, such as
        `aarch64-linux-gnu-g++`, perhaps with options; None takes `CXX`, or else the system's
        compiler.
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

    def __post_init__(self) -> None:
        if isinstance(self.target, str):
            self.target = read_target(self.target)
        if self.precision not in ("f32", "bf16"):
            raise InputError(f"`precision` is {self.precision!r}; give `f32` or `bf16`")
        if self.keep_f32 and self.precision == "f32":
            raise InputError("`keep_f32` is for `precision` bf16: with f32 all stays in float32")


def parts_for(scheduler: str) -> int | None:
    """`CompileOptions.parts` for a scheduler: those that merge operators need whole ones."""
    return 1 if scheduler in MERGING else None


def positive(what: str, given: int | None, default: int) -> int:
    """The number given for option `what`, or its default.

    Raises
    ------
    InputError
        It is below 1.
    """
    if given is None:
        return default
    if given < 1:
        raise InputError(f"`{what}` must be at least 1, got {given}")
    return given
