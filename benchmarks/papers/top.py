"""Experiments of the paper TOP that need no trained agents: devices, models, and serving."""

from __future__ import annotations

from typing import Any

from tvm_interop.serving.devices import SHEETS

from ..serving_cells import NETWORKS, served_model
from .record import Chart, Check, Record, Table, above, below, equal, near, within
from .registry import experiment
from .sources import made, read

A100 = "an A100, simulated from its data sheet"
SEARCHED = (
    "TOP stands for TOP's rule with a combination of blocks that was found by search, instead of "
    "its trained agents."
)
KAPPAS = ("0.0", "0.03", "0.1")
"""The share by which each further running operator slows an operator down, in the simulator."""
_PAPER_DEVICES = {
    "Jetson Nano": ("nano", 0.5, 128, 128), "Jetson TX2": ("tx2", 1.3, 256, 128),
    "Xavier NX": ("xavier-nx", 6.8, 384, 64), "Server (A100)": ("a100", 19.5, 6912, 64),
}  # fmt: skip
"""Table I: our name for the device, TFLOPS and CUDA cores, and the cores in a multiprocessor of
its architecture."""
_PAPER_MODELS = {"inception_v3": (13, 119), "resnet50": (5, 87), "squeezenet": (12, 50)}
"""Table II: numbers of blocks and of operators of each model."""


def figures(name: str) -> Any:
    """A figure of `serving/figures.json`."""
    return read("serving/figures")["figures"][name]


@experiment("top", "Table I", "the four devices", seconds=1)
def table_i() -> Record:
    """Compares the data sheets that our simulations use with the paper's."""
    checks = []
    for name, (ours, tflops, cores, cores_each) in _PAPER_DEVICES.items():
        sheet = SHEETS[ours]
        checks += [
            near(f"{name}: TFLOPS", tflops, sheet.flops_a_us / 1e6, 0.001),
            equal(f"{name}: multiprocessors", cores / cores_each, sheet.cores),
        ]
    return Record(
        "A Jetson Nano has 128 CUDA cores and 0.5 TFLOPS, a TX2 256 and 1.3, a Xavier NX 384 and "
        "6.8, and the server's A100 6,912 and 19.5.",
        "data sheets",
        checks,
        why="A data sheet has changed.",
        remarks="A multiprocessor has 128 cores on the Nano and the TX2, and 64 on the others. "
        "Bandwidths are not in the paper; ours are NVIDIA's.",
        tables=[
            Table("What our simulations assume",
                  ["", "TFLOPS", "GB/s", "multiprocessors", "launch, us"],
                  [[name, f"{s.flops_a_us / 1e6:g}", f"{s.bytes_a_us / 1e3:g}", str(s.cores),
                    f"{s.launch_us:g}"]
                   for name, (ours, *_) in _PAPER_DEVICES.items() for s in [SHEETS[ours]]])
        ],
    )  # fmt: skip


@experiment("top", "Table II", "the three models", seconds=3)
def table_ii() -> Record:
    """Counts the blocks and operators of our networks."""
    found = {name: served_model(name, SHEETS["a100"]) for name in NETWORKS}
    checks = [
        check
        for name, (blocks, operators) in _PAPER_MODELS.items()
        for check in (
            equal(f"{name}: blocks", blocks, len(found[name].blocks)),
            equal(f"{name}: operators", operators, sum(map(len, found[name].blocks))),
        )
    ]
    return Record(
        "Inception V3 has 13 blocks and 119 operators, ResNet-50 5 and 87, SqueezeNet 12 and 50.",
        "none, because operators and blocks are counted",
        checks,
        why="Our program joins neighbouring blocks into at most as many as the paper has, so that "
        "the longest one takes as little time as possible. Where fewer blocks reach that time, it "
        "makes no more.",
        remarks="The paper also says that each of ResNet-50's 16 residual blocks is a block. Its "
        "figures 1 and 4 to 12 are drawings.",
    )


