"""Lists the kernel that each provider offers for an operator, or why there is no offer."""

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
    """The kernel that one provider offers for an operator, or its refusal.

    Attributes
    ----------
    provider: the provider's name.
    refusal: why the provider does not compute the operator, in words; empty if it does.
    us: the latency of the provider's kernel alone on one thread, in microseconds; NaN if unknown.
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
    """The offer of each known provider for an operator.

    Parameters
    ----------
    program: the program before kernels are chosen: its operators are not divided, its tensors are
        plain, and its kernels are TVM's.
    op: the operator's index in the program.
    asked: the names of the providers among whose kernels the compilation chose.
    known: the names of all providers for the device.
    us_of: a function that returns the operator's latency in a given program, in microseconds; NaN
        if unknown.
    fault: the fault of a library's kernel for the operator; None if no kernel was wrong.
    """
    return tuple(_offer(program, op, name, name in asked, us_of, fault) for name in known)


def offers_for(
    backend: Backend, lowered: Lowered, store: LatencyStore, name: str, measure: bool
) -> tuple[Offer, ...]:
    """The offer of each provider for an operator of a model (see `Compilation.offers`).

    Parameters
    ----------
    name: the name of an operator, which is not divided into parts here.
    measure: whether to measure kernels that were never measured. If False, their latencies are
        unknown.

    Raises
    ------
    GraphError
        The model has no operator `name`.
    """
    op = _named(lowered.on_tvm_alone, name)
    stage = [[[op]]]
    can_measure = backend.why_not_measured() is None

    def us_of(program: Program) -> float:
        if not can_measure:
            return math.nan
        # Use one stream and one thread, as the choice of kernels does. Then `store` already holds
        # the latencies that the choice measured.
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
    """The index of the operator `name` in `program`.

    Raises
    ------
    GraphError
        The model has no operator `name`.
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
        rest = (
            "is not among `providers`, and runs only the operators that no provider among them can "
            "run"
        )
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
    except ExecutionError as error:  # Some library kernels do not support every GPU.
        return Offer(name, f"has no kernel for this device: {error}")
