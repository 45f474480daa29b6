"""Simulates the figures of the TOP paper that need no learning (Lin et al., TPDS 36(2), 2025).

The simulated device has the data sheet of an A100, unless a figure says otherwise. The paper gives
loads in requests a second of its own engine. Here a load of 1 is the throughput of one instance at
a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.serving_cells import BARRIER_US, Cell, arrivals_of, capacity, served_model
from tvm_interop.serving import (
    Arrivals,
    Programs,
    ServedModel,
    ServingDevice,
    ServingRun,
    make_policy,
    periodic,
    simulate_serving,
)
from tvm_interop.serving.devices import SHEETS
from tvm_interop.serving.policies.search import Search

_SHEET = SHEETS["a100"]
_KAPPAS = (0.0, 0.03, 0.1)
_MIX = (1, 2, 4)
_FEW = 200
"""Number of combinations that the policy `search` may simulate. `search` stands for TOP without its
learning."""


@dataclass(frozen=True)
class Claim:
    """A claim of the paper beside our result.

    Attributes
    ----------
    figure: number of the figure in the paper.
    theirs, ours: the result of the paper, and ours.
    holds: `reproduced`; `not reproduced`; `depends` if the claim holds in some settings only;
        `not run`; or `ours` for a comparison that the paper does not make.
    because: the reason for the result.
    """

    figure: str
    claim: str
    theirs: str
    ours: str
    holds: str
    because: str


def _programs(
    names: Sequence[str], kappa: float, batches: Sequence[int] = (), barrier_us: float = BARRIER_US
) -> Programs:
    models = [served_model(name, _SHEET, batches) for name in names]
    device = replace(ServingDevice.described(_SHEET, kappa), barrier_us=barrier_us)
    return Programs(models, device)


def _serve(
    programs: Programs, arrivals: Arrivals, seconds: float, policy: str, **options: Any
) -> ServingRun:
    return simulate_serving(
        programs.models, arrivals, make_policy(policy, **options), programs.device, seconds,
        programs=programs,
    )  # fmt: skip


def _saturated(programs: Programs, mix: Sequence[float], requests: int = 3000) -> Any:
    """Arrivals at six times the throughput of one instance at a time, and how long they last."""
    total = 6 * capacity(programs, mix)
    seconds = requests / total
    return periodic([total * share / sum(mix) for share in mix], seconds), seconds


def figure_2() -> dict[str, Any]:
    """Fig. 2: latency and utilisation of ResNet-50, by the rate at which instances start."""
    found: dict[str, Any] = {}
    for kappa in _KAPPAS:
        programs = _programs(["resnet50"], kappa)
        alone_us = programs.model_us(0, schedule="ios", barriers=True)
        points = []
        for load in (0.01, 0.25, 0.5, 0.75, 0.95, 1.05, 1.25, 1.5, 1.75, 2.0):
            rate = load * 1e6 / alone_us
            seconds = 300 / rate
            run = _serve(
                programs, periodic([rate], seconds), seconds, "streams", streams=100000,
                schedule="ios", barriers=True,
            )  # fmt: skip
            points.append((load, run.latency().mean / (alone_us / 1e3), run.utilisation))
        found[str(kappa)] = points
    return found


def claims_2(found: dict[str, Any]) -> list[Claim]:
    """The claims about Fig. 2 of the TOP paper."""
    rise = {kappa: {p[0]: p[1] for p in points} for kappa, points in found.items()}
    knee = {kappa: {p[0]: p[2] for p in points}[0.95] for kappa, points in found.items()}
    return [
        Claim(
            "2", "latency is flat until instances start so often that they overlap, then rises",
            "flat up to 167 a second (6 ms), then rises",
            "; ".join(
                f"interference {k}: {r[0.95]:.2f} of the latency alone just below this rate, "
                f"{r[1.5]:.2f} at 1.5 times the rate, {r[2.0]:.2f} at twice"
                for k, r in rise.items()
            ),
            "reproduced" if all(r[0.95] < 1.05 and r[2.0] > 1.05 for r in rise.values())
            else "depends",
            "instances that overlap slow each other down, but hardly without interference",
        ),
        Claim(
            "2", "utilisation is low where latency begins to rise", "below 50%",
            f"{knee['0.0']:.0%}", "reproduced" if knee["0.0"] < 0.5 else "not reproduced",
            "small operators leave cores idle",
        ),
    ]  # fmt: skip


def figure_3() -> dict[str, Any]:
    """Fig. 3: latency of a joint graph of two models if one of them has half as many requests."""
    programs = _programs(["resnet50", "inception_v3"], 0.03)
    joint_us = programs.alone_us(programs.of_parts(((0, -1), (1, -1)), "greedy"), 3)
    rate = 0.8e6 / joint_us
    found: dict[str, Any] = {}
    for absent in ("wait", "skip"):
        for name, rates in (
            ("120+120", (rate, rate)), ("60+120", (rate / 2, rate)), ("120+60", (rate, rate / 2))
        ):  # fmt: skip
            seconds = 400 / rate
            run = _serve(programs, periodic(rates, seconds), seconds, "pos", absent=absent)
            found[f"{absent}, {name}"] = (run.latency().mean, run.utilisation)
    return found


def claims_3(found: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 3 of the TOP paper."""
    rises = {
        absent: min(found[f"{absent}, {pair}"][0] for pair in ("60+120", "120+60"))
        / found[f"{absent}, 120+120"][0]
        for absent in ("wait", "skip")
    }
    return [
        Claim(
            "3", "under POS unequal rates give a higher latency, although the load is lower",
            "60+120 and 120+60 above 120+120",
            f"if POS waits: {rises['wait']:.1f} times the latency at equal rates; if POS skips: "
            f"{rises['skip']:.2f} times",
            "depends",
            "the claim holds only if POS waits for each model; the paper does not say so",
        )
    ]  # fmt: skip