@experiment("top", "Figure 2", "IOS under a rate of requests", seconds=1)
def figure_2() -> Record:
    """Reads latencies by the rate of requests, with IOS's schedule and no control of launches."""
    found = figures("2")
    checks = []
    for kappa in KAPPAS:
        latency = {point[0]: point[1] for point in found[kappa]}
        knee = {point[0]: point[2] for point in found[kappa]}[0.95]
        what = f"interference {kappa}"
        checks += [
            Check(f"{what}: latency just below one start per latency, over alone", 1.0,
                  latency[0.95], most=1.05),
            above(f"{what}: latency at twice this rate, over alone", latency[2.0], 1.05),
            below(f"{what}: utilisation just below this rate", knee, 0.5, 0.5),
        ]  # fmt: skip
    return Record(
        "With IOS, ResNet-50 takes 6 ms as long as fewer than 167 requests a second come. Beyond "
        "that its latency rises, while the GPU is used below 50%.",
        "an A100 (the paper: an RTX 3080), simulated from its data sheet",
        checks,
        why="The simulator has room for further instances.",
        remarks=made("serving/figures"),
        charts=[
            Chart("TOP, Figure 2", "lines", [f"{p[0]:g}" for p in found["0.0"]],
                  {f"interference {k}": [p[1] for p in found[k]] for k in KAPPAS},
                  "latency over alone, by starts per latency")
        ],
    )  # fmt: skip


@experiment("top", "Figure 3", "POS under unequal rates", seconds=1)
def figure_3() -> Record:
    """Reads the latency and the utilisation of POS, which waits for absent models or skips them."""
    found = figures("3")
    checks = []
    for absent in ("wait", "skip"):
        base = found[f"{absent}, 120+120"][0]
        for pair in ("60+120", "120+60"):
            latency, used = found[f"{absent}, {pair}"]
            checks += [
                above(f"POS that {absent}s, {pair}: latency over that at 120+120", latency / base,
                      1.0),
                within(f"POS that {absent}s, {pair}: utilisation", used, 0.4, 0.8, 0.6),
            ]  # fmt: skip
    return Record(
        "Under POS, ResNet-50 and Inception V3 at 60+120 or 120+60 requests a second have a higher "
        "latency than at 120+120, and use about 60% of the GPU.",
        "an A100 (the paper: an RTX 3080), simulated from its data sheet",
        checks,
        why="The paper does not say what POS does if a model has no request. If it waits, the "
        "latency rises. If it skips the model, the lower load gives a lower latency. An A100 is "
        "larger than an RTX 3080, so less of it is used.",
        remarks=made("serving/figures"),
        tables=[
            Table("Milliseconds, and utilisation", ["", "ms", "utilisation"],
                  [[name, f"{ms:.2f}", f"{used:.2f}"] for name, (ms, used) in found.items()])
        ],
    )  # fmt: skip


@experiment("top", "Figure 14", "throughput of one model", seconds=1)
def figure_14() -> Record:
    """Reads the throughputs that policies and trained agents sustain with one model."""
    found = figures("14")
    checks = [
        Check(f"{name}: TOP over IOS", 1.14, row["TOP, searched"] / row["ios"], least=1.14)
        for name, row in found.items() if name.endswith(", 0.03")
    ]  # fmt: skip
    policies = read("serving/top/single-policies")
    runs = [read(f"serving/top/single-mended-{seed}") for seed in range(2)]
    served = sum(run["final"].get("throughput", 0.0) for run in runs) / len(runs)
    base = policies["ios stages"]["throughput"]
    checks.append(
        Check("inception_v3, trained agents: over IOS, same arrivals", 1.14, served / base,
              least=1.14)
    )  # fmt: skip
    rows = [
        [name, *(f"{row[key]:.0f}" for key in ("sequential", "ios", "TOP, searched")),
         f"{row['best streams']:.0f} ({row['streams']})"]
        for name, row in found.items()
    ]  # fmt: skip
    return Record(
        "With one model, TOP serves 14% to 180% more than TensorFlow, PyTorch, TensorRT, TVM and "
        "IOS.",
        A100,
        checks,
        why="Trained agents were only run at 1.5 times the load that one instance at a time "
        "serves. They choose a combination that serves little more than IOS there.",
        remarks=f"{SEARCHED} The search had 200 simulations. Of the frameworks only IOS was "
        "simulated. Plain streams serve more than TOP's rule on every model. "
        f"{made('serving/figures', 'serving/top/single-mended-0')}",
        seed="seeds 0 and 1 for the agents",
        tables=[
            Table("Requests a second that are sustained, by model and interference",
                  ["", "sequential", "IOS", "TOP", "best plain streams (how many)"], rows)
        ],
        charts=[
            Chart("TOP, Figure 14", "bars",
                  [name.partition(",")[0] for name in found if name.endswith(", 0.03")],
                  {key: [row[key] / row["ios"] for name, row in found.items()
                         if name.endswith(", 0.03")]
                   for key in ("sequential", "ios", "TOP, searched", "best streams")},
                  "throughput over IOS (simulated)")
        ],
    )  # fmt: skip


