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
    says on how many seeds it rests.
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

    It has the number of seeds, the simulator calls, and mean, least and largest value of each
    result over the seeds.
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
    places = {"room": "a device with room for all blocks", "crowded": "a crowded one"}
    for case, learner in itertools.product(places, ("as printed", "mended")):
        told = places[case]
        rows = seeds(cells, f"exact-{case}" + (" mended" if learner == "mended" else ""))
        if rows:
            ratios = [row["final over best"] for row in rows]
            close = sum(ratio >= 0.98 for ratio in ratios)
            claims.append(
                Claim(
                    "-", f"MADDPG, {learner}, decides as the best of all 375 decisions, on {told}",
                    "not shown",
                    f"final agents within 2% in {close} of {len(rows)} seeds (least "
                    f"{min(ratios):.2f}; the best they ever visited {_visited(rows)})",
                    "reproduced" if close == len(rows) else "not reproduced",
                    "critics see decisions in place of labels, and agents choose among candidates, "
                    f"all together; {rows[0]['steps']} calls, where 375 would do, and "
                    + _calls_needed(rows)
                    if learner == "mended" else
                    "the best is all blocks together as often as can be, and each step towards "
                    "that helps" if case == "room" else
                    "rewards are flat within a level and jump between levels, and the best lies "
                    "beside a cliff: " + _gradient(cells),
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
                f"{method} {sum(row['final over best'] >= 0.98 for row in rows)} of {len(rows)} "
                f"(least {min(row['final over best'] for row in rows):.2f}, first there after "
                f"{int(np.median(needed))} calls in the median, {max(needed)} at most)"
            )
    if parts:
        calls = next(rows[0]["calls"] for rows in found.values() if rows)
        claims.append(
            Claim(
                "-", "(not in the paper) searches of the same decisions on the crowded device, "
                f"{calls} calls each, within 2% of the best", "not compared", "; ".join(parts),
                "ours", "they keep the best that they met; the agents are not told it",
            )
        )  # fmt: skip
    return claims


def _calls_needed(rows: Sequence[dict[str, Any]]) -> str:
    """The call from which on each seed always decided within 2% of the best, as text."""
    needed = []
    for row in rows:
        far = [step for step, ratio in row["curve"] if ratio < 0.98]
        later = [step for step, _ in row["curve"] if step > max(far, default=0)]
        needed.append(str(min(later)) if later else "never")
    return f"decided so from call {', '.join(needed)} on (looked at every 250)"


def _gradient(cells: dict[str, Any]) -> str:
    row = cells.get("exact-gradient")
    if row is None:
        return "the policy gradient climbs what a critic makes up between them"
    return (
        f"the gradient through a critic that was fitted to all exact rewards comes within 2% from "
        f"{row['within 2%']} of {row['starts']} starts (median {row['median']:.2f})"
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
                    "; ".join(
                        f"{name}: {row[name]['within 5%']} of {row['blocks']} within 5%, mean "
                        f"{row[name]['mean']:.3f}, most {row[name]['most']:.2f}"
                        for name in ("gpg-scored", "gpg", "greedy")
                    ),
                    _by_both(row["gpg"]["most"] <= 1.05, row["gpg-scored"]["most"] <= 1.05),
                    "`gpg` is the paper's: its printed number must learn steps that move with the "
                    "number of endings; `gpg-scored` is ours: a score for each ending",
                )
            )  # fmt: skip
        if f"gpg-large-{device}" in cells:
            found = cells[f"gpg-large-{device}"]
            for label in ("held-out combinations", "held-out model"):
                row = found[label]
                over, took = row["over ios"], row["seconds a block"]
                claims.append(
                    Claim(
                        "13", f"at scale GPG takes a tenth of the search's time ({label}, "
                        f"{row['blocks']} combined blocks of 20 to 60 operators, {device})",
                        "an order of magnitude less; slightly lower performance",
                        "makespan over ios, and seconds: " + "; ".join(
                            f"{name} {over[name]['geometric mean']:.2f}, {took[name]:.3f} s"
                            for name in over if name != "sequential"
                        ),
                        "reproduced" if took["gpg-scored"] < took["ios"] / 5
                        and over["gpg-scored"]["geometric mean"] < 1.1 else "depends",
                        "ios falls back to beams on such blocks and is fast; greedy costs nothing",
                    )
                )  # fmt: skip
    if "printed-reward" in cells:
        rows = cells["printed-reward"]
        alone = sum(row["paper_reward_stages"] == row["operators"] for row in rows)
        ratio = float(np.mean([row["paper_reward_us"] / row["least_us"] for row in rows]))
        claims.append(
            Claim(
                "-", "(an error of the paper) the reward sum of gamma^t exp(-l) finds fast stages",
                "used for training",
                f"its exact optimum is one operator after the other in {alone} of {len(rows)} "
                f"blocks, {ratio:.2f} times the least makespan on average", "not reproduced",
                "every stage is paid for, so the more stages the better",
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
            "within 8000 steps", told,
            "reproduced" if learned >= searched else "not reproduced",
            "each step's outcome is its decision's alone: searches of the decision itself need no "
            "critic to be right first",
        )
    ]  # fmt: skip
    policies = cells.get("policies-0.03")
    if policies:
        claims.append(_beside_pos(found, policies, calls))
    return claims