def _sustained(
    programs: Programs, mix: Sequence[float], policy: str, requests: int = 1500, **options: Any
) -> float:
    """The highest throughput of a mix that a policy sustains, in requests a second.

    The throughput is found by bisection to 2%. A policy sustains a load if at least 0.96 of the
    requests of each model are served by the end. The result is 0 if the policy does not sustain a
    tenth of the throughput of one instance at a time.
    """

    def serves(load: float) -> bool:
        total = load * capacity(programs, mix)
        seconds = requests / total
        rates = [total * share / sum(mix) for share in mix]
        run = _serve(programs, periodic(rates, seconds), seconds, policy, **options)
        came = np.bincount(run.models, minlength=len(mix))
        return bool((run.served() >= 0.96 * came).all())

    low, high = 0.1, 6.0
    if not serves(low):
        return 0.0
    while high / low > 1.02:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if serves(middle) else (low, middle)
    return low * capacity(programs, mix)


def _best_streams(programs: Programs, mix: Sequence[float]) -> tuple[float, int]:
    return max(
        (_sustained(programs, mix, "streams", streams=k), k) for k in (1, 2, 4, 6, 8, 12, 24)
    )


def figure_14() -> dict[str, Any]:
    """Fig. 14: the throughput that policies sustain with one model, in requests a second."""
    found: dict[str, Any] = {}
    for name in ("inception_v3", "resnet50", "squeezenet"):
        for kappa in _KAPPAS:
            programs = _programs([name], kappa)
            best, streams = _best_streams(programs, [1])
            found[f"{name}, {kappa}"] = {
                "sequential": _sustained(programs, [1], "sequential"),
                "ios": _sustained(programs, [1], "sequential", schedule="ios", barriers=True),
                "TOP, searched": _sustained(programs, [1], "search", **_searched(programs, [1])),
                "best streams": best,
                "streams": streams,
            }
    return found


def claims_14(found: dict[str, Any]) -> list[Claim]:
    """The claims about Fig. 14 of the TOP paper."""
    gains = [row["TOP, searched"] / row["ios"] for row in found.values()]
    beside = [row["TOP, searched"] / row["best streams"] for row in found.values()]
    return [
        Claim(
            "14", "TOP serves more of one model than IOS and the frameworks", "+14% to +180%",
            f"searched combinations serve {min(gains):.2f} to {max(gains):.2f} times what IOS does",
            "reproduced" if min(gains) >= 1.14 else "not reproduced",
            "under TOP several instances run at the same time, in different blocks",
        ),
        Claim(
            "14", "(not in the paper) TOP against K plain streams", "not compared",
            f"TOP serves {min(beside):.2f} to {max(beside):.2f} times as much as the best K",
            "ours", "streams have no barriers, so a slow block does not delay other blocks",
        ),
    ]  # fmt: skip


