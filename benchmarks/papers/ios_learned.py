"""IOS: how many measurements learned latencies save, and how much slower the schedules become.

The numbers are measured by `benchmarks.learned_schedulers`.
"""

from __future__ import annotations

from typing import Any

from .record import Check, Record, Table, below
from .registry import experiment
from .sources import made, read

SOURCE = "learned_schedulers"
SLOWER = 1.05
"""The largest accepted time of a schedule found with few measurements, relative to the schedule
found with all. Where this ratio has an interval, the lower end of the interval counts."""


@experiment("ios", "Learned latencies", "few stages measured in place of all", seconds=1)
def learned() -> Record:
    """Reads `learned_schedulers.json`."""
    found = read(SOURCE)
    staged = [row for row in found["schedulers"] if row["stages"]["full"]]
    checks = scheduler_checks(staged, "stages")
    for row in found["two_gpus"]:
        what = f"{row['network']}, multi-gpu on two simulated A40s"
        checks += [
            below(f"{what}: stages measured, few over all", _share(row["stages"]), 1.0),
            Check(f"{what}: ratio of the schedules' times", None, row["ratio"], most=SLOWER),
        ]
    checks += [
        below(f"{row['measured']} of {row['stages']} stages of {row['network']}: mean loss of the "
              "active choice less that of a random choice",
              row["active"]["mean"] - row["random"]["mean"], 0.0)
        for row in found["choice"]
    ]  # fmt: skip
    checks += [
        below(f"stages on {row['target']}, {row['own']} of its own: median error with the stages "
              "of the other target over the error without",
              row["from both"]["error"]["mean"] / row["from its own"]["error"]["mean"], 1.0)
        for row in found["targets"]["stages"]
        if "from its own" in row
    ]  # fmt: skip
    return Record(
        "IOS measures the latency of every stage that it considers, on the device. The paper "
        "predicts none.",
        "2 CPU cores, measured, with TVM's kernels; two A40s, simulated from their data sheet",
        checks,
        why="A search with few measurements draws its first 24 stages at random, so with 24 "
        "stages in all its choice is no better than a random one. If a scheduler "
        "asks for about as many stages in all, as `greedy` does, nothing is left to save, and the "
        "search may even measure more. Stages of another target mislead as soon as 24 stages of "
        "the target itself are measured, because operators slow each other down by other factors "
        "there.",
        remarks='*Few* are the searches with `latency="learned"`, each from an empty database. '
        "Both schedules ran on the same kernels in interleaved rounds; the machine was busy with "
        f"other programs ({found['machine']['busy']:.0%} before the run), and so the intervals "
        f"are wide. {_where_it_does_not_pay(staged)} "
        "Other targets are the same machine with older instructions, and with one core. "
        "The loss of a choice is the time of the schedule by expected latencies over that of the "
        "best schedule, less 1, on a device that was recorded before. "
        + measured_at(found, "schedulers", "two_gpus", "targets", "choice"),
        seed=f"seeds 0 to {found['seeds'] - 1}",
        tables=[
            scheduler_table(staged),
            _two_gpus(found["two_gpus"]),
            _choices(found["choice"]),
            target_table(
                "Stages of one CPU target predicted from another", found["targets"]["stages"]
            ),
        ],
    )


def _where_it_does_not_pay(rows: list[dict[str, Any]]) -> str:
    """Sentences that name the schedulers that gain nothing from learned latencies."""
    longer = [r for r in rows if r["seconds"]["few"] >= r["seconds"]["full"]]
    slower = [r for r in rows if r["ratio_interval"][0] > 1]
    said = []
    for which, what in (
        (longer, "The search with few measurements took more seconds than the search with all for"),
        (
            slower,
            "The schedule of the search with few measurements was slower, beyond the noise, for",
        ),
    ):
        names = ", ".join(f"{row['network']} by `{row['scheduler']}`" for row in which)
        said.append(f"{what} {names or 'none'}.")
    return " ".join(said)


