"""Compares schedulers on one network on a real GPU: whether they are right, and how fast they are.

This script is part of the bundle that `make gpu-bundle` makes. `gpu_visit.py` in the bundle runs it
in a process of its own for each network and part. It needs only a GPU, its driver and Python: no
internet connection, no compiler and no Relax. The parts are:
- `check`: the outputs of sequential execution are compared with onnxruntime's, on two sets of
  inputs in turn. If they are wrong, the first operator that is wrong is named. Sequential execution
  and two schedules must give the same bits in three ways to run: uncaptured (the host launches the
  operators one by one), captured (as one CUDA graph) and linked (as one CUDA graph that consists of
  a graph for each operator).
- `time`: each operator, and each stage that a scheduler asks for, is measured on this GPU, and
  every scheduler makes its schedule. Opara gets the resources that each kernel needs by its machine
  code, and may open any number of streams. In one more schedule, Opara's streams are combined. If
  cuDNN or cuBLASLt loads, two more programs run. The first has a library's kernel for each operator
  that a library can run. The second has the fastest kernel of each operator, a library's or TVM's.
  All executions are checked like in `check`. Then they are timed in interleaved rounds. Schedules
  run captured. Schedules of TVM's kernels also run with stream priorities. Sequential execution
  runs uncaptured, linked, and twice captured, which shows the noise. PyTorch runs eager and in a
  CUDA graph.
- `flight`: one, two, four and eight instances run at once, and their runs in a second are counted.
- `compile`: `torch.compile` runs against sequential execution.

TensorRT does not take part, because its builder is too large for the bundle.

Each line is printed as soon as its figures are known, and the report is written after each stage of
the work. The report names the work that was left out because time was short, and the contestants
that could not take part.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
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
from tvm_interop.latency.base import LatencyModel, op_latencies
from tvm_interop.machine.gpu_traits import demands_arch, gpu_traits
from tvm_interop.machine.kernel_libraries import TVM, library_version, provider_names, why_missing
from tvm_interop.measure.cuda_timer import CudaStageTimer
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.measure.store import LatencyStore
from tvm_interop.plan.as_program import program_of
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.plan.stream_priority import prefer_longest_chain
from tvm_interop.program.program import Program
from tvm_interop.scheduling.budget import Budget, BudgetedLatency
from tvm_interop.scheduling.one_after_another import one_after_another

from . import torch_gpu
from .gpu_first_wrong import SAMPLES_FILE, first_wrong
from .gpu_flight import runs_per_s
from .gpu_report import Report, earliest_us, gpu_state, interleaved_us
from .step_facts import Facts

FOLDED = "opara, folded"
"""Name of Opara's schedule with its streams combined into as many as other schedules have."""
SCHEDULERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "lios": {},
    "nimble": {},
    "opara": {},
    FOLDED: {},
    "ios": {"max_group_ops": 3, "max_groups": 8},
}
"""The options of each scheduler, by name. Schedulers with a long search come last."""
PREFERRING = ", priorities"
"""Suffix of a schedule's name if the stream with the longest chain of operators has priority."""
LIBRARY_PLAN = "libraries.json"
"""The file beside a network's artifact with the plan in which libraries run all operators that
they can run."""
LIBRARIES = "sequential, libraries"
AGAIN = "sequential, again"
FASTEST = "sequential, fastest kernels"
"""Name of sequential execution with the fastest kernel of each operator, TVM's or a library's."""
FASTEST_SCHEDULERS = ("greedy", "lios", "nimble", "opara")
"""The schedulers with a short search. They also run on the fastest kernels."""
MOST_STREAMS = 8
TORCH = {"PyTorch eager": torch_gpu.eager, "PyTorch CUDA graph": torch_gpu.captured}
TORCH_COMPILE = "torch.compile"
RTOL, ATOL = {"float32": 1e-3, "float16": 1e-2}, 1e-4
"""Allowed error of an output: `RTOL` of its type times its largest absolute value, plus `ATOL`.
Sums may differ from onnxruntime's, because we add their terms in another order."""
IOS_SECONDS = 20.0
"""Seconds that `ios` may spend on measurements of stages. NASNet-A alone has 170,000 stages."""
CHECKED = ("nimble", "opara")
"""The schedulers of part `check`. They need no latencies."""
RUNS_IN_A_ROW = 10
INSTANCES = (1, 2, 4, 8)
FLIGHT_SECONDS = 1.0


