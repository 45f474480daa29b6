"""From a model to an artifact: lower, measure, schedule, plan, check the speed, write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from .artifact import Artifact
from .compilation import Compilation
from .compile_options import CompileOptions, parts_for
from .errors import InputError
from .latency import LatencyModel
from .latency.measured import Progress
from .merging import merged_stages
from .scheduling import Schedule
from .speed_check import speed_check_by_auto
from .transform.annotate import annotated_schedule
from .transform.split_operators import parts_in

__all__ = ["Compilation", "CompileOptions", "compile", "new_compilation"]


def compile(
    model: Any,
    target: Any = "llvm",
    scheduler: str = "auto",
    out: str | os.PathLike[str] | None = None,
    *,
    schedule: Schedule | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    streams: int | None = None,
    threads: int | None = None,
    latency: LatencyModel | Literal["learned"] | None = None,
    latency_db: str | os.PathLike[str] | None = None,
    keep_slower: bool = False,
    progress: Progress | None = None,
    providers: Sequence[str] | None = None,
    archs: Sequence[str] | None = None,
    tuning_records: str | os.PathLike[str] | None = None,
    stream_priorities: bool = False,
    allow_tf32: bool = False,
    **options: Any,
) -> Artifact:
    """Compile a model so that its independent operators run side by side.

    The schedule is run against sequential execution of the same kernels before it ships; where it
    is not faster, the artifact runs sequentially, and its manifest says so. All schedulers give the
    same bits but `ios-merge` and `ios-both`, whose merged operators add up in another order.

    Parameters
    ----------
    model: an ONNX file's path, a network's name (see `models.list`), an ONNX model, or a Relax
        IRModule. One that `InterOpSchedule` has annotated keeps its schedule.
    target: a TVM target for a CPU, or `cuda` for an NVIDIA GPU; text too, with options, as in
        `llvm -mcpu=core-avx2`.
    scheduler: one of `schedulers()`; `auto` tries them all and measures which is best.
    out: where to write the artifact; None writes none.
    schedule: use this schedule, by hand perhaps, in place of a scheduler's. Operators are divided
        into as many parts as it names.
    input_shapes: shapes of inputs the model leaves open, by name.
    streams, threads: CPU streams, and threads for each; by default as many as there are cores.
    latency: prices operators and stages; by default they are measured here. `learned` predicts
        most of IOS's stages and measures those that decide; `max_measurements` and `time_budget_s`
        limit that (see `latency.active.ActiveSearch`). It needs the extra `learned`.
    latency_db: file that keeps measured latencies; by default one in the user's cache folder.
    keep_slower: ship the schedule even where sequential execution is faster.
    progress: called with the stages measured and to be measured.
    providers: whose kernels each operator's fastest is chosen from: `tvm`, and `onednn` for a CPU,
        `cudnn` and `cublaslt` for a GPU; by default all that are there. Without a GPU nothing can
        be measured: then TVM's kernels alone by default, and of libraries that are named each runs
        whatever it can.
    archs: for a GPU: architectures to compile kernels for, such as `sm_90`; by default the GPU's
        that is here, or else A100's and H100's. Without a GPU there are no latencies to schedule
        by, nor is speed checked: give a scheduler that needs none, or `latency`, and `keep_slower`.
    tuning_records: folder of what `tvm-interop tune --kernels` found for this model and target. A
        kernel that has a record faster than our default schedule takes its loops.
    stream_priorities: for a GPU: let it prefer the stream that carries most of the longest chain of
        operators, by their latencies, or by their number where none are known.
    allow_tf32: for a GPU: let kernel libraries round factors of float32 products to TF32, which is
        several times faster and keeps 10 bits of 23.
    options: the scheduler's own, such as `max_group_ops`.

    Returns
    -------
    The artifact, for `GraphModule`.

    Raises
    ------
    UnsupportedModelError, InputError, ScheduleError, DeviceError
        Each names what it is about and says what to do. No file is written then.
    """
    if out is not None and not Path(out).resolve().parent.is_dir():
        raise InputError(f"there is no folder `{Path(out).resolve().parent}` to write `{out}` to")
    chosen = schedule or annotated_schedule(model)
    parts = parts_for(scheduler) if chosen is None else parts_in(chosen.op_names)
    compile_options = CompileOptions(
        target=target,
        streams=streams,
        threads=threads,
        latency_db=latency_db,
        progress=progress,
        providers=providers,
        parts=parts,
        archs=archs,
        tuning_records=tuning_records,
        stream_priorities=stream_priorities,
        latency=latency if isinstance(latency, LatencyModel) else None,
        allow_tf32=allow_tf32,
    )
    compilation = new_compilation(model, compile_options, input_shapes)
    measured = None
    if chosen is None:
        chosen = compilation.schedule(scheduler, latency, **options)
        if "evaluate" not in options:
            measured = speed_check_by_auto(chosen)
    chosen.validate(compilation.graph)
    checked = None
    if (chosen.num_streams > 1 or merged_stages(chosen)) and not keep_slower:
        checked = measured or compilation.check_speed(chosen)
    artifact = compilation.artifact(chosen, checked)
    if out is not None:
        artifact.save(out)
    return artifact


def new_compilation(
    model: Any,
    options: CompileOptions | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
) -> Compilation:
    """A `Compilation` for the CPU or for a GPU, as `options.target` says.

    Raises
    ------
    InputError
        There are tuning records, and none is of a kernel of the model.
    """
    from .cuda_compiler import CudaCompilation, is_cuda

    for_gpu = options is not None and is_cuda(options.target)
    compilation = (CudaCompilation if for_gpu else Compilation)(model, options, input_shapes)
    compilation.require_tuning_records()
    return compilation
