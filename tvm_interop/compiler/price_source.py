"""Decides where the latencies for a schedule come from.

Latencies are measured on this machine, are predicted, or come from a latency model that the caller
gives, from a device description, or from the database of measured latencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InputError
from ..latency import LatencyModel
from .options import MERGING

LEARNED = "learned"


@dataclass(frozen=True)
class MeasuredHere:
    """Latencies come from measurements of stages on this machine's device."""


@dataclass(frozen=True)
class Learned:
    """Most latencies are predicted.

    Only the stages that decide which schedule is best are measured.
    """


@dataclass(frozen=True)
class ByName:
    """Latencies come from a device description or from the database; nothing is measured.

    Attributes
    ----------
    name: the name of a device description, `database`, or `database:NAME`.
    """

    name: str


@dataclass(frozen=True)
class Given:
    """Latencies come from the caller's latency model."""

    latency: LatencyModel


PriceSource: TypeAlias = MeasuredHere | Learned | ByName | Given


def price_source(
    latency: LatencyModel | str | None,
    usual: LatencyModel | None,
    scheduler: str,
    *,
    prices_by_name: bool,
) -> PriceSource:
    """Decide where a scheduler's latencies come from.

    Parameters
    ----------
    latency: the caller's choice: a latency model, `learned`, the name of a device description or of
        the database, or None.
    usual: the latency model of the compilation, used if `latency` is None; None measures on this
        machine.
    scheduler: the scheduler's name.
    prices_by_name: whether the backend supports latencies from a device description or the
        database.

    Raises
    ------
    InputError
        `latency` does not name a source of latencies, or the scheduler cannot use this source. The
        message says what to give.
    """
    if latency is None:
        return MeasuredHere() if usual is None else Given(usual)
    if not isinstance(latency, str):
        return Given(latency)
    if latency != LEARNED:
        if prices_by_name:
            return ByName(latency)
        raise InputError(
            f"`latency` is {latency!r}; give `learned` or a LatencyModel, or leave `latency` out "
            "to measure on this machine"
        )
    if scheduler in MERGING:
        raise InputError(
            f"`{scheduler}` merges operators, and the latencies of merged operators cannot be "
            "learned but must be measured: leave `latency` out, or let `ios` or `auto` learn "
            "latencies"
        )
    return Learned()
