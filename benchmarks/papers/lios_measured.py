"""LIOS: how much latencies vary, measured on this machine's CPU.

The paper measures on an RTX 3080. These experiments measure times, so the machine should be quiet.
Each result says how busy the machine was.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from tvm_interop import GraphModule, models
from tvm_interop.compiler.api import Compilation, CompileOptions

from .. import harness
from ..bench import random_feed
from .lios import RUNS
from .record import Chart, Record, Table, above
from .registry import experiment

_CHANGED = 0.01
"""A latency has changed if it differs by more than this share, as in the paper."""
_IMAGE = 64
"""NASNet-A runs on images of 64 by 64 pixels, so that 50 runs take seconds on two cores."""
_SEARCH_S = 20.0


def cpu_cores() -> str:
    """The text that names this machine as the device of a record."""
    return f"{len(os.sched_getaffinity(0))} CPU cores, measured"


@functools.cache
def _nasnet() -> tuple[Any, Compilation]:
    model = models.build("nasnet_a", image_size=_IMAGE)
    return model, Compilation(model, CompileOptions(parts=1))


@experiment("lios", "Table II", "how much an operator's latency changes", seconds=120, slow=True)
def table_2() -> Record:
    """Profile 50 sequential runs of NASNet-A, and compare each operator's latencies."""
    model, compilation = _nasnet()
    module = GraphModule(compilation.artifact(compilation.schedule("sequential")))
    module.set_input(**random_feed(model))
    for _ in range(5):
        module.run()
    latencies: dict[str, list[float]] = {}
    for _ in range(RUNS):
        for row in module.profile():
            latencies.setdefault(row.name, []).append(row.end_us - row.start_us)
    changes = [float(np.std(us) / np.mean(us)) for us in latencies.values()]
    changed = sum(change > _CHANGED for change in changes)
    bounds = (0.01, 0.05, 0.1, 0.5)
    rows = [[f"above {bound:.0%}", str(sum(c > bound for c in changes))] for bound in bounds]
    return Record(
        "NASNet-A runs 50 times. The latency of 102 of 139 operators changes by more than 1%. The "
        "text at hand lacks the other rows of the table.",
        cpu_cores(),
        [
            above("share of operators that change by more than 1%", changed / len(changes),
                  0.5, 102 / 139),
        ],
        why="The machine is quieter than the paper's GPU.",
        timed=True,
        remarks="The paper does not say how it computes a change. Here it is the standard "
        "deviation over the mean of an operator's 50 latencies. Other programs that run on the "
        "machine raise it too.",
        tables=[Table(f"Operators by change, of {len(changes)}", ["change", "operators"], rows)],
    )  # fmt: skip


@experiment("lios", "Figure 4", "latency of NASNet-A scheduled by IOS", seconds=120, slow=True)
def figure_4() -> Record:
    """Run NASNet-A 50 times as IOS schedules it, and 50 times one operator after the other."""
    model, compilation = _nasnet()
    feed = random_feed(model)
    found = _runs(
        {
            "sequential": GraphModule(compilation.artifact(compilation.schedule("sequential"))),
            "ios": GraphModule(
                compilation.artifact(compilation.schedule("ios", time_budget_s=_SEARCH_S))
            ),
        },
        feed,
    )
    spread = {name: float(np.ptp(ms) / np.median(ms)) for name, ms in found.items()}
    return Record(
        "NASNet-A, as IOS schedules it, runs 50 times, and its latency differs from run to run. "
        "The text at hand lacks the numbers of the figure.",
        cpu_cores(),
        [above("range of 50 latencies over their median", spread["ios"], _CHANGED)],
        why="The machine is quieter than the paper's GPU.",
        timed=True,
        remarks="Sequential execution of the same kernels took turns with it, and has a range of "
        f"{spread['sequential']:.0%} of its median. The search of IOS was limited to "
        f"{_SEARCH_S:.0f} seconds.",
        charts=[
            Chart("LIOS, Figure 4", "boxes", list(found),
                  {"ours": [ms.tolist() for ms in found.values()]}, "ms")
        ],
    )  # fmt: skip


def _runs(modules: dict[str, GraphModule], feed: Any) -> dict[str, npt.NDArray[np.float64]]:
    """Milliseconds of 50 runs of each module, in rounds that take turns."""
    for module in modules.values():
        module.set_input(**feed)
    runners = {name: module.run for name, module in modules.items()}
    first = next(iter(runners))
    times = harness.measure(runners, first, RUNS)
    return {name: times[name] / 1e3 for name in runners}
