"""Makes the table of the TOP paper's claims, and the plots, from the result files of the cells."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving_figures import Claim, claims_table
from benchmarks.top_report_more import (
    by_batch,
    not_run,
    seeds,
    shared_queue,
    single_model,
    training_of_gpg,
)

_PLAIN = ("sequential", "pos, skip", "batches of 8")
_METRICS = ("throughput", "in mix")
"""Two measures of throughput. The paper counts all requests that were served. We count only
requests that make up whole mixes."""


def report(folder: Path) -> None:
    """Write `top_claims.md`, `top_summary.json` and `top_curves.svg` into the folder's parent.

    A claim is left out, or marked as not run, if the files of its cells are missing. Each claim
    says from how many seeds its result comes.
    """
    cells = done(folder)
    target = folder.parent
    table = claims_of(cells)
    (target / "top_claims.md").write_text(table)
    (target / "top_summary.json").write_text(json.dumps(summary(cells), indent=1) + "\n")
    _plot(cells, target / "top_curves.svg")
    print(table, end="")


def claims_of(cells: dict[str, Any]) -> str:
    """The table of claims beside the results of the cells, as Markdown."""
    claims = [claim for make in _CLAIMS for claim in make(cells)]
    return claims_table([vars(claim) for claim in claims]) + "\n"


def done(folder: Path) -> dict[str, Any]:
    """The results of the cells whose files are in the folder, by name."""
    return {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))}


def summary(cells: dict[str, Any]) -> dict[str, Any]:
    """A summary of each contestant that has a reward, by its name.

    The summary has the number of seeds, the simulator calls, and the mean, least and largest value
    of each result over the seeds.
    """
    found: dict[str, Any] = {}
    for prefix in sorted({name.rpartition("-")[0] for name in cells}):
        rows = [row for row in seeds(cells, prefix) if "final" in row]
        if rows:
            found[prefix] = {
                "seeds": len(rows),
                "calls": rows[0]["calls"],
                "seconds": _spread([row["seconds"] for row in rows]),
                **{
                    key: _spread([row["final"].get(key, 0.0) for row in rows])
                    for key in ("reward", "in mix", "throughput", "latency_ms", "variance")
                },
            }
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "least": min(values), "most": max(values)}


def _exact(cells: dict[str, Any]) -> list[Claim]:
    claims = []
    places = {"room": "a device with room for all blocks", "crowded": "a crowded device"}
    for case, learner in itertools.product(places, ("as printed", "mended")):
        told = places[case]
        rows = seeds(cells, f"exact-{case}" + (" mended" if learner == "mended" else ""))
        if rows:
            ratios = [row["final over best"] for row in rows]
            close = sum(ratio >= 0.98 for ratio in ratios)
            claims.append(
                Claim(
                    "-", f"MADDPG, {learner}, finds the best of all 375 decisions, on {told}",
                    "not shown",
                    f"final agents are within 2% of the best in {close} of {len(rows)} seeds "
                    f"(least {min(ratios):.2f} of the best reward; best decision visited: "
                    f"{_visited(rows)})",
                    "reproduced" if close == len(rows) else "not reproduced",
                    "critics see decisions instead of labels, and all agents together choose among "
                    f"candidates; the agents take {rows[0]['steps']} calls, where 375 calls would "
                    "try every decision; " + _calls_needed(rows)
                    if learner == "mended" else
                    "the best decision runs all blocks together as often as possible, and each "
                    "step towards this decision helps" if case == "room" else
                    "the reward is equal for all actions of one decision and jumps between "
                    "decisions, and a bad decision lies beside the best; " + _gradient(cells),
                )
            )  # fmt: skip
    found = {
        method: seeds(cells, f"exact-search {method}")
        for method in ("random search", "hill climbing", "cross-entropy")
    }
    parts = []
    for method, rows in found.items():
        if rows:
            needed = [row["calls until within 2%"] or row["calls"] for row in rows]
            parts.append(
                f"{method} in {sum(row['final over best'] >= 0.98 for row in rows)} of {len(rows)} "
                f"runs (least {min(row['final over best'] for row in rows):.2f} of the best "
                f"reward; first within 2% after {int(np.median(needed))} calls in the median, "
                f"{max(needed)} at most)"
            )
    if parts:
        calls = next(rows[0]["calls"] for rows in found.values() if rows)
        claims.append(
            Claim(
                "-", "(not in the paper) searches among the same decisions come within 2% of the "
                f"best, on the crowded device, with {calls} calls each", "not compared",
                "; ".join(parts), "ours",
                "a search keeps the best decision that it met; agents do not know their best one",
            )
        )  # fmt: skip
    return claims


def _calls_needed(rows: Sequence[dict[str, Any]]) -> str:
    """For each seed, the number of calls after which decisions stay within 2% of the best
    decision."""
    needed = []
    for row in rows:
        far = [step for step, ratio in row["curve"] if ratio < 0.98]
        later = [step for step, _ in row["curve"] if step > max(far, default=0)]
        needed.append(str(min(later)) if later else "never")
    return f"they stay within 2% from call {', '.join(needed)} on (checked every 250 calls)"


def _gradient(cells: dict[str, Any]) -> str:
    row = cells.get("exact-gradient")
    if row is None:
        return "the policy gradient follows guesses of a critic between the decisions"
    return (
        "the gradient of a critic that was fitted to all exact rewards comes within 2% of the best "
        f"from {row['within 2%']} of {row['starts']} starts (median ratio {row['median']:.2f})"
    )


def _visited(rows: Sequence[dict[str, Any]]) -> str:
    return f"{min(row['visited over best'] for row in rows):.2f} or more"


def _gpg(cells: dict[str, Any]) -> list[Claim]:
    claims = []
    for device in ("a100", "xavier-nx"):
        if f"gpg-exact-{device}" in cells:
            row = cells[f"gpg-exact-{device}"]
            claims.append(
                Claim(
                    "13", f"GPG is only slightly below the optimum (blocks of up to 11 operators, "
                    f"{device})", "slightly lower",
                    "makespan over the optimal one: " + "; ".join(
                        f"{name}: {row[name]['within 5%']} of {row['blocks']} blocks within 5%, "
                        f"mean {row[name]['mean']:.3f}, most {row[name]['most']:.2f}"
                        for name in ("gpg-scored", "gpg", "greedy")
                    ),
                    _by_both(row["gpg"]["most"] <= 1.05, row["gpg-scored"]["most"] <= 1.05),
                    "`gpg` is the paper's network: its one output selects an ending by its place "
                    "in a list, and the place of a good ending changes with the length of the "
                    "list; `gpg-scored` is ours: it scores each ending",
                )
            )  # fmt: skip
        if f"gpg-large-{device}" in cells:
            found = cells[f"gpg-large-{device}"]
            for label in ("held-out combinations", "held-out model"):
                row = found[label]
                over, took = row["over ios"], row["seconds a block"]
                claims.append(
                    Claim(
                        "13", f"on large blocks GPG takes a tenth of the search's time ({label}, "
                        f"{row['blocks']} combined blocks of 20 to 60 operators, {device})",
                        "an order of magnitude less time; slightly lower performance",
                        "makespan over that of ios, and seconds a block: " + "; ".join(
                            f"{name} {over[name]['geometric mean']:.2f}, {took[name]:.3f} s"
                            for name in over if name != "sequential"
                        ),
                        "reproduced" if took["gpg-scored"] < took["ios"] / 5
                        and over["gpg-scored"]["geometric mean"] < 1.1 else "depends",
                        "ios uses beam search on such blocks and is fast; greedy takes almost no "
                        "time",
                    )
                )  # fmt: skip
    if "printed-reward" in cells:
        rows = cells["printed-reward"]
        alone = sum(row["paper_reward_stages"] == row["operators"] for row in rows)
        ratio = float(np.mean([row["paper_reward_us"] / row["least_us"] for row in rows]))
        claims.append(
            Claim(
                "-", "(an error of the paper) the reward, a sum of gamma^t exp(-l) over the "
                "stages, finds fast stages",
                "used for training",
                f"the optimum of the reward runs one operator after the other in {alone} of "
                f"{len(rows)} blocks; its makespan is {ratio:.2f} times the least makespan on "
                "average", "not reproduced",
                "every stage adds to the reward, so more stages give a higher reward",
            )
        )  # fmt: skip
    return claims


def _learning(cells: dict[str, Any]) -> list[Claim]:
    rows = {
        name: seeds(cells, prefix)
        for name, prefix in (
            ("MADDPG, the paper's networks", "maddpg-paper"),
            ("MADDPG, smaller networks", "maddpg-small"),
            ("MADDPG as printed, smaller networks", "maddpg-printed"),
            ("MADDPG, mended, smaller networks", "maddpg-mended"),
            ("one DDPG agent", "ddpg-small"),
            ("random search", "search-random search"),
            ("hill climbing", "search-hill climbing"),
            ("cross-entropy", "search-cross-entropy"),
        )
    }
    found = {name: runs for name, runs in rows.items() if runs}
    if not found:
        return []
    calls = next(iter(found.values()))[0]["calls"]
    told = "; ".join(
        f"{name} {np.mean([run['final']['reward'] for run in runs]):.2f} ({len(runs)} seeds)"
        for name, runs in found.items()
    )
    learned = max(
        (np.mean([r["final"]["reward"] for r in runs]) for n, runs in found.items() if "DDPG" in n),
        default=0.0,
    )
    searched = max(
        (np.mean([r["final"]["reward"] for r in runs]) for n, runs in found.items()
         if "DDPG" not in n), default=0.0,
    )  # fmt: skip
    claims = [
        Claim(
            "22", f"MADDPG converges to a good decision (reward of Equation 2, {calls} calls each)",
            "within 8000 steps", "mean reward: " + told,
            "reproduced" if learned >= searched else "not reproduced",
            "the outcome of a step depends on its decision alone; a search of the decision itself "
            "does not need a critic that is right first",
        )
    ]  # fmt: skip
    policies = cells.get("policies-0.03")
    if policies:
        claims.append(_beside_pos(found, policies, calls))
    return claims


def _by_both(one: bool, other: bool) -> str:
    """The verdict on a claim that was tested in two cases. `one` and `other` say where it holds."""
    return "reproduced" if one and other else "depends" if one or other else "not reproduced"


def _beside_pos(
    found: dict[str, list[dict[str, Any]]], policies: dict[str, Any], calls: int
) -> Claim:
    """The claim about Fig. 15, for all requests and for requests that make up whole mixes.

    The paper counts all requests, so the verdict does too.
    """
    rows = {
        name: [
            float(np.mean([run["final"].get(key, 0.0) for run in runs])) for key in _METRICS
        ]
        for name, runs in found.items()
    }  # fmt: skip
    streams = max(
        (row["throughput"], name) for name, row in policies.items() if name.endswith("streams")
    )[1]
    for name in (*_PLAIN, "pos, wait", streams):
        rows[name] = [policies[name][key] for key in _METRICS]
    learned = max(row[0] for name, row in rows.items() if "MADDPG" in name)
    gains = [learned / rows[f"pos, {absent}"][0] for absent in ("skip", "wait")]
    return Claim(
        "15", "TOP serves more than POS (same arrivals at 1:2:4, with 1.5 times the throughput of "
        f"one instance at a time; {calls} calls)", "+63%",
        "all requests a second, and requests in whole mixes a second: "
        + "; ".join(f"{name} {all_:.0f}, {mix:.0f}" for name, (all_, mix) in rows.items())
        + f"; counting all requests, the best learned agents serve {gains[0]:.2f} times as much as "
        f"POS that skips, and {gains[1]:.2f} times as much as POS that waits",
        _by_both(*(gain >= 1.6 for gain in gains)),
        "agents serve many requests of cheap models and few of the expensive model, which limits "
        "the mix; plain streams have no barriers and serve more by both measures",
    )  # fmt: skip


def _more_interference(cells: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 15 on a device with more interference."""
    rows = {
        "MADDPG, smaller networks": seeds(cells, "maddpg-small, 0.1"),
        "hill climbing": seeds(cells, "search-hill climbing, 0.1"),
    }
    policies = cells.get("policies-0.1")
    if not policies or not all(rows.values()):
        return []
    told = [
        f"{name} {np.mean([run['final'].get('throughput', 0.0) for run in runs]):.0f}, "
        f"{np.mean([run['final'].get('in mix', 0.0) for run in runs]):.0f} (reward "
        f"{np.mean([run['final']['reward'] for run in runs]):.2f}; {len(runs)} seeds)"
        for name, runs in rows.items()
    ]
    told += [
        f"{name} {policies[name]['throughput']:.0f}, {policies[name]['in mix']:.0f}"
        for name in (*_PLAIN, "pos, wait")
    ]
    learned = np.mean(
        [run["final"].get("throughput", 0.0) for run in rows["MADDPG, smaller networks"]]
    )
    return [
        Claim(
            "15", "TOP serves more than POS (as above, with interference 0.1, not 0.03)", "+63%",
            "all requests a second, and requests in whole mixes a second: " + "; ".join(told),
            _by_both(
                *(learned >= 1.6 * policies[f"pos, {absent}"]["throughput"]
                  for absent in ("skip", "wait"))
            ),
            f"{sum('throughput' not in run['final'] for run in rows['MADDPG, smaller networks'])} "
            f"of {len(rows['MADDPG, smaller networks'])} seeds end with a combined block that is "
            "too large and serves nothing",
        )
    ]  # fmt: skip


