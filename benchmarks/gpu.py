"""Compares schedulers on a real GPU: first whether their results are right, then how fast they are.

This script is part of the bundle that `make gpu-bundle` makes, and `run.sh` in the bundle runs it.
It needs only a GPU, its driver and Python: no network, no compiler and no Relax. For each network
it goes through these steps:

1. Numbers: the outputs of sequential execution are compared with onnxruntime's, on two sets of
   inputs in turn.
2. Latencies: each operator, and each stage that a scheduler asks for, is measured on this GPU. Then
   every scheduler makes its schedule.
3. Libraries, if cuDNN or cuBLASLt loads: one program uses the libraries' kernel for each operator
   that they can run. Another program uses the fastest kernel of each operator, a library's or
   TVM's. The schedulers also make schedules of this second program.
4. Bits: captured, linked and uncaptured execution, and every schedule, must have the same output
   bits as sequential execution with the same kernels.
5. Time: all of these are timed in interleaved rounds. Schedules run captured. Schedules of TVM's
   kernels also run with stream priorities. Sequential execution runs uncaptured, linked, and twice
   captured, which shows the noise. PyTorch runs eager and in a CUDA graph.

When all networks are done, `torch.compile` runs against sequential execution. It comes last because
it takes long.

Each line is printed as soon as its figures are known. The output names what was left out for lack
of time, and which contestants could not take part.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tvm_interop
from tvm_interop import Artifact, OpGraph, TVMInteropError
from tvm_interop import schedule as run_scheduler
from tvm_interop._native import cuda as _cuda
from tvm_interop.compiler.provider_choice import fastest_plain, give_to_libraries
from tvm_interop.execution.cuda import CudaInstance, require_gpu
from tvm_interop.machine.kernel_libraries import TVM, library_version, provider_names, why_missing
from tvm_interop.measure.cuda_timer import CudaStageTimer
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.measure.store import LatencyStore
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.plan.stream_priority import prefer_longest_chain
from tvm_interop.program.program import Operator, Program, Value
from tvm_interop.scheduling.one_after_another import one_after_another

from . import torch_gpu

SCHEDULERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "lios": {},
    "nimble": {},
    "opara": {},
    "ios": {"max_group_ops": 3, "max_groups": 8},
}
"""The options of each scheduler, by name. Schedulers with a long search come last."""
PREFERRING = ", priorities"
"""Suffix of a schedule's name if the stream with the longest chain of operators has priority."""
LIBRARY_PLAN = "libraries.json"
"""File beside a network's artifact, with the plan in which libraries run all operators they can."""
LIBRARIES = "sequential, libraries"
FASTEST = "sequential, fastest kernels"
"""Name of sequential execution with the fastest kernel of each operator, TVM's or a library's."""
FASTEST_SCHEDULERS = ("greedy", "lios", "nimble", "opara")
"""The schedulers with a short search. They also run on the fastest kernels."""
MOST_STREAMS = 8
TORCH = {"PyTorch eager": torch_gpu.eager, "PyTorch CUDA graph": torch_gpu.captured}
TORCH_COMPILE = "torch.compile"
WARM_UP = 5
ROUNDS = 50
RTOL, ATOL = 1e-3, 1e-4
"""Allowed error of an output: `RTOL` times its largest absolute value, plus `ATOL`. Sums may differ
from onnxruntime's, because we add their terms in another order."""


