"""Makes the section of `docs/benchmarks.md` with the results of `benchmarks.learned_search`."""

from __future__ import annotations

from typing import Any

from .markdown import interval, machine, table


def section(report: dict[str, Any], large: dict[str, Any]) -> list[str]:
    """The paragraphs of the section on the learned search, as Markdown.

    Parameters
    ----------
    report: results of the measured and the learned search.
    large: results of the learned search alone, on networks with large blocks.
    """
    rows: list[list[str]] = []
    for each in report["networks"]:
        every, few = each["searches"]["measured"], each["searches"]["learned"]
        apart = report["held_out"].get(each["network"])
        rows.append(
            [
                each["network"],
                f"{every['stages_measured']:,}",
                f"{few['stages_measured']:,}",
                f"{every['minutes']:.2f}",
                f"{few['minutes']:.2f}",
                f"{each['ratio']:.2f}",
                interval(each["ratio_interval"], 2),
                f"{apart['mape']:.1%}" if apart else "",
            ]
        )
    head = [
        "", "stages measured, all", "few", "minutes, all", "few", "schedule of few over all", "95%",
        "error on a network never seen",
    ]  # fmt: skip
    return [
        "## Few measurements in place of all\n\nMeasured by `python -m "
        "benchmarks.learned_search --exhaustive`. In the columns *all*, IOS measures every "
        "stage. In the columns *few*, it predicts most stages. The ratio *schedule of few over "
        "all* is the time of the schedule that is found with few measurements over the time of "
        "the schedule that is found with all. The last column is the error of predictions by a "
        "model that has seen only the three other networks.",
        table(head, rows),
        "The table above was made before IOS had beam search. With beam search, IOS measures "
        "more stages of large blocks. The next table is measured by `python -m "
        "benchmarks.learned_search randwire nasnet_a --only-learned --beside FOLDER` on "
        f"{machine(large)}. These networks have blocks that are too large for one exact search. "
        "The columns *learned* and *halved* give a schedule's time over the time of sequential "
        "execution in the same rounds. *Learned* is the schedule of IOS with beam search. *Halved* "
        "is the schedule that an older IOS found on the same kernels: it had "
        "no beam search, and cut blocks into halves by operator number. Most operators use both "
        "cores here, so hardly any schedule is faster than sequential execution.",
        _large(large),
    ]


def _large(report: dict[str, Any]) -> str:
    rows: list[list[str]] = []
    for each in report["networks"]:
        search = each["searches"]["learned"]
        halved, halved_interval = each["beside"]["halved"]
        rows.append(
            [
                each["network"],
                f"{search['stages_measured']:,}",
                f"{search['minutes']:.1f}",
                f"{each['ratio']:.3f}",
                interval(each["ratio_interval"], 3),
                f"{halved:.3f}",
                interval(halved_interval, 3),
                f"{each['noise_ratio']:.3f}",
            ]
        )
    return table(
        ["", "stages measured", "minutes", "learned", "95%", "halved", "95%", "noise"], rows
    )
