"""Suggests changes to a model that would reduce its latency, and tries them.

`changes_for` estimates the gain of each change. `try_change` makes a change and measures its gain.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ..compiler.compilation import Compilation
from ..compiler.merging import OperatorMerges
from ..compiler.speed_check import interleaved_rounds
from ..errors import InputError
from ..models.catalog import build, names
from ..models.source import read_onnx
from ..scheduling.budget import Budget
from ..scheduling.paired_rounds import FEWEST_ROUNDS, checked_rounds, confirm
from .subject import Subject
from .verdict import FILLS
from .wholes import Wholes

LEAST = 0.01
"""The least estimated gain of a suggested change, as a fraction of the sequential latency."""
MOST = 3
"""The largest number of changes that are suggested."""
_LIMIT_S = 30.0
"""The approximate time that a trial may spend on measuring, in seconds."""


@dataclass(frozen=True)
class Change:
    """A change to the model that may reduce its latency.

    Attributes
    ----------
    kind: `batch` for a larger batch, `merge` to merge operators, or `parts` to divide operators
        into more parts.
    what: a description of the change.
    gain: the estimated saving, as a fraction of the latency of sequential execution. For `batch`
        and `merge`, the estimate assumes that the changed operators will use the cores as
        efficiently as operators that are already divided into parts. For `parts`, the gain is an
        upper bound. The bound assumes that the speedup of an operator becomes equal to the number
        of cores.
    operators: the names of the operators that the change concerns.
    amount: the factor of the batch size, or the number of parts; 0 for a merge.
    """

    kind: str
    what: str
    gain: float
    operators: tuple[str, ...]
    amount: int = 0

    @property
    def is_bound(self) -> bool:
        """Whether `gain` is an upper bound. The actual saving is known only after a trial."""
        return self.kind == "parts"


@dataclass(frozen=True)
class Trial:
    """The comparison of a changed model with the present model, in runs that are interleaved in
    rounds.

    Attributes
    ----------
    change: the change that was made.
    present_us, changed_us: median latencies for one sample, in microseconds.
    ratio: the latency of the changed model divided by the latency of the present model, both from
        the same round. Below 1, the changed model is faster.
    interval: the 90% confidence interval of `ratio`; None if there were too few rounds.
    noise_ratio: the same ratio for two instances of the present model; its inverse if the ratio is
        below 1.
    rounds: the number of rounds. Each instance runs once in a round.
    """

    change: Change
    present_us: float
    changed_us: float
    ratio: float
    interval: tuple[float, float] | None
    noise_ratio: float
    rounds: int

    @property
    def gain(self) -> float:
        """The fraction of the latency that the change saves; negative if the change costs time."""
        return 1 - self.ratio

    def as_dict(self) -> dict[str, Any]:
        """Return the trial as plain data for JSON."""
        return {**asdict(self), "gain": self.gain}


def changes_for(subject: Subject) -> tuple[Change, ...]:
    """Return up to three changes that may help, sorted by gain, the largest first.

    Changes whose gain is an estimate come before changes whose gain is an upper bound.

    The result is empty if an operator's latency is unknown or if there is a single core. Merging
    operators is suggested only for a model, because operators of an artifact cannot be merged.
    """
    wholes = subject.wholes
    ids = range(wholes.graph.num_ops)
    sequential_us = sum(wholes.divided_us(ids))
    if not sequential_us > 0 or wholes.cores < 2:
        return ()
    if math.isnan(sum(wholes.one_core_us(ids))):
        return ()
    lost_us = {op: _lost_us(wholes, op, 1.0) for op in ids}
    found = [_more_parts(wholes, lost_us, sequential_us)]
    efficiency = _efficiency(wholes)
    lost_us = {op: _lost_us(wholes, op, efficiency) for op in ids}
    found.append(_larger_batch(wholes, lost_us, sequential_us))
    if subject.compilation is not None:
        found.append(_merged(subject.compilation, wholes, lost_us, sequential_us))
    useful = [change for change in found if change is not None and change.gain >= LEAST]
    return tuple(sorted(useful, key=lambda change: (change.is_bound, -change.gain))[:MOST])


def try_change(
    subject: Subject,
    change: Change,
    model: Any,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    limit_s: float = _LIMIT_S,
) -> Trial:
    """Make a change, and compare the speed of the changed model with that of the present model.

    The changed model and the present model run their operators sequentially.

    Parameters
    ----------
    model: the model that `subject` was made from.
    input_shapes: the shapes of inputs with open dimensions, by name.
    limit_s: the approximate time to spend on measuring, in seconds.

    Raises
    ------
    InputError
        The subject is an artifact, which cannot be changed.
    UnsupportedModelError
        The changed model cannot be compiled, for example because it contains a fixed batch size.
    """
    present = subject.compilation
    if present is None:
        raise InputError(
            f"`{subject.title}` is an artifact, and changes are made to models: give `explain` "
            "the model that it was compiled from"
        )
    per_run = 1
    if change.kind == "batch":
        per_run = change.amount
        shapes = {k: (per_run * v[0], *v[1:]) for k, v in (input_shapes or {}).items() if v}
        changed = Compilation(_with_batch(model, per_run), present.options, shapes or None)
    elif change.kind == "merge":
        groups = [tuple(group.split(_AND)) for group in change.operators]
        merges = _merges(present, subject.wholes)
        changed = Compilation(merges.merged(groups), present.options)
    else:
        changed = Compilation(model, replace(present.options, parts=change.amount), input_shapes)
    rounds = _against(present, changed, per_run)
    confirmed = confirm(checked_rounds(rounds, 3), Budget(limit_s), at_least=FEWEST_ROUNDS + 1)
    low, high = confirmed.compared.interval
    return Trial(
        change=change,
        present_us=confirmed.sequential_us,
        changed_us=confirmed.scheduled_us,
        ratio=confirmed.compared.ratio,
        interval=(low, high) if np.isfinite(high) else None,
        noise_ratio=confirmed.noise_ratio,
        rounds=confirmed.compared.rounds,
    )


_AND = " + "


def _larger_batch(wholes: Wholes, lost_us: dict[int, float], total_us: float) -> Change | None:
    """Return the change that multiplies the batch size by the number of cores.

    With the larger batch, each operator has work for every core. Return None if no operator would
    become faster.
    """
    poor = [op for op, us in lost_us.items() if us > 0 and _fills_badly(wholes, op)]
    gain = sum(lost_us[op] for op in poor) / total_us
    what = (
        f"take {wholes.cores} samples at a time: {len(poor)} operators are too small for "
        f"{wholes.cores} cores (the gain is in the time for one sample)"
    )
    operators = tuple(wholes.graph.names[op] for op in poor)
    return Change("batch", what, gain, operators, wholes.cores) if poor else None


def _more_parts(wholes: Wholes, lost_us: dict[int, float], total_us: float) -> Change | None:
    """Return the change that divides operators into more and smaller parts.

    The work of smaller parts is spread more evenly over the cores. Return None if every divided
    operator already has a speedup of at least `FILLS` times the number of cores.
    """
    poor = [op for op in lost_us if len(wholes.parts_of(op)) > 1 and _fills_badly(wholes, op)]
    if not poor:
        return None
    worst = max(poor, key=lost_us.__getitem__)
    (divided_us,), (one_core_us,) = wholes.divided_us([worst]), wholes.one_core_us([worst])
    amount = 2 * wholes.cores
    what = (
        f"divide operators into {amount} parts: {len(poor)} divide badly; the worst, "
        f"`{wholes.graph.names[worst]}`, is {one_core_us / divided_us:.2f} times as fast on "
        f"{wholes.cores} cores as on 1"
    )
    gain = sum(max(lost_us[op], 0) for op in poor) / total_us
    return Change("parts", what, gain, tuple(wholes.graph.names[op] for op in poor), amount)


def _merged(
    compilation: Compilation, wholes: Wholes, lost_us: dict[int, float], total_us: float
) -> Change | None:
    """Return the change that merges operators of the same kind that read the same tensor.

    The estimate assumes that a merged operator uses the cores as efficiently as the operators
    that are already divided into parts. Return None if no merge would save time.
    """
    found = _merges(compilation, wholes)
    sets = [ops for ops in found.sets if found.can_merge(ops)]
    useful = [ops for ops in sets if sum(lost_us[op] for op in ops) > 0]
    if not useful:
        return None
    groups = tuple(_AND.join(wholes.graph.names[op] for op in ops) for ops in useful)
    count = sum(map(len, useful))
    what = f"merge {count} operators that read the same tensors into {len(useful)}"
    gain = sum(lost_us[op] for ops in useful for op in ops) / total_us
    return Change("merge", what, gain, groups)


def _merges(compilation: Compilation, wholes: Wholes) -> OperatorMerges:
    return compilation.merges_among(wholes.graph.names)


def _efficiency(wholes: Wholes) -> float:
    """Return the parallel efficiency of the operators that are divided into parts.

    The efficiency is the divided operators' speedup over one core, divided by the number of cores,
    but at most 1. The result is 1 if no operator is divided.
    """
    divided = [op for op in range(wholes.graph.num_ops) if len(wholes.parts_of(op)) > 1]
    over_cores_us = wholes.cores * sum(wholes.divided_us(divided))
    return min(sum(wholes.one_core_us(divided)) / over_cores_us, 1.0) if over_cores_us else 1.0


def _lost_us(wholes: Wholes, op: int, efficiency: float) -> float:
    """Return how many microseconds would be saved if an operator had the given parallel efficiency.

    `efficiency` is from 0 to 1. The result is negative if the operator is more efficient already.
    """
    (divided_us,), (one_core_us,) = wholes.divided_us([op]), wholes.one_core_us([op])
    return divided_us - one_core_us / (wholes.cores * efficiency)


def _fills_badly(wholes: Wholes, op: int) -> bool:
    (divided_us,), (one_core_us,) = wholes.divided_us([op]), wholes.one_core_us([op])
    return one_core_us < FILLS * wholes.cores * divided_us


def _against(
    present: Compilation, changed: Compilation, per_run: int
) -> Iterator[npt.NDArray[np.float64]]:
    """Run three instances in rounds, and yield each round's times in microseconds per sample.

    Two of the three instances run the present model, and one runs the changed model.
    """
    in_turn = [home.plan(home.sequential()) for home in (present, present, changed)]
    instances = [
        home.instance(plan) for home, plan in zip((present, present, changed), in_turn, strict=True)
    ]
    executors = [instance.executor for instance in instances]
    samples = np.array([1, 1, per_run])
    for times_us in interleaved_rounds(executors, present.backend.clock):
        yield times_us / samples


def _with_batch(model: Any, times: int) -> Any:
    """Return the model with its batch size multiplied by `times`.

    Raises
    ------
    InputError
        `model` is not an ONNX model. Only for ONNX models can the batch size be changed.
    """
    if isinstance(model, str | os.PathLike):
        if os.fspath(model) in names() and not Path(model).exists():
            return build(os.fspath(model), batch=times)
        model = read_onnx(model)
    if not isinstance(model, onnx.ModelProto):
        raise InputError("the batch size can be changed only in an ONNX model; give an ONNX model")
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    weights = {tensor.name for tensor in changed.graph.initializer}
    inputs = [value for value in changed.graph.input if value.name not in weights]
    for value in [*inputs, *changed.graph.output]:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_value:
            dims[0].dim_value *= times
    del changed.graph.value_info[:]
    return changed