@dataclass
class Report:
    """The results of one network.

    Attributes
    ----------
    numbers: whether the outputs of sequential execution agree with onnxruntime's: "right", "WRONG"
        or "not run".
    library_numbers: "right" or "WRONG" for each sequential execution with kernels of libraries, by
        name.
    kernels: for each provider of kernels, the number of operators for which its kernel is the
        fastest.
    bits: "same" or "DIFFERENT" for each execution of ours, by name: its output bits compared with
        those of sequential execution with the same kernels.
    no_graph: why an execution has no CUDA graph although it should, by name of the execution.
    implementations: for each execution with kernels of libraries, by name, and each operator that a
        library computes, the algorithm that runs, and the algorithms that were refused.
    stages_measured: number of stages that were measured for the schedulers.
    search_s: seconds of each scheduler's search, measurements included.
    median_us: median latency of each engine that was timed, in microseconds, by the engine's name.
    compiled_us: median microseconds of `torch.compile` and of sequential execution.
    peer_errors: largest error in the outputs of each other engine, as a share of the allowed error.
    not_run: the engines that were not timed, each with the reason.
    """

    network: str
    operators: int = 0
    numbers: str = "not run"
    library_numbers: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    bits: dict[str, str] = field(default_factory=dict)
    no_graph: dict[str, str] = field(default_factory=dict)
    implementations: dict[str, dict[str, str]] = field(default_factory=dict)
    stages_measured: int = 0
    search_s: dict[str, float] = field(default_factory=dict)
    median_us: dict[str, float] = field(default_factory=dict)
    compiled_us: dict[str, float] = field(default_factory=dict)
    peer_errors: dict[str, float] = field(default_factory=dict)
    not_run: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether the numbers were compared and are right, and no output bits differ."""
        numbers = {self.numbers, *self.library_numbers.values()}
        return numbers == {"right"} and set(self.bits.values()) <= {"same"}


class Bench:
    """Checks and times one network on GPU 0."""

    def __init__(self, folder: Path, deadline: float, report: Report | None = None) -> None:
        """Load the network.

        Parameters
        ----------
        folder: the network's folder in the bundle.
        deadline: time of `time.monotonic()`, in seconds, after which no schedule is begun.
        report: where results go; None makes a new one.
        """
        self.report = report or Report(folder.name)
        self._deadline = deadline
        self._artifact: Artifact = tvm_interop.load(folder / "model.tar")
        require_gpu(self._artifact.plan)
        self._kernels = self._artifact.load_kernels()
        self._reference = dict(np.load(folder / "reference.npz"))
        self._program = program_of(self._artifact.plan, self._artifact.weights)
        names = [op.name for op in self._program.operators]
        self._graph = OpGraph.from_edges(names, self._program.edges())
        self.report.operators = len(names)
        self._instances: dict[str, CudaInstance] = {}
        self._same_kernels: dict[str, str] = {}
        """For each instance with kernels of libraries, the sequential instance with the same
        kernels. Both are given by name. All other instances have TVM's kernels."""
        self._peers: dict[str, torch_gpu.TorchRunner] = {}
        self._store = LatencyStore(":memory:")
        self._folder = folder

    def run(self) -> Report:
        """Do all checks and timings of the network, as far as the deadline allows."""
        sequential = self._artifact.plan
        for name, dispatch in (("sequential, uncaptured", "streams"), ("sequential", "captured")):
            self._add(name, sequential, dispatch)
        self._add("sequential, again", sequential, "captured")
        self.report.numbers = self._check_numbers("sequential")
        self._add("sequential, linked", sequential, "linked")
        self._schedule_all()
        self._add_libraries()
        self._check_bits()
        for name, way in TORCH.items():
            self._add_peer(name, way)
        times: dict[str, Callable[[], float]] = {}
        for name, instance in self._instances.items():
            times[name] = lambda instance=instance: instance.time(1)
        times |= {name: peer.time for name, peer in self._peers.items()}
        self.report.median_us = interleaved_us(times)
        self._print_times(self.report.median_us)
        for missing in self.report.not_run:
            print(f"  not run: {missing}")
        return self.report

    def run_compiled(self) -> None:
        """Time `torch.compile` against sequential execution."""
        self._add_peer(TORCH_COMPILE, torch_gpu.compiled)
        if TORCH_COMPILE not in self._peers:
            print(f"  not run: {self.report.not_run[-1]}")
            return
        self._add("sequential", self._artifact.plan)
        sequential = self._instances["sequential"]
        times = {
            "sequential": lambda: sequential.time(1),
            TORCH_COMPILE: self._peers[TORCH_COMPILE].time,
        }
        self.report.compiled_us = interleaved_us(times)
        self._print_times(self.report.compiled_us)

    def _add(self, name: str, plan: Plan, dispatch: Any = "captured") -> None:
        instance = CudaInstance(plan, self._kernels, self._artifact.weights, dispatch=dispatch)
        reason = _cuda.why_no_graph(instance.executor)
        if reason:
            self.report.no_graph[name] = reason
            print(f"  {name}: no graph: {reason}")
        if instance.implementations:
            self.report.implementations[name] = instance.implementations
        self._instances[name] = instance

    def _outputs(self, name: str, which: int) -> list[np.ndarray]:
        """The outputs of one run on input set `which`."""
        instance = self._instances[name]
        for v, array in zip(instance.plan.inputs, self._inputs(which), strict=True):
            instance.write(v, array)
        instance.run()
        return [instance.read(v) for v in instance.plan.outputs]

    def _check_numbers(self, name: str) -> str:
        worst = self._worst_error(lambda which: self._outputs(name, which))
        verdict = "right" if worst <= 1 else "WRONG"
        print(f"  numbers of {name} {verdict}: {worst:.3f} of what is allowed")
        return verdict

    def _worst_error(self, outputs: Callable[[int], list[np.ndarray]]) -> float:
        """The largest difference from onnxruntime's outputs, as a multiple of the allowed error.

        Parameters
        ----------
        outputs: function that runs the model on input set 0 or 1, and returns its outputs.
        """
        worst = 0.0
        # Alternate the inputs: a CUDA graph must not return the outputs of the run before.
        for which in (0, 1, 0):
            for i, got in enumerate(outputs(which)):
                expected = self._reference[f"output{which}_{i}"]
                scale = float(np.abs(expected).max())
                error = float(np.abs(got.astype(np.float64) - expected).max())
                worst = max(worst, error / (RTOL * scale + ATOL))
        return worst

    def _add_peer(self, name: str, way: Callable[..., torch_gpu.Call]) -> None:
        """Add a peer that runs the model in PyTorch, if it can and its outputs are right."""
        why = torch_gpu.why_not()
        if why:
            self.report.not_run.append(f"{name}: {why}")
            return
        try:
            model = onnx.load(self._folder / "model.onnx")
            peer = torch_gpu.TorchRunner(model, way, self._inputs(0))
            error = self._worst_error(lambda which: _run_on(peer, self._inputs(which)))
        except Exception as failure:  # PyTorch, its compiler and the GPU may raise anything.
            text = (str(failure).splitlines() or [""])[0]
            self.report.not_run.append(f"{name}: {type(failure).__name__}: {text}")
            return
        self.report.peer_errors[name] = error
        if error <= 1:
            self._peers[name] = peer
        else:
            self.report.not_run.append(f"{name}: WRONG, {error:.3f} of what is allowed")

    def _inputs(self, which: int) -> list[np.ndarray]:
        return [self._reference[f"input{which}_{i}"] for i in range(len(self._program.inputs))]

    def _schedule_all(self) -> None:
        streams = min(MOST_STREAMS, max(self._graph.width, 1))
        latency = self._latency_of(self._program, streams)
        for name, options in SCHEDULERS.items():
            if time.monotonic() > self._deadline:
                self.report.not_run.append(f"{name}: out of time")
                continue
            given = {"streams": streams, **options}
            began = time.monotonic()
            try:
                schedule = run_scheduler(self._graph, name, latency=latency, **given)
                plan = make_plan(self._program, schedule, device="cuda:0")
                self._add(name, plan)
                if len(plan.streams) > 1:
                    ids = [self._graph.names.index(op.name) for op in plan.operators]
                    preferring = prefer_longest_chain(plan, [latency.op(i) for i in ids])
                    self._add(name + PREFERRING, preferring)
            except TVMInteropError as error:
                self.report.not_run.append(f"{name}: {error}")
                print(f"  {name}: {error}")
                continue
            self.report.search_s[name] = time.monotonic() - began
            print(f"  {name}: {self.report.search_s[name]:.1f} s to schedule", flush=True)
        self.report.stages_measured = latency.measured

    def _latency_of(self, program: Program, streams: int) -> MeasuredLatency:
        made = self._artifact.manifest.sha256["kernels.so"]
        return MeasuredLatency(
            program,
            {op.kernel: f"{made}:{op.kernel}" for op in program.operators},
            CudaStageTimer(program, self._kernels, streams=streams),
            store=self._store,
        )

    def _add_libraries(self) -> None:
        """Add executions with kernels of libraries, if a library is installed."""
        libraries = [name for name in provider_names("cuda") if name != TVM]
        for name in libraries:
            if library_version(name) is None:
                self.report.not_run.append(f"kernels of {name}: {why_missing(name)}")
        found = [name for name in libraries if library_version(name) is not None]
        plan = read_plan((self._folder / LIBRARY_PLAN).read_bytes())
        program = program_of(plan, self._artifact.weights)
        try:
            if found:
                self._add_with_kernels_of(found, program)
        except TVMInteropError as error:
            self.report.not_run.append(f"kernels of {', '.join(found)}: {error}")

    def _add_with_kernels_of(self, libraries: list[str], program: Program) -> None:
        theirs = give_to_libraries(program, libraries)
        fastest = fastest_plain(
            program, [TVM, *libraries], lambda program: self._latency_of(program, 1)
        ).program
        kernels = Counter(op.library or TVM for op in fastest.operators)
        self.report.kernels = dict(kernels.most_common())
        print(f"  fastest kernels: {self.report.kernels}")
        for name, variant in ((LIBRARIES, theirs), (FASTEST, fastest)):
            in_turn = one_after_another(variant, 1)
            self._add(name, make_plan(variant, in_turn, device="cuda:0"))
            self._same_kernels[name] = name
            self.report.library_numbers[name] = self._check_numbers(name)
        streams = min(MOST_STREAMS, max(self._graph.width, 1))
        latency = self._latency_of(fastest, streams)
        for scheduler in FASTEST_SCHEDULERS:
            name = f"{scheduler}, fastest kernels"
            if time.monotonic() > self._deadline:
                self.report.not_run.append(f"{name}: out of time")
                continue
            schedule = run_scheduler(self._graph, scheduler, latency=latency, streams=streams)
            self._add(name, make_plan(fastest, schedule, device="cuda:0"))
            self._same_kernels[name] = FASTEST

    def _check_bits(self) -> None:
        first = "sequential, uncaptured"
        for which in (0, 1):
            bases = {first, *self._same_kernels.values()}
            outputs = {base: self._outputs(base, which) for base in bases}
            for name in self._instances:
                expected = outputs[self._same_kernels.get(name, first)]
                got = self._outputs(name, which)
                same = all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True))
                if self.report.bits.get(name) != "DIFFERENT":
                    self.report.bits[name] = "same" if same else "DIFFERENT"
        wrong = [name for name, verdict in self.report.bits.items() if verdict != "same"]
        print(f"  bits: {f'DIFFERENT in {wrong}' if wrong else 'the same in all'}")

    def _print_times(self, median_us: Mapping[str, float]) -> None:
        base = median_us["sequential"]
        for name, us in median_us.items():
            print(f"  {name:26s}{us:12.1f} us{us / base:8.3f} of sequential, captured")


