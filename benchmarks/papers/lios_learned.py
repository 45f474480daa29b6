"""LIOS: the savings if most operators are predicted instead of measured.

The numbers are measured by `benchmarks.learned_schedulers`.
"""

from __future__ import annotations

from .ios_learned import SOURCE, measured_at, scheduler_checks, scheduler_table, target_table
from .record import Record, below
from .registry import experiment
from .sources import read


@experiment("lios", "Learned latencies", "few operators measured in place of all", seconds=1)
def learned() -> Record:
    """Reads `learned_schedulers.json`."""
    found = read(SOURCE)
    alone = [row for row in found["schedulers"] if not row["stages"]["full"]]
    checks = scheduler_checks(alone, "operators")
    for row in found["targets"]["operators"]:
        if "from its own" in row:
            checks.append(
                below(f"operators on {row['target']}, {row['own']} of its own: median error with "
                      "the operators of the other target over the error without",
                      row["from both"]["error"]["mean"] / row["from its own"]["error"]["mean"], 1.0)
            )  # fmt: skip
    return Record(
        "LIOS schedules by a table with the latency of each operator, which is measured on the "
        "GPU. The paper predicts none.",
        "2 CPU cores, measured, with TVM's kernels",
        checks,
        why="An operator's kernel decides its latency, and what it computes says little of the "
        "kernel.",
        remarks="`lios+` asks only for the latencies of single operators, so "
        '`latency="learned"` can save only their measurements. A choice among several kernel '
        "libraries measures the operators that several of them can run, and then less is left to "
        "save. Here only TVM's kernels took part. Both schedules ran in "
        f"interleaved rounds on a busy machine ({found['machine']['busy']:.0%} before the run). "
        "Other targets are the same machine with older instructions, and with one core. If no "
        "operator of the target itself was measured, nothing tells how much slower its kernels are "
        "than those of the other target. A few measured operators tell that. "
        + measured_at(found, "schedulers", "targets"),
        seed=f"seeds 0 to {found['seeds'] - 1}",
        tables=[
            scheduler_table(alone),
            target_table(
                "Operators of one CPU target predicted from another",
                found["targets"]["operators"],
            ),
        ],
    )
