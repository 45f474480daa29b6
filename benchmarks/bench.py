"""Compares this package with other runtimes on this machine: `make bench` or `make bench-full`.

    python -m benchmarks.bench [NETWORK ...] [--budget SECONDS] [--out FOLDER] [--force]

Each network runs in interleaved rounds: with our schedulers, onnxruntime, PyTorch, TVM's Relax VM
and TensorRT. A runtime that is not installed is skipped. On a busy machine nothing is measured.
With `--force` the networks are measured even then, and every output says that the machine was busy.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx

import tvm_interop
from tvm_interop import models
from tvm_interop.cli.console import measuring_bar
from tvm_interop.compiler.api import Compilation, CompileOptions

from . import harness, machine_state
from .options import add_force
from .peers import OnnxRuntime, Ours, Peer, RelaxVM, TensorRT, Torch, TorchCudaGraph, thread_choices
from .report import Report

QUICK = ("squeezenet", "inception_v3")
SCHEDULERS = ("sequential", "greedy", "lios", "ios", "auto")
"""Our schedulers that always run: the baselines of the papers, and the default, `auto`."""
MORE_SCHEDULERS = ("nimble", "opara")
"""Our schedulers that run only with `--full`."""
BASELINE = "ours, sequential"


def main() -> int:
    arguments = parse_arguments()
    machine = machine_state.observe_quiet(arguments.force)
    if machine is None:
        return 2
    networks = arguments.networks or (models.list() if arguments.full else QUICK)
    schedulers = (*SCHEDULERS, *MORE_SCHEDULERS) if arguments.full else SCHEDULERS
    forced = not machine.is_quiet
    for network in networks:
        report = compare(network, arguments.budget, machine, forced, schedulers)
        print(report.table(), end="\n\n", flush=True)
        for path in report.write(arguments.out):
            print(f"wrote {path}", file=sys.stderr)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--full", action="store_true", help="run every network, and more of our schedulers"
    )
    add_measuring_options(parser, budget_s=60, out=Path("benchmarks/results"))
    return parser.parse_args()


def add_measuring_options(parser: argparse.ArgumentParser, budget_s: float, out: Path) -> None:
    """Add the options that every comparison of networks has.

    The options name the networks, the seconds to measure each, the output folder, and whether to
    measure on a busy machine.
    """
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(models.list()))
    parser.add_argument(
        "--budget", type=float, default=budget_s, help="seconds to measure each network"
    )
    parser.add_argument("--out", type=Path, default=out, help="folder for tables, JSON and charts")
    add_force(parser)


def compare(
    network: str,
    budget_s: float,
    machine: machine_state.MachineState,
    forced: bool,
    schedulers: Sequence[str] = SCHEDULERS,
) -> Report:
    """Measure our runtime and every other runtime on one network.

    Parameters
    ----------
    budget_s: seconds to measure.
    forced: whether a busy machine is measured.
    schedulers: our schedulers that take part.
    """
    model = models.build(network)
    feed = random_feed(model)
    runners, report = {}, Report(network, BASELINE, machine, forced, {})
    results = {}
    with measuring_bar() as progress:
        compilation = Compilation(model, CompileOptions(progress=progress))
        for peer in peers(compilation, schedulers):
            why = peer.missing()
            if why is not None:
                report.skipped[peer.name] = why
                continue
            print(f"preparing {peer.name}", file=sys.stderr, flush=True)
            try:
                runner = peer.prepare(model, feed)
                results[peer.name] = runner()
            except Exception as error:
                if isinstance(peer, Ours):
                    raise
                # If another runtime cannot run a network, the table says so. The comparison goes
                # on.
                report.skipped[peer.name] = f"it failed: {str(error).splitlines()[0]}"
                continue
            runners[peer.name] = runner
            report.settings[peer.name] = peer.setting
    expected = results["onnxruntime, sequential"]
    for name, outputs in results.items():
        pairs = zip(outputs, expected, strict=True)
        report.differences[name] = max(float(np.abs(y - want).max()) for y, want in pairs)
    rounds = harness.rounds_for(list(runners.values()), budget_s)
    times = harness.measure(runners, BASELINE, rounds)
    report.summaries = harness.summarise(times, BASELINE)
    return report


def peers(compilation: Compilation, schedulers: Sequence[str] = SCHEDULERS) -> list[Peer]:
    """All other runtimes, installed or not, and our own runtime once with each of `schedulers`."""
    threads = thread_choices()
    return [
        OnnxRuntime(parallel=False, threads=threads),
        OnnxRuntime(parallel=True, threads=threads),
        Torch(compiled=False, threads=threads),
        Torch(compiled=True, threads=threads),
        RelaxVM(),
        *(Ours(compilation, name) for name in schedulers),
        TensorRT(),
        TorchCudaGraph(),
    ]


def random_feed(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Random inputs by name, from a fixed seed.

    Floats are normally distributed, and integers are 0 or 1.
    """
    rng = np.random.default_rng(0)
    weights = {w.name for w in model.graph.initializer}
    feed = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        is_index = dtype.kind in "iu"
        drawn = rng.integers(0, 2, shape) if is_index else rng.standard_normal(shape)
        feed[value.name] = drawn.astype(dtype)
    return feed


if __name__ == "__main__":
    assert tvm_interop.__version__
    sys.exit(main())