def interleaved_us(times: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """The median time of each contestant, in microseconds.

    Every round times each contestant once, in a new random order.

    Parameters
    ----------
    times: for each contestant, a function that runs it once and returns the GPU's seconds.
    """
    draw = random.Random(1)
    order = list(times)
    found: dict[str, list[float]] = {name: [] for name in times}
    for round_ in range(-WARM_UP, ROUNDS):
        draw.shuffle(order)
        for name in order:
            seconds = times[name]()
            if round_ >= 0:
                found[name].append(seconds)
    return {name: float(np.median(seconds)) * 1e6 for name, seconds in found.items()}


def _run_on(peer: torch_gpu.TorchRunner, inputs: list[np.ndarray]) -> list[np.ndarray]:
    peer.write(inputs)
    return peer.run()


def program_of(plan: Plan, weights: dict[int, np.ndarray]) -> Program:
    """Rebuild the program that a sequential plan was made from.

    It is rebuilt from the plan because Relax, which makes programs, is not in the bundle. TVM's
    kernels run all operators of the program. The operators keep their descriptions, which tell
    which operators a library could run.
    """
    return Program(
        values=[
            # An alias keeps its offset into the other value. Offsets into the arena are left out,
            # because the next plan allocates anew.
            Value(v.name, v.shape, v.dtype, v.alias_of, v.offset or 0)
            if v.storage == "alias"
            else Value(v.name, v.shape, v.dtype)
            for v in plan.values
        ],
        operators=[
            Operator(op.name, op.kernel, op.inputs, op.outputs, op.description)
            for op in plan.operators
        ],
        inputs=plan.inputs,
        outputs=plan.outputs,
        weights=weights,
    )


def gpu_state() -> dict[str, str]:
    """Clocks, temperature and load of GPU 0, from `nvidia-smi`; empty if `nvidia-smi` fails."""
    asked = "clocks.sm,clocks.mem,clocks.max.sm,temperature.gpu,utilization.gpu,pstate"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = done.stdout.strip().split(", ")
    return dict(zip(asked.split(","), values, strict=False))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--networks", type=Path, required=True, help="folder of networks, as in the bundle"
    )
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--minutes", type=float, default=8.5)
    arguments = parser.parse_args()
    deadline = time.monotonic() + 60 * arguments.minutes
    gpu, before = _cuda.describe_device(0), gpu_state()
    print(f"{gpu}, tvm_interop {tvm_interop.__version__}; {before or 'no nvidia-smi'}")
    print("Not in this benchmark: TensorRT.")
    order = (arguments.networks / "order.txt").read_text().split()
    reports: list[Report] = []

    def write() -> None:
        facts = [{**vars(report), "is_right": report.is_right} for report in reports]
        found = {"gpu": gpu, "before": before, "after": gpu_state(), "networks": facts}
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")

    for network in order:
        if time.monotonic() > deadline:
            reports.append(Report(network, not_run=["all: out of time"]))
            print(f"{network}: not run, out of time")
            continue
        print(network, flush=True)
        reports.append(Bench(arguments.networks / network, deadline).run())
        write()
    for report in reports:
        print(f"{report.network}, {TORCH_COMPILE}", flush=True)
        if time.monotonic() > deadline:
            report.not_run.append(f"{TORCH_COMPILE}: out of time")
            print(f"  not run: {report.not_run[-1]}")
        else:
            Bench(arguments.networks / report.network, deadline, report).run_compiled()
        write()
    wrong = [report.network for report in reports if not report.is_right]
    print(f"WRONG or not run: {', '.join(wrong)}" if wrong else "all networks right")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
