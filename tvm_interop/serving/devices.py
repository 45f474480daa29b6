"""Data sheets of the devices in TOP's Table I, for simulated serving."""

from __future__ import annotations

from collections.abc import Mapping

from ..latency.described import DeviceDescription

SHEETS: Mapping[str, DeviceDescription] = {
    "a100": DeviceDescription(19.5e6, 1555e3, 3.0, 108, 2048, 1.0),
    "xavier-nx": DeviceDescription(6.8e6, 59.7e3, 8.0, 6, 2048, 1.0),
    "tx2": DeviceDescription(1.3e6, 59.7e3, 8.0, 2, 2048, 1.0),
    "nano": DeviceDescription(0.5e6, 25.6e3, 8.0, 1, 2048, 1.0),
}
"""Descriptions of an A100 with 40 GB and of the Jetsons Xavier NX, TX2 and Nano.

The arithmetic rates are from the paper (Lin et al., TPDS 36(2), 2025, Table I). The rates
of the Jetsons are for float16. Memory bandwidth, the number of multiprocessors and the threads per
multiprocessor are NVIDIA's figures. The launch latency is an assumption of this project.
"""
