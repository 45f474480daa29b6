"""Opara: launch orders, batches, and the time of its algorithms."""

from __future__ import annotations

import statistics
import time

from tvm_interop import schedule

from ..block_orders import fig_3
from ..search_time import PUBLISHED_S, SOURCES
from .opara_runs import (
    FORMS,
    GPU_NAMES,
    KERNELS,
    MODELS,
    fitted,
    ms,
    schedule_of,
    subject,
    text,
)
from .record import Chart, Check, Record, Table, above, below, within
from .registry import experiment
from .sources import made, read

_BATCHES = (1, 2, 4, 8, 16, 32)
_ORDER_1 = "Opara's streams, order 1"
_SAVED = {"rtx2080super": 0.29, "a100": 0.103}
"""The largest share of GoogLeNet's latency that Opara's order saved in the paper."""
_CALLS = 25


@experiment("opara", "Figure 2", "launch orders of GoogLeNet", seconds=3)
def figure_2() -> Record:
    """Launches GoogLeNet twice: depth first, and in Opara's order, on the same streams."""
    times = {
        gpu: {
            form: [ms("googlenet", gpu, form, batch) for batch in _BATCHES]
            for form in (_ORDER_1, "Opara")
        }
        for gpu in ("rtx2080super", "a100")
    }
    saved = {
        gpu: [1 - ours / theirs for theirs, ours in zip(*row.values(), strict=True)]
        for gpu, row in times.items()
    }
    checks = [
        Check("RTX 2080 SUPER: share of latency that Opara's order saves, most of all batches",
              _SAVED["rtx2080super"], max(saved["rtx2080super"]),
              least=_SAVED["rtx2080super"] / 2),
        within("A100: share of latency that Opara's order saves, most of all batches",
               max(saved["a100"]), _SAVED["a100"] / 2, 2 * _SAVED["a100"], _SAVED["a100"]),
    ]  # fmt: skip
    return Record(
        "Launched in Opara's order (order 2), GoogLeNet takes up to 29% less time than in "
        "depth-first topological order (order 1) on an RTX 2080 SUPER, and 10.3% less on an A100.",
        "an RTX 2080 SUPER and an A100, simulated block by block",
        checks,
        why=f"The depth-first order is already a good one in the simulator. {_spread()} The paper "
        "launched PyTorch's operators on its own streams. Its text says too little about these "
        "streams to repeat them.",
        remarks=f"{KERNELS} The paper does not name its batches. {made('block_simulation')}",
        tables=[
            Table(f"Milliseconds on the {GPU_NAMES[gpu]}, simulated",
                  ["batch", *map(str, _BATCHES)],
                  [["order 1", *text(row[_ORDER_1])], ["order 2", *text(row["Opara"])],
                   ["saved", *(f"{share:.1%}" for share in saved[gpu])]])
            for gpu, row in times.items()
        ],
        charts=[
            Chart(f"Opara, Figure 2: GoogLeNet on the {GPU_NAMES[gpu]}", "bars",
                  [*(f"batch {batch}" for batch in _BATCHES), "the paper's best"],
                  {"order 1": [1.0] * (len(_BATCHES) + 1),
                   "order 2": [1 - share for share in (*saved[gpu], _SAVED[gpu])]},
                  "latency over order 1 (simulated)")
            for gpu in times
        ],
    )  # fmt: skip


def _spread() -> str:
    """A sentence that compares the depth-first order with random launch orders."""
    rows = [row for row in read("block_simulation")["orders"] if row["network"] == "googlenet"]
    behind = max(row["ids_us"] / row["best_us"] - 1 for row in rows)
    between = max(1 - row["best_us"] / row["worst_us"] for row in rows)
    return (
        f"Of {min(row['orders'] for row in rows):,} random launch orders of GoogLeNet, the best is "
        f"up to {between:.1%} faster than the worst, and at most {behind:.1%} faster than the "
        "depth-first order, on either GPU and with TVM's kernels or assumed ones."
    )


