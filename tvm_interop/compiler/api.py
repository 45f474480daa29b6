"""Defines `compile`, which turns a model into an artifact.

The function `compile` lowers the model, measures its operators, schedules them, plans the run,
checks the speed, and writes the file.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from ..artifact.artifact import Artifact
from ..artifact.manifest import Precision, SpeedCheck
from ..atomic_file import check_place
from ..errors import InputError, OutOfTimeError, UnsupportedModelError
from ..frontend.torch_program import converted
from ..kernels.tuning_records import TuningRecords
from ..latency import LatencyModel, Link
from ..lowering.split_operators import parts_in
from ..measure.measured import Progress, tell
from ..scheduling import Schedule, options_of
from .annotate import annotated_schedule
from .backends import why_not_in_bf16
from .carried_kernels import kernels_like
from .compilation import Compilation
from .input_shapes import (
    Shapes,
    check_range,
    mark_batches,
    mark_ranges,
    refuse_fixed_batch,
    shapes_to_compile,
)
from .kept_choice import KeptChoice, choice_is_kept
from .merging import merged_stages
from .needed_memory import check_inputs_fit
from .new_processes import can_confirm, check_twice, to_be_confirmed
from .one_at_a_time import one_at_a_time
from .options import CompileOptions
from .precision import MAX_ERROR, measured_precision, repeated_or_cut
from .program_check import check_program
from .range_proofs import check_rows, warn_of_dependent_rows
from .row_ranges import MOST_SIZES, exact_shapes, row_range
from .speed_check import speed_check_by_auto
from .timed_search import note_search

_LOG = logging.getLogger("tvm_interop")

__all__ = ["Compilation", "CompileOptions", "compile", "new_compilation"]

_T = TypeVar("_T")


@one_at_a_time
def compile(
    model: Any,
    target: Any = "llvm",
    scheduler: str = "auto",
    out: str | os.PathLike[str] | None = None,
    *,
    schedule: Schedule | None = None,
    input_shapes: Shapes | Sequence[Shapes] | None = None,
    batch_sizes: Sequence[int] | None = None,
    streams: int | None = None,
    threads: int | None = None,
    latency: LatencyModel | str | None = None,
    latency_db: str | os.PathLike[str] | None = None,
    keep_slower: bool = False,
    progress: Progress | None = None,
    providers: Sequence[str] | None = None,
    archs: Sequence[str] | None = None,
    tuning_records: str | os.PathLike[str] | None = None,
    stream_priorities: bool = False,
    allow_tf32: bool = False,
    link: Link | None = None,
    precision: Literal["f32", "bf16", "auto"] = "f32",
    keep_f32: Sequence[str] = (),
    max_error: float = MAX_ERROR,
    inputs: Mapping[str, Any] | None = None,
    fresh: bool = False,
    cross_compiler: str | None = None,
    **options: Any,
) -> Artifact:
    """Compile a model so that its independent operators run side by side; return the artifact.

    The schedule is measured against sequential execution of the same kernels. The artifact runs
    sequentially if the schedule is not faster. The page "The options of compile" of the
    documentation says more about each option.

    Parameters
    ----------
    model: an ONNX file's path, a network's name, an ONNX model, or a Relax IRModule.
    target: a TVM target, such as `llvm`, `llvm -mcpu=core-avx2` or `cuda`.
    scheduler: one of `schedulers()`; `auto` tries several and measures which is fastest.
    out: where to write the artifact; None writes no file.
    schedule: use this schedule instead of running a scheduler.
    input_shapes: shapes of inputs that the model leaves open; several mappings make several plans.
    batch_sizes: sizes of the first dimension, for a server that joins requests into batches.
    streams: how many streams run side by side; by default one for each core on a CPU. On a GPU the
        scheduler `opara` by default opens as many as its algorithm asks for.
    threads: threads of each stream's kernels on a CPU; by default streams share the cores evenly.
    latency: a latency model, `learned`, or the name of a GPU; by default latencies are measured.
    latency_db: file that keeps measured latencies; by default one in the user's cache folder.
    keep_slower: whether the artifact runs the schedule even if sequential execution is faster.
    progress: called with the number of stages measured so far and the number of all stages.
    providers: sources of kernels: `tvm`, `onednn`, `cudnn`, `cublaslt`; by default all installed.
    archs: architectures of GPUs to compile kernels for, such as `sm_90`.
    tuning_records: folder of records that `tvm-interop tune --kernels` wrote.
    stream_priorities: on a GPU, prefer the stream with the longest chain of operators.
    allow_tf32: on a GPU, let libraries round factors of products to TF32 (10 fraction bits).
    link: the link between two GPUs, if latencies are not measured.
    precision: `f32`, `bf16`, or `auto`, which takes bf16 if its error is at most `max_error`.
    keep_f32: with bf16, names or kinds of operators that stay in float32.
    max_error: the largest error for `precision="auto"`, relative to the outputs' norm.
    inputs: with bf16, the inputs to measure the error on; by default random numbers.
    fresh: build kernels and choose the schedule anew, even if an earlier compilation kept them.
    cross_compiler: compiler that links kernels for another CPU; by default `CXX`.
    options: `time_budget`, in seconds; `shapes`, ranges such as `{"batch": (1, 32)}`, or sizes;
        `most_sizes`; `fallback`; `winograd`; `like`; a scheduler's options.

    Raises
    ------
    UnsupportedModelError, InputError, ScheduleError, DeviceError
        The message names the cause and says what to do. If an error is raised, no file is written.

    Examples
    --------
    >>> module = tvm_interop.GraphModule(compile("model.onnx", out="model.tar"))
    """
    if out is not None:
        check_place(out)
    time_budget, fallback = options.pop("time_budget", None), options.pop("fallback", True)
    winograd, like = options.pop("winograd", True), options.pop("like", None)
    ranges, most_sizes = options.pop("shapes", None), options.pop("most_sizes", None)
    model, program = converted(model)
    chosen = schedule or annotated_schedule(model)
    parts = None if chosen is None else parts_in(chosen.op_names)
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
        link=link,
        keep_f32=keep_f32,
        precision="f32" if precision == "f32" else "bf16",
        fresh=fresh,
        cross_compiler=cross_compiler,
        fallback=fallback,
        winograd=winograd,
        like=kernels_like(like),
        time_budget=time_budget,
    )
    _check_precision(precision, max_error, keep_f32, inputs)
    row_sizes = None
    if ranges is not None or most_sizes is not None:
        exact = exact_shapes(model, ranges, most_sizes)
        check_range(ranges, input_shapes, batch_sizes, None if exact else compile_options)
        if exact is not None:
            input_shapes = exact
        else:
            rows = row_range(model, ranges, MOST_SIZES if most_sizes is None else most_sizes)
            check_inputs_fit(rows.shapes(rows.combinations[-1]))
            row_sizes, is_batch = check_rows(model, rows)
            input_shapes = list(map(rows.shapes, rows.combinations))
            batch_sizes = row_sizes.sizes if is_batch else None
    each = shapes_to_compile(model, input_shapes, batch_sizes)
    for shapes in each:
        check_inputs_fit(shapes)
    if chosen is not None and len(each) > 1:
        raise InputError(
            "a schedule is for one set of input shapes: with `schedule`, give `input_shapes` only "
            "once"
        )
    try:
        artifact, *others = (
            _compile_one(
                *_compilation(
                    model,
                    given,
                    shapes,
                    precision,
                    max_error,
                    inputs if len(each) == 1 else repeated_or_cut(inputs, shapes),
                ),
                chosen,
                scheduler,
                latency,
                keep_slower,
                options,
            )
            for given, shapes in _shared_out(compile_options, each)
        )
    except UnsupportedModelError as error:
        refuse_fixed_batch(
            error, model, input_shapes, dict(zip(batch_sizes or (), each, strict=False))
        )
        raise
    check_program(program, [artifact, *others], compile_options)
    artifact.others = others
    if batch_sizes is not None:
        mark_batches(artifact, batch_sizes)
        if row_sizes is None:
            warn_of_dependent_rows(model, dict(zip(batch_sizes, each, strict=True)))
    if row_sizes is not None:
        mark_ranges(artifact, row_sizes)
    if out is not None:
        artifact.save(out)
    return artifact


def _shared_out(options: CompileOptions, each: Sequence[_T]) -> Iterator[tuple[CompileOptions, _T]]:
    """Yield each entry of `each`, paired with options whose time budget is only for this entry.

    Each entry gets an equal fraction of the compilation time that is left.
    """
    budget = options.budget
    for i, shapes in enumerate(each):
        share = budget.for_one_of(len(each) - i) if budget.is_limited else None
        yield replace(options, time_budget=share), shapes


def _check_precision(
    precision: str, max_error: float, keep_f32: Sequence[str], inputs: Mapping[str, Any] | None
) -> None:
    if precision not in ("f32", "bf16", "auto"):
        raise InputError(f"`precision` is {precision!r}; give `f32`, `bf16` or `auto`")
    if not max_error >= 0:
        raise InputError(f"`max_error` is {max_error}; give a number, 0 or more")
    if precision == "f32" and (keep_f32 or inputs is not None):
        what = "keep_f32" if keep_f32 else "inputs"
        raise InputError(f"`{what}` is for `precision` bf16 and auto; leave it out")


def _compilation(
    model: Any,
    options: CompileOptions,
    shapes: dict[str, tuple[int, ...]],
    precision: str,
    max_error: float,
    inputs: Mapping[str, Any] | None,
) -> tuple[Compilation, Precision | None, str | None]:
    """Start to compile a model in the wanted precision.

    Returns
    -------
    First, the compilation. Second, the error of bf16; None in f32. Third, a text with the precision
    that `auto` chose and the reason; None if `precision` is not `auto`.
    """
    if precision == "f32":
        return new_compilation(model, options, shapes), None, None
    budget = options.budget
    if precision == "bf16" and budget.measures_nothing:
        raise InputError(
            "`time_budget` is 0, but `precision` bf16 needs time to measure the error: give more "
            "time, or `precision` f32"
        )
    in_f32 = replace(options, precision="f32", keep_f32=())
    if precision == "auto":
        missing = why_not_in_bf16(options)
        if missing is not None:
            return new_compilation(model, in_f32, shapes), None, f"f32: {missing}"
        if budget.is_spent:
            budget.leave_out("`precision` bf16")
            late = "f32: there was no time to measure the error of bf16"
            return new_compilation(model, in_f32, shapes), None, late
    compilation = new_compilation(model, options, shapes)
    tell(options.progress, "measuring the error of bf16")
    found = measured_precision(compilation, model, shapes, inputs)
    if precision == "bf16":
        if not math.isfinite(found.error):
            raise UnsupportedModelError(
                "in bf16 the outputs are infinite or NaN where they are numbers in float32: "
                "compile with `precision` f32, or name operators with large numbers in `keep_f32`"
            )
        return compilation, found, None
    error = f"the error of bf16 is {found.error:.2g} on {found.inputs} inputs"
    if found.error <= max_error:
        return compilation, found, f"bf16: {error}, at most {max_error:g}"
    return new_compilation(model, in_f32, shapes), None, f"f32: {error}, above {max_error:g}"


def _compile_one(
    compilation: Compilation,
    precision: Precision | None,
    precision_choice: str | None,
    chosen: Schedule | None,
    scheduler: str,
    latency: LatencyModel | str | None,
    keep_slower: bool,
    options: Mapping[str, Any],
) -> Artifact:
    """Make the artifact for one set of input shapes.

    Parameters
    ----------
    chosen: the schedule to use; None runs the scheduler. If there is no time to check the
        schedule's speed, the artifact runs sequentially.
    options: options of the scheduler.
    """
    budget = compilation.options.budget
    kept = None
    may_look_up = chosen is None and not budget.measures_nothing
    if may_look_up and choice_is_kept(compilation, scheduler, latency, options):
        kept = KeptChoice(compilation, scheduler, keep_slower, options)
        found = kept.read()
        if found is not None:
            found[0].validate(compilation.graph)
            return _artifact(compilation, *found, precision, precision_choice)
    measured = None
    if chosen is None:
        tell(compilation.options.progress, f"scheduling by {scheduler}")
        confirmed_later = not keep_slower and "evaluate" not in options
        more = to_be_confirmed(compilation, scheduler) if confirmed_later else {}
        chosen = _scheduled(compilation, scheduler, latency, {**more, **options})
        # `auto` runs schedules to choose one of them. These runs count as a speed check only if
        # `auto` confirms its choice, or if new processes can confirm it later.
        is_confirmed = options.get("confirm_choice", True) or can_confirm(compilation)
        if "evaluate" not in options and is_confirmed:
            measured = speed_check_by_auto(chosen)
    chosen.validate(compilation.graph)
    checked = None if keep_slower else measured
    wants_check = checked is None and not keep_slower and _is_concurrent(chosen, compilation)
    # A schedule from latencies of another machine may be for a GPU that this machine lacks. It
    # cannot run here, so it is used without a speed check.
    if wants_check and ("prices" not in chosen.stats or compilation.can_check_speed(chosen)):
        if compilation.time_for_schedule.is_spent:
            budget.leave_out("the speed check, so the model runs sequentially")
            chosen = compilation.sequential()
        else:
            checked = check_twice(compilation, chosen)
    elif checked is not None:
        checked = check_twice(compilation, chosen, checked)
    if kept is not None and not budget.is_limited:
        kept.write(chosen, checked)
    return _artifact(compilation, chosen, checked, precision, precision_choice)


def _scheduled(
    compilation: Compilation,
    scheduler: str,
    latency: LatencyModel | str | None,
    options: Mapping[str, Any],
) -> Schedule:
    """Run the scheduler. If there is no time for that, return the sequential schedule."""
    budget = compilation.options.budget
    options_of(scheduler)  # This call raises an error for an unknown scheduler.
    if scheduler == "sequential" or not budget.measures_nothing:
        try:
            made = compilation.schedule(scheduler, latency, **options)
        except OutOfTimeError:
            pass
        else:
            note_search(made, budget)
            return made
    budget.leave_out(f"scheduler `{scheduler}` and the speed check, so the model runs sequentially")
    return compilation.sequential()


def _artifact(
    compilation: Compilation,
    schedule: Schedule,
    checked: SpeedCheck | None,
    precision: Precision | None,
    precision_choice: str | None,
) -> Artifact:
    artifact = compilation.artifact(schedule, checked, precision)
    quantised = artifact.manifest.quantised
    if quantised is not None and quantised.has_products_in_floats:
        _LOG.warning("of the quantised model, %s", quantised)
    if artifact.manifest.not_tried:
        _LOG.warning("not tried within `time_budget`: %s", "; ".join(artifact.manifest.not_tried))
    artifact.precision_choice = precision_choice
    return artifact


def _is_concurrent(schedule: Schedule, compilation: Compilation) -> bool:
    """Whether a schedule differs from sequential execution."""
    if schedule.num_streams < 2 and not merged_stages(schedule):
        return False
    in_turn = compilation.sequential()
    alike = replace(schedule, scheduler=in_turn.scheduler, makespan=in_turn.makespan)
    return alike != in_turn


def new_compilation(
    model: Any,
    options: CompileOptions | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
) -> Compilation:
    """Make a `Compilation`. If there are tuning records, check that they are for this model.

    Raises
    ------
    InputError
        There are tuning records, and none is of a kernel of the model.
    """
    compilation = Compilation(model, options, input_shapes)
    _require_tuning_records(compilation)
    return compilation


def _require_tuning_records(compilation: Compilation) -> None:
    """If there are tuning records, check that at least one is for a kernel of this model.

    `Compilation` does not check this, because it also compiles modules with merged operators. There
    may be no records of the kernels of merged operators.

    Raises
    ------
    InputError
        No tuning record is of a kernel of the model.
    """
    if compilation.options.tuning_records is not None:
        records = TuningRecords(compilation.options.tuning_records, compilation.target)
        records.require_some_of(
            compilation.module[op.kernel] for op in compilation.program.operators
        )
