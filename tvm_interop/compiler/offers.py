"""What each provider of kernels has for an operator: its kernel's time, or why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from ..errors import ExecutionError, GraphError, did_you_mean
from ..machine.kernel_libraries import TVM, provider_names, why_missing
from ..measure.store import LatencyStore
from ..program.program import Program
from .backend import Backend, Lowered
from .provider_choice import given_to, why_not


@dataclass(frozen=True)
class Offer:
    """What one provider has for an operator.

    Attributes
    ----------
    provider: its name.
    refusal: why it does not compute the operator, in words; empty where it does.
    us: microseconds that its kernel takes alone on one thread; not a number where nobody knows.
    """

    provider: str
    refusal: str = ""
    us: float = math.nan


def offers(
    program: Program,
    op: int,
    asked: Collection[str],
    known: Iterable[str],
    us_of: Callable[[Program], float],
    fault: str | None = None,
) -> tuple[Offer, ...]:
    """What each provider has for an operator.

    Parameters
    ----------
    program: whole operators on plain tensors, with TVM's kernels.
    op: the operator.
    asked: names of the providers that kernels were chosen from.
    known: names of all there are for the device.
    us_of: microseconds that the operator takes in this program; not a number where nobody knows.
    fault: what a library's kernel for the operator did wrong; None where none did.
    """
    return tuple(_offer(program, op, name, name in asked, us_of, fault) for name in known)


def offers_for(
    backend: Backend, lowered: Lowered, store: LatencyStore, name: str, measure: bool
) -> tuple[Offer, ...]:
    """What each provider for a backend's device has for an operator of a model: see `Compilation`.

    Parameters
    ----------
    name: of the operator, a whole one.
    measure: whether kernels are timed that never were; otherwise their times are unknown.

    Raises
    ------
    GraphError
        There is no such operator.
    """
    op = _named(lowered.on_tvm_alone, name)
    stage = [[[op]]]
    can_measure = backend.why_not_measured() is None

    def us_of(program: Program) -> float:
        if not can_measure:
            return math.nan
        # As when kernels were chosen, so that what was measured then is known.
        latency = lowered.latency(program, 1, 1, store, None)
        return float((latency.stages(stage) if measure else latency.known(stage))[0])

    return offers(
        lowered.on_tvm_alone,
        op,
        backend.providers,
        provider_names(backend.device),
        us_of,
        lowered.library_faults.get(name),
    )


def _named(program: Program, name: str) -> int:
    """The operator of that name.

    Raises
    ------
    GraphError
        There is none.
    """
    names = [op.name for op in program.operators]
    if name not in names:
        raise GraphError(f"there is no operator `{name}`{did_you_mean(name, names)}")
    return names.index(name)


def _offer(
    program: Program,
    op: int,
    name: str,
    is_asked: bool,
    us_of: Callable[[Program], float],
    fault: str | None,
) -> Offer:
    if name == TVM:
        rest = "is not among `providers`, and runs only what no other of them can"
        return Offer(name, "", us_of(program)) if is_asked else Offer(name, rest)
    if not is_asked:
        missing = why_missing(name)
        unasked = "is not among `providers`"
        return Offer(name, unasked if missing is None else f"is missing: {missing}")
    refusal = why_not(name, program.operators[op])
    if not refusal and fault is not None:
        refusal = f"its kernel is at fault: {fault}"
    if refusal:
        return Offer(name, refusal)
    try:
        return Offer(name, "", us_of(given_to(program, [op], name)))
    except ExecutionError as error:  # Some of a library's kernels are not for every GPU.
        return Offer(name, f"has no kernel for this device: {error}")