@experiment("top", "Figure 18", "how many blocks may run together", seconds=1)
def figure_18() -> Record:
    """Reads the throughput by H, the largest number of blocks in a combined block."""
    found = read("serving/top/heights")
    heights = ("1", "2", "3", "4", "6")
    paper = {"nano": 2, "tx2": 2, "xavier-nx": 3, "a100": 4}
    checks = []
    for device, theirs in paper.items():
        row = found[device]
        most = max(row[h] for h in heights)
        ours = next(int(h) for h in heights if row[h] >= 0.97 * most)
        checks += [
            equal(f"{device}: H that reaches 97% of the highest throughput", theirs, ours),
            above(f"{device}: seconds of the search at H = 6 over H = 1",
                  row["seconds 6"] / row["seconds 1"], 1.0),
        ]  # fmt: skip
    return Record(
        "The throughput saturates with H, and the time to optimise grows. So the paper takes H = 2 "
        "on a Nano and a TX2, 3 on a Xavier NX, and 4 on the server.",
        "the four devices of Table I, simulated from their data sheets",
        checks,
        why="By the data sheets a Nano, with one multiprocessor, is full with one block. On the "
        "A100 the barriers between stages cost as much time as more than two blocks could save.",
        remarks="A search of 100 combinations for each H stands for the agents. "
        + made("serving/top/heights"),
        charts=[
            Chart("TOP, Figure 18", "lines", [f"H = {h}" for h in heights],
                  {device: [row[h] for h in heights] for device, row in found.items()},
                  "throughput over one instance at a time")
        ],
    )  # fmt: skip


@experiment("top", "Figure 24", "copies of one model", seconds=1)
def figure_24() -> Record:
    """Reads the throughput of 1 to 8 copies of each model, on streams and under TOP's rule."""
    found = figures("24")
    copies = ("1", "2", "4", "8")
    checks = []
    for name in NETWORKS:
        rows = {n: found[f"{name}, 0.0, {n}"] for n in copies}
        rise = {key: rows["4"][key] / rows["1"][key] for key in ("streams", "TOP, searched")}
        checks += [
            above(f"{name}: 4 copies on streams over one", rise["streams"], 1.0),
            above(f"{name}: TOP over streams, at 4 copies",
                  rows["4"]["TOP, searched"] / rows["4"]["streams"], 1.0),
        ]  # fmt: skip
    return Record(
        "More copies of one model serve more together, even without TOP. TOP makes this gain "
        "larger.",
        A100,
        checks,
        why="Combined blocks wait for each other at the barriers between stages. Copies on streams "
        "of their own do not.",
        remarks=f"{SEARCHED} The search had 60 simulations. {made('serving/figures')}",
        charts=[
            Chart(f"TOP, Figure 24: {name}", "lines", list(copies),
                  {key: [found[f"{name}, 0.0, {n}"][key] for n in copies]
                   for key in ("streams", "TOP, searched")}, "requests a second (simulated)")
            for name in NETWORKS
        ],
    )  # fmt: skip
