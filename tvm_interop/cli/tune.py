"""The verb `tvm-interop tune`, which searches for a faster schedule, or for faster kernels."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress

from ..atomic_file import check_place, replacing
from ..errors import InputError
from ..ownership import why_not_trusted
from . import options, shape_options
from .console import INTERRUPTED, json_text, tuning_bar
from .flags import DeviceFlags, SearchFlags, SearchTimeFlags, with_flags

if TYPE_CHECKING:
    from ..execution.rpc_server import ServerAddress
    from ..measure.active import ActiveSearch, Round
    from ..scheduling import Schedule

_KERNELS = "Kernels"

Kernels = Annotated[
    bool,
    typer.Option(
        "--kernels",
        help="Search for faster TVM kernels instead, with MetaSchedule.",
        rich_help_panel=_KERNELS,
    ),
]
MaxTrials = Annotated[
    int | None,
    typer.Option(
        "--max-trials",
        min=0,
        help="With --kernels: largest number of trials of all kernels together, including the "
        "trials already in the folder; default: 64 for each kernel.",
        rich_help_panel=_KERNELS,
    ),
]
TuningFolder = Annotated[
    Path | None,
    typer.Option(
        "--tuning-records",
        metavar="FOLDER",
        help="With --kernels: folder that keeps the trials, by default `./tuning_records`. Without "
        "--kernels: folder of earlier trials; a kernel takes the loops found there if they "
        "are faster.",
        rich_help_panel=_KERNELS,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        help="File for the schedule, which is written again each round; by default "
        "`schedule.json`.",
    ),
]
Seed = Annotated[
    int,
    typer.Option("--seed", min=0, help="Seed of the random numbers.", rich_help_panel="Scheduling"),
]


@with_flags
def tune_model(
    model: options.Model,
    kernels: Kernels = False,
    max_trials: MaxTrials = None,
    tuning_records: TuningFolder = None,
    output: Output = None,
    input_shapes: shape_options.InputShapes = None,
    dims: shape_options.Dims = None,
    seed: Seed = 0,
    rpc_tracker: options.RpcTracker = None,
    rpc_key: options.RpcKey = None,
    *,
    flags: DeviceFlags,
    search: SearchFlags,
    limit: SearchTimeFlags,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Search for the fastest schedule, or with --kernels for faster kernels.

    A search for a schedule predicts the latencies of most stages, and measures the decisive stages.

    Stop the search at any time with Ctrl-C. Measurements are kept, the best schedule so far is
    written, and the next call continues from there. `tvm-interop compile MODEL --schedule
    schedule.json` uses the schedule. The search needs the extra `learned`.

    With --rpc-tracker and --rpc-key stages are measured on several servers at once. Start each
    server with `python -m tvm.exec.rpc_server --tracker HOST:PORT --key KEY --load-library
    libtvm_interop.so`. The servers run only TVM's kernels (--providers tvm).

    With --kernels MetaSchedule searches for faster loops for the model's TVM kernels. TVM's kernels
    run the operators that no kernel library runs. --providers tvm tunes all operators' kernels.
    Each trial is kept in a folder as soon as it is made, and the next call continues from there.
    `tvm-interop compile MODEL --tuning-records FOLDER` takes the loops that were found.
    """
    from ..compiler.options import CompileOptions
    from .tune_kernels import DEFAULT_FOLDER, tune_kernels

    shapes = shape_options.shapes_of(model, input_shapes, dims)
    if kernels:
        only_for_schedules = {
            "--output": output, "--streams": flags.streams, "--threads": flags.threads,
            "--max-group-ops": search.max_group_ops, "--max-groups": search.max_groups,
            "--endings": search.endings, "--max-measurements": search.max_measurements,
            "--rpc-tracker": rpc_tracker, "--rpc-key": rpc_key,
        }  # fmt: skip
        _refuse_given(only_for_schedules, "--kernels searches for kernels, not for a schedule")
        tune_kernels(
            model,
            CompileOptions(**flags.compile_options()),
            shapes,
            tuning_records or _own(DEFAULT_FOLDER),
            max_trials=max_trials,
            time_budget_s=limit.time_budget,
            seed=seed,
            as_json=as_json,
        )
        return
    _refuse_given({"--max-trials": max_trials}, "a search for a schedule makes no trials")
    output = output or Path("schedule.json")
    address = options.server_address(rpc_tracker, rpc_key)
    check_place(output)
    with tuning_bar(quiet=as_json) as bar:
        tuning = Tuning(output, Display(bar, search.max_measurements, quiet=as_json))
        try:
            _search_schedule(
                model,
                {**flags.compile_options(), "tuning_records": tuning_records},
                shapes,
                {**search.scheduler_options(), **limit.scheduler_options(), "seed": seed},
                tuning,
                address,
            )
        except KeyboardInterrupt:
            tuning.interrupted = True
    facts = _facts(tuning)
    typer.echo(json_text(facts) if as_json else _summary(facts))
    if tuning.interrupted:
        raise typer.Exit(INTERRUPTED)


