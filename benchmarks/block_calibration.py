"""Fits the simulator of thread blocks to six of the IOS paper's times, and tests it on ten others.

The simulated runs are those of the paper: its networks on a V100, in the five schedules of its
section 6.1. The data sheet, the limits of a multiprocessor and the blocks assumed in
`paper_kernels` are fixed. Five parameters (`Parameters`) are fitted to Inception-V3 and RandWire in
three of the schedules (`FITTED_FORMS`). These three schedules are found without a search over
groups of operators that run side by side. The fit never sees SqueezeNet and NASNet-A, which give
the ten times of the test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from tvm_interop import schedule
from tvm_interop.latency.block_device import BlockDevice
from tvm_interop.latency.described import DEVICES
from tvm_interop.machine.multiprocessors import GPUS

from .paper_kernels import PaperGraph, paper_latency

FORMS = ("sequential", "greedy", "ios-merge", "ios-parallel", "ios-both")
PAPER_MS: Mapping[str, tuple[float, ...]] = {
    "inception_v3": (6.51, 4.62, 5.39, 4.11, 4.03),
    "randwire": (8.49, 6.27, 8.54, 6.02, 6.02),
    "nasnet_a": (22.95, 16.78, 22.94, 16.04, 16.04),
    "squeezenet": (0.86, 0.98, 0.74, 0.82, 0.73),
}
"""Milliseconds on a V100 at batch 1, for each of `FORMS`.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021, Fig. 6. The figure
shows throughputs relative to the best one. The times here are those from which the throughputs were
computed. The paper's text gives only one of the times, 4.03 ms (Table 3)."""
TENSORRT_MS = {"inception_v3": 5.21, "randwire": 8.33, "nasnet_a": 24.66, "squeezenet": 0.80}
"""Milliseconds of TensorRT at batch 1.

It is the fastest other library of Fig. 7 on most networks.
"""

FITTED_NETWORKS = ("inception_v3", "randwire")
FITTED_FORMS = ("sequential", "greedy", "ios-merge")
JUDGED_NETWORKS = ("squeezenet", "nasnet_a")
SEARCH = {"max_group_ops": 3, "max_groups": 8, "max_transitions": 50_000}
"""Options of IOS: the limits r (operators of a group) and s (groups of a stage) of the paper's
experiments, and a limit on transitions.

Blocks of RandWire and NASNet-A have more transitions than the limit. They are searched with beams
instead, which takes a minute. On the other two networks the search is complete."""
GAP_US = 1.0
"""Microseconds between two kernels of a stream. This is our own assumption."""


@dataclass(frozen=True)
class Parameters:
    """The fitted parameters of the simulator; all others come from data sheets or are assumed.

    The default values are the point from which the fit starts.

    Attributes
    ----------
    tile: height and width of the tile of a matrix product that one thread block computes; see
        `paper_kernels`.
    efficiency: share of the data sheet's flops that a busy multiprocessor reaches.
    depthwise: the efficiency in depthwise convolutions, as a share of `efficiency`.
    launch_us: microseconds from one launch to the next.
    wait_us: microseconds that a wait of one stream for another costs.
    """

    tile: int = 64
    efficiency: float = 0.6
    depthwise: float = 0.003
    launch_us: float = 9.0
    wait_us: float = 4.5


TILES = (32, 64, 128)
_FACTORS = (1.5, 1.2, 1.08, 1.03)
"""The factors by which a parameter is changed, from coarse to fine."""


def device(found: Parameters, sheet: str = "v100") -> BlockDevice:
    """A GPU by its data sheet, with the fitted parameters."""
    described, gpu = DEVICES[sheet], GPUS[sheet]
    return BlockDevice(
        gpu.arch,
        gpu.multiprocessors,
        described.flops_a_us,
        described.bytes_a_us,
        found.launch_us,
        GAP_US,
        found.wait_us,
        found.efficiency,
    )


def simulated_ms(network: PaperGraph, found: Parameters, form: str) -> float:
    """Milliseconds of a network in one of `FORMS`, with the schedule found on the simulated GPU."""
    latency = paper_latency(network, device(found), found.tile, found.depthwise)
    options = SEARCH if form in ("ios-parallel", "ios-both") else {}
    made = schedule(network.graph, form, latency, **options)
    # A makespan is a sum of stage latencies. So in the times of `ios-merge` and `sequential`, an
    # operator is not launched while the operator before it still runs, as it would be on a GPU.
    us = made.makespan if made.makespan is not None else made.simulate(network.graph, latency)
    return us / 1e3


def fit(networks: Mapping[str, PaperGraph]) -> tuple[Parameters, float]:
    """The best parameters that coordinate descent finds, and their error.

    Each parameter in turn is multiplied or divided by a factor as long as the error falls. Later
    rounds use smaller factors. The descent runs once for each tile of `TILES`. If two tiles have
    equal errors, the smaller tile is kept. The result is a local optimum: from another start, the
    descent may end elsewhere.
    """
    best, least = Parameters(), math.inf
    for tile in TILES:
        found = Parameters(tile=tile)
        error = fitted_error(networks, found)
        for factor in _FACTORS:
            found, error = _descend(networks, found, error, factor)
        if error < least:
            best, least = found, error
    return best, least


def fitted_error(networks: Mapping[str, PaperGraph], found: Parameters) -> float:
    """Mean relative error on the times to which the parameters are fitted; 0.1 is 10%."""
    return mean_error(
        {
            (name, form): simulated_ms(networks[name], found, form)
            for name in FITTED_NETWORKS
            for form in FITTED_FORMS
        }
    )


def mean_error(simulated: Mapping[tuple[str, str], float]) -> float:
    """Mean of |simulated - published| / published over the pairs (network, form)."""
    errors = [
        abs(ms / PAPER_MS[name][FORMS.index(form)] - 1) for (name, form), ms in simulated.items()
    ]
    return sum(errors) / len(errors)


def _descend(
    networks: Mapping[str, PaperGraph], found: Parameters, error: float, factor: float
) -> tuple[Parameters, float]:
    names = [name for name in asdict(found) if name != "tile"]
    improved = True
    while improved:
        improved = False
        for name in names:
            for step in (factor, 1 / factor):
                changed = replace(found, **{name: getattr(found, name) * step})
                if changed.efficiency > 1 or changed.depthwise > 1:
                    continue
                new_error = fitted_error(networks, changed)
                if new_error < error * (1 - 1e-6):
                    found, error, improved = changed, new_error, True
    return found, error