class Bench:
    """Checks and times one network on GPU 0."""

    def __init__(
        self,
        folder: Path,
        deadline: float,
        report: Report | None = None,
        ios_seconds: float = IOS_SECONDS,
        write: Callable[[Report], object] = lambda report: None,
    ) -> None:
        """Load the network.

        Parameters
        ----------
        folder: the network's folder in the bundle.
        deadline: no further schedule is started after this time of `time.monotonic()`, in seconds.
        report: where results go; None makes a new one.
        ios_seconds: seconds that `ios` may spend on measurements of stages.
        write: called with the report after each stage of the work.
        """
        self._ios_seconds = ios_seconds
        self._write = write
        self.report = report or Report(folder.name)
        self._deadline = deadline
        self._artifact: Artifact = tvm_interop.load(folder / "model.tar")
        require_gpu(self._artifact.plan)
        self._kernels = self._artifact.load_kernels()
        self._reference = dict(np.load(folder / "reference.npz"))
        self._program = program_of(self._artifact.plan, self._artifact.weights)
        names = [op.name for op in self._program.operators]
        self._graph = OpGraph.from_edges(names, self._program.edges())
        self._gpu_kernels = self._artifact.manifest.gpu_kernels
        archs = {arch for kernel in self._gpu_kernels.values() for arch in kernel.launches}
        self._arch = demands_arch(archs)
        if self._arch is None:
            self.report.not_run.append(
                "Opara with the resources that kernels need: the artifact does not list these "
                "resources; make the bundle anew"
            )
        self.report.operators = len(names)
        self._instances: dict[str, CudaInstance] = {}
        self._same_kernels: dict[str, str] = {}
        """For each instance with kernels of libraries, the sequential instance with the same
        kernels. Both are given by name. All other instances have TVM's kernels."""
        self._peers: dict[str, torch_gpu.TorchRunner] = {}
        self._store = LatencyStore(":memory:")
        self._folder = folder

    def check(self) -> Report:
        """Compare outputs with onnxruntime's. Check that all ways to run give the same bits."""
        sequential = self._artifact.plan
        for dispatch in ("streams", "captured", "linked"):
            self._add(_way("sequential", dispatch), sequential, dispatch)
        self.report.numbers = self._check_numbers("sequential")
        self._look_for_first_wrong()
        self._write(self.report)
        streams = min(MOST_STREAMS, max(self._graph.width, 1))
        for scheduler in CHECKED:
            options = self._options(scheduler, self._program, streams)
            schedule = run_scheduler(self._graph, **options)
            plan = make_plan(self._program, schedule, device="cuda:0")
            for dispatch in ("streams", "captured", "linked"):
                self._add(_way(scheduler, dispatch), plan, dispatch)
        self._check_bits()
        for name, instance in self._instances.items():
            self.report.early_us[name] = earliest_us(instance)
        self._write(self.report)
        return self.report

    def run(self) -> Report:
        """Do all checks and timings of the network, as far as the deadline allows."""
        sequential = self._artifact.plan
        for name, dispatch in (("sequential, uncaptured", "streams"), ("sequential", "captured")):
            self._add(name, sequential, dispatch)
        self._add(AGAIN, sequential, "captured")
        self.report.numbers = self._check_numbers("sequential")
        self._look_for_first_wrong()
        self._add("sequential, linked", sequential, "linked")
        self._write(self.report)
        self._schedule_all()
        self._check_and_time()
        self._add_libraries()
        self._check_and_time()
        for name, way in TORCH.items():
            self._add_peer(name, way)
        self._time()
        self._print_times(self.report.median_us)
        self._time_launches()
        for missing in self.report.not_run:
            print(f"  not run: {missing}")
        self._write(self.report)
        return self.report

    def fly(self) -> Report:
        """Count the runs per second of several instances that run at the same time."""
        streams = min(MOST_STREAMS, max(self._graph.width, 1))
        plans = {"sequential": self._artifact.plan}
        if streams > 1:
            schedule = run_scheduler(self._graph, "nimble", streams=streams)
            plans["nimble"] = make_plan(self._program, schedule, device="cuda:0")
        for name, plan in plans.items():
            self.report.runs_per_s[name] = {}
            for number in INSTANCES:
                if time.monotonic() > self._deadline:
                    self.report.not_run.append(f"{number} instances of {name}: out of time")
                    continue
                weights = self._artifact.weights
                instances = [CudaInstance(plan, self._kernels, weights) for _ in range(number)]
                rate = runs_per_s(instances, FLIGHT_SECONDS)
                self.report.runs_per_s[name][number] = rate
                print(f"  {number} instances of {name}: {rate:.0f} runs in a second", flush=True)
                self._write(self.report)
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

    def _options(self, name: str, program: Program, streams: int) -> dict[str, Any]:
        """The scheduler of a contestant and its options.

        The scheduler `opara` gets the resources that the kernels need. It may open any number of
        streams, unless its streams are to be combined.
        """
        options = {"name": name, "streams": streams, **SCHEDULERS[name]}
        if name in ("opara", FOLDED):
            options |= {
                "name": "opara",
                "traits": gpu_traits(program, self._gpu_kernels, self._arch),
            }
        if name == "opara":
            options["streams"] = None
        return options

    def _check_and_time(self) -> None:
        self._check_bits()
        self._time()
        self._write(self.report)

    def _time(self) -> None:
        times: dict[str, Callable[[], float]] = {}
        for name, instance in self._instances.items():
            times[name] = lambda instance=instance: instance.time(1)
        times |= {name: peer.time for name, peer in self._peers.items()}
        self.report.median_us = interleaved_us(times)

    def _time_launches(self) -> None:
        """Time the host's part of one launch, and runs back to back."""
        for name, instance in self._instances.items():
            launches = [_cuda.time_launches(instance.executor, 1) for _ in range(9)]
            self.report.launch_us[name] = float(np.median(launches)) * 1e6
            in_a_row = [instance.time(RUNS_IN_A_ROW) for _ in range(9)]
            self.report.back_to_back_us[name] = float(np.median(in_a_row)) * 1e6 / RUNS_IN_A_ROW

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
        print(f"  outputs of {name} {verdict}: {worst:.3f} times the allowed error")
        return verdict

    def _look_for_first_wrong(self) -> None:
        """If outputs of the network are wrong, find the first operator with wrong results."""
        if self.report.numbers == "right":
            return
        samples = dict(np.load(self._folder / SAMPLES_FILE))
        weights = self._artifact.weights
        given = self._artifact.plan, self._kernels, weights, self._inputs(0), samples
        self.report.first_wrong = first_wrong(*given, RTOL, ATOL)
        print(f"  {self.report.first_wrong}", flush=True)

    def _worst_error(self, outputs: Callable[[int], list[np.ndarray]]) -> float:
        """The largest difference from onnxruntime's outputs, as a multiple of the allowed error.

        Parameters
        ----------
        outputs: function that runs the model on input set 0 or 1, and returns its outputs.
        """
        worst = 0.0
        # Alternate the inputs, to find a CUDA graph that returns the outputs of the run before.
        for which in (0, 1, 0):
            for i, got in enumerate(outputs(which)):
                expected = self._reference[f"output{which}_{i}"]
                scale = float(np.abs(expected).max())
                error = float(np.abs(got.astype(np.float64) - expected).max())
                worst = max(worst, error / (RTOL[str(got.dtype)] * scale + ATOL))
        return worst

    def _add_peer(self, name: str, way: Callable[..., torch_gpu.Call]) -> None:
        """Add a peer that runs the model in PyTorch, unless it fails or its outputs are wrong."""
        why = torch_gpu.why_not()
        if why:
            self.report.not_run.append(f"{name}: {why}")
            return
        try:
            model = onnx.load(self._folder / "model.onnx")
            peer = torch_gpu.TorchRunner(model, way, self._inputs(0))
            error = self._worst_error(lambda which: _run_on(peer, self._inputs(which)))
        except Exception as failure:  # PyTorch and its compiler may raise any error.
            text = (str(failure).splitlines() or [""])[0]
            self.report.not_run.append(f"{name}: {type(failure).__name__}: {text}")
            return
        self.report.peer_errors[name] = error
        if error <= 1:
            self._peers[name] = peer
        else:
            self.report.not_run.append(f"{name}: WRONG, {error:.3f} times the allowed error")

    def _inputs(self, which: int) -> list[np.ndarray]:
        return [self._reference[f"input{which}_{i}"] for i in range(len(self._program.inputs))]

    def _schedule_all(self) -> None:
        streams = min(MOST_STREAMS, max(self._graph.width, 1))
        left = Budget(max(self._deadline - time.monotonic(), 0))
        latency = self._latency_of(self._program, streams, left)
        for name in SCHEDULERS:
            if time.monotonic() > self._deadline:
                self.report.not_run.append(f"{name}: out of time")
                continue
            given = self._options(name, self._program, streams)
            began = time.monotonic()
            try:
                asked: LatencyModel = latency
                if name == "ios":
                    op_us = op_latencies(latency, self._graph.names)
                    asked = BudgetedLatency(latency, op_us, Budget(self._ios_seconds))
                schedule = run_scheduler(self._graph, latency=asked, **given)
                if isinstance(asked, BudgetedLatency):
                    self.report.stages_refused = asked.refused
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

    def _latency_of(
        self, program: Program, streams: int, budget: Budget | None = None
    ) -> MeasuredLatency:
        made = self._artifact.manifest.sha256["kernels.so"]
        return MeasuredLatency(
            program,
            {op.kernel: f"{made}:{op.kernel}" for op in program.operators},
            CudaStageTimer(program, self._kernels, streams=streams),
            store=self._store,
            budget=budget,
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
        # Undo the plan's choice of libraries, so that TVM's kernels run all operators of the
        # program.
        program = replace(
            program, operators=[replace(op, library=None) for op in program.operators]
        )
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
            options = self._options(scheduler, fastest, streams)
            schedule = run_scheduler(self._graph, latency=latency, **options)
            self._add(name, make_plan(fastest, schedule, device="cuda:0"))
            self._same_kernels[name] = FASTEST

    def _check_bits(self) -> None:
        first = _way("sequential", "streams")
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


def _way(name: str, dispatch: str) -> str:
    """The name of a schedule and how it is launched. `captured` is not added to the name."""
    suffix = {"streams": ", uncaptured", "captured": "", "linked": ", linked"}
    return name + suffix[dispatch]


def _run_on(peer: torch_gpu.TorchRunner, inputs: list[np.ndarray]) -> list[np.ndarray]:
    peer.write(inputs)
    return peer.run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("check", "time", "flight", "compile"))
    parser.add_argument("folder", type=Path, help="folder of one network, as in the bundle")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the report")
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--ios-seconds", type=float, default=IOS_SECONDS)
    arguments = parser.parse_args()
    deadline = time.monotonic() + arguments.seconds
    report, facts = Report(arguments.folder.name), Facts(arguments.out)
    print(f"{report.network}: {_cuda.describe_device(0)}", flush=True)
    before = gpu_state()

    def write(report: Report) -> None:
        facts.tell(**vars(report), before=before, after=gpu_state())

    bench = Bench(arguments.folder, deadline, report, arguments.ios_seconds, write)
    if arguments.part == "compile":
        bench.run_compiled()
        write(report)
        wrong = [reason for reason in report.not_run if ": WRONG" in reason]
        return facts.exit_code(missing=report.not_run, wrong=wrong)
    if arguments.part == "flight":
        bench.fly()
        return facts.exit_code()
    report = bench.check() if arguments.part == "check" else bench.run()
    facts.tell(is_right=report.is_right)
    return facts.exit_code(wrong=[] if report.is_right else ["numbers or bits are wrong"])


if __name__ == "__main__":
    raise SystemExit(main())
