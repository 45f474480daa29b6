"""Compares the TOP paper's Figs. 16, 21, 23 and 25 with the results of our runs (the cells)."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.serving_figures import Claim


def seeds(cells: dict[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The results of one contestant, one for each seed.

    Parameters
    ----------
    prefix: name of the cells without the seed.
    """
    return [
        found
        for name, found in cells.items()
        if name.rpartition("-")[0] == prefix and name.rpartition("-")[2].isdigit()
    ]


def single_model(cells: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 16: one model, compared with IOS."""
    if "single-policies" not in cells:
        return []
    policies = cells["single-policies"]
    rows = {name: row["saturated"] for name, row in policies.items()}
    ios = rows["ios stages"]
    told = [
        f"{name} {row['throughput'] / ios['throughput']:.2f} times, {row['utilisation']:.2f}"
        for name, row in rows.items()
        if name in ("sequential", "ios stages", "4 streams", "search, 200 calls", "top+, 60 calls")
    ]
    gains = [rows["search, 200 calls"]["utilisation"] / ios["utilisation"]]
    learned = seeds(cells, "single-mended")
    if learned:
        # Agents are trained and measured at 1.5 times the throughput of one instance at a time, not
        # with saturated queues. Compare them with `ios` at the same load.
        of = [run["final"] for run in learned]
        used = float(np.mean([run.get("utilisation", 0.0) for run in of]))
        served = float(np.mean([run.get("throughput", 0.0) for run in of]))
        beside = policies["ios stages"]
        gains.append(used / beside["utilisation"])
        told.append(
            "at 1.5 times the throughput of one instance at a time: learned agents, mended, "
            f"{served / beside['throughput']:.2f} times, {used:.2f}; ios stages "
            f"{beside['utilisation']:.2f} ({len(of)} seeds, {learned[0]['calls']} calls)"
        )
    reached = [gain >= 1.26 for gain in gains]
    return [
        Claim(
            "16", "one model (inception_v3): TOP uses more of the device than IOS", "+26%",
            "throughput over that of ios stages, and utilisation, with saturated queues: "
            + "; ".join(told),
            "reproduced" if all(reached) else "depends" if any(reached) else "not reproduced",
            "requests in different blocks run side by side; at the load of 1.5 there is no more to "
            "use; plain streams use more than TOP's rule (`search`), which has barriers",
        )
    ]  # fmt: skip


def training_of_gpg(cells: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 21: how many steps the training of GPG takes."""
    parts = []
    for variant in ("gpg", "gpg-scored"):
        row = cells.get(f"gpg-training-{variant}")
        if row:
            ratios = [ratio for _, ratio in row["curve"]]
            tenth = max(1, len(ratios) // 10)
            # Take means: a single point of the curve moves up and down by chance.
            parts.append(
                f"{variant}: stages take {np.mean(ratios[:tenth]):.2f} of sequential over the "
                f"first tenth of {row['steps']} steps, {np.mean(ratios[-tenth:]):.2f} over the "
                f"last, {min(ratios):.2f} at the least; {row['seconds'] / 60:.0f} minutes on a core"
            )
    if not parts:
        return []
    return [
        Claim(
            "21", "GPG's training converges", "within 6000 steps, about 20 hours",
            "time over sequential execution: " + "; ".join(parts)
            + " (1 seed; means of the last 200 blocks, with exploration)",
            "depends", "the latencies of stages come from a model instead of the device",
        )
    ]  # fmt: skip


def shared_queue(cells: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 23: the throughput if all models read one queue."""
    policies = cells.get("shared-policies")
    learned = seeds(cells, "shared-mended")
    if not policies:
        return []
    ours = policies["search, 200 calls"]["in mix"]
    told = "no agents trained; "
    if learned:
        # A decision with a combined block that is too large serves nothing, so its throughput is 0.
        each = [run["final"].get("in mix", 0.0) for run in learned]
        ours = float(np.mean(each))
        told = (
            f"learned agents, mended, {' and '.join(f'{value:.0f}' for value in each)} "
            f"({len(learned)} seeds, {learned[0]['calls']} calls); "
        )
    names = ("pos, wait", "pos, skip", "sequential", "search, 200 calls", "4 streams")
    return [
        Claim(
            "23", "TOP serves more than POS, if all models read one queue with one interval "
            "(requests in whole mixes a second)", "more, no number",
            told + "; ".join(f"{name} {policies[name]['in mix']:.0f}" for name in names),
            "reproduced" if ours > policies["pos, wait"]["in mix"] else "not reproduced",
            "POS, whose joint graph has one request of each model, fits this case; searched blocks "
            "serve little more; a learned decision with a block that is too large serves nothing",
        )
    ]  # fmt: skip


def by_batch(cells: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 25: the shape of schedules by batch size."""
    if "graphs-by-batch" not in cells:
        return []
    rows = cells["graphs-by-batch"]
    batches = sorted({int(name.partition(",")[0]) for name in rows})
    parts = [
        f"{scheduler}: " + ", ".join(
            f"{rows[f'{batch}, {scheduler}']['stages']:.1f} with "
            f"{rows[f'{batch}, {scheduler}']['groups a stage']:.2f}" for batch in batches
        ) for scheduler in ("greedy", "gpg-scored", "ios")
    ]  # fmt: skip
    rises = [
        rows[f"{batches[-1]}, {scheduler}"]["stages"] > rows[f"{batches[0]}, {scheduler}"]["stages"]
        for scheduler in ("gpg-scored", "ios")
    ]
    return [
        Claim(
            "25", "the larger the batch, the more slender the graph", "more stages, fewer groups",
            "mean number of stages, and of groups in a stage, at batches of "
            f"{', '.join(map(str, batches))}: "
            + "; ".join(parts),
            "reproduced" if all(rises) else "depends" if any(rises) else "not reproduced",
            "greedy uses no latencies; once one operator fills the device, running operators side "
            "by side gains and loses nothing, so other preferences of a scheduler decide",
        )
    ]  # fmt: skip


_NEEDED = {
    "single-policies": ("16", "one model: TOP uses more of the device than IOS", "+26%"),
    "gpg-training-gpg": ("21", "GPG's training converges", "within 6000 steps, about 20 hours"),
    "shared-policies": ("23", "TOP serves more than POS, if all models read one queue", "more"),
    "graphs-by-batch": ("25", "the larger the batch, the more slender the graph", "more slender"),
}


def not_run(cells: dict[str, Any]) -> list[Claim]:
    """The claims of this module whose cells have no files yet, marked as not run."""
    return [
        Claim(
            figure, claim, theirs, f"not run: there was no time yet for the cells from `{name}` on",
            "not run", "`python -m benchmarks.top` goes on with these cells",
        )
        for name, (figure, claim, theirs) in _NEEDED.items() if name not in cells
    ]  # fmt: skip