def _searched(programs: Programs, mix: Sequence[float], budget: int = _FEW) -> dict[str, Any]:
    """Run the policy `search` once, and return options that give it the combination it found."""
    arrivals, seconds = _saturated(programs, mix, 10)
    policy = make_policy("search", budget=budget, rates=mix)
    simulate_serving(programs.models, arrivals, policy, programs.device, seconds, programs=programs)
    assert isinstance(policy, Search)
    # The dequeue intervals are left out, because the policy sustains as high a load without them.
    return {"combination": policy.combination}


def figure_15() -> dict[str, Any]:
    """Fig. 15: the throughput that policies sustain with three models at 1:2:4."""
    found: dict[str, Any] = {}
    names = ("inception_v3", "resnet50", "squeezenet")
    for kappa in _KAPPAS:
        for barrier_us in (0.0, BARRIER_US):
            programs = _programs(names, kappa, (2, 4, 8), barrier_us)
            best, streams = _best_streams(programs, _MIX)
            found[f"{kappa}, barrier {barrier_us:.0f} us"] = {
                "sequential": _sustained(programs, _MIX, "sequential"),
                "pos, wait": _sustained(programs, _MIX, "pos", absent="wait"),
                "pos, skip": _sustained(programs, _MIX, "pos", absent="skip"),
                "TOP, searched": _sustained(programs, _MIX, "search", **_searched(programs, _MIX)),
                "batching, 8": _sustained(programs, _MIX, "batching", batch=8),
                "best streams": best,
                "streams": streams,
                "auto": _sustained(programs, _MIX, "auto", 600) if barrier_us else None,
            }
    return found


def claims_15(found: dict[str, Any]) -> list[Claim]:
    """The claims about Fig. 15 of the TOP paper."""
    gains = [row["TOP, searched"] / row["pos, skip"] for row in found.values()]
    waits = max(row["pos, wait"] for row in found.values())
    claims = [
        Claim(
            "15", "TOP serves more than POS, if POS waits for absent models", "+63%",
            "POS sustains no load at 1:2:4" if waits == 0 else f"POS sustains {waits:.0f} a second",
            "depends",
            "POS that waits serves each model only as often as the rarest: 3 of any 7 requests",
        ),
        Claim(
            "15", "TOP serves more than POS, if POS skips absent models", "+63%",
            f"searched combinations serve {min(gains):.2f} to {max(gains):.2f} times as much",
            "reproduced" if min(gains) >= 1.5 else "not reproduced",
            "TOP and POS both run one graph of stages at a time",
        ),
    ]  # fmt: skip
    beside = [row["best streams"] / row["TOP, searched"] for row in found.values()]
    claims.append(
        Claim(
            "15", "(not in the paper) K plain streams against TOP", "not compared",
            f"the best K serves {min(beside):.2f} to {max(beside):.2f} times as much",
            "ours",
            "TOP gains less over POS than plain streams gain over TOP",
        )
    )  # fmt: skip
    return claims


def figure_17() -> dict[str, Any]:
    """Fig. 17: variance of the queue lengths across models, over time.

    The load is higher than POS can serve.
    """
    programs = _programs(("inception_v3", "resnet50", "squeezenet"), 0.03)
    cell = Cell("a100", 0.03, 1.4, arrivals="periodic", requests=8000)
    arrivals, seconds = arrivals_of(cell, programs)
    found: dict[str, Any] = {}
    times_us = np.linspace(0, seconds * 1e6, 41)[1:]
    for name, policy, options in (
        ("pos, wait", "pos", {"absent": "wait"}),
        ("pos, skip", "pos", {"absent": "skip"}),
        ("sequential", "sequential", {}),
        ("sequential, longest queue", "sequential", {"order": "longest"}),
        ("4 streams", "streams", {"streams": 4}),
        ("auto", "auto", {}),
    ):
        run = _serve(programs, arrivals, seconds, policy, **options)
        found[name] = run.backlog(times_us).var(axis=1).tolist()
    found["seconds"] = (times_us / 1e6).tolist()
    return found


