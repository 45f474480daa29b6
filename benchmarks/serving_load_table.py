"""Writes the results of `benchmarks.serving_load` as a table and a figure.

This module needs none of the libraries that `serving_load` needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

_HEAD = (
    "| server | load | sent /s | answered /s | in time /s | in time over capacity | p50 ms "
    "| p99 ms | refused | too late | cores: server | cores: clients |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def table(found: dict[str, Any]) -> str:
    """A Markdown table with a row for each server and load. The closed loop comes first."""
    lines = [_HEAD]
    for name, closed in found["closed"].items():
        lines.append(_line(name, "closed loop", closed, closed["throughput"]))
        for row in found["rows"]:
            if row["contestant"] == name:
                load = f"{row['load']:.1f}"
                lines.append(_line(name, load, row, closed["throughput"]))
    return "\n".join(lines)


def _busy(machine: dict[str, Any]) -> str:
    """A sentence that says that a machine was not quiet; empty if it was."""
    if machine["quiet"]:
        return ""
    return (
        f" The machine was **not quiet**: other programs took {machine['busy']:.0%} of the "
        "processor time before the measurement."
    )


def section(found: dict[str, Any]) -> list[str]:
    """The paragraphs of the section on the server under load, as Markdown."""
    networks = " and ".join(f"{name} at {size} pixels" for name, size in found["networks"])
    load = ", ".join(f"{value:.1f}" for value in found["machine"]["load"])
    return [
        "## The server under load\n\nMeasured by `python -m benchmarks.serving_load`. The "
        f"networks are {networks}. The machine is {found['machine']['cpu']}, with "
        f"{found['machine']['cores']} cores, which server and clients share. Its load averages "
        f"before the measurement were {load}.{_busy(found['machine'])}\n\nFirst "
        f"{found['clients']} clients of each network send requests in a closed loop: each client "
        "sends its next request as soon as the last one is answered. The throughput of the "
        "closed loop is the capacity of the server. Then requests arrive as a Poisson process, "
        f"for {found['seconds']:.0f} s at each load and with the same rate for each network. A "
        "load of 1 is the capacity. An answer is in time if it takes at most "
        f"{found['bound']:.0f} times as long as its network takes alone behind the same server. "
        "At a load of 1, the server is idle in gaps between random arrivals, and no order of "
        "requests can make up for this lost time.",
        table(found),
    ]


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw how many answers come in time at each load, with a line for each server.

    Both axes are rates, relative to the capacity of the server.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for name, closed in found["closed"].items():
        rows = [row for row in found["rows"] if row["contestant"] == name]
        shares = [row["goodput"] / closed["throughput"] for row in rows]
        axes.plot([row["load"] for row in rows], shares, marker="o", label=name)
    axes.axhline(0.9, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        xlabel="requests over capacity", ylabel="answers in time over capacity", ylim=(0, None)
    )
    axes.legend(frameon=False)
    figure.savefig(path)


def _line(name: str, load: str, row: dict[str, Any], capacity: float) -> str:
    return (
        f"| {name} | {load} | {row['sent'] / row['seconds']:.1f} | {row['throughput']:.1f} | "
        f"{row['goodput']:.1f} | {row['goodput'] / capacity:.2f} | {row['p50_ms']:.1f} | "
        f"{row['p99_ms']:.1f} | {row['rejected'] / row['sent']:.1%} | "
        f"{row['late'] / row['sent']:.1%} | {row['server_cores']:.2f} | {row['client_cores']:.2f} |"
    )
