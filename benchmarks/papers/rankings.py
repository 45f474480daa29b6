"""Compares the simulators' rankings of schedulers with the papers' rankings, by Kendall's tau.

Most papers rank only some pairs of schedulers, in words or by a ratio. So tau counts the pairs that
the paper ranks. Tau is (s - o) / n, where n is the number of these pairs. Our numbers rank s pairs
in the same order as the paper, and o pairs in the other order. If the two numbers of a pair differ
by less than 1%, the pair counts in n only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from ..block_calibration import FORMS, PAPER_MS
from ..markdown import table
from . import store
from .record import Chart, Record
from .registry import PAPERS

EQUAL = 0.01
"""If two latencies differ by less than this share, the pair is not ranked, here and in the
papers."""

Pair = tuple[str, str]
"""A pair of schedulers: first the better one, then the worse one."""


def in_order(*tiers: Sequence[str]) -> tuple[Pair, ...]:
    """All pairs of schedulers from different tiers, the better first. Earlier tiers are better."""
    return tuple(
        pair for better, worse in combinations(tiers, 2) for pair in product(better, worse)
    )


@dataclass(frozen=True)
class Ranking:
    """A paper's ranking of schedulers, for the points of one of our charts.

    Attributes
    ----------
    chart: the beginning of the titles of our charts.
    pairs: the pairs that the paper ranks at every point without an entry in `at`.
    at: the pairs that the paper ranks at a single point, by point.
    more_is_better: whether a larger number of the chart is better.
    says: the place in the paper that gives the ranking.
    """

    paper: str
    experiment: str
    chart: str
    says: str
    pairs: tuple[Pair, ...] = ()
    at: Mapping[str, tuple[Pair, ...]] = field(default_factory=dict)
    more_is_better: bool = False


@dataclass(frozen=True)
class Agreement:
    """How many pairs our numbers rank as a paper ranks them.

    Attributes
    ----------
    alike, otherwise, equal: number of pairs that our numbers rank in the paper's order, in the
        opposite order, and in no order.
    """

    alike: int = 0
    otherwise: int = 0
    equal: int = 0

    @property
    def pairs(self) -> int:
        return self.alike + self.otherwise + self.equal

    @property
    def tau(self) -> float:
        """Kendall's tau over the pairs that the paper ranks."""
        return (self.alike - self.otherwise) / self.pairs

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(
            self.alike + other.alike, self.otherwise + other.otherwise, self.equal + other.equal
        )


_LIOS_OTHERS = ("greedy", "nimble", "sequential")
_OPARA = in_order(["Opara"], ["Nimble", "CUDA Graph"])
_HIOS = "from fast to slow: HIOS-LP, HIOS-MR, IOS, sequential execution"


def _hios(evaluator: str) -> tuple[Pair, ...]:
    lp, mr = f"hios-lp, {evaluator}", f"hios-mr, {evaluator}"
    return in_order([lp], [mr], ["ios"], ["sequential"])


def _of_hios_models(number: int, evaluator: str, **options: Any) -> Ranking:
    said = f"{_HIOS}; evaluator `{evaluator}`"
    return Ranking(
        "hios", f"Figure {number}", f"HIOS, Figure {number}: by", said, _hios(evaluator), **options
    )


def _without_mr_and_ios(evaluator: str) -> tuple[Pair, ...]:
    return tuple(p for p in _hios(evaluator) if p != (f"hios-mr, {evaluator}", "ios"))


RANKINGS = (
    Ranking(
        "lios", "Figure 7", "LIOS, Figure 7",
        "section VI-A: IOS and LIOS are faster than all other schedulers; LIOS is a little "
        "faster than IOS on NASNet-A, and a little slower on all other networks",
        in_order(["ios"], ["lios"], _LIOS_OTHERS),
        {"nasnet_a": in_order(["lios"], ["ios"], _LIOS_OTHERS)},
        more_is_better=True,
    ),
    *(
        Ranking(
            "lios", "Figure 8", f"LIOS, Figure 8: {network}",
            f"section VI-C, {network}: LIOS is faster than LIOS-Rand1, and LIOS-Rand1 is faster "
            "than all other variants with random choices",
            in_order(["lios"], ["lios-rand1"], ["lios-rand2", "lios-rand"]),
        )
        for network in ("randwire", "inception_v3")
    ),
    Ranking(
        "lios", "Figure 8", "LIOS, Figure 8: squeezenet",
        "section VI-C, squeezenet: LIOS is faster than LIOS-Rand2, and LIOS-Rand2 is faster "
        "than all other variants with random choices",
        in_order(["lios"], ["lios-rand2"], ["lios-rand1", "lios-rand"]),
    ),
    *(
        _of_hios_models(number, evaluator)
        for evaluator in ("exact", "clock")
        for number in (7, 8, 9, 10)
    ),
    *(
        # At the point 1.2 of HIOS's Figure 11, HIOS-MR takes 0.99 times as long as IOS in the
        # paper. So this pair counts as equal at that point.
        _of_hios_models(11, evaluator, at={"1.2": _without_mr_and_ios(evaluator)})
        for evaluator in ("exact", "clock")
    ),
    Ranking(
        "hios", "Figure 12", "HIOS, Figure 12: inception_v3",
        "HIOS-LP is faster than HIOS-MR, IOS and sequential execution on every image size",
        in_order(["HIOS-LP"], ["HIOS-MR", "IOS", "sequential"]),
    ),
    Ranking(
        "hios", "Figure 12", "HIOS, Figure 12: nasnet_a",
        "HIOS-LP is faster than HIOS-MR on every image size, slower than IOS on the smallest, and "
        "faster than IOS and sequential execution on the largest",
        in_order(["HIOS-LP"], ["HIOS-MR"]),
        {
            "331": (*in_order(["HIOS-LP"], ["HIOS-MR"]), ("IOS", "HIOS-LP")),
            "1024": in_order(["HIOS-LP"], ["HIOS-MR", "IOS", "sequential"]),
        },
    ),
    Ranking(
        "opara", "Figure 3", "Opara, Figure 3",
        "Opara's order is faster", in_order(["Opara's order"], ["in order"]),
    ),
    Ranking(
        "opara", "Figure 5 (a)", "Opara, Figure 5 (a)",
        "Opara is faster than Nimble and a CUDA graph on every model", _OPARA,
        {"the paper's best": ()}, more_is_better=True,
    ),
    Ranking(
        "opara", "Figure 8", "Opara, Figure 8: Inception-V3",
        "Opara serves more at every batch", _OPARA, more_is_better=True,
    ),
    Ranking(
        "opara", "Figure 9", "Opara, Figure 9: Inception-V3",
        "Opara is faster at every batch", _OPARA, more_is_better=True,
    ),
    Ranking(
        "top", "Figure 14", "TOP, Figure 14",
        "TOP serves more than IOS", in_order(["TOP, searched"], ["ios"]), more_is_better=True,
    ),
    Ranking(
        "top", "Figure 27", "TOP, by batch",
        "TOP serves more than every baseline at every batch",
        in_order(["TOP, searched"], ["sequential", "IOS"]), more_is_better=True,
    ),
    Ranking(
        "top", "Figure 26", "TOP, by batch: three models",
        "TOP serves more than POS at every batch",
        in_order(["TOP, searched"], ["POS that waits", "POS that skips"]), more_is_better=True,
    ),
)  # fmt: skip
"""The rankings that the papers give in words and that our stored results can confirm or contradict.
The rankings of IOS's Figure 6 come from its printed times (`ios_agreement`)."""


