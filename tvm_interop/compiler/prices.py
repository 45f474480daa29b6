"""Gives latencies for a GPU that is not in this machine.

The latencies come from a description of the GPU, or from the database of measured latencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import InputError, LatencyError
from ..latency import LatencyModel, LatencyTable, Link
from ..latency.described import DEVICES, described_latency, device_description
from ..latency.measurement import Setting, stage_key
from ..measure.store import LatencyStore
from ..measure.workloads import workload_hash
from ..program.program import Program
from ..program.traits import operator_traits
from ..scheduling import OperatorTraits
from .backend import Backend, Lowered
from .merging import PriceAlone, Rows
from .provider_choice import give_to_libraries

DATABASE = "database"


@dataclass(frozen=True)
class NamedPrices:
    """Latencies from a device description or the database, which the caller asked for by name.

    Attributes
    ----------
    latency: the latencies of the model's operators and stages.
    source: a text that says where the latencies come from.
    rows_of: takes another lowered model, and returns a function for it. That function gives the
        latencies of lists of operators from the same source.
    """

    latency: LatencyModel
    source: str
    rows_of: Callable[[Lowered], Rows]

    def price_alone(self, backend: Backend) -> PriceAlone:
        """Return a function that lowers a module without measurements, and gives its operators'
        latencies.

        The latencies come from the same source as `latency`. Each operator gets the kernel of the
        first provider that can run it.
        """

        def price(module: Any) -> tuple[Program, Rows]:
            alone = backend.lower_unmeasured(
                module, None, lambda program: give_to_libraries(program, backend.providers)
            )
            return alone.program, self.rows_of(alone)

        return price


def named_prices(
    name: str, lowered: Lowered, store: LatencyStore, link: Link | None
) -> NamedPrices:
    """Look up or compute the latencies of a lowered model.

    Parameters
    ----------
    name: the name of a device description, or of the database (see `by_database`).
    link: the link between two GPUs of that name; None for the description's link.

    Raises
    ------
    InputError
        `name` is unknown, or the database lacks latencies of the model's operators.
    """
    if name.partition(":")[0] == DATABASE:
        stored, source = by_database(name, lowered.program, _hashes(lowered), store, link)
        return NamedPrices(stored, source, lambda other: partial(_rows, stored, _hashes(other)))

    def described(lowered: Lowered) -> tuple[LatencyModel, str]:
        return by_description(name, lowered.program, operator_traits(lowered.program), link)

    def rows_of(other: Lowered) -> Rows:
        latency, _ = described(other)
        return lambda rows: [latency.stage([row]) for row in rows]

    latency, source = described(lowered)
    return NamedPrices(latency, source, rows_of)


def _hashes(lowered: Lowered) -> list[str]:
    """The hash of each operator's workload."""
    kernels = lowered.kernels.hashes
    return [workload_hash(op, kernels) for op in lowered.program.operators]


def _rows(
    stored: StoredLatency, hashes: Sequence[str], rows: Sequence[Sequence[int]]
) -> list[float]:
    return [stored.in_a_row([hashes[op] for op in row]) for row in rows]


def by_description(
    name: str, program: Program, traits: Sequence[OperatorTraits], link: Link | None
) -> tuple[LatencyModel, str]:
    """Compute latencies from the description of device `name`.

    Parameters
    ----------
    traits: the FLOPs and the bytes moved of each operator.
    link: the link between two devices of this name; None for the link in the device's description.

    Returns
    -------
    The latency model, and a text that says where the latencies come from.

    Raises
    ------
    InputError
        There is no description of device `name`.
    """
    device = device_description(name)
    graph = program.graph()
    chosen = link or device.link
    latency = described_latency(
        device,
        [trait.flops for trait in traits],
        [trait.nbytes for trait in traits],
        [
            sum(math.prod(program.values[v].shape) for v in operator.outputs)
            for operator in program.operators
        ],
        None if chosen is None else chosen.transfers(graph),
    )
    return latency, f"the data sheet of `{name}`, not measured{_of_link(chosen)}"


