"""The experiments of the papers by name.

An experiment registers itself when its module is imported, and `experiments` imports the modules of
a paper by their names.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

from .record import Record

PAPERS = {
    "ios": ("IOS", "Ding et al., IOS: Inter-Operator Scheduler for CNN Acceleration, MLSys 2021"),
    "lios": (
        "LIOS",
        "Ping et al., Latency-Based Inter-Operator Scheduling for CNN Inference Acceleration on "
        "GPU",
    ),
    "hios": (
        "HIOS",
        "Kundu and Shu, HIOS: Hierarchical Inter-Operator Scheduler for Real-Time Inference of "
        "DAG-Structured Deep Learning Models on Multiple GPUs",
    ),
    "opara": (
        "Opara",
        "Chen et al., Opara: Exploiting Operator Parallelism for Expediting DNN Inference on GPUs",
    ),
    "top": (
        "TOP",
        "Lin et al., TOP: Task-Based Operator Parallelism for Asynchronous Deep Learning Inference "
        "on GPU",
    ),
}
"""The short name and the description of each paper, by its name on the command line."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper, and the function that makes our version of it.

    Attributes
    ----------
    name: `Figure 9`, `Table 2`, `RQ1` and so on.
    title: what the table or figure shows, in a few words.
    seconds: about how long the function runs on two cores.
    slow: whether `--quick` leaves it out.
    """

    paper: str
    name: str
    title: str
    seconds: float
    slow: bool
    run: Callable[[], Record]


_KNOWN: dict[tuple[str, str], Experiment] = {}


def experiment(
    paper: str, name: str, title: str, *, seconds: float, slow: bool = False
) -> Callable[[Callable[[], Record]], Callable[[], Record]]:
    """Register a function as the experiment that makes one table or figure.

    Raises
    ------
    ValueError: there is no such paper, or it already has an experiment of this name.
    """
    if paper not in PAPERS:
        raise ValueError(f"there is no paper `{paper}`; there are {', '.join(PAPERS)}")
    if (paper, name) in _KNOWN:
        raise ValueError(f"`{name}` of `{paper}` is registered twice: rename one of them")

    def register(run: Callable[[], Record]) -> Callable[[], Record]:
        _KNOWN[paper, name] = Experiment(paper, name, title, seconds, slow, run)
        return run

    return register


def experiments(paper: str) -> list[Experiment]:
    """The experiments of a paper: its tables and figures by number, then the rest by name."""
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name == paper or module.name.startswith(f"{paper}_"):
            importlib.import_module(f"{package}.{module.name}")
    return sorted(
        (found for found in _KNOWN.values() if found.paper == paper),
        key=lambda found: order_of(found.name),
    )


def chosen(paper: str, name: str | None) -> list[Experiment]:
    """The experiments of a paper with the name `name`; all experiments for None.

    `Table 3` also means `Table 3 (1)` and `Table 3 (2)`.

    Raises
    ------
    ValueError: the paper has no such experiment; the message lists its experiments.
    """
    there = experiments(paper)
    if name is None:
        return there
    found = [each for each in there if each.name == name or each.name.startswith(f"{name} ")]
    if not found:
        names = ", ".join(each.name for each in there) or "none"
        raise ValueError(f"`{paper}` has no experiment `{name}`; there are {names}")
    return found


_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8}


def order_of(name: str) -> tuple[int, int, str]:
    """A sort key: first tables, then figures, then other experiments, each kind by its number."""
    kind, _, rest = name.partition(" ")
    number = rest.partition(" ")[0]
    place = {"Table": 0, "Figure": 1}.get(kind, 2)
    return place, _ROMAN.get(number, int(number) if number.isdigit() else 99), name
