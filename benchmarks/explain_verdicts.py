"""Checks the verdicts of `explain`: `python -m benchmarks.explain_verdicts [NETWORK ...]`.

The program ranks the pairs of independent operators of each network by the share of their time that
running side by side would save without contention. It chooses some pairs: half from the top of this
ranking, and half from its bottom. `explain` judges the chosen pairs. Its verdicts are written to
the result file before any pair is measured.

After `explain` has judged the pairs, each pair runs in three ways, in interleaved rounds: in turn
(each operator divided over all cores), in turn a second time, and side by side. The second time in
turn shows the noise. A pair is said to pay if running it side by side is faster by more than 1%, at
a significance level of 5%.

There are two error rates: the share of paying pairs that `explain` did not call profitable, and the
share of pairs that do not pay but that `explain` called profitable. For comparison, the constant
answer "not profitable" misses every pair that pays. With --changes, the first change that `explain`
suggests for each network is made and measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_interop import Schedule, Stage, models
from tvm_interop.atomic_file import replacing
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.speed_check import interleaved_rounds
from tvm_interop.errors import UnsupportedModelError, first_line
from tvm_interop.explaining.changes import changes_for, try_change
from tvm_interop.explaining.compare import part_of_plan
from tvm_interop.explaining.findings import find_pair
from tvm_interop.explaining.subject import Subject, subject_of
from tvm_interop.explaining.verdict import Verdict
from tvm_interop.explaining.wholes import Wholes
from tvm_interop.models.source import read_onnx
from tvm_interop.scheduling.budget import Budget
from tvm_interop.scheduling.paired_rounds import FEWEST_ROUNDS, checked_rounds, confirm

from . import machine_state
from .options import add_force

_WANTED = ("inception_v3", "nasnet_a", "mmoe", "bert_small", "bert_base", "googlenet")
NETWORKS = tuple(name for name in _WANTED if name in models.list())[:4]
"""The first four networks of `_WANTED` that `models.list()` has."""
RESULT = Path("benchmarks/results/explain_verdicts.json")


@dataclass
class Pair:
    """Two independent operators: the verdict of `explain`, and the measured times.

    The measured attributes are None, and `rounds` is 0, until the pair has been measured.

    Attributes
    ----------
    predicted_gain: share of the time in turn that running side by side should save, according to
        `explain`.
    in_turn_us, beside_us: median microseconds in turn and side by side.
    ratio, interval: time side by side over time in turn, and its confidence interval; the interval
        is None if there were too few rounds.
    noise_ratio: ratio of the two times in turn.
    rounds: number of rounds.
    pays: whether side by side was faster by more than 1%, beyond noise.
    differs: whether side by side was faster or slower by more than 1%, beyond noise.
    """

    network: str
    operators: tuple[str, str]
    verdict: str
    reason: str
    predicted_gain: float
    in_turn_us: float | None = None
    beside_us: float | None = None
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    noise_ratio: float | None = None
    rounds: int = 0
    pays: bool | None = None
    differs: bool | None = None

    @property
    def is_called_profitable(self) -> bool:
        """Whether `explain` called the pair profitable."""
        return self.verdict == Verdict.PROFITABLE.value


def main(arguments: Sequence[str] | None = None) -> int:
    given = _arguments(arguments)
    machine = machine_state.observe_quiet(given.force)
    if machine is None:
        return 2
    facts: dict[str, Any] = {"machine": machine.as_dict(), "changes": []}
    subjects: dict[str, tuple[Any, Subject]] = {}
    pairs: list[Pair] = []
    for i, network in enumerate(given.networks):
        is_file = Path(network).suffix == ".onnx"
        model = read_onnx(network) if is_file else models.build(network, image_size=given.size)
        subject = subject_of(model, CompileOptions(), None, True)
        network = Path(network).stem if is_file else network
        subjects[network] = (model, subject)
        count = given.pairs * (i + 1) // len(given.networks) - len(pairs)
        chosen = choose(subject.wholes, count)
        pairs += [_judged(network, subject.wholes, names) for names in chosen]
    facts["pairs"] = [asdict(pair) for pair in pairs]
    _write(given.out, facts)  # Write the verdicts before any measurement can influence them.
    print(f"wrote {len(pairs)} verdicts to {given.out}", flush=True)
    for pair in pairs:
        compilation = subjects[pair.network][1].compilation
        assert compilation is not None
        measure(compilation, subjects[pair.network][1].wholes, pair, given.seconds)
        print(_line(pair), flush=True)
    facts["pairs"] = [asdict(pair) for pair in pairs]
    facts["rates"] = rates(pairs)
    print(json.dumps(facts["rates"], indent=1))
    for network, (model, subject) in subjects.items() if given.changes else ():
        for change in changes_for(subject)[:1]:
            try:
                trial = try_change(subject, change, model, limit_s=given.seconds)
            except UnsupportedModelError as error:
                # The change needs other shapes, and the model's shapes are fixed.
                facts["changes"].append(
                    {"network": network, "what": change.what, "refused": first_line(error)}
                )
                print(f"{network}: {change.what}: cannot be tried: {first_line(error)}", flush=True)
                continue
            facts["changes"].append({"network": network, **trial.as_dict()})
            said = f"{change.gain:.1%} estimated, {trial.gain:.1%} measured"
            print(f"{network}: {change.what}: {said}", flush=True)
    _write(given.out, facts)
    return 0


def choose(wholes: Wholes, count: int) -> list[tuple[str, str]]:
    """Choose up to `count` pairs of independent operators, and return the names of each pair.

    Both operators of a pair are at the same level of the graph (see `Wholes.levels`). A pair with
    the same times on one core as an earlier pair is left out. The pairs are ranked by the share of
    time that running them side by side would save without contention. Half of the chosen pairs are
    the top of this ranking, and half are its bottom.
    """
    seen: set[tuple[float, ...]] = set()
    ranked: list[tuple[float, tuple[str, str]]] = []
    for level in wholes.levels():
        for a, b in itertools.combinations(level, 2):
            divided_us, one_core_us = wholes.divided_us([a, b]), wholes.one_core_us([a, b])
            work = tuple(sorted(one_core_us))
            in_turn_us = sum(divided_us)
            if work in seen or not in_turn_us > 0:
                continue
            seen.add(work)
            names = (wholes.graph.names[a], wholes.graph.names[b])
            ranked.append((1 - max(one_core_us) / in_turn_us, names))
    ranked.sort(key=lambda entry: -entry[0])
    if len(ranked) <= count:
        return [names for _, names in ranked]
    most, least = ranked[: (count + 1) // 2], ranked[len(ranked) - count // 2 :]
    return [names for _, names in [*most, *least]]


def side_by_side(
    compilation: Compilation, wholes: Wholes, names: Sequence[str]
) -> tuple[Schedule, Schedule]:
    """Two schedules of the network: with the pair in turn, and with the pair side by side.

    The first schedule runs all operators in turn. The second differs only in the pair `names`,
    which it runs side by side.
    """
    chosen = [wholes.id_of(name) for name in names]
    depth: dict[int, int] = {}
    for op in wholes.graph.topological_order():
        depth[op] = 1 + max((depth[p] for p in wholes.graph.predecessors(op)), default=-1)
    order = sorted(depth, key=lambda op: (depth[op], op not in chosen, op))
    in_turn, at_once = [], []
    for op in order:
        groups = tuple((part,) for part in wholes.parts_of(op))
        streams = tuple(i % compilation.streams for i in range(len(groups)))
        in_turn.append(Stage(groups, streams))
        if op == chosen[0]:
            beside = tuple(wholes.parts_of(each) for each in chosen)
            at_once.append(Stage(beside, tuple(range(len(beside)))))
        elif op not in chosen:
            at_once.append(Stage(groups, streams))
    op_names = compilation.graph.names
    return Schedule("in turn", op_names, stages=tuple(in_turn)), Schedule(
        "side by side", op_names, stages=tuple(at_once)
    )


def measure(compilation: Compilation, wholes: Wholes, pair: Pair, limit_s: float) -> None:
    """Time the pair one after the other, twice, and side by side. Store the times in `pair`.

    Parameters
    ----------
    limit_s: most seconds to measure.
    """
    in_turn, at_once = side_by_side(compilation, wholes, pair.operators)
    instances = [
        compilation.instance(part_of_plan(compilation.plan(schedule), pair.operators))
        for schedule in (in_turn, in_turn, at_once)
    ]
    rounds: Iterator[npt.NDArray[np.float64]] = interleaved_rounds(
        [instance.executor for instance in instances], compilation.backend.clock
    )
    found = confirm(checked_rounds(rounds, 3), Budget(limit_s), at_least=FEWEST_ROUNDS + 1)
    low, high = found.compared.interval
    pair.in_turn_us, pair.beside_us = found.sequential_us, found.scheduled_us
    pair.ratio, pair.rounds = found.compared.ratio, found.compared.rounds
    pair.interval = (low, high) if math.isfinite(high) else None
    pair.noise_ratio = found.noise_ratio
    pair.pays = found.compared.is_faster
    pair.differs = pair.pays or low > 1.01


def rates(pairs: Sequence[Pair]) -> dict[str, float | int | None]:
    """Both error rates of the verdicts, and the errors of the constant answer "not profitable"."""
    paying = [pair for pair in pairs if pair.pays]
    others = [pair for pair in pairs if not pair.pays]
    missed = sum(not pair.is_called_profitable for pair in paying)
    false = sum(pair.is_called_profitable for pair in others)
    return {
        "pairs": len(pairs),
        "differ_beyond_noise": sum(bool(pair.differs) for pair in pairs),
        "pay": len(paying),
        "missed": missed,
        "falsely_profitable": false,
        "missed_rate": missed / len(paying) if paying else None,
        "falsely_profitable_rate": false / len(others) if others else None,
        "wrong": missed + false,
        "wrong_by_constant_answer": len(paying),
    }


def _judged(network: str, wholes: Wholes, names: tuple[str, str]) -> Pair:
    (finding,) = find_pair(wholes, names)
    gain = finding.numbers.gain if finding.numbers is not None else 0.0
    return Pair(network, names, finding.verdict.value, finding.reason, gain)


def _line(pair: Pair) -> str:
    said = f"{pair.network} {pair.operators[0]}, {pair.operators[1]}: {pair.verdict}"
    return f"{said}; ratio {pair.ratio:.3f}, pays: {pair.pays}, {pair.rounds} rounds"


def _write(path: Path, facts: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        Path(temporary).write_text(json.dumps(facts, indent=1) + "\n")


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ", ".join(models.list())
    parser.add_argument("networks", nargs="*", default=NETWORKS, help=f"ONNX files, or {names}")
    parser.add_argument(
        "--pairs", type=int, default=20, help="number of pairs of all networks together"
    )
    parser.add_argument("--size", type=int, default=None, help="pixels or tokens of the inputs")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="most seconds to measure each pair"
    )
    parser.add_argument(
        "--changes", action="store_true", help="also make a change of each network, and measure it"
    )
    parser.add_argument("--out", type=Path, default=RESULT, help="file for the results")
    add_force(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
