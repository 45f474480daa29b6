"""When requests arrive: patterns of the field, drawn by seed, or read from a file."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..plain_data import is_finite, is_whole

Follow = tuple[int, int, float]
"""When a request of the first model has been served, one of the second arrives after so many
microseconds."""


@dataclass(frozen=True)
class Arrivals:
    """Requests in order of arrival, and those that others bring.

    Attributes
    ----------
    at_us: (n,) ascending.
    models: (n,) the index of each one's model.
    followers: see `Follow`.
    priorities, batches: (n,) of each; None for 0 and 1.
    deadlines_us: (n,) of each, as a time; None for no deadlines.
    """

    at_us: npt.NDArray[np.float64]
    models: npt.NDArray[np.int64]
    followers: tuple[Follow, ...] = ()
    priorities: npt.NDArray[np.int64] | None = None
    batches: npt.NDArray[np.int64] | None = None
    deadlines_us: npt.NDArray[np.float64] | None = field(default=None)

    def __post_init__(self) -> None:
        count = len(self.at_us)
        for name in ("models", "priorities", "batches", "deadlines_us"):
            column = getattr(self, name)
            if column is not None and len(column) != count:
                raise InputError(f"`{name}` has {len(column)} rows for {count} arrivals")
        if count and (not np.isfinite(self.at_us).all() or self.at_us[0] < 0):
            raise InputError("an arrival is no time; give microseconds, 0 or more")
        if (np.diff(self.at_us) < 0).any():
            raise InputError("the arrivals are not in order of time; sort them")
        if count and self.models.min() < 0:
            raise InputError("an arrival is for a model below 0; models are numbered from 0")
        for model, following, delay_us in self.followers:
            if not is_whole(model) or not is_whole(following) or min(model, following) < 0:
                raise InputError(f"follower {(model, following)} names no models; give indices")
            if not is_finite(delay_us) or delay_us < 0:
                raise InputError(f"a follower's delay is {delay_us!r}; give microseconds, >= 0")

    @property
    def num_models(self) -> int:
        """The least number of models that they are for."""
        last = int(self.models.max()) if len(self.models) else -1
        return max([last, *(max(a, b) for a, b, _ in self.followers)]) + 1

    def with_deadlines(self, after_us: Sequence[float]) -> Arrivals:
        """The same, each with a deadline so long after its arrival, by model."""
        deadlines = self.at_us + np.asarray(after_us, dtype=np.float64)[self.models]
        return Arrivals(
            self.at_us, self.models, self.followers, self.priorities, self.batches, deadlines
        )


def periodic(rates: Sequence[float], seconds: float) -> Arrivals:
    """Each model's requests at a fixed distance, the first at 0.

    Parameters
    ----------
    rates: requests a second of each model.
    seconds: for how long.
    """
    _check(rates, seconds)
    times: list[npt.NDArray[np.float64]] = []
    for rate in rates:
        count = math.ceil(rate * seconds)
        times.append(np.array([i * 1e6 / rate for i in range(count)], dtype=np.float64))
    return _merged(times)


def poisson(rates: Sequence[float], seconds: float, seed: int) -> Arrivals:
    """Each model's requests at exponentially distributed distances; `rates` as for `periodic`."""
    _check(rates, seconds)
    rng = np.random.default_rng(seed)
    return _merged([_poisson_us(rate, seconds, rng) for rate in rates])


def on_off(
    rates: Sequence[float], seconds: float, seed: int, on_s: float = 0.1, off_s: float = 0.1
) -> Arrivals:
    """Bursts: each model switches between Poisson arrivals and none.

    Parameters
    ----------
    rates: as for `periodic`, over both states: while it is on, a model has more.
    on_s, off_s: the mean seconds of each state, exponentially distributed.
    """
    _check(rates, seconds)
    _check([on_s, off_s], seconds)
    if on_s == 0:
        raise InputError("`on_s` is 0; nothing would ever arrive")
    rng = np.random.default_rng(seed)
    times = []
    for rate in rates:
        # Poisson on the time in which the model is on, then laid onto the clock.
        on_us = _poisson_us(rate * (on_s + off_s) / on_s, seconds, rng)
        periods = max(8, math.ceil(4 * seconds / on_s))
        on_lengths = rng.exponential(on_s * 1e6, periods)
        off_lengths = rng.exponential(off_s * 1e6, periods)
        ends = np.cumsum(on_lengths)
        # A model begins on or off as often as it is on or off.
        begins_off = rng.random() < off_s / (on_s + off_s)
        gaps = np.concatenate([[off_lengths[0] if begins_off else 0.0], off_lengths[1:]])
        paused_us = np.cumsum(gaps)
        period = np.minimum(np.searchsorted(ends, on_us), periods - 1)
        at_us = on_us + paused_us[period]
        times.append(at_us[at_us < seconds * 1e6])
    return _merged(times)


