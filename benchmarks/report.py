"""Writes the results of a comparison as a Markdown table, as JSON and as a bar chart."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .harness import AGAIN, Summary
from .machine_state import MachineState

_SCALE = 3.0
"""Right edge of the chart, as a multiple of the baseline's median."""


@dataclass
class Report:
    """The comparison of all contestants on one network.

    Attributes
    ----------
    baseline: name of the contestant whose median is the denominator of all ratios.
    forced: whether the measurement was made on a busy machine. Every output says so.
    summaries: the times of each contestant, by name.
    settings: settings of each contestant, such as its number of threads, by name.
    differences: largest absolute difference between the outputs of each contestant and the outputs
        of the contestant that the comparison trusts, by name.
    skipped: for each contestant that did not take part, by name, the reason.
    """

    network: str
    baseline: str
    machine: MachineState
    forced: bool
    summaries: dict[str, Summary]
    settings: dict[str, str] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def noise(self) -> Summary:
        """The times of the baseline when it takes part a second time."""
        return self.summaries[self.baseline + AGAIN]

    def table(self) -> str:
        """A Markdown table of the contestants, with the fastest first.

        The text above the table names the machine and the baseline.
        """
        lines = [
            f"### {self.network}",
            "",
            f"Measured on {self.machine.cpu}. Together, its cores do the work of "
            f"{self.machine.cores_at_once:g} cores. Each contestant ran in {self.noise.rounds} "
            f"interleaved rounds. Ratios are to {self.baseline}. Its ratio to itself is "
            f"{self.noise.ratio:.3f} ({self.noise.ratio_interval[0]:.3f} to "
            f"{self.noise.ratio_interval[1]:.3f}).",
        ]
        if self.forced:
            lines.append(
                f"**The machine was not quiet** ({self.machine.busy:.0%} busy with other things). "
                "These figures do not support a claim."
            )
        lines += [
            "",
            "| | median ms | p90 | p99 | ratio (95%) | | max. difference | setting |",
            "|---|--:|--:|--:|--:|---|--:|---|",
        ]
        for summary in sorted(self.summaries.values(), key=lambda s: s.median_us):
            if summary.name == self.baseline + AGAIN:
                continue
            lines.append(self._row(summary))
        lines += [f"\n{name} did not take part: {why}." for name, why in self.skipped.items()]
        return "\n".join(lines)

    def write(self, folder: Path) -> list[Path]:
        """Write `<network>.md`, `.json`, `.png` and `.svg` into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / self.network
        paths = [stem.with_suffix(s) for s in (".md", ".json", ".png", ".svg")]
        paths[0].write_text(self.table() + "\n")
        paths[1].write_text(json.dumps(self.as_dict(), indent=1) + "\n")
        self._draw(paths[2:])
        return paths

    def as_dict(self) -> dict[str, Any]:
        """The report as a dictionary for JSON."""
        return {
            "network": self.network,
            "baseline": self.baseline,
            "machine": self.machine.as_dict(),
            "forced": self.forced,
            "contestants": {
                name: {
                    **asdict(summary),
                    "differs": summary.differs(self.noise),
                    "setting": self.settings.get(name, ""),
                    "max_abs_diff": self.differences.get(name),
                }
                for name, summary in self.summaries.items()
            },
            "skipped": self.skipped,
        }

    def _row(self, summary: Summary) -> str:
        low, high = summary.ratio_interval
        verdict = "" if summary.name == self.baseline else "within noise"
        if summary.differs(self.noise):
            verdict = "faster" if summary.ratio < 1 else "slower"
        return (
            f"| {summary.name} | {summary.median_us / 1e3:.3f} | {summary.p90_us / 1e3:.3f} "
            f"| {summary.p99_us / 1e3:.3f} | {summary.ratio:.3f} ({low:.3f} to {high:.3f}) "
            f"| {verdict} | {self.differences.get(summary.name, float('nan')):.1e} "
            f"| {self.settings.get(summary.name, '')} |"
        )

    def _draw(self, paths: list[Path]) -> None:
        import matplotlib

        matplotlib.use("agg")
        from matplotlib import pyplot

        drawn = [s for s in self.summaries.values() if s.name != self.baseline + AGAIN]
        drawn.sort(key=lambda s: s.median_us, reverse=True)
        medians = [s.median_us / 1e3 for s in drawn]
        # A very long bar would leave the other bars too short to compare, so it is cut at the edge.
        edge = _SCALE * self.summaries[self.baseline].median_us / 1e3
        errors = [
            [m - s.median_interval_us[0] / 1e3 for m, s in zip(medians, drawn, strict=True)],
            [s.median_interval_us[1] / 1e3 - m for m, s in zip(medians, drawn, strict=True)],
        ]
        figure, axes = pyplot.subplots(figsize=(8, 0.45 * len(drawn) + 1.4), layout="constrained")
        # Blue and orange also differ for readers without full colour vision.
        colours = ["#0072b2" if s.name.startswith("ours") else "#e69f00" for s in drawn]
        bars = axes.barh([s.name for s in drawn], medians, xerr=errors, color=colours, capsize=2)
        for i, (median, summary) in enumerate(zip(medians, drawn, strict=True)):
            label = f"{median:.2f} ms ({summary.ratio:.2f})"
            if median > edge:
                bars[i].set_hatch("//")
                label += ", beyond the scale"
            axes.annotate(
                label, (min(median + errors[1][i], edge), i), (6, 0), textcoords="offset points",
                va="center", fontsize=8, annotation_clip=False,
            )  # fmt: skip
        axes.set_xlim(0, min(max(medians), edge))
        axes.set_xlabel(f"median ms (ratio to {self.baseline}); lines: 95% of the median")
        title = f"{self.network} on {self.machine.cpu.split(' [')[0]}"
        axes.set_title(title + (", NOT QUIET" if self.forced else ""), fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        for path in paths:
            figure.savefig(path, dpi=150)
        pyplot.close(figure)
