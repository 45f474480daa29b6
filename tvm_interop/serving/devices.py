"""Devices of TOP's Table I by their data sheets, to serve on paper."""

from __future__ import annotations

from collections.abc import Mapping

from ..latency.described import DeviceDescription

SHEETS: Mapping[str, DeviceDescription] = {
    "a100": DeviceDescription(19.5e6, 1555e3, 3.0, 108, 2048, 1.0),
    "xavier-nx": DeviceDescription(6.8e6, 59.7e3, 8.0, 6, 2048, 1.0),
    "tx2": DeviceDescription(1.3e6, 59.7e3, 8.0, 2, 2048, 1.0),
    "nano": DeviceDescription(0.5e6, 25.6e3, 8.0, 1, 2048, 1.0),
}
"""An A100 of 40 GB, and the Jetsons Xavier NX, TX2 and Nano. Arithmetic is the paper's (Lin et al.,
TPDS 36(2), 2025, Table I), of the Jetsons in float16; memory, multiprocessors and the threads that
each holds are NVIDIA's; what a launch takes is ours to choose."""