def closed_loop(clients: Sequence[int], think_us: float = 0.0) -> Arrivals:
    """Clients that each send a request, wait for it, think, and send the next.

    Parameters
    ----------
    clients: how many of each model; enough of them keep a device saturated.
    think_us: between an answer and the next request.
    """
    for count in clients:
        if not is_whole(count) or count < 0:
            raise InputError(f"there are {count!r} clients; give whole numbers, 0 or more")
    models = np.repeat(np.arange(len(clients)), clients).astype(np.int64)
    followers = tuple((model, model, think_us) for model in range(len(clients)))
    return Arrivals(np.zeros(len(models)), models, followers)


def dependent(first: Arrivals, followers: Sequence[Follow]) -> Arrivals:
    """`first`, whose requests bring others when they have been served, as in a pipeline."""
    return Arrivals(
        first.at_us, first.models, (*first.followers, *followers), first.priorities,
        first.batches, first.deadlines_us,
    )  # fmt: skip


def trace_file(path: str | Path, models: Sequence[str]) -> Arrivals:
    """Read arrivals from a CSV file with a line of column names.

    Columns: `at_us`, `model` (a name of `models`), and if wanted `priority`, `batch` and
    `deadline_us` (a time). Lines need not be in order.

    Raises
    ------
    InputError: for a file that cannot be read, a column or a model that is not there, and a number
        that is none, naming the line.
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"the trace `{path}` cannot be read: {error}") from None
    ids = {name: i for i, name in enumerate(models)}
    read: list[tuple[float, int, int, int, float]] = []
    for number, row in enumerate(rows, start=2):
        if row.get("model") not in ids:
            raise InputError(
                f"line {number} of `{path}` is for model {row.get('model')!r}; the models are "
                f"{', '.join(models)}"
            )
        try:
            read.append(
                (
                    float(row["at_us"]),
                    ids[row["model"]],
                    int(row.get("priority") or 0),
                    int(row.get("batch") or 1),
                    float(row.get("deadline_us") or math.inf),
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"line {number} of `{path}` has no such number: {error}") from None
        if read[-1][3] < 1:
            raise InputError(f"line {number} of `{path}` has a batch below 1")
    read.sort(key=lambda row: row[0])
    columns = list(zip(*read, strict=True)) or [(), (), (), (), ()]
    return Arrivals(
        np.array(columns[0], dtype=np.float64),
        np.array(columns[1], dtype=np.int64),
        (),
        np.array(columns[2], dtype=np.int64),
        np.array(columns[3], dtype=np.int64),
        np.array(columns[4], dtype=np.float64),
    )


def _poisson_us(rate: float, seconds: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    # Given their number, Poisson arrivals are uniform.
    return np.sort(rng.random(rng.poisson(rate * seconds))) * (seconds * 1e6)


def _merged(times: Sequence[npt.NDArray[np.float64]]) -> Arrivals:
    """One list of all models' arrivals; at the same time the lowest model first."""
    at_us = np.concatenate([np.empty(0), *times])
    models = np.repeat(np.arange(len(times)), [len(t) for t in times]).astype(np.int64)
    order = np.argsort(at_us, kind="stable")
    return Arrivals(at_us[order], models[order])


def _check(rates: Sequence[float], seconds: float) -> None:
    for value in (*rates, seconds):
        if not is_finite(value) or value < 0:
            raise InputError(f"a rate or a time is {value!r}; give numbers, 0 or more")
