"""Gives latencies for a GPU that is not in this machine.

The latencies come from a description of the GPU, or from the database of measured latencies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..errors import InputError, LatencyError
from ..latency import LatencyModel, LatencyTable, Link
from ..latency.described import DEVICES, described_latency, device_description
from ..latency.measurement import Setting, stage_key
from ..measure.store import LatencyStore
from ..program.program import Program
from ..scheduling import OperatorTraits

DATABASE = "database"


def by_description(
    name: str, program: Program, traits: Sequence[OperatorTraits], link: Link | None
) -> tuple[LatencyModel, str]:
    """Compute latencies from the description of device `name`.

    Parameters
    ----------
    traits: the FLOPs and the bytes moved of each operator.
    link: the link between two such GPUs; None for the description's link.

    Returns
    -------
    The latency model, and a text that says where the latencies come from.

    Raises
    ------
    InputError
        There is no such description.
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
) -> tuple[LatencyModel, str]:
    """Look up latencies that were measured on a GPU, in the database.

    The latency of a stage that was never measured is the sum of its operators' latencies.

    Parameters
    ----------
    name: `database`, or `database:TEXT` for the GPU whose name has this text in it.
    hashes: the hash of each operator's workload.
    link: the link between two such GPUs. None takes the link of the device description whose name
        is part of the GPU's name.

    Returns
    -------
    The latency model, and a text that says where the latencies come from.

    Raises
    ------
    InputError
        The database knows no GPU, or several, on which all operators were measured.
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
            f"the latency database `{store.path}` knows {most} of the model's "
            f"{len(set(hashes))} different operators on one GPU"
            + (f" like `{wanted}`" if wanted else "")
            + "; measure them there and import the records (`tvm-interop db`), compile for that "
            f"GPU's --arch, or take a device description: {', '.join(sorted(DEVICES))}"
        )
    if len(devices) > 1:
        raise InputError(
            f"the latency database knows the model on {', '.join(f'`{d}`' for d in devices)}; say "
            f"which, as in `{DATABASE}:{devices[0].split()[-1]}`"
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
    )
    return latency, f"measured on `{setting.device}`, from {store.path}{_of_link(chosen)}"


class StoredLatency(LatencyTable):
    """The latencies that the database has for one setting: a device and its software."""

    def __init__(
        self,
        op_us: Sequence[float],
        hashes: Sequence[str],
        setting: Setting,
        store: LatencyStore,
        transfers: Mapping[tuple[int, int], float] | None,
    ) -> None:
        super().__init__(op_us, transfers=transfers)
        self._hashes = hashes
        self._setting = setting
        self._store = store
        self._knows_copies = transfers is not None

    def transfer(self, u: int, v: int) -> float:
        """The latency of the copy from operator `u` to operator `v`, in microseconds.

        Raises
        ------
        LatencyError: the bandwidth of the link between the GPUs is not known.
        """
        if not self._knows_copies:
            raise LatencyError(
                f"nothing is known of the link between two `{self._setting.device}`; give its "
                "bandwidth (`link`, or --link-gb-s)"
            )
        return super().transfer(u, v)

    def stage(self, groups: Sequence[Sequence[int]]) -> float:
        """The measured latency of a stage, in microseconds.

        If the stage was never measured, the result is the sum of its operators' latencies.
        """
        streams: list[list[str]] = [[self._hashes[op] for op in group] for group in groups]
        streams += [[] for _ in range(self._setting.streams - len(streams))]
        key = stage_key(self._setting, False, streams)
        found = self._store.get([key])
        if key in found:
            return found[key]
        return sum(self.op(op) for group in groups for op in group)


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
