"""The part of `tvm-interop tune` that searches for faster kernels: `tune --kernels`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.progress import Progress

from ..compiler.api import Compilation, CompileOptions
from ..compiler.kernel_tuning import KernelProgress, KernelTuning
from ..kernels.tuning_records import TuningRecords
from .console import INTERRUPTED, json_text, table, tuning_bar

DEFAULT_FOLDER = Path("tuning_records")
"""The default folder for trials, relative to the working directory."""


def tune_kernels(
    model: Path,
    compile_options: CompileOptions,
    input_shapes: dict[str, tuple[int, ...]] | None,
    folder: Path,
    *,
    max_trials: int | None,
    time_budget_s: float | None,
    seed: int,
    as_json: bool,
) -> None:
    """Search for faster kernels, and print the results, even if Ctrl-C stops the search.

    Parameters
    ----------
    folder: where trials are kept.
    max_trials: the most trials of all kernels together, including earlier trials in `folder`; None
        for the default.
    time_budget_s: how long to search, in seconds; None for no limit.

    Raises
    ------
    typer.Exit
        Ctrl-C stopped the search; the exit code is `INTERRUPTED`.
    """
    tuning: KernelTuning | None = None
    interrupted = False
    with tuning_bar(quiet=as_json) as bar:
        try:
            compilation = Compilation(model, compile_options, input_shapes)
            tuning = KernelTuning(
                compilation,
                TuningRecords.made(folder, compilation.target),
                max_trials=max_trials,
                time_budget_s=time_budget_s,
                seed=seed,
                on_progress=_Bar(bar),
            )
            tuning.run()
        except KeyboardInterrupt:
            interrupted = True
    kernels = tuning.progress if tuning is not None else []
    facts = {
        "tuning_records": str(folder),
        "interrupted": interrupted,
        "trials": tuning.trials if tuning is not None else None,
        "default_us": sum(kernel.uses * kernel.default_us for kernel in kernels),
        "tuned_us": sum(kernel.uses * kernel.best_us for kernel in kernels),
        "kernels": [_kernel_facts(kernel) for kernel in kernels],
    }
    typer.echo(json_text(facts) if as_json else _summary(facts, kernels))
    if interrupted:
        raise typer.Exit(INTERRUPTED)


class _Bar:
    """Shows a progress bar of trials, and the latency of the best kernels so far divided by the
    latency of TVM's default kernels.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("timing kernels", total=None)

    def __call__(self, tuning: KernelTuning) -> None:
        kernels = tuning.progress
        ratio = _ratio(
            sum(kernel.uses * kernel.best_us for kernel in kernels),
            sum(kernel.uses * kernel.default_us for kernel in kernels),
        )
        self._bar.update(
            self._task,
            completed=tuning.trials,
            total=tuning.max_trials,
            description=f"kernels at {ratio} of their default time; trials",
        )


def _kernel_facts(kernel: KernelProgress) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "uses": kernel.uses,
        "trials": kernel.trials,
        "default_us": kernel.default_us,
        "tuned_us": kernel.tuned_us,
    }


def _summary(facts: dict[str, Any], kernels: list[KernelProgress]) -> str:
    tuned = [kernel for kernel in kernels if kernel.trials]
    rows = [("kernel", "uses", "trials", "tuned to default"), *map(_row, tuned)]
    faster = sum((k.tuned_us or k.default_us) < k.default_us for k in kernels)
    stopped = "stopped: " if facts["interrupted"] else ""
    return "\n".join([
        *([table(rows)] if tuned else []),
        f"{stopped}{facts['trials'] or 0} trials, {faster} of {len(kernels)} kernels faster than "
        "with the default schedule",
        f"kept in {facts['tuning_records']}; `tvm-interop compile MODEL --tuning-records "
        f"{facts['tuning_records']}` uses their loops",
    ])  # fmt: skip


def _row(kernel: KernelProgress) -> tuple[str, ...]:
    ratio = "none ran" if kernel.tuned_us is None else _ratio(kernel.tuned_us, kernel.default_us)
    return kernel.name, str(kernel.uses), str(kernel.trials), ratio


def _ratio(us: float, default_us: float) -> str:
    return f"{us / default_us:.2f}" if default_us else "1.00"