def _own(folder: Path) -> Path:
    """Return `folder`, after a check that no other user could have written to it.

    `folder` is the default folder for trials of kernels, which is used if the user names no folder.

    Raises
    ------
    InputError
        Another user may have written to the folder.
    """
    reason = why_not_trusted(folder)
    if reason is not None:
        raise InputError(
            f"{reason}, so its records are not used: name the folder with --tuning-records if you "
            "trust it, or name another folder"
        )
    return folder


def _search_schedule(
    model: Path,
    compile_options: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None,
    search_options: dict[str, Any],
    tuning: Tuning,
    address: ServerAddress | None,
) -> None:
    """Search for the fastest schedule of a model.

    Parameters
    ----------
    address: where to request servers to measure on; None measures on this machine.
    """
    from ..compiler.api import new_compilation
    from ..compiler.options import CompileOptions

    given = CompileOptions(**compile_options, progress=tuning.display.measuring)
    compilation = new_compilation(model, given, shapes)
    with contextlib.ExitStack() as stack:
        latency = None
        if address is not None:
            latency = stack.enter_context(contextlib.closing(compilation.farm_latency(address)))
        tuning.run(compilation.search(latency, on_round=tuning.after_round, **search_options))


def _refuse_given(given: dict[str, Any], why: str) -> None:
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} has no meaning here: {why}")


class Tuning:
    """A search for a schedule, and the file with the best schedule found so far."""

    def __init__(self, output: Path, display: Display) -> None:
        self.output = output
        self.interrupted = False
        self.best: Schedule | None = None
        self.rounds: list[Round] = []
        self._search: ActiveSearch | None = None
        self.display = display

    def run(self, search: ActiveSearch) -> None:
        """Write the best schedule that is known from earlier calls, then search to the end."""
        self._search = search
        self._write(search.best())
        self._write(search.run())

    def after_round(self, done: Round) -> None:
        """Write the best schedule so far, and show the round's result. Called after each round."""
        assert self._search is not None
        self.rounds.append(done)
        self._write(self._search.best())
        self.display.round(done)

    def _write(self, schedule: Schedule) -> None:
        with replacing(self.output) as temporary:
            Path(temporary).write_text(schedule.to_json() + "\n", "utf-8")
        self.best = schedule


class Display:
    """Shows a progress bar of measured stages with the best latency so far.

    When a round is finished, a line about it is printed above the bar.
    """

    def __init__(self, bar: Progress, limit: int | None, quiet: bool) -> None:
        self._bar = bar
        self._quiet = quiet
        self._measured = 0
        self._limit = limit
        self._task = bar.add_task("measuring operators", total=None)
        self._searching = False

    def measuring(self, stages_done: int, stages_total: int) -> None:
        """Update the bar. Called while a batch of stages is measured, with the number of stages
        measured so far and the number of all stages in the batch.
        """
        if not self._searching:
            self._bar.update(self._task, completed=stages_done, total=stages_total)
            return
        self._bar.update(self._task, completed=self._measured + stages_done, total=self._limit)

    def round(self, done: Round) -> None:
        """Update the bar and print the round's line. Called after each round."""
        self._searching = True
        self._measured = done.measured
        self._bar.update(
            self._task,
            completed=done.measured,
            total=self._limit,
            description=f"best {done.best_us / 1e3:.3f} ms",
        )
        if not self._quiet:
            self._bar.console.print(_line(done), highlight=False)


def _line(done: Round) -> str:
    line = f"round {done.number}: best {done.best_us / 1e3:.3f} ms, {done.measured} stages measured"
    if done.error.stages:
        line += f", predictions off by {done.error.mape:.1%} (rank correlation "
        f"{done.error.spearman:.2f})"
    return line


def _facts(tuning: Tuning) -> dict[str, Any]:
    best = tuning.best
    return {
        "schedule": None if best is None else str(tuning.output),
        "interrupted": tuning.interrupted,
        "best_us": None if best is None else best.makespan,
        "stages": None if best is None else best.stats["stages"],
        "stages_measured": 0 if best is None else best.stats["stages_measured"],
        "rounds": [
            {
                "round": done.number,
                "stages_measured": done.measured,
                "best_us": done.best_us,
                "samples": done.samples,
                "predicted": done.error.stages,
                "mape": done.error.mape if done.error.stages else None,
                "spearman": _number(done.error.spearman),
            }
            for done in tuning.rounds
        ],
    }


def _number(value: float) -> float | None:
    """Turn NaN into None, because JSON has no NaN."""
    return value if value == value else None


def _summary(facts: dict[str, Any]) -> str:
    stopped = "stopped: " if facts["interrupted"] else ""
    if facts["schedule"] is None:
        return (
            f"{stopped}no schedule yet; measurements are kept, and the next call continues from "
            "there"
        )
    return (
        f"{stopped}{facts['best_us'] / 1e3:.3f} ms by the sum of its stages, "
        f"{facts['stages_measured']} of {facts['stages']} stages measured\n"
        f"wrote {facts['schedule']}"
    )