@experiment("opara", "Figure 3", "operators of two kinds side by side", seconds=1)
def figure_3() -> Record:
    """Launches both cases of Figure 3 in the order of the text, and in the order of Algorithm 2."""
    cases = fig_3(fitted())
    on_a100 = [case for case in cases if case.gpu == "a100"]
    checks = [
        within(f"{case.case}: share of latency that Opara's order saves",
               1 - case.paper_us / case.ids_us, case.published / 2, 2 * case.published,
               case.published)
        for case in on_a100
    ]  # fmt: skip
    rows = [
        [
            f"{case.case} ({GPU_NAMES[case.gpu]})",
            *text([case.ids_us, case.paper_us, case.best_us], 1),
        ]
        for case in cases
    ]
    best = " and ".join(f"{1 - case.best_us / case.ids_us:.1%}" for case in on_a100)
    return Record(
        "Running a ReLU beside a convolution, and not beside another ReLU, saves 13.6% of the "
        "latency on an A100. Launching an addition early, beside a convolution, saves 12.7%.",
        "an A100, simulated block by block",
        checks,
        why="Algorithm 2 takes the operator with the least demand first. Here that is not the best "
        f"order: the best of all orders saves {best} in the two cases.",
        remarks="The graphs and tensors of the figure are not known. The convolution is "
        "GoogLeNet's second 3x3 convolution as TVM computes it, and the other operators work on "
        "its output.",
        tables=[
            Table("Microseconds, simulated", ["", "in order", "Opara's order", "best order"], rows)
        ],
        charts=[
            Chart("Opara, Figure 3 (A100)", "bars", [case.case for case in on_a100],
                  {"in order": [1.0] * len(on_a100),
                   "Opara's order": [case.paper_us / case.ids_us for case in on_a100],
                   "paper": [1 - case.published for case in on_a100]},
                  "latency over the first order")
        ],
    )  # fmt: skip


@experiment("opara", "Figure 8", "throughput of Inception-V3 by batch", seconds=5)
def figure_8() -> Record:
    """Simulates one stream, Nimble's streams and Opara's streams at each batch."""
    rate = {
        form: [1e3 * b / ms("inception_v3", "rtx2080super", form, b) for b in _BATCHES]
        for form in FORMS
    }
    gain = [ours / base for ours, base in zip(rate["Opara"], rate["CUDA Graph"], strict=True)]
    beside = [ours / base for ours, base in zip(rate["Opara"], rate["Nimble"], strict=True)]
    checks = [
        within("Opara over CUDA Graph, batch 1", gain[0], 1.41 * 0.8, 1.41 * 1.2, 1.41),
        within("Opara over CUDA Graph, batch 32", gain[-1], 1.09 * 0.8, 1.09 * 1.2, 1.09),
        above("Opara over CUDA Graph, least of all batches", min(gain), 1.0),
        *(below(f"Opara over CUDA Graph at batch {b} over the same at batch {a}", y / x, 1.0)
          for a, b, x, y in zip(_BATCHES, _BATCHES[1:], gain, gain[1:], strict=False)),
        above("Opara over Nimble, least of all batches", min(beside), 1.0),
    ]  # fmt: skip
    return Record(
        "Opara serves more than PyTorch, a CUDA graph and Nimble at every batch from 1 to 32. Its "
        "gain falls with the batch: 1.41 times a CUDA graph's throughput at batch 1, and 1.09 "
        "times at batch 32.",
        "an RTX 2080 SUPER, simulated block by block",
        checks,
        why="Nimble's six streams already run all of Inception-V3's branches side by side. Opara's "
        "further streams and its launch order change little, in either direction.",
        remarks=f"A ratio may be 20% off the paper's. Stock PyTorch is not simulated: what its "
        f"launches cost is not known. {KERNELS}",
        tables=[
            Table("Images a second, simulated", ["batch", *map(str, _BATCHES)],
                  [[form, *text(row, 0)] for form, row in rate.items()])
        ],
        charts=[
            Chart("Opara, Figure 8: Inception-V3", "lines", [f"{b}" for b in _BATCHES], rate,
                  "images a second (simulated)"),
            Chart("Opara, Figure 8: Opara over CUDA Graph", "lines", [f"{b}" for b in _BATCHES],
                  {"simulated": gain, "paper": [1.41, *[None] * (len(_BATCHES) - 2), 1.09]},
                  "throughput over CUDA Graph"),
        ],
    )  # fmt: skip