def _ablations(cells: dict[str, Any]) -> list[Claim]:
    found = summary(cells)
    base = found.get("maddpg-small")
    parts = [
        f"{name.removeprefix('ablation-')} {row['in mix']['mean']:.0f} ({row['seeds']} seeds)"
        for name, row in found.items()
        if name.startswith("ablation-")
    ]
    if base is None or not parts:
        return []
    return [
        Claim(
            "-", "(not in the paper) what each part of TOP gains: requests in whole mixes a second",
            "no ablation",
            f"all of TOP but GPG {base['in mix']['mean']:.0f} ({base['seeds']} seeds); "
            + "; ".join(parts), "ours",
            "all have stages of `greedy`, smaller networks and the same number of calls; the "
            "reward is the paper's unless the name says otherwise; the stages of the printed "
            "reward are one operator after the other, without barriers",
        )
    ]  # fmt: skip


def _plus(cells: dict[str, Any]) -> list[Claim]:
    parts = []
    gains = []
    for kappa in ("0.03", "0.1"):
        row = cells.get(f"policies-{kappa}")
        if row:
            rows = {name: found["saturated"] for name, found in row.items()}
            streams = max(
                (found["throughput"], name)
                for name, found in rows.items() if name.endswith("streams")
            )[1]  # fmt: skip
            names = (
                "top+, 60 calls", "search, 200 calls", "pos, skip", streams, "batches of 8",
                "sequential",
            )  # fmt: skip
            ratios = [rows["search, 200 calls"][key] / rows["pos, skip"][key] for key in _METRICS]
            gains.append(ratios[0])
            parts.append(
                f"interference {kappa}: "
                + ", ".join(
                    f"{name} {' and '.join(f'{rows[name][key]:.0f}' for key in _METRICS)}"
                    for name in names
                )
                + f"; `search` over POS {ratios[0]:.2f} and {ratios[1]:.2f}"
            )
    if not parts:
        return []
    return [
        Claim(
            "15", "TOP's rule with a searched combination (`search`) serves more than POS, with "
            "saturated queues", "+63%",
            "all requests a second, and requests in whole mixes a second: " + "; ".join(parts),
            _by_both(*(min(gains) >= 1.6, max(gains) >= 1.6)),
            "a stage costs a barrier of 10 us here; `top+` is ours: it has no barriers and runs "
            "two combined blocks at once",
        )
    ]  # fmt: skip