def by_database(
    name: str,
    program: Program,
    hashes: Sequence[str],
    store: LatencyStore,
    link: Link | None,
) -> tuple[StoredLatency, str]:
    """Look up latencies that were measured on a GPU, in the database.

    The latency of a stage that was never measured is the sum of its operators' latencies.

    Parameters
    ----------
    name: `database`, or `database:TEXT` for the GPU whose name contains TEXT.
    hashes: the hash of each operator's workload.
    link: the link between two such GPUs. None takes the link from the device description of this
        GPU, which is the description whose name is part of the GPU's name.

    Returns
    -------
    The latency model, and a text that says where the latencies come from.

    Raises
    ------
    InputError
        The database has no GPU on which all operators were measured, or it has several.
    """
    wanted = name.partition(":")[2].lower()
    settings = [
        setting
        for setting, *_ in store.counts()
        if setting is not None and not setting.cores and wanted in setting.device.lower()
    ]
    known = {setting: _singles(setting, hashes, store) for setting in settings}
    whole = [setting for setting, op_us in known.items() if len(op_us) == len(set(hashes))]
    devices = sorted({setting.device for setting in whole})
    if not devices:
        most = max((len(op_us) for op_us in known.values()), default=0)
        raise InputError(
            f"the latency database `{store.path}` has latencies of {most} of the model's "
            f"{len(set(hashes))} different operators on one GPU"
            + (f" like `{wanted}`" if wanted else "")
            + "; measure all of them on a GPU and import the records (`tvm-interop db`), compile "
            "for that GPU's --arch, or take a device description: "
            f"{', '.join(sorted(DEVICES))}"
        )
    if len(devices) > 1:
        raise InputError(
            "the latency database has the model's latencies on "
            f"{', '.join(f'`{d}`' for d in devices)}; say which GPU, as in "
            f"`{DATABASE}:{devices[0].split()[-1]}`"
        )
    setting = max(whole, key=lambda s: (s.tvm_version, s.streams))
    described = next((d for n, d in DEVICES.items() if n in setting.device.lower()), None)
    chosen = link or (described.link if described else None)
    graph = program.graph()
    latency = StoredLatency(
        [known[setting][digest] for digest in hashes],
        hashes,
        setting,
        store,
        None if chosen is None else chosen.transfers(graph),
        [each for each in settings if each.device == setting.device],
    )
    return latency, f"measured on `{setting.device}`, from {store.path}{_of_link(chosen)}"


class StoredLatency(LatencyTable):
    """The latencies that the database has for one setting: a device with its software.

    Parameters
    ----------
    on_device: all settings with the same device as the setting whose latencies are given.
        `in_a_row` looks up latencies in all of these settings.
    """

    def __init__(
        self,
        op_us: Sequence[float],
        hashes: Sequence[str],
        setting: Setting,
        store: LatencyStore,
        transfers: Mapping[tuple[int, int], float] | None,
        on_device: Sequence[Setting],
    ) -> None:
        super().__init__(op_us, transfers=transfers)
        self._hashes = hashes
        self._setting = setting
        self._store = store
        self._on_device = on_device
        self._knows_copies = transfers is not None

    def transfer(self, u: int, v: int) -> float:
        """The latency of copying the output of operator `u` to the GPU of operator `v`, in
        microseconds.

        Raises
        ------
        LatencyError: the bandwidth of the link between the GPUs is not known.
        """
        if not self._knows_copies:
            raise LatencyError(
                f"the link between two `{self._setting.device}` is not known; give its bandwidth "
                "(`link`, or --link-gb-s)"
            )
        return super().transfer(u, v)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """The measured latency of a stage, in microseconds.

        If the stage was never measured, return the sum of its operators' latencies.
        """
        streams: list[list[str]] = [[self._hashes[op] for op in group] for group in groups]
        streams += [[] for _ in range(self._setting.streams - len(streams))]
        key = stage_key(self._setting, False, streams)
        found = self._store.get([key])
        if key in found:
            return found[key]
        return sum(self.op(op) for group in groups for op in group)

    def in_a_row(self, hashes: Sequence[str]) -> float:
        """The measured latency of operators that run one after the other on a stream, in
        microseconds.

        The operators need not belong to the model. Latencies that were measured with another number
        of streams are used too, because `ios-merge` measures on one stream, and other schedulers on
        more. The version of TVM must be the same. The result is inf if the operators were never
        measured in this order.
        """
        for setting in self._on_device:
            if setting.tvm_version == self._setting.tvm_version:
                rest: list[list[str]] = [[] for _ in range(setting.streams - 1)]
                key = stage_key(setting, False, [list(hashes), *rest])
                found = self._store.get([key])
                if key in found:
                    return found[key]
        return math.inf


def _singles(setting: Setting, hashes: Sequence[str], store: LatencyStore) -> dict[str, float]:
    """The measured latency of each operator alone in microseconds, by the hash of its workload.

    Operators that were never measured are left out.
    """
    rest: list[list[str]] = [[] for _ in range(setting.streams - 1)]
    keys = {digest: stage_key(setting, False, [[digest], *rest]) for digest in set(hashes)}
    found = store.get(keys.values())
    return {digest: found[key] for digest, key in keys.items() if key in found}


def _of_link(link: Link | None) -> str:
    if link is None:
        return ""
    return f"; copies at {link.bytes_a_us / 1e3:g} GB/s and {link.fixed_us:g} us each"