def agreement(found: Ranking, record: Record) -> Agreement:
    """Compare the pairs that a paper ranks with the numbers of our charts.

    Raises
    ------
    ValueError: the record has no such chart, or the chart no such scheduler or point.
    """
    charts = [chart for chart in record.charts if chart.title.startswith(found.chart)]
    if not charts:
        raise ValueError(f"{found.experiment} of `{found.paper}` has no chart `{found.chart}`")
    total = Agreement()
    for chart in charts:
        if unknown := set(found.at) - set(chart.points):
            raise ValueError(f"`{chart.title}` has no points {sorted(unknown)}")
        for point, ours in _points(chart):
            for better, worse in found.at.get(point, found.pairs):
                for name in (better, worse):
                    if name not in ours:
                        raise ValueError(f"`{chart.title}` has no scheduler `{name}`")
                total += _of_pair(ours[better], ours[worse], found.more_is_better)
    return total


def _points(chart: Chart) -> Iterable[tuple[str, dict[str, float]]]:
    """For each point of a chart, the number of each scheduler; in box plots, its median."""
    if chart.kind == "boxes":
        boxes = zip(chart.points, chart.series["ours"], strict=True)
        yield "", {name: statistics.median(box) for name, box in boxes}
        return
    for i, point in enumerate(chart.points):
        yield point, {name: values[i] for name, values in chart.series.items()}


def _of_pair(better: float, worse: float, more_is_better: bool) -> Agreement:
    if abs(better - worse) < EQUAL * min(abs(better), abs(worse)):
        return Agreement(equal=1)
    if (better > worse) == more_is_better:
        return Agreement(alike=1)
    return Agreement(otherwise=1)


def ios_agreement(record: Record) -> Agreement:
    """Compare our numbers of IOS's Figure 6 with the times that the paper prints."""
    (chart,) = record.charts
    total = Agreement()
    for i, name in enumerate(chart.points):
        paper = dict(zip(FORMS, PAPER_MS[name], strict=True))
        for first, second in combinations(FORMS, 2):
            better, worse = sorted((first, second), key=paper.__getitem__)
            if paper[worse] - paper[better] < EQUAL * paper[better]:
                continue
            ours = [chart.series[f"{form}, ours"][i] for form in (better, worse)]
            total += _of_pair(*ours, more_is_better=True)
    return total


def section() -> str:
    """The table of all rankings, as Markdown."""
    stored = {paper: store.records(paper) for paper in PAPERS}
    found: list[tuple[str, str, str, Agreement]] = []
    if "Figure 6" in stored["ios"]:
        record = stored["ios"]["Figure 6"][1]
        said = "the times of five schedules of four networks"
        found.append(("ios", "Figure 6", said, ios_agreement(record)))
    for each in RANKINGS:
        if each.experiment in stored[each.paper]:
            record = stored[each.paper][each.experiment][1]
            found.append((each.paper, each.experiment, each.says, agreement(each, record)))
    rows = [[f"[{PAPERS[p][0]}, {name}]({p}.md)", says, *_cells(a)] for p, name, says, a in found]
    for paper in PAPERS:
        of_paper = [a for p, _, _, a in found if p == paper]
        rows.append(
            [
                f"**{PAPERS[paper][0]}**",
                "all its rankings above",
                *_cells(sum(of_paper, Agreement())),
            ]
        )
    return table(["", "the paper ranks", "pairs", "alike", "the other way", "equal", "tau"], rows)


def _cells(found: Agreement) -> list[str]:
    tau = f"{found.tau:.2f}" if found.pairs else ""
    return [str(found.pairs), str(found.alike), str(found.otherwise), str(found.equal), tau]