def measured_at(found: dict[str, Any], *parts: str) -> str:
    """A sentence for each part of the result file: its commit and date."""
    said = [
        f"The part `{part}` of `{SOURCE}.json` was measured at commit "
        f"{found['made'][part]['commit']} on {found['made'][part]['date'][:10]}."
        for part in parts
    ]
    return " ".join([*said, made(SOURCE)])


def scheduler_checks(rows: list[dict[str, Any]], counted: str) -> list[Check]:
    """Check that prediction saves each scheduler measurements, without a slower schedule.

    Parameters ---------- counted: the measurements that are counted, of `stages` or of `operators`.
    """
    checks = []
    for row in rows:
        what = f"{row['network']}, {row['scheduler']}"
        checks += [
            below(f"{what}: {counted} measured, few over all", _share(row[counted]), 1.0),
            Check(f"{what}: lower end of the ratio of the schedules' times", None,
                  row["ratio_interval"][0], most=SLOWER),
        ]  # fmt: skip
    return checks


def _share(counts: dict[str, int]) -> float:
    """The fraction of the measurements that remains when most latencies are predicted."""
    return counts["few"] / counts["full"]


def scheduler_table(rows: list[dict[str, Any]]) -> Table:
    """The table of each scheduler with all and with few measurements, on this CPU."""
    head = [
        "", "operators, all", "few", "stages, all", "few", "seconds, all", "few",
        "schedule, few over all", "90%", "sequential over all",
    ]  # fmt: skip
    cells = [
        [
            f"{row['network']}, {row['scheduler']}",
            *(f"{row[what][way]:,}" for what in ("operators", "stages") for way in ("full", "few")),
            *(f"{row['seconds'][way]:.1f}" for way in ("full", "few")),
            f"{row['ratio']:.3f}",
            "{:.3f} to {:.3f}".format(*row["ratio_interval"]),
            f"{row['sequential_ratio']:.3f}",
        ]
        for row in rows
    ]
    return Table("All latencies measured, and few", head, cells)


def _two_gpus(rows: list[dict[str, Any]]) -> Table:
    head = ["", "stages, all", "few", "schedule, few over all", "sequential over all", "rounds"]
    cells = [
        [
            row["network"],
            *(f"{row['stages'][way]:,}" for way in ("full", "few")),
            f"{row['ratio']:.3f}",
            f"{row['sequential_ratio']:.3f}",
            str(row["rounds"]),
        ]
        for row in rows
    ]
    return Table("`multi-gpu` on two simulated A40s", head, cells)


def _choices(rows: list[dict[str, Any]]) -> Table:
    cells = [
        [
            f"{row['measured']} of {row['stages']:,} stages of {row['network']}",
            interval(row["active"]),
            interval(row["random"]),
        ]
        for row in rows
    ]
    return Table(
        "Loss of the schedule, mean and 95% over the seeds", ["", "active", "random"], cells
    )


def target_table(title: str, rows: list[dict[str, Any]]) -> Table:
    """The errors of predictions for a target, with and without samples of another target."""
    head = [
        "", "of its own", "error, from both", "from its own alone", "rank correlation, from both",
        "from its own alone",
    ]  # fmt: skip
    cells = [
        [
            f"{row['target']}, {row['of']:,}",
            str(row["own"]),
            *(
                interval(row[way][what]) if way in row else ""
                for what in ("error", "rank_correlation")
                for way in ("from both", "from its own")
            ),
        ]
        for row in rows
    ]
    return Table(f"{title}: median relative error, mean over the seeds", head, cells)


def interval(numbers: dict[str, float]) -> str:
    """A mean and its interval as text; the mean alone if the interval has no width."""
    if numbers["low"] == numbers["high"]:
        return f"{numbers['mean']:.3f}"
    return f"{numbers['mean']:.3f} ({numbers['low']:.3f} to {numbers['high']:.3f})"
