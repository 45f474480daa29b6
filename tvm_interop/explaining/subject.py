"""The subject of an explanation: a compiled model, or an artifact that was loaded."""

from __future__ import annotations

import hashlib
import math
import os
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._native import cpu as _native
from ..artifact.artifact import Artifact, load
from ..artifact.ranges import Ranges, RequestCost
from ..compiler.backends import backend_for
from ..compiler.compilation import Compilation
from ..compiler.options import CompileOptions
from ..errors import DeviceError, InputError
from ..execution.cpu import threads_per_stream
from ..execution.cuda import runs_on_cuda
from ..measure.cpu_timer import CpuStageTimer
from ..measure.measured import MeasuredLatency
from ..measure.store import open_store
from ..plan.as_program import program_of
from ..program.graph import OpGraph
from ..program.program import Operator
from .wholes import Groups, Wholes


@dataclass(frozen=True)
class Subject:
    """The model or artifact that is explained.

    Attributes
    ----------
    title: the name of the model, or the path of the artifact.
    wholes: the operators of the model and their latencies.
    compilation: the compilation of the model; None for an artifact.
    artifact: the artifact, for the input shapes that are explained; None for a model.
    ranges: the ranges of sizes of the whole artifact; None if there are none, and for a model.
    request: the compiled sizes at which the given request runs; None without a request.
    """

    title: str
    wholes: Wholes
    compilation: Compilation | None = None
    artifact: Artifact | None = None
    ranges: Ranges | None = None
    request: RequestCost | None = None


def is_artifact(model: Any) -> bool:
    """Whether `model` is an artifact, or the path of a file that looks like an artifact."""
    if isinstance(model, Artifact):
        return True
    if not isinstance(model, str | os.PathLike):
        return False
    path = Path(model)
    return path.suffix == ".tar" or (path.is_file() and tarfile.is_tarfile(path))


def subject_of(
    model: Any,
    options: CompileOptions,
    input_shapes: dict[str, tuple[int, ...]] | None,
    measure: bool,
    request: Mapping[str, int] | None = None,
) -> Subject:
    """Load the artifact or compile the model that is to be explained.

    Parameters
    ----------
    measure: whether to measure unknown latencies. If False, no code of an artifact is loaded. A
        model's kernels are chosen by measurement in either case.
    request: sizes of an artifact's dimensions with ranges, by name. The plan that runs them is
        the subject; by default the first plan.

    Raises
    ------
    InputError
        The subject has no ranges, or a size of `request` is out of its range.
    DeviceError
        The model is for a GPU. An explanation needs latencies on one core, which a GPU does not
        have.
    ArtifactError, UnsupportedModelError
        `model` is neither an artifact nor a model.
    """
    if is_artifact(model):
        artifact = model if isinstance(model, Artifact) else load(model, kernels=measure)
        cost = None if request is None else artifact.cost_of(request)
        return _of_artifact(artifact, options, measure, cost)
    if request is not None:
        raise InputError(
            "`request` is for an artifact with ranges, and this is a model: give `input_shapes`, "
            "or compile the model with `shapes`"
        )
    if not backend_for(options).counts_cores:
        raise _for_cpus("the target")
    compilation = Compilation(model, options, input_shapes)
    operators = compilation.program.operators
    wholes = _wholes(
        compilation.graph,
        compilation.measured_latency,
        compilation.streams,
        [op.whole for op in operators],
        measure,
    )
    title = str(model) if isinstance(model, str | os.PathLike) else "the model"
    return Subject(title, wholes, compilation=compilation)


class _NotLoaded:
    """Takes the place of a kernel library that is not loaded.

    The library need not be loaded if latencies are only looked up, and no kernel runs.
    """

    def get_function(self, name: str, query_imports: bool) -> _NotLoaded:
        return self


def _of_artifact(
    whole: Artifact, options: CompileOptions, measure: bool, request: RequestCost | None
) -> Subject:
    title = str(whole.path) if whole.path else "the artifact"
    shape = 0 if request is None else request.shape
    artifact = whole.of_shape(shape)
    # The digests of the files for all input shapes are in the manifest of the whole artifact, not
    # in the manifests for single shapes.
    digest = whole.manifest.sha256.get(f"shapes/{shape}/kernels.so" if shape else "kernels.so")
    plan = artifact.usable_plan()
    if runs_on_cuda(plan):
        raise _for_cpus(f"`{title}`")
    program = program_of(plan, artifact.weights)
    streams = max(len(plan.streams), options.streams or _native.num_threads())
    timer = CpuStageTimer(
        program,
        artifact.load_kernels() if measure else _NotLoaded(),
        streams=streams,
        threads=threads_per_stream(plan) if len(plan.streams) > 1 else 1,
    )
    latency = MeasuredLatency(
        program,
        _kernel_hashes(artifact, digest, program.operators),
        timer,
        parallel_kernels=plan.parallel_kernels,
        store=open_store(options.latency_db),
        progress=options.progress,
    )
    whole_of = [op.whole for op in program.operators]
    wholes = _wholes(program.graph(), latency, streams, whole_of, measure)
    return Subject(title, wholes, artifact=artifact, ranges=whole.ranges, request=request)


def _wholes(
    graph: OpGraph,
    latency: MeasuredLatency,
    streams: int,
    whole_of: Sequence[str | None],
    measure: bool,
) -> Wholes:
    wait_us = latency.wait_us() if measure and graph.num_ops else latency.known_wait_us()

    def measure_again(stages: Sequence[Groups]) -> None:
        latency.measure_again(stages)
        # The latencies of operators decide on which stream each operator runs, and so which stages
        # are looked up in the database. A later explanation without measurements must look up the
        # same stages, and has only the latencies of the database. So the latencies of operators
        # come from the database here too.
        latency.answer_from_store(stages)

    return Wholes(
        graph,
        latency.stages if measure else latency.known,
        streams,
        math.nan if wait_us is None else wait_us,
        whole_of,
        measure_again if measure else None,
    )


def _kernel_hashes(
    artifact: Artifact, digest: str | None, operators: Sequence[Operator]
) -> dict[str, str]:
    """Return an identifier for each TVM kernel, by the kernel's name.

    The identifier consists of the digest of the artifact's kernel library and the kernel's name.
    """
    if digest is None:
        digest = hashlib.sha256(artifact.machine_code()).hexdigest()
    return {op.kernel: f"{digest}:{op.kernel}" for op in operators if op.library is None}


def _for_cpus(what: str) -> DeviceError:
    return DeviceError(
        f"{what} is for a GPU, and operators are explained on CPUs only; "
        "compile for `llvm`, or look at the timeline with `tvm-interop show`"
    )