@experiment("opara", "Figure 9", "Inception-V3 on an A100 by batch", seconds=1)
def figure_9() -> Record:
    """Runs the schedules of Figure 8 on a larger GPU."""
    batches = _BATCHES[:4]
    times = {form: [ms("inception_v3", "a100", form, b) for b in batches] for form in FORMS}
    gain = [base / ours for ours, base in zip(times["Opara"], times["CUDA Graph"], strict=True)]
    beside = [base / ours for ours, base in zip(times["Opara"], times["Nimble"], strict=True)]
    small = [
        base / ours
        for b in batches
        for base, ours in [[ms("inception_v3", "rtx2080super", f, b) for f in ("Nimble", "Opara")]]
    ]
    checks = [
        above("Opara over CUDA Graph, least of all batches", min(gain), 1.0),
        within("Opara over Nimble, least of all batches", min(beside), 1.08 * 0.95, 1.08 * 1.05,
               1.08),
        within("Opara over Nimble, most of all batches", max(beside), 1.15 * 0.95, 1.15 * 1.05,
               1.15),
        above("Opara over Nimble at batch 8 over the same at batch 1", beside[-1] / beside[0], 1.0),
        below("most gain over Nimble on the A100 over that on the RTX 2080 SUPER",
              max(beside) / max(small), 1.0),
    ]  # fmt: skip
    return Record(
        "On an A100, Opara is faster than the other three at every batch from 1 to 8, and 1.08 to "
        "1.15 times as fast as Nimble. The gain over Nimble is smaller than on an RTX 2080 SUPER, "
        "and larger at batch 8 than at smaller ones.",
        "an A100, simulated block by block",
        checks,
        why="At small batches the A100 has room for all blocks, and an order that Opara chooses "
        "cannot gain over Nimble's. At batch 8 blocks wait for room, and its order does gain. On "
        "the RTX 2080 SUPER the simulator sees less gain than the paper.",
        remarks=KERNELS,
        tables=[
            Table("Milliseconds, simulated", ["batch", *map(str, batches)],
                  [[form, *text(row)] for form, row in times.items()])
        ],
        charts=[
            Chart("Opara, Figure 9: Inception-V3 on an A100", "bars",
                  [f"batch {b}" for b in batches],
                  {form: [base / own for base, own in zip(times["CUDA Graph"], row, strict=True)]
                   for form, row in times.items()}, "speedup over CUDA Graph (simulated)"),
            Chart("Opara, Figure 9: Opara over Nimble", "lines", [f"{b}" for b in batches],
                  {"simulated": beside, "paper, least": [1.08] * len(batches),
                   "paper, most": [1.15] * len(batches)}, "speedup over Nimble"),
        ],
    )  # fmt: skip


@experiment("opara", "Table I", "time of the stream allocation", seconds=1)
def table_i() -> Record:
    """Times the schedulers `opara` and `nimble` on each network."""
    theirs = {form: PUBLISHED_S[form.lower(), "Opara, Table I"] for form in ("Opara", "Nimble")}
    took = {form: {name: _seconds(name, form) for name in MODELS} for form in theirs}
    checks = [
        above(f"{name}: Nimble's time over Opara's", took["Nimble"][name] / took["Opara"][name],
              10.0, theirs["Nimble"][name] / theirs["Opara"][name])
        for name in MODELS
    ]  # fmt: skip
    rows = [
        [form, *(f"{1e3 * took[form][name]:.3f} ({1e3 * theirs[form][name]:g})" for name in MODELS)]
        for form in took
    ]
    return Record(
        "Opara's allocation of streams takes 0.27 to 2.8 ms, at least ten times less than "
        "Nimble's, which takes 5.8 to 161.4 ms.",
        "this machine's CPU, measured",
        checks,
        timed=True,
        why="Both are in C++ here. Nimble's minimum equivalent graph and its matching take tens of "
        "microseconds on such graphs, less than Opara needs for its launch order.",
        remarks="A time is the median of whole calls of the scheduler, with the launch order and "
        f"the check of the schedule. In the paper, {SOURCES['Opara, Table I']}. The 4.25 ms of a "
        "profiling run have no counterpart: demands are read from the machine code when a model is "
        "compiled.",
        tables=[Table("Milliseconds, ours (the paper's)", ["", *MODELS], rows)],
    )


def _seconds(name: str, form: str) -> float:
    """Median seconds of one scheduler on one network. The first call is not timed."""
    found = subject(name, MODELS[name])
    took = []
    for _ in range(_CALLS + 1):
        began = time.perf_counter()
        if form == "Nimble":
            schedule(found.graph, "nimble")
        else:
            schedule_of(found, form)
        took.append(time.perf_counter() - began)
    return statistics.median(took[1:])