def claims_17(found: dict[str, Any]) -> list[Claim]:
    """The claim about Fig. 17 of the TOP paper."""
    grows = found["pos, wait"][-1] > 1e3
    return [
        Claim(
            "17", "the variance of the remaining tasks grows under POS and stays bounded under TOP",
            "POS grows; TOP below 2e5",
            f"variance at the end: pos, wait {found['pos, wait'][-1]:.3g}; pos, skip "
            f"{found['pos, skip'][-1]:.3g}; 4 streams {found['4 streams'][-1]:.3g}; longest queue "
            f"first, one at a time {found['sequential, longest queue'][-1]:.3g}",
            "depends" if grows else "not reproduced",
            "no policy of TOP is in this run, so only the claim about POS is reproduced; a policy "
            "that serves the load keeps every queue short; longest queue first keeps the queues "
            "equal at any load",
        )
    ]  # fmt: skip


def figure_24() -> dict[str, Any]:
    """Fig. 24: throughput with 1 to 8 copies of one model.

    The copies run on as many streams as there are copies, or as TOP's combined blocks.
    """
    found: dict[str, Any] = {}
    for name in ("inception_v3", "resnet50", "squeezenet"):
        for kappa in (0.0, 0.1):
            one = _programs([name], kappa)
            rate = 8e6 / one.model_us(0)
            for copies in (1, 2, 4, 8):
                models: list[ServedModel] = [one.models[0]] * copies
                programs = Programs(models, one.device)
                seconds = 1500 / rate
                arrivals = periodic([rate / copies] * copies, seconds)
                found[f"{name}, {kappa}, {copies}"] = {
                    "streams": _serve(
                        programs, arrivals, seconds, "streams", streams=copies
                    ).throughput(),
                    "TOP, searched": _serve(
                        programs, arrivals, seconds, "search", budget=60
                    ).throughput(),
                }
    return found


def claims_24(found: dict[str, Any]) -> list[Claim]:
    """The claims about Fig. 24 of the TOP paper."""
    rise = [
        found[f"{n}, 0.0, 4"]["streams"] / found[f"{n}, 0.0, 1"]["streams"]
        for n in ("inception_v3", "resnet50", "squeezenet")
    ]
    beside = [
        row["TOP, searched"] / row["streams"] for key, row in found.items() if key.endswith(", 4")
    ]
    return [
        Claim(
            "24", "throughput rises with the copies of a model, also without TOP", "rises",
            f"4 copies on streams serve {min(rise):.2f} to {max(rise):.2f} times as much as one",
            "reproduced" if min(rise) > 1.2 else "not reproduced", "copies use idle cores",
        ),
        Claim(
            "24", "TOP gains more from copies than plain concurrency gains", "larger gain",
            f"TOP serves {min(beside):.2f} to {max(beside):.2f} times as much as 4 streams",
            "reproduced" if min(beside) > 1 else "not reproduced",
            "TOP's combined blocks wait for each other at barriers",
        ),
    ]  # fmt: skip


def figure_26() -> dict[str, Any]:
    """Figs. 26 and 27: throughput and utilisation by batch size, with saturated queues."""
    found: dict[str, Any] = {}
    names = ("inception_v3", "resnet50", "squeezenet")
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    for label, chosen in (("three models", names), *((n, (n,)) for n in names)):
        programs = _programs(chosen, 0.03, sizes[1:])
        mix = _MIX if len(chosen) > 1 else (1,)
        points = []
        for batch in sizes:
            total = 20 * capacity(programs, mix)
            seconds = 12000 / total
            arrivals = periodic([total * share / sum(mix) for share in mix], seconds)
            run = _serve(programs, arrivals, seconds, "batching", batch=batch)
            points.append((batch, run.throughput(), run.utilisation))
        found[label] = points

    return found