def _shapes(cells: dict[str, Any]) -> list[Claim]:
    claims = []
    if "heights" in cells:
        rows = cells["heights"]
        saturated = {
            device: next(
                h for h in ("1", "2", "3", "4", "6")
                if row[h] >= 0.97 * max(row[k] for k in ("1", "2", "3", "4", "6"))
            )
            for device, row in rows.items()
        }  # fmt: skip
        claims.append(
            Claim(
                "18", "throughput saturates at H = 2, 2, 3, 4 (Nano, TX2, NX, server)",
                "2, 2, 3, 4",
                "H = " + ", ".join(saturated[d] for d in ("nano", "tx2", "xavier-nx", "a100"))
                + " reach 97% of the highest throughput; throughput over one instance at a time: "
                + "; ".join(
                    f"{device} " + ", ".join(f"{row[h]:.2f}" for h in ("1", "2", "3", "4", "6"))
                    for device, row in rows.items()
                ) + ", each at H = 1, 2, 3, 4, 6",
                "depends", "a search tries 100 combinations for each H; a small device is full "
                "sooner",
            )
        )  # fmt: skip
    if "graphs" in cells:
        rows = cells["graphs"]
        names = ("greedy", "gpg-scored", "ios")
        claims.append(
            Claim(
                "20", "a richer device has fewer stages, with more groups each", "fewer stages",
                "mean number of stages, and of groups in a stage: " + "; ".join(
                    f"{device}: " + ", ".join(
                        f"{name} {rows[f'{device}, {name}']['stages']:.1f} with "
                        f"{rows[f'{device}, {name}']['groups a stage']:.1f}" for name in names
                    ) for device in ("a100", "xavier-nx", "tx2", "nano")
                ),
                _by_both(*(
                    rows[f"a100, {name}"]["stages"] < rows[f"nano, {name}"]["stages"]
                    for name in ("ios", "gpg-scored")
                )),
                "on the TX2 and the Nano `gpg-scored` makes more stages than on the A100, and "
                "`ios` fewer; greedy does not know the device",
            )
        )  # fmt: skip
    if "inference" in cells:
        row = cells["inference"]
        claims.append(
            Claim(
                "-", "all agents together decide in under 0.05 ms", "under 0.05 ms on a server",
                f"{row['median_us'] / 1e3:.2f} ms in the median, {row['least_us'] / 1e3:.2f} ms at "
                "least, in NumPy on one core of a machine with other work",
                "reproduced" if row["least_us"] < 50 else "depends",
                "a decision takes 0.8 million multiplications on one core",
            )
        )  # fmt: skip
    return claims


