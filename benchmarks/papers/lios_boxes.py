"""LIOS: box plots of 50 runs of each scheduler, measured on this machine's CPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tvm_interop import models
from tvm_interop.compiler.api import Compilation, CompileOptions

from .. import harness
from ..bench import random_feed
from ..peers import Ours
from .lios import RUNS, SPEEDUP
from .lios_measured import cpu_cores
from .record import Chart, Check, Record, near, within
from .registry import experiment


@experiment("lios", "Figure 7 (CPU)", "box plots of 50 runs on a CPU", seconds=300, slow=True)
def figure_7() -> Record:
    """Run each scheduler's schedule 50 times, in rounds that take turns."""
    found: dict[str, dict[str, npt.NDArray[np.float64]]] = {}
    for name in ("squeezenet", "inception_v3"):
        model = models.build(name)
        compilation = Compilation(model, CompileOptions())
        feed = random_feed(model)
        runners = {
            scheduler: Ours(compilation, scheduler).prepare(model, feed)
            for scheduler in ("sequential", "greedy", "nimble", "lios", "ios")
        }
        times = harness.measure(runners, "sequential", RUNS)
        found[name] = {scheduler: times[scheduler] / 1e3 for scheduler in runners}
    middle = {name: {s: float(np.median(ms)) for s, ms in of.items()} for name, of in found.items()}
    inception, squeezenet = middle["inception_v3"], middle["squeezenet"]
    gain = inception["sequential"] / inception["lios"]
    checks: list[Check] = [
        near("inception_v3: sequential over LIOS", SPEEDUP["inception_v3"], gain, 0.25),
        within("inception_v3: LIOS over IOS, which are close", inception["lios"] / inception["ios"],
               0.9, 1.1),
        within("squeezenet: sequential over LIOS", squeezenet["sequential"] / squeezenet["lios"],
               0.9, 1.25),
    ]  # fmt: skip
    return Record(
        "On an RTX 3080 LIOS is 1.59 times faster than sequential on Inception-V3, and a little "
        "faster on SqueezeNet. IOS is close to LIOS on Inception-V3.",
        cpu_cores(),
        checks,
        why="A GPU has dozens of multiprocessors, which one small operator leaves idle. On two "
        "cores sequential execution divides each large operator over both cores, so little is "
        "idle.",
        timed=True,
        seed="rounds in random order, seed 0",
        charts=[
            Chart(f"LIOS, Figure 7 on a CPU: {name}", "boxes", list(of),
                  {"ours": [ms.tolist() for ms in of.values()]}, "ms")
            for name, of in found.items()
        ],
    )  # fmt: skip
