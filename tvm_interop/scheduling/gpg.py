"""The schedulers `gpg` and `gpg-scored`: a trained graph network chooses stages.

`gpg` comes from the paper "TOP" (Lin et al., TPDS 36(2), 2025). `gpg-scored` is a variant that is
not in the paper. Both choose stages from the last to the first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..latency.base import LatencyModel, op_latencies
from ..program.graph import OpGraph
from .endings import Endings, Mask, bits, endings
from .gpg_network import (
    ENDING_SCALARS,
    INPUTS,
    STATE_SCALARS,
    WIDTH,
    Block,
    Floats,
    Weights,
    perceptron,
    pooled,
    sigmoid,
    states,
)
from .options import check_counts, check_streams, required_latency, us_since
from .registry import register_scheduler
from .schedules import Schedule
from .stages import Stage, pack_onto_streams

MAX_GROUP_OPS, MAX_GROUPS = 3, 8
"""Largest number of operators in a group, and of groups in a stage; r and s in TOP."""
_ALL, _KEPT = 512, 48
"""If a state has at most `_ALL` endings, `gpg-scored` scores all of them. Otherwise it builds
endings cluster by cluster, and keeps the `_KEPT` best endings after each cluster.
"""

Ending = tuple[Mask, ...]


@register_scheduler("gpg")
def gpg(
    graph: OpGraph,
    latency: LatencyModel | None,
    weights: str | Path | None = None,
    streams: int | None = None,
) -> Schedule:
    """GPG as in the paper: a policy network chooses each stage by a number from 0 to 1.

    Lin et al., "TOP", TPDS 36(2), 2025, section V-B and Algorithm 2. The graph is scheduled block
    by block (`OpGraph.blocks`), from the last stage of a block to the first. A graph network embeds
    the operators of the block that remain. A policy network then gives a number m in [0, 1). Let M
    be the number of endings of the remaining operators. The ending with number floor(m * M) in
    order of enumeration (`endings.Endings.numbered`) becomes the stage that runs just before the
    stages chosen so far. The latencies of stages are not needed. The reward in the paper favours
    sequential execution. So the networks in this package were trained with another reward; see
    `serving.learning.gpg`.

    Parameters
    ----------
    weights: a file that `serving.learning.gpg` wrote; None stands for the weights in this package.
    streams: number of streams onto which the groups of a stage are packed; None for a stream per
        group.

    `stats` holds `endings_left_out`, the number of states in which not all endings were numbered.

    Complexity: for n operators, the networks are evaluated O(n) times. The time to enumerate the
    endings comes on top.
    """
    model = required_latency(latency, "gpg")
    loaded = load_weights("gpg", weights)

    def make(block: Block) -> tuple[list[Ending], int]:
        summands = pooled(loaded, block)
        chosen: list[Ending] = []
        left_out = 0
        remaining = (1 << len(block)) - 1
        while remaining:
            found = endings(block.successors, remaining, MAX_GROUP_OPS, MAX_GROUPS)
            left_out += found.left_out
            chosen.append(found.numbered(numbered_by(loaded, block, summands, found, remaining)))
            remaining &= ~sum(chosen[-1])
        return chosen, left_out

    return _schedule("gpg", graph, model, make, streams)


@register_scheduler("gpg-scored")
def gpg_scored(
    graph: OpGraph,
    latency: LatencyModel | None,
    weights: str | Path | None = None,
    priced: int = 16,
    width: int = 6,
    streams: int | None = None,
) -> Schedule:
    """GPG that scores endings by two latencies: of their stage, and of the remaining operators.

    `gpg-scored` is not in the paper. It differs from `gpg` only in how an ending is chosen. In
    `gpg`, a number m chooses an ending. The same m chooses another ending if the number of endings
    differs, and the policy network must learn this. Here networks estimate two latencies, whose sum
    is an ending's score. The first is the latency of the ending's stage. It lies between the
    latency of the longest group and the total latency of the stage's operators. The second is the
    latency of the operators that remain after the stage. It lies between their longest path and
    their total latency. If a state has more than 512 endings, endings are built cluster by cluster
    (`endings.Endings`), and the 48 best ones are kept after each cluster.

    Parameters
    ----------
    weights, streams: as for `gpg`.
    priced: in each state, the latency model is asked about this number of endings with the lowest
        scores. The latencies of their stages then replace the estimates. 0 asks about none.
    width: number of states that the beam search keeps at the same time. It keeps those with the
        lowest sum of the latency of the stages so far and the estimate for the remaining operators.

    A stage that the latency model refuses is not taken. If the model refuses all stages of a state,
    only the last operator becomes a stage.

    Endings of equal score are tried in order of enumeration. `stats` also counts `stages_priced`.
    """
    model = required_latency(latency, "gpg-scored")
    check_counts(priced=priced)
    check_counts(at_least=1, width=width)
    loaded = load_weights("gpg-scored", weights)
    asked = 0

    def make(block: Block) -> tuple[list[Ending], int]:
        nonlocal asked
        summands = pooled(loaded, block)
        beam: dict[Mask, _Way] = {(1 << len(block)) - 1: _Way(0.0, 0.0, [])}
        best = _Way(np.inf, 0.0, [])
        left_out = 0
        while beam:
            reached: dict[Mask, _Way] = {}
            for remaining, way in beam.items():
                found = endings(block.successors, remaining, MAX_GROUP_OPS, MAX_GROUPS)
                left_out += found.left_out
                candidates, stage_us, rest_us = scored(loaded, block, summands, found, remaining)
                order = np.argsort(stage_us + rest_us, kind="stable")[: priced or width]
                if priced:
                    asked += len(order)
                    stages = [_groups(block, candidates[i]) for i in order]
                    stage_us[order] = np.asarray(model.stages(stages), dtype=np.float64)
                if not np.isfinite(stage_us[order]).any():
                    # A time budget refused all stages. Make the last operator a stage, because the
                    # latency of a single operator is always known.
                    leaf = remaining.bit_length() - 1
                    candidates, order = [(1 << leaf,)], np.zeros(1, dtype=np.int64)
                    stage_us = block.us[[leaf]]
                for i in order:
                    after = remaining & ~sum(candidates[i])
                    on = _Way(
                        way.spent_us + float(stage_us[i]), float(rest_us[i]),
                        [*way.endings, candidates[i]],
                    )  # fmt: skip
                    if after == 0 and (on.spent_us < best.spent_us or not best.endings):
                        best = on
                    elif after and on.spent_us < reached.get(after, best).spent_us:
                        reached[after] = on
            # Drop states whose stages already take as long as the best complete schedule.
            open_ = [row for row in reached.items() if row[1].spent_us < best.spent_us]
            open_.sort(key=lambda row: row[1].spent_us + row[1].rest_us)
            beam = dict(open_[:width])
        return best.endings, left_out

    made = _schedule("gpg-scored", graph, model, make, streams)
    made.stats["stages_priced"] = asked
    return made


@dataclass(frozen=True)
class _Way:
    """A state of the beam search.

    The state holds the endings chosen so far, their total latency, and the estimated latency of the
    remaining operators.
    """

    spent_us: float
    rest_us: float
    endings: list[Ending]


def numbered_by(
    weights: Weights, block: Block, summands: Floats, found: Endings, remaining: Mask
) -> int:
    """The number of the ending that the policy network of `gpg` chooses."""
    leaves = block.leaves(block.rows([remaining]))
    z = states(weights, leaves @ summands)
    m = min(float(sigmoid(perceptron(weights, "mu", z))[0, 0]), 1 - 1e-6)
    # Compute the number with integers: there may be more endings than a float can tell apart.
    return int(m * 2**53) * found.count >> 53


def scored(
    weights: Weights, block: Block, summands: Floats, found: Endings, remaining: Mask
) -> tuple[list[Ending], Floats, Floats]:
    """Score the endings of a state (a set of remaining operators).

    The function returns the endings, and two estimates in microseconds for each ending. The first
    estimate is the latency of the ending's stage. The second is the latency of the operators that
    remain after it.
    """

    def score(candidates: Sequence[Ending]) -> tuple[Floats, Floats]:
        masks = [sum(ending) for ending in candidates]
        members = block.rows(masks)
        after = block.rows([remaining & ~mask for mask in masks])
        return (
            guessed_stage_us(weights, block, summands, candidates, members),
            guessed_rest_us(weights, block, summands, after),
        )

    partial: list[Ending] = [()]
    is_whole = found.count <= _ALL
    best: dict[Ending, tuple[float, float]] = {}
    for choices in found.clusters:
        partial = [
            (*ending, *choice)
            for ending in partial
            for choice in choices
            if len(ending) + len(choice) <= found.max_groups
        ]
        if is_whole:
            continue
        some = [ending for ending in partial if ending]
        stage_us, rest_us = score(some)
        order = np.argsort(stage_us + rest_us, kind="stable")[:_KEPT]
        best |= {some[i]: (float(stage_us[i]), float(rest_us[i])) for i in order}
        partial = [(), *(some[i] for i in order)]
    if not is_whole:
        columns = np.array(list(best.values()))
        return list(best), columns[:, 0], columns[:, 1]
    some = [ending for ending in partial if ending]
    return some, *score(some)


def guessed_stage_us(
    weights: Weights,
    block: Block,
    summands: Floats,
    groups: Sequence[Ending],
    members: npt.NDArray[np.bool_],
) -> Floats:
    """Estimate the latency of each stage: (k,) microseconds."""
    rows = np.concatenate([members @ summands, block.ending_scalars(groups, members)], axis=1)
    share = sigmoid(perceptron(weights, "stage", rows))[:, 0]
    longest, total = block.ending_bounds_us(groups)
    return longest + (total - longest) * share


def guessed_rest_us(
    weights: Weights, block: Block, summands: Floats, remaining: npt.NDArray[np.bool_]
) -> Floats:
    """Estimate the latency of the best schedule of each state: (k,) microseconds."""
    leaves = block.leaves(remaining)
    z = states(weights, leaves @ summands)
    rows = np.concatenate([z, block.state_scalars(remaining, leaves)], axis=1)
    share = sigmoid(perceptron(weights, "rest", rows))[:, 0]
    path, total = block.bounds_us(remaining)
    return path + (total - path) * share


def _schedule(
    name: str,
    graph: OpGraph,
    latency: LatencyModel,
    make: Callable[[Block], tuple[list[Ending], int]],
    streams: int | None,
) -> Schedule:
    check_streams(streams)
    started = time.perf_counter()
    op_us = op_latencies(latency, graph.names)
    stages: list[Stage] = []
    left_out = 0
    for ops in graph.blocks():
        block = Block.of(graph, ops, op_us, latency)
        if len(ops) == 1:
            stages.append(Stage((tuple(ops),), (0,)))
            continue
        chosen, unseen = make(block)
        left_out += unseen
        for ending in reversed(chosen):
            stages.append(Stage(_groups(block, ending), tuple(range(len(ending)))))
    if streams is not None:
        stages = list(pack_onto_streams(stages, op_us.tolist(), streams))
    stats = {"search_us": us_since(started), "pricing_us": 0.0, "endings_left_out": left_out}
    return Schedule(name, graph.names, stages=tuple(stages), stats=stats)


def _groups(block: Block, ending: Ending) -> tuple[tuple[int, ...], ...]:
    """The groups of an ending as operator ids of the graph, each group in topological order."""
    return tuple(tuple(block.ops[i] for i in bits(group)) for group in ending)


def load_weights(name: str, path: str | Path | None = None) -> Weights:
    """Load the weights of a network.

    Parameters
    ----------
    name: `gpg` or `gpg-scored`.
    path: a file of weights; None stands for the file in this package.

    Raises
    ------
    InputError: the file cannot be read, or holds the weights of another network. The message names
        the file.
    """
    return _packaged(name) if path is None else _read(name, Path(path))


@cache
def _packaged(name: str) -> Weights:
    return _read(name, Path(str(resources.files(__package__) / "weights" / f"{name}.npz")))


def _read(name: str, where: Path) -> Weights:
    try:
        with np.load(where, allow_pickle=False) as arrays:
            loaded = {key: arrays[key].astype(np.float64) for key in arrays.files}
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise InputError(f"the weights `{where}` cannot be read: {error}") from None
    for key, counts in expected_inputs(name).items():
        if key not in loaded or loaded[key].shape[0] not in counts:
            raise InputError(
                f"the weights `{where}` are not those of `{name}`: `{key}` is not there, or does "
                f"not take {' or '.join(map(str, counts))} numbers; train them with "
                "`tvm_interop.serving.learning.gpg`"
            )
    return loaded


def expected_inputs(name: str) -> dict[str, tuple[int, ...]]:
    """The numbers of inputs that the first layer of each network may have, by the layer's key."""
    shared = {"g1": WIDTH, "h1": WIDTH, "g2": WIDTH, "h2": WIDTH}
    heads = {"mu": WIDTH}
    if name == "gpg-scored":
        heads = {"stage": WIDTH + ENDING_SCALARS, "rest": WIDTH + STATE_SCALARS}
    found = {f"{net}.0.w": (inputs,) for net, inputs in (shared | heads).items()}
    return {"p.0.w": tuple(INPUTS.values()), **found}