def _by_both(one: bool, other: bool) -> str:
    """The verdict on a claim that holds or fails in two cases."""
    return "reproduced" if one and other else "depends" if one or other else "not reproduced"


def _beside_pos(
    found: dict[str, list[dict[str, Any]]], policies: dict[str, Any], calls: int
) -> Claim:
    """The claim about Fig. 15, with all requests (the paper's measure) and requests of the mix."""
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
        "15", "TOP serves more than POS (same arrivals at 1:2:4, 1.5 times what one after the "
        "other "
        f"serves; {calls} calls; requests a second, and of them requests of the mix)", "+63%",
        "; ".join(f"{name} {all_:.0f}, {mix:.0f}" for name, (all_, mix) in rows.items())
        + f"; by all requests the best learned agents serve {gains[0]:.2f} times what POS serves "
        f"that skips, {gains[1]:.2f} times what POS serves that waits",
        _by_both(*(gain >= 1.6 for gain in gains)),
        "agents serve many requests of cheap models and few of the dear one, which the mix counts; "
        "plain streams have no barriers and serve more by both",
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
            "15", "the same at interference 0.1 in place of 0.03", "+63%", "; ".join(told),
            _by_both(
                *(learned >= 1.6 * policies[f"pos, {absent}"]["throughput"]
                  for absent in ("skip", "wait"))
            ),
            f"{sum('throughput' not in run['final'] for run in rows['MADDPG, smaller networks'])} "
            f"of {len(rows['MADDPG, smaller networks'])} seeds end with a combined block that is "
            "too large, which serves nothing",
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
            "-", "(not in the paper) what each part of TOP is worth: requests of the mix a second",
            "no ablation", f"all of it {base['in mix']['mean']:.0f} ({base['seeds']} seeds); "
            + "; ".join(parts), "ours",
            "smaller networks, the same number of calls; the reward is the paper's where nothing "
            "else is said; the printed reward's stages are one operator after the other, without "
            "barriers",
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
            "15", "TOP's rule in a searched combination (`search`) serves more than POS; "
            "saturated, "
            "requests a second and requests of the mix", "+63%", "; ".join(parts),
            _by_both(*(min(gains) >= 1.6, max(gains) >= 1.6)),
            "a stage costs a barrier of 10 us here; `top+`, which is ours, has no barriers and two "
            "combined blocks in flight",
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
                ", ".join(saturated[d] for d in ("nano", "tx2", "xavier-nx", "a100"))
                + " reach 97% of the most; over one after the other: "
                + "; ".join(
                    f"{device} " + ", ".join(f"{row[h]:.2f}" for h in ("1", "2", "3", "4", "6"))
                    for device, row in rows.items()
                ) + " at H = 1, 2, 3, 4, 6",
                "depends", "searched combinations, 100 each; a small device is full sooner",
            )
        )  # fmt: skip
    if "graphs" in cells:
        rows = cells["graphs"]
        names = ("greedy", "gpg-scored", "ios")
        claims.append(
            Claim(
                "20", "a richer device has fewer stages, of more groups", "fewer stages",
                "stages and groups a stage: " + "; ".join(
                    f"{device}: " + ", ".join(
                        f"{name} {rows[f'{device}, {name}']['stages']:.1f} of "
                        f"{rows[f'{device}, {name}']['groups a stage']:.1f}" for name in names
                    ) for device in ("a100", "xavier-nx", "tx2", "nano")
                ),
                _by_both(*(
                    rows[f"a100, {name}"]["stages"] < rows[f"nano, {name}"]["stages"]
                    for name in ("ios", "gpg-scored")
                )),
                "`gpg-scored` makes more stages where less fits; `ios` makes fewer there; greedy "
                "knows no device",
            )
        )  # fmt: skip
    if "inference" in cells:
        row = cells["inference"]
        claims.append(
            Claim(
                "-", "all agents decide in under 0.05 ms", "under 0.05 ms on a server",
                f"{row['median_us'] / 1e3:.2f} ms in the median, {row['least_us'] / 1e3:.2f} at "
                "least, on one core in NumPy (a machine with other work)",
                "reproduced" if row["least_us"] < 50 else "depends",
                "0.8 million multiplications on one core",
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
