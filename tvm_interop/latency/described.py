"""Devices described by their data sheets: prices with no device at hand, and nothing measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .contended import ContendedLatency
from .transfers import Link


@dataclass(frozen=True)
class DeviceDescription:
    """A device in figures.

    Attributes
    ----------
    flops_a_us, bytes_a_us: of the whole device.
    launch_us: what the smallest operator takes.
    cores: a CPU's cores or a GPU's multiprocessors.
    values_a_core: an operator keeps a core busy for every so many values that it writes.
    bandwidth: how many operators that only move bytes run at once at full speed.
    link: the way to another such device; None where there is none.
    """

    flops_a_us: float
    bytes_a_us: float
    launch_us: float
    cores: int
    values_a_core: float
    bandwidth: float
    link: Link | None = None


COPY_US = 10.0
"""What a copy between GPUs takes however small it is; ours to choose."""

DEVICES: Mapping[str, DeviceDescription] = {
    "v100": DeviceDescription(15.7e6, 900e3, 3.0, 80, 2048, 1.0, Link(50e3, COPY_US)),
    "a40": DeviceDescription(37.4e6, 696e3, 3.0, 84, 1536, 1.0, Link(56.25e3, COPY_US)),
    "a100": DeviceDescription(19.5e6, 2039e3, 3.0, 108, 2048, 1.0, Link(300e3, COPY_US)),
    "h100": DeviceDescription(67.0e6, 3350e3, 3.0, 132, 2048, 1.0, Link(450e3, COPY_US)),
}
"""GPUs by NVIDIA's figures: fp32 without tensor cores, memory, multiprocessors and the threads that
each holds, and NVLink in one direction: of a V100 and an A40 between two (two of six links; the
bridge), of the others all links together. What a launch takes is ours to choose. `v100` is the
SXM2, `a100` the 80 GB SXM4, `h100` the SXM5."""


def device_description(name: str) -> DeviceDescription:
    """The device of this name.

    Raises
    ------
    InputError: there is none, listing those that are.
    """
    if name not in DEVICES:
        raise InputError(
            f"there is no device description `{name}`; there are {', '.join(sorted(DEVICES))}"
        )
    return DEVICES[name]


def described_latency(
    device: DeviceDescription,
    flops: npt.ArrayLike,
    nbytes: npt.ArrayLike,
    values: npt.ArrayLike,
    transfers: Mapping[tuple[int, int], float] | None = None,
) -> ContendedLatency:
    """What operators and stages take on a described device.

    An operator takes a launch, its arithmetic on the cores that it keeps busy, and its bytes.

    Parameters
    ----------
    flops, nbytes: (num_ops,) what each operator computes and moves.
    values: (num_ops,) how many numbers each writes.
    transfers: as `LatencyTable` takes them.
    """
    cores = np.clip(np.ceil(np.asarray(values) / device.values_a_core), 1, device.cores)
    compute_us = np.asarray(flops) / (device.flops_a_us * cores / device.cores)
    memory_us = np.asarray(nbytes) / device.bytes_a_us
    op_us = device.launch_us + compute_us + memory_us
    return ContendedLatency(
        op_us, device.cores, device.bandwidth, cores, memory_us / op_us, transfers
    )
