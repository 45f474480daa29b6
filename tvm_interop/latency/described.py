"""Computes latencies from a device's data sheet, without the device and without measurements."""

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
    """The properties of a device from which latencies are computed.

    Attributes
    ----------
    flops_a_us, bytes_a_us: operations and bytes of memory traffic per microsecond, of the whole
        device.
    launch_us: microseconds that the smallest operator takes.
    cores: a CPU's cores or a GPU's multiprocessors.
    values_a_core: the number of values that an operator writes for each core that it keeps busy. So
        an operator that writes more values keeps more cores busy.
    bandwidth: how many operators that only move bytes can run at full speed at the same time.
    link: the connection to another device of this kind; None if there is none.
    """

    flops_a_us: float
    bytes_a_us: float
    launch_us: float
    cores: int
    values_a_core: float
    bandwidth: float
    link: Link | None = None


COPY_US = 10.0
"""Microseconds that every copy between GPUs takes in addition to the time for its bytes. This
number is our own assumption."""

DEVICES: Mapping[str, DeviceDescription] = {
    "v100": DeviceDescription(15.7e6, 900e3, 3.0, 80, 2048, 1.0, Link(50e3, COPY_US)),
    "a40": DeviceDescription(37.4e6, 696e3, 3.0, 84, 1536, 1.0, Link(56.25e3, COPY_US)),
    "a100": DeviceDescription(19.5e6, 2039e3, 3.0, 108, 2048, 1.0, Link(300e3, COPY_US)),
    "h100": DeviceDescription(67.0e6, 3350e3, 3.0, 132, 2048, 1.0, Link(450e3, COPY_US)),
    "k80": DeviceDescription(4.37e6, 240e3, 3.0, 13, 2048, 1.0),
    "rtx2080super": DeviceDescription(11.2e6, 496e3, 3.0, 48, 1024, 1.0),
    "rtx2080ti": DeviceDescription(13.4e6, 616e3, 3.0, 68, 1024, 1.0),
    "rtx3080": DeviceDescription(29.8e6, 760e3, 3.0, 68, 1536, 1.0),
    "jetson_nano": DeviceDescription(0.236e6, 25.6e3, 3.0, 1, 2048, 1.0),
    "jetson_tx2": DeviceDescription(0.666e6, 59.7e3, 3.0, 2, 2048, 1.0),
    "xavier_nx": DeviceDescription(0.845e6, 59.7e3, 3.0, 6, 2048, 1.0),
}
"""Figures of GPUs as NVIDIA states them.

The figures are the rate for fp32 without tensor cores, the memory bandwidth, the number of
multiprocessors, the threads that each multiprocessor holds, and the bandwidth of NVLink in one
direction. For `v100` and `a40`, NVLink's bandwidth is the bandwidth between two GPUs: two of six
links for a V100, the bridge for an A40. For `a100` and `h100`, it is the bandwidth of all NVLink
connections together. No link is described for the remaining devices. The microseconds of a launch
are our own assumption. `v100` is the SXM2, `a100` the 80 GB SXM4, `h100` the SXM5.

Sources:

- `v100`: data sheet of the Tesla V100 (2020). `a40`: data sheet of the A40 (2022). `a100`: data
  sheet of the A100 (2021). `h100`: data sheet of the H100 (2023).
- `k80`: board specification of the Tesla K80 (BD-07317-001, 2015). A K80 has two GPUs, and `k80` is
  one of them, so the rate is half of 8.74 TFLOPS (at the boost clock).
- `rtx2080ti`: white paper on Turing (WP-09183-001, 2018), of the reference card. `rtx2080super`:
  NVIDIA's product page; 3,072 cores at 1.815 GHz. `rtx3080`: white paper on GA102 (2020), 10 GB.
- `jetson_nano`, `jetson_tx2`, `xavier_nx`: NVIDIA's data sheets of the modules. The rate for fp32
  is two operations per core and cycle: 128 cores at 0.921 GHz, 256 at 1.3 GHz, 384 at 1.1 GHz. For
  the first two, NVIDIA advertises the rate for fp16, which is twice the rate for fp32."""


def device_description(name: str) -> DeviceDescription:
    """The description of the device `name`.

    Raises
    ------
    InputError: no device has this name; the message lists all names.
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
    """The latencies of operators and stages on a described device.

    The latency of an operator is the sum of three times: for its launch, for its arithmetic on the
    cores that it keeps busy, and for its memory traffic.

    Parameters
    ----------
    flops, nbytes: (num_ops,) floating-point operations and bytes of memory traffic.
    values: (num_ops,) the number of values that each operator writes.
    transfers: as `LatencyTable` takes them.
    """
    cores = np.clip(np.ceil(np.asarray(values) / device.values_a_core), 1, device.cores)
    compute_us = np.asarray(flops) / (device.flops_a_us * cores / device.cores)
    memory_us = np.asarray(nbytes) / device.bytes_a_us
    op_us = device.launch_us + compute_us + memory_us
    return ContendedLatency(
        op_us, device.cores, device.bandwidth, cores, memory_us / op_us, transfers
    )