_CLAIMS = (
    _exact, _gpg, training_of_gpg, _learning, _more_interference, _ablations, single_model,
    shared_queue, _plus,
    _shapes, by_batch, not_run,
)  # fmt: skip


def _plot(cells: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (a, b) = plt.subplots(1, 2, figsize=(11, 4))
    for label, prefix, colour in (
        ("MADDPG, small", "maddpg-small", "C0"),
        ("MADDPG as printed", "maddpg-printed", "C6"), ("MADDPG, mended", "maddpg-mended", "C7"),
        ("MADDPG, paper's", "maddpg-paper", "C1"),
        ("one DDPG agent", "ddpg-small", "C2"), ("random search", "search-random search", "C3"),
        ("hill climbing", "search-hill climbing", "C4"),
        ("cross-entropy", "search-cross-entropy", "C5"),
    ):  # fmt: skip
        for i, run in enumerate(seeds(cells, prefix)):
            name = label if i == 0 else None
            a.plot(*zip(*run["curve"], strict=True), color=colour, label=name, lw=1)
            if "curve with noise" in run:
                b.plot(*zip(*run["curve with noise"], strict=True), color=colour, label=name, lw=1)
    a.set(title="Best decision so far", xlabel="simulator calls", ylabel="reward of Equation 2")
    b.set(title="What is decided, with noise", xlabel="simulator calls")
    for axes in (a, b):
        if axes.lines:
            axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
