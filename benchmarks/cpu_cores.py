"""Times sequential and scheduled execution on one to all cores of a machine without a compiler.

    python -m benchmarks.cpu_cores FOLDER ARTIFACT --out FILE

The folder holds a model and the outputs of onnxruntime, as in the bundle that `make gpu-bundle`
makes. The artifact is the same model for a CPU. For each number of cores, a new process is bound to
that many cores. It times sequential execution, whose kernels use all cores, against schedules whose
streams have one core each. Kernels are TVM's, because oneDNN is too large for the bundle. PyTorch
takes part if it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .step_facts import Facts

CORES = (1, 2, 4, 8, 16, 32, 64)
SCHEDULERS = ("nimble", "opara", "lios")
ROUNDS = 15
TOLERANCE = 1e-3
"""Allowed error of an output, as a share of its largest absolute value."""


def on_cores(folder: Path, path: Path, cores: int) -> dict[str, Any]:
    """Median microseconds of a run by each kind of execution, on the cores of this process."""
    import numpy as np

    import tvm_interop
    from tvm_interop import OpGraph
    from tvm_interop import schedule as run_scheduler
    from tvm_interop.execution.cpu import Instance
    from tvm_interop.measure.cpu_timer import CpuStageTimer
    from tvm_interop.measure.measured import MeasuredLatency
    from tvm_interop.plan.as_program import program_of
    from tvm_interop.plan.make import make_plan
    from tvm_interop.scheduling.one_after_another import one_after_another

    from .gpu_report import interleaved_us

    artifact = tvm_interop.load(path)
    kernels, parallel = artifact.load_kernels(), artifact.plan.parallel_kernels
    program = program_of(artifact.plan, artifact.weights)
    graph = OpGraph.from_edges([op.name for op in program.operators], program.edges())
    plans = {"sequential": make_plan(program, one_after_another(program, 1), cores, parallel)}
    plans["sequential, again"] = plans["sequential"]
    streams = min(cores, graph.width)
    if streams > 1:
        latency = MeasuredLatency(
            program,
            {op.kernel: op.kernel for op in program.operators},
            CpuStageTimer(program, kernels, streams=streams),
        )
        for name in SCHEDULERS:
            schedule = run_scheduler(graph, name, latency=latency, streams=streams)
            plans[name] = make_plan(program, schedule, 1, parallel)
    reference = dict(np.load(folder / "reference.npz"))
    errors: dict[str, float] = {}
    times: dict[str, Callable[[], float]] = {}
    for name, plan in plans.items():
        instance = Instance(plan, kernels, artifact.weights)
        for i, v in enumerate(plan.inputs):
            instance.write(v, reference[f"input0_{i}"])
        instance.run()
        errors[name] = max(
            float(np.abs(instance.read(v) - reference[f"output0_{i}"]).max())
            / (TOLERANCE * float(np.abs(reference[f"output0_{i}"]).max()))
            for i, v in enumerate(plan.outputs)
        )
        times[name] = lambda instance=instance: instance.time(1)
    found = {"median_us": interleaved_us(times, ROUNDS), "errors": errors}
    return {**found, "torch_us": _torch_us(folder, reference, cores)}


def _torch_us(folder: Path, reference: dict[str, Any], cores: int) -> float | str:
    """The median microseconds of PyTorch on all cores of this process, or why it did not run."""
    if importlib.util.find_spec("torch") is None:
        return "the package `torch` is not installed"
    import time

    import onnx

    try:
        import torch

        from .torch_twin import TorchTwin

        torch.set_num_threads(cores)
        twin = TorchTwin(onnx.load(folder / "model.onnx")).eval()
        names = sorted(name for name in reference if name.startswith("input0_"))
        inputs = [torch.from_numpy(reference[name]) for name in names]
        seconds = []
        with torch.no_grad():
            for _ in range(ROUNDS):
                began = time.perf_counter()
                twin(*inputs)
                seconds.append(time.perf_counter() - began)
    except Exception as error:  # PyTorch may raise anything.
        return f"{type(error).__name__}: {error}"
    return sorted(seconds)[ROUNDS // 2] * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of one network, as in the bundle")
    parser.add_argument("artifact", type=Path, help="the network's artifact for a CPU")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the figures")
    parser.add_argument("--cores", type=int, help="time on this many cores only, in this process")
    arguments = parser.parse_args()
    if arguments.cores is not None:
        arguments.out.write_text(
            json.dumps(on_cores(arguments.folder, arguments.artifact, arguments.cores))
        )
        return 0
    facts, here = Facts(arguments.out), sorted(os.sched_getaffinity(0))
    wrong = []
    for cores in [number for number in CORES if number <= len(here)]:
        name, part = f"{cores} cores", arguments.out.with_suffix(f".{cores}")
        command = [sys.executable, "-m", "benchmarks.cpu_cores", str(arguments.folder)]
        done = subprocess.run(
            [*command, str(arguments.artifact), "--out", str(part), "--cores", str(cores)],
            preexec_fn=lambda cores=cores: os.sched_setaffinity(0, here[:cores]),
            env={**os.environ, "TVM_NUM_THREADS": str(cores), "OMP_NUM_THREADS": str(cores)},
        )
        if done.returncode:
            wrong.append(f"{name}: exit code {done.returncode}")
            continue
        found = json.loads(part.read_text())
        part.unlink()
        facts.say(**{name: found})
        if max(found["errors"].values()) > 1:
            wrong.append(f"{name}: wrong numbers")
    return facts.exit_code(wrong=wrong)


if __name__ == "__main__":
    raise SystemExit(main())
