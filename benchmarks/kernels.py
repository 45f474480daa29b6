"""Compares whole networks on our runtime, onnxruntime and PyTorch: `python -m benchmarks.kernels`.

The output has the times of each network. It also tells how close our runtime comes to the peak rate
of the cores, and whether schedules are faster than sequential execution. Further columns have the
number of tensors that change their memory layout, the number of concatenations that copy, and the
memory of a run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import onnx

from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.models import light

from . import harness, machine_state
from .bench import peers, random_feed
from .operators import Convolution
from .options import add_force
from .peers import OnnxRuntime, Ours, Peer, Torch

NETWORKS = ("inception_v1", "inception_v2", "squeezenet", "resnet50", "shufflenet")
SCHEDULERS = ("greedy", "lios", "lios+")
BASELINE = "ours, sequential"
ONNXRUNTIME, PYTORCH = "onnxruntime, sequential", "PyTorch eager"
ROOF = Convolution(256, 256, 28, (3, 3))
"""The convolution whose rate of floating-point operations counts as the peak rate of the cores."""


@dataclass
class Row:
    """The results of one network.

    Attributes
    ----------
    median_us: median microseconds of each contestant, by name.
    best: name of our fastest contestant.
    to_onnxruntime, to_pytorch: time of our fastest contestant over the time of onnxruntime, and
        over the time of PyTorch eager, each with its best number of threads. `to_pytorch` is None
        if PyTorch did not take part.
    roof_us: microseconds that the network's floating-point operations take at the peak rate of all
        cores.
    noise: ratio of the times of two measurements of our sequential execution.
    operators: number of operators; each part of a divided operator counts as one.
    reorders, concats: number of tensors that a run converts to another memory layout, and number of
        concatenations that copy their inputs.
    peak_bytes: growth of the process's peak memory while it loads and runs the model, by runtime.
    """

    network: str
    median_us: dict[str, float]
    best: str
    to_onnxruntime: float
    to_onnxruntime_interval: tuple[float, float]
    roof_us: float
    noise: float
    operators: int
    reorders: int
    concats: int
    to_pytorch: float | None = None
    to_pytorch_interval: tuple[float, float] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)


def main() -> int:
    arguments = _arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    flops_a_us = peak_flops_a_us()
    print(f"{machine.cpu}; peak rate of all cores: {flops_a_us / 1e3:.0f} GFLOP/s", flush=True)
    rows = [compare(name, flops_a_us, arguments.budget) for name in arguments.networks or NETWORKS]
    mean = _geometric_mean([row.to_onnxruntime for row in rows])
    print(f"best of ours over onnxruntime at its best, geometric mean: {mean:.3f}")
    over_pytorch = [row.to_pytorch for row in rows if row.to_pytorch is not None]
    if over_pytorch:
        print(
            f"best of ours over {PYTORCH} at its best, geometric mean of {len(over_pytorch)}: "
            f"{_geometric_mean(over_pytorch):.3f}"
        )
    if arguments.out is not None:
        found = {
            "machine": machine.as_dict(),
            "peak_gflops": flops_a_us / 1e3,
            "geometric_mean_to_onnxruntime": mean,
            "geometric_mean_to_pytorch": _geometric_mean(over_pytorch) if over_pytorch else None,
            "rows": [asdict(row) for row in rows],
        }
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _geometric_mean(ratios: list[float]) -> float:
    return float(np.exp(np.log(ratios).mean()))


def compare(network: str, flops_a_us: float, budget_s: float) -> Row:
    """Measure one network and print the results.

    Parameters
    ----------
    flops_a_us: peak rate of all cores, in floating-point operations a microsecond.
    budget_s: seconds to measure.
    """
    model = light.build(network)
    feed = random_feed(model)
    compilation = Compilation(model, CompileOptions())
    contestants: list[Peer] = [
        *(p for p in peers(compilation) if isinstance(p, (OnnxRuntime, Torch)) and _is_plain(p)),
        *(Ours(compilation, name) for name in ("sequential", *SCHEDULERS)),
    ]
    runners = {}
    for peer in contestants:
        why = peer.missing()
        if why is not None:
            print(f"{peer.name} does not take part: {why}")
            continue
        try:
            runners[peer.name] = peer.prepare(model, feed)
        except ValueError as error:
            if isinstance(peer, (Ours, OnnxRuntime)):
                raise
            # If another runtime cannot run the network, report this and go on.
            print(f"{peer.name} does not take part: {error}")
    expected = runners[ONNXRUNTIME]()
    for name, run in list(runners.items()):
        pairs = zip(run(), expected, strict=True)
        if all(np.abs(got - want).max() <= 1e-3 * np.abs(want).max() for got, want in pairs):
            continue
        assert not name.startswith("ours"), f"{name} is wrong on {network}"
        print(f"{name} does not take part: its outputs differ from onnxruntime's")
        del runners[name]
    rounds = harness.rounds_for(list(runners.values()), budget_s)
    found = harness.summarise(harness.measure(runners, BASELINE, rounds), BASELINE)
    medians = {name: summary.median_us for name, summary in found.items()}
    ours = [name for name in runners if name.startswith("ours")]
    best = min(ours, key=medians.__getitem__)
    # Measure our fastest contestant again. In the earlier rounds, its time may have been low by
    # chance.
    others = [name for name in (ONNXRUNTIME, PYTORCH) if name in runners]
    finalists = {name: runners[name] for name in (*others, best)}
    times = harness.measure(finalists, ONNXRUNTIME, rounds)
    over = {name: harness.summarise(times, name)[best] for name in others}
    instance = compilation.instance(compilation.plan(compilation.sequential()))
    row = Row(
        network=network,
        median_us=medians,
        best=best,
        to_onnxruntime=over[ONNXRUNTIME].ratio,
        to_onnxruntime_interval=over[ONNXRUNTIME].ratio_interval,
        to_pytorch=over[PYTORCH].ratio if PYTORCH in over else None,
        to_pytorch_interval=over[PYTORCH].ratio_interval if PYTORCH in over else None,
        roof_us=_flops(compilation) / flops_a_us,
        noise=found[BASELINE + harness.AGAIN].ratio,
        operators=compilation.graph.num_ops,
        reorders=instance.num_reorders,
        concats=sum("concat" in op.kernel for op in compilation.program.operators),
        settings={peer.name: peer.setting for peer in contestants},
        peak_bytes=_peak_bytes(compilation, model, feed),
    )
    _print(row, found)
    return row


def _is_plain(peer: Peer) -> bool:
    return peer.name in (ONNXRUNTIME, PYTORCH)


def _print(row: Row, found: dict[str, harness.Summary]) -> None:
    print(f"\n### {row.network}: {row.operators} operators and parts, noise {row.noise:.3f}")
    for name, summary in sorted(found.items(), key=lambda item: item[1].median_us):
        low, high = summary.ratio_interval
        print(
            f"  {name:28s} {summary.median_us / 1e3:8.2f} ms  {summary.ratio:.3f} of sequential "
            f"({low:.3f} to {high:.3f})  {row.settings.get(name, '')}"
        )
    ratios = [("onnxruntime", row.to_onnxruntime, row.to_onnxruntime_interval)]
    if row.to_pytorch is not None and row.to_pytorch_interval is not None:
        ratios.append((PYTORCH, row.to_pytorch, row.to_pytorch_interval))
    told = ", ".join(
        f"{ratio:.3f} ({ends[0]:.3f} to {ends[1]:.3f}) of {name}" for name, ratio, ends in ratios
    )
    best_us = row.median_us[row.best]
    mib = {name: nbytes / 2**20 for name, nbytes in row.peak_bytes.items()}
    print(
        f"  {row.best} is {told}; "
        f"roof {row.roof_us / 1e3:.2f} ms, {row.roof_us / best_us:.0%} of it reached; "
        f"{row.reorders} reorders and {row.concats} copying concatenations; "
        f"peak {', '.join(f'{name} {size:.0f} MiB' for name, size in mib.items())}",
        flush=True,
    )


def peak_flops_a_us() -> float:
    """The peak rate of all cores, in floating-point operations a microsecond.

    The rate is measured with the convolution `ROOF`, divided over all cores.

    Raises
    ------
    RuntimeError: oneDNN is not installed.
    """
    compilation = Compilation(ROOF.model(), CompileOptions(providers=["onednn"]))
    flops = _flops(compilation)
    parts = [i for i, op in enumerate(compilation.program.operators) if op.whole is not None]
    if not parts:
        raise RuntimeError("oneDNN is not installed: install it, because it measures the peak rate")
    return flops / compilation.measured_latency.stage([[i] for i in parts])


def _flops(compilation: Compilation) -> int:
    described = (op.description for op in compilation.program.operators)
    return sum(op.flops for op in described if op is not None)


def _peak_bytes(
    compilation: Compilation, model: onnx.ModelProto, feed: dict[str, np.ndarray]
) -> dict[str, int]:
    """Growth of peak memory in bytes, of our runtime and of onnxruntime.

    Each runtime runs in a process of its own. The memory that its import takes does not count.
    """
    with tempfile.TemporaryDirectory() as folder:
        compilation.artifact(compilation.sequential()).save(f"{folder}/model.tar")
        onnx.save(model, f"{folder}/model.onnx")
        np.savez(f"{folder}/feed.npz", **feed)
        return {name: _grown(code, folder) for name, code in _MEMORY_OF.items()}


def _grown(code: str, folder: str) -> int:
    program = _MEMORY_PROLOGUE + code + _MEMORY_EPILOGUE
    output = subprocess.run(
        [sys.executable, "-c", program, folder], check=True, capture_output=True, text=True
    ).stdout
    return int(output.splitlines()[-1])


_MEMORY_PROLOGUE = """
import re, sys
import numpy as np
folder = sys.argv[1]
feed = dict(np.load(folder + "/feed.npz"))
def peak():
    # `ru_maxrss` would be wrong, because a process inherits it from the process that started it.
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
"""
_MEMORY_OF = {
    "ours": """
import tvm, tvm_interop, tvm_interop.machine.kernel_libraries as libraries
libraries.available_providers()
before = peak()
module = tvm_interop.GraphModule(tvm_interop.load(folder + "/model.tar"))
for _ in range(3):
    module.run(**feed)
""",
    "onnxruntime": """
import onnxruntime
before = peak()
session = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
for _ in range(3):
    session.run(None, feed)
""",
}
_MEMORY_EPILOGUE = """
print(peak() - before)
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--budget", type=float, default=20, help="seconds to measure each network")
    parser.add_argument("--out", type=Path, default=None, help="write JSON to this file")
    add_force(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