def claims_26(found: dict[str, Any]) -> list[Claim]:
    """The claims about Figs. 26 and 27 of the TOP paper."""
    names = [label for label in found if label != "three models"]

    def saturates(label: str) -> int:
        most = max(point[1] for point in found[label])
        return int(next(point[0] for point in found[label] if point[1] >= 0.9 * most))

    at_64 = next(p[2] for p in found["three models"] if p[0] == 64)
    return [
        Claim(
            "26", "throughput of several models saturates at a batch of 64, at 90% utilisation",
            "64, about 90%",
            f"90% of the highest throughput at a batch of {saturates('three models')}; utilisation "
            f"at a batch of 64: {at_64:.0%}",
            "reproduced" if 32 <= saturates("three models") <= 64 and at_64 > 0.85 else "depends",
            "by our data sheet, an operator fills the device at smaller batches",
        ),
        Claim(
            "27", "throughput of single models saturates at a batch of 128", "128",
            "90% of the highest throughput at batches of "
            + ", ".join(str(saturates(name)) for name in names),
            "reproduced" if all(saturates(name) >= 64 for name in names) else "not reproduced",
            "by our data sheet, an operator fills the device at smaller batches",
        ),
    ]  # fmt: skip


FIGURES = {
    "2": (figure_2, claims_2), "3": (figure_3, claims_3), "14": (figure_14, claims_14),
    "15": (figure_15, claims_15), "17": (figure_17, claims_17), "24": (figure_24, claims_24),
    "26 and 27": (figure_26, claims_26),
}  # fmt: skip


def figures(folder: Path) -> dict[str, Any]:
    """Simulate all figures, and write their plots and the table of claims into the folder."""
    found: dict[str, Any] = {}
    for name, (make, _) in FIGURES.items():
        found[name] = make()
        print(f"figure {name} done", flush=True)
    _plot(found, folder)
    (folder / "claims.md").write_text(claims_of(found))
    return found


def claims_of(found: dict[str, Any]) -> str:
    """The table of all claims beside the results in `found`, as Markdown."""
    claims = [claim for name, (_, make) in FIGURES.items() for claim in make(found[name])]
    return claims_table([asdict(claim) for claim in claims]) + "\n"


def claims_table(claims: Sequence[dict[str, str]]) -> str:
    """A Markdown table with a row for each claim."""
    lines = [
        "| figure | claim | the paper's | ours | | because |",
        "|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(claim.values()) + " |" for claim in claims]
    return "\n".join(lines)


def _plot(found: dict[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    figure, ((a, b), (c, d)) = plt.subplots(2, 2, figsize=(11, 8))
    for kappa, points in found["2"].items():
        a.plot([p[0] for p in points], [p[1] for p in points], label=f"interference {kappa}")
    a.set(title="Fig. 2: ResNet-50, IOS's schedule", xlabel="starts per latency alone",
          ylabel="latency over alone")  # fmt: skip
    rows = found["15"]
    names = ["sequential", "pos, wait", "pos, skip", "TOP, searched", "batching, 8",
             "best streams", "auto"]  # fmt: skip
    width = 0.8 / len(rows)
    for i, (label, row) in enumerate(rows.items()):
        b.bar(np.arange(len(names)) + i * width, [row[n] or 0 for n in names], width, label=label)
    b.set_xticks(np.arange(len(names)) + 0.4, names, rotation=30, ha="right", fontsize=8)
    b.set(title="Fig. 15: three models, sustained", ylabel="requests a second")
    for name, values in found["17"].items():
        if name != "seconds":
            c.plot(found["17"]["seconds"], np.maximum(values, 1e-2), label=name)
    c.set(title="Fig. 17: variance of the queues", xlabel="seconds", yscale="log")
    for label, points in found["26 and 27"].items():
        d.plot([p[0] for p in points], [p[1] for p in points], marker="o", label=label)
    d.set(title="Figs. 26, 27: batches", xlabel="batch", ylabel="requests a second",
          xscale="log", yscale="log")  # fmt: skip
    for axes in (a, b, c, d):
        axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / "figures.svg")
    plt.close(figure)
