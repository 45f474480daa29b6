"""Opara: four models end to end, their use of a GPU, and the resources that they need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvm_interop import schedule
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.machine.kernel_libraries import TVM
from tvm_interop.program.traits import OperatorTraits

from .opara_runs import (
    FORMS,
    GPU_NAMES,
    KERNELS,
    MODELS,
    active_share,
    most_at_once,
    ms,
    run,
    schedule_of,
    subject,
    text,
)
from .record import Chart, Check, Record, Table, above, equal, within
from .registry import experiment
from .sources import made, read

_SHARES = {
    ("googlenet", 1): 0.0253, ("googlenet", 16): 0.0912, ("inception_v3", 1): 0.1204,
    ("inception_v3", 16): 0.2148, ("bert_base", 1): 0.185, ("bert_base", 16): 0.548,
}  # fmt: skip
"""The SM efficiency on an A100 in section 2.2, by model and batch."""
_MORE_ACTIVE = {"inception_v3": 0.36, "googlenet": 0.58, "bert_base": 0.20, "t5_encoder": 0.19}
"""How much more of the GPU Opara uses than a CUDA graph, in section 5.2."""


@experiment("opara", "Figure 1", "how much of an A100 sequential execution uses", seconds=3)
def figure_1() -> Record:
    """Runs each model on one stream, and counts the time in which multiprocessors have blocks."""
    names = list(dict.fromkeys(name for name, _ in _SHARES))
    ours = {
        (name, batch): active_share(
            subject(name, "a100", batch), run(name, "a100", "CUDA Graph", batch)
        )
        for name, batch in _SHARES
    }
    checks: list[Check] = [
        within(f"{name}, batch {batch}: SM efficiency", ours[name, batch], paper / 2, 2 * paper,
               paper)
        for (name, batch), paper in _SHARES.items()
    ]  # fmt: skip
    checks += [
        above(f"{name}: SM efficiency at batch 16 over batch 1", ours[name, 16] / ours[name, 1],
              1.0, _SHARES[name, 16] / _SHARES[name, 1])
        for name in names
    ]  # fmt: skip
    return Record(
        "Stock PyTorch uses little of an A100: an SM efficiency of 2.53% for GoogLeNet, 12.04% for "
        "Inception-V3 and 18.5% for BERT at batch 1, and 9.12%, 21.48% and 54.8% at batch 16.",
        "an A100, simulated block by block",
        checks,
        why="The paper measured stock PyTorch, whose launches from Python leave the GPU without "
        "work most of the time. The simulation launches from a CUDA graph, so that only the size "
        "of the kernels counts. A kernel also counts on all its multiprocessors until its last "
        "block ends.",
        remarks=KERNELS,
        charts=[
            Chart("Opara, Figure 1", "bars", [f"{name}, {batch}" for name, batch in _SHARES],
                  {"simulated": list(ours.values()), "paper": list(_SHARES.values())},
                  "SM efficiency")
        ],
    )  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """The plan of one schedule.

    Attributes
    ----------
    streams: number of streams.
    waits: number of waits between streams.
    arena_mb: megabytes of the memory that all intermediate tensors share.
    """

    streams: int
    waits: int
    arena_mb: float


def planned(name: str) -> dict[str, Planned]:
    """The plans of a model for a GPU, by schedule. Nothing is built for the GPU."""
    options = CompileOptions("cuda", archs=["sm_80"], providers=(TVM,), latency_db=":memory:")
    compilation = Compilation(name, options)
    graph = compilation.graph
    traits = [OperatorTraits(memory_bound=False)] * graph.num_ops
    made_here = {
        "CUDA Graph": compilation.sequential(),
        "Nimble": schedule(graph, "nimble"),
        "Opara": schedule(graph, "opara", traits=traits),
    }
    found = {}
    for form, each in made_here.items():
        plan = compilation.plan(each)
        waits = sum(len(op.waits) for op in plan.operators)
        found[form] = Planned(each.num_streams, waits, plan.arena_bytes / 1e6)
    return found


@experiment("opara", "Figure 5 (a)", "speedup of four models at batch 1", seconds=1)
def figure_5_a() -> Record:
    """Simulates the times."""
    times = {form: [ms(name, gpu, form) for name, gpu in MODELS.items()] for form in FORMS}
    over_graph, over_nimble = (
        dict(zip(MODELS, np.divide(times[form], times["Opara"]).tolist(), strict=True))
        for form in ("CUDA Graph", "Nimble")
    )
    streams = {
        form: schedule_of(subject("googlenet", MODELS["googlenet"]), form).num_streams
        for form in ("Opara", "Nimble")
    }
    most, beside = max(over_graph.values()), max(over_nimble.values())
    return Record(
        "Opara is faster than PyTorch, a CUDA graph and Nimble on all four models: up to 1.68 "
        "times a CUDA graph, up to 1.29 times Nimble, and 9.3% faster than Nimble on T5. On "
        "GoogLeNet it has 28 streams, and Nimble 4.",
        "an RTX 2080 SUPER and an A100, simulated block by block",
        [
            *(above(f"{name}: speedup over CUDA Graph", x, 1.0) for name, x in over_graph.items()),
            within("speedup over CUDA Graph, most of all models", most, 1.68 * 0.8, 1.68 * 1.2,
                   1.68),
            *(above(f"{name}: speedup over Nimble", x, 1.0) for name, x in over_nimble.items()),
            within("speedup over Nimble, most of all models", beside, 1.29 * 0.9, 1.29 * 1.1, 1.29),
            within("t5_encoder: speedup over Nimble", over_nimble["t5_encoder"], 1.093 * 0.95,
                   1.093 * 1.05, 1.093),
            equal("googlenet: streams of Opara", 28, streams["Opara"]),
            equal("googlenet: streams of Nimble", 4, streams["Nimble"]),
        ],
        why="The gain over a CUDA graph is there. The gain over Nimble is not: Nimble's few "
        "streams already run all branches side by side, and the order of the ids, in which they "
        "are launched, is close to the best one in the simulator.",
        remarks=f"{_WHICH} Stock PyTorch is not simulated, because the cost of its launches is not "
        "known.",
        tables=[
            Table("Milliseconds, simulated", ["", *MODELS],
                  [[form, *text(row)] for form, row in times.items()])
        ],
        charts=[
            Chart("Opara, Figure 5 (a)", "bars", [*MODELS, "the paper's best"],
                  {form: [*np.divide(times["CUDA Graph"], row).tolist(), _BEST.get(form)]
                   for form, row in times.items()}, "speedup over CUDA Graph (simulated)")
        ],
    )  # fmt: skip


_BEST = {"CUDA Graph": 1.0, "Opara": 1.68}
_WHICH = (
    "The paper does not say which BERT and T5 it took; here they are BERT base and the encoder of "
    f"T5 small. {KERNELS}"
)


@experiment("opara", "Figure 5 (b)", "use of the GPU and memory at batch 1", seconds=60, slow=True)
def figure_5_b() -> Record:
    """Simulates the use of the GPU, and makes the plans for the memory and the waits."""
    plans = {name: planned(name) for name in MODELS}
    checks = [
        *_use_checks(),
        *(above(f"{name}: peak memory of Opara over that of a CUDA graph",
                plans[name]["Opara"].arena_mb / plans[name]["CUDA Graph"].arena_mb, 1.0)
          for name in MODELS),
    ]  # fmt: skip
    rows = [
        [name, form, *text([_use(name, form)], 2), str(plan.streams), str(plan.waits),
         f"{plan.arena_mb:.2f}"]
        for name, forms in plans.items() for form, plan in forms.items()
    ]  # fmt: skip
    return Record(
        "Opara uses 36%, 58%, 20% and 19% more of the GPU than a CUDA graph on Inception-V3, "
        "GoogLeNet, BERT and T5, and 1.01 to 1.42 times as much as Nimble. Its peak memory is "
        "higher than that of sequential execution.",
        "an RTX 2080 SUPER and an A100, simulated block by block; memory and waits from our plans",
        checks,
        why="Nimble's streams use the GPU as much as Opara's. Where kernels that fill the GPU "
        "overlap, as in BERT and T5, the GPU is busy for a shorter time, and its use does not "
        "rise. The memory of our plans does not grow on GoogLeNet and Inception-V3, because the "
        "largest tensors live at the beginning, where nothing runs side by side.",
        remarks=f"{_WHICH} Memory leaves out weights, inputs and outputs.",
        tables=[
            Table("Simulated use of the GPU, and our plans",
                  ["", "", "SM efficiency", "streams", "waits", "memory, MB"], rows)
        ],
        charts=[
            Chart("Opara, Figure 5 (b): use of the GPU", "bars", list(MODELS),
                  {form: [_use(name, form) for name in MODELS] for form in FORMS},
                  "SM efficiency (simulated)"),
            Chart("Opara, Figure 5 (b): peak memory", "bars", list(MODELS),
                  {form: [plans[name][form].arena_mb for name in MODELS] for form in FORMS}, "MB"),
        ],
    )  # fmt: skip


def _use_checks() -> list[Check]:
    ratios = {name: _use(name, "Opara") / _use(name, "Nimble") for name in MODELS}
    return [
        *(within(f"{name}: how much more of the GPU Opara uses than CUDA Graph",
                 _use(name, "Opara") / _use(name, "CUDA Graph") - 1, more / 2, 2 * more, more)
          for name, more in _MORE_ACTIVE.items()),
        within("use of the GPU by Opara over Nimble, least of all models", min(ratios.values()),
               0.99, 1.42, 1.01),
        within("use of the GPU by Opara over Nimble, most of all models", max(ratios.values()),
               1.2, 1.6, 1.42),
    ]  # fmt: skip


def _use(name: str, form: str) -> float:
    gpu = MODELS[name]
    return active_share(subject(name, gpu), run(name, gpu, form))


@experiment("opara", "Figure 6", "operators of GoogLeNet side by side", seconds=1)
def figure_6() -> Record:
    """Counts how many operators run at the same time."""
    most = {form: most_at_once(run("googlenet", "rtx2080super", form)) for form in FORMS}
    ends = {form: ms("googlenet", "rtx2080super", form) for form in FORMS}
    return Record(
        "In a part of GoogLeNet, a CUDA graph runs one operator at a time, Nimble two and Opara "
        "three. Opara takes the least time.",
        "an RTX 2080 SUPER, simulated block by block",
        [
            equal("operators at once, CUDA Graph", 1, most["CUDA Graph"]),
            Check("operators at once, Nimble", 2, most["Nimble"], least=2),
            Check("operators at once, Opara", 3, most["Opara"], least=3),
            above("operators at once, Opara over Nimble", most["Opara"] / most["Nimble"], 1.0, 1.5),
            above("time of Nimble over time of Opara", ends["Nimble"] / ends["Opara"], 1.0),
        ],
        why="GoogLeNet's branches are four wide. Nimble's four streams run all of them at the same "
        "time here, as its algorithm is made to do, and so do Opara's streams.",
        remarks=f"The numbers are the most of the whole network, not of one part. {KERNELS}",
        charts=[
            Chart("Opara, Figure 6", "bars", list(FORMS), {"simulated": list(most.values()),
                  "paper, in a part": [1, 2, 3]}, "operators at once")
        ],
    )  # fmt: skip


@experiment("opara", "Figure 7", "streams of T5 and BERT", seconds=1)
def figure_7() -> Record:
    """Counts the streams of Nimble and of Opara."""
    streams = {
        (name, form): schedule_of(subject(name, "a100"), form).num_streams
        for name in ("t5_encoder", "bert_base") for form in ("Nimble", "Opara")
    }  # fmt: skip
    time_ratio = ms("bert_base", "a100", "Nimble") / ms("bert_base", "a100", "Opara")
    return Record(
        "Opara runs T5 on six streams and Nimble on three. On BERT both have equally many streams, "
        "and Opara gains little over Nimble.",
        f"an {GPU_NAMES['a100']}, simulated block by block",
        [
            equal("t5_encoder: streams of Opara", 6, streams["t5_encoder", "Opara"]),
            equal("t5_encoder: streams of Nimble", 3, streams["t5_encoder", "Nimble"]),
            equal("bert_base: streams of Opara over those of Nimble", 1,
                  streams["bert_base", "Opara"] / streams["bert_base", "Nimble"]),
            within("bert_base: speedup of Opara over Nimble", time_ratio, 0.98, 1.05),
        ],
        why="PyTorch's graphs have other operators than ours: the paper names arange, to and ones, "
        "which are constants here. In our graphs the three projections of an attention stand side "
        "by side, and Algorithm 1 begins a stream for each that is not the first reader.",
        remarks="The paper does not say which T5 and BERT it took.",
        tables=[
            Table("Streams", ["", "Nimble", "Opara"],
                  [[name, *(str(streams[name, form]) for form in ("Nimble", "Opara"))]
                   for name in ("t5_encoder", "bert_base")])
        ],
    )  # fmt: skip


@experiment("opara", "Section 3.2", "resources that operators need, without a profiler", seconds=1)
def section_3_2() -> Record:
    """Reads the resources that `benchmarks.kernel_demands` found in machine code."""
    networks = read("kernel_demands")["networks"]
    rows, known = [], []
    for name, network in networks.items():
        kernels = network["kernels"]
        found = [
            bool(kernels[kernel]["launches"]["sm_80"])
            for _, kernel, *_ in network["operators"] if kernel in kernels
        ]  # fmt: skip
        known.append(sum(found) / len(found))
        streams = len(network["opara"]["sm_80"]["streams"])
        rows.append(
            [name, str(len(network["operators"])), f"{known[-1]:.0%}", str(streams),
             str(network["nimble_streams"])]
        )  # fmt: skip
    return Record(
        "A profiler run on the GPU gives the threads, the shared memory and the registers of each "
        "operator's blocks, from which Opara orders the launches.",
        "none, because the numbers are read from the machine code that nvcc makes for sm_80",
        [equal("least share of kernels with known demands, of all networks", 1.0, min(known))],
        why="A kernel's machine code could not be read.",
        remarks=f"{made('kernel_demands')} Figure 4 of the paper is a drawing.",
        tables=[
            Table("Demands and streams", ["", "operators", "kernels with known demands",
                  "streams of Opara", "streams of Nimble"], rows)
        ],
    )  # fmt: skip
