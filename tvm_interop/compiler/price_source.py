"""Where the prices of a schedule come from: told once, from what was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ..errors import InputError
from ..latency import LatencyModel

LEARNED = "learned"


@dataclass(frozen=True)
class MeasuredHere:
    """Stages are measured on the device."""


@dataclass(frozen=True)
class Learned:
    """Most stages are predicted; those that decide are measured on the device."""


@dataclass(frozen=True)
class ByName:
    """Prices come from the description of a device or from the database; nothing is measured.

    Attributes
    ----------
    name: of the description or of the device, for `prices.by_description` or
        `prices.by_database`.
    """

    name: str


@dataclass(frozen=True)
class Given:
    """Prices come from the caller's latency model."""

    latency: LatencyModel


PriceSource: TypeAlias = MeasuredHere | Learned | ByName | Given


def price_source(
    latency: LatencyModel | str | None,
    usual: LatencyModel | None,
    scheduler: str,
    *,
    prices_by_name: bool,
) -> PriceSource:
    """Where a scheduler's prices come from.

    Parameters
    ----------
    latency: what was asked for: a model, `learned`, a name that prices are known by, or nothing.
    usual: the latency model of the compilation, where nothing was asked for.
    prices_by_name: whether the backend's schedules may be priced by name.

    Raises
    ------
    InputError
        There are no such prices, or none for the scheduler; says what to give.
    """
    if latency is None:
        return MeasuredHere() if usual is None else Given(usual)
    if not isinstance(latency, str):
        return Given(latency)
    if latency != LEARNED:
        if prices_by_name:
            return ByName(latency)
        raise InputError(
            f"`latency` is {latency!r}; give `learned`, a LatencyModel, or nothing to measure here"
        )
    if scheduler not in ("auto", "ios"):
        raise InputError(
            f"learned latencies are for scheduler `ios`; `{scheduler}` asks for few stages, "
            "which are measured: leave `latency` out"
        )
    return Learned()
