"""Makes the sections of `docs/benchmarks.md` about exported networks, from result files.

The results come from `benchmarks.zoo`, `benchmarks.shipped_schedules`, `benchmarks.compile_time`,
`benchmarks.two_cores` and `benchmarks.all_cores`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .markdown import geometric, interval, machine, table


def networks(report: dict[str, Any]) -> list[str]:
    """The section with our time over the time of each contestant."""
    return [
        "## Networks as users bring them\n\nThese networks were exported by `python -m "
        "benchmarks.zoo_export FOLDER`, and measured by `python -m benchmarks.zoo FOLDER` on "
        f"{machine(report)}, {_how(_ran(report))}. *Ships* says whether "
        "`compile` chose a schedule or sequential execution. The *over* columns have our time "
        "divided by the time of each other contestant. If `compile` "
        "chose sequential execution, ours and *ours, sequential* are the same program, and their "
        "ratio shows noise. So the geometric mean of that column is over the networks with a "
        'schedule. The section "Where a schedule ships" compares schedules with sequential '
        "execution in more rounds. OpenVINO as installed computes in "
        f"{_installed_type(report)} here; all other contestants compute in float32."
        f"{_openvino_inputs(report)} *Noise* is the ratio of "
        "onnxruntime to itself. *Error* is our largest difference from onnxruntime's output, "
        "divided by the largest absolute value of that output. The last column has the seconds "
        "that compiling took, with an empty cache.",
        _of_networks(report),
    ]


def other_kinds(report: dict[str, Any]) -> list[str]:
    """The section about networks that are not in the section of `networks`."""
    return [
        "## Networks of other kinds\n\nThese networks were exported by `torch.onnx.export`, and "
        f"measured like the networks above, on {machine(report)}. They are single steps of "
        "decoders, state spaces, attention on graphs, sound, volumes, detection and segmentation. "
        'The column *over ours, sequential* is from few rounds; the section "Where a schedule '
        'ships" has more. OpenVINO as installed computes in '
        f"{_installed_type(report)} here.{_openvino_inputs(report)}{_wrong_peer(report)}",
        _of_networks(report),
    ]


def drawn(report: dict[str, Any]) -> list[str]:
    """The section about networks that a seed drew from a pool."""
    return [
        "## Networks that nobody chose\n\n`python -m benchmarks.zoo_pool SEED FOLDER` drew these "
        "networks from a pool, a few of each kind, and exported them; the seed is the first digits "
        "of a commit. No code was changed for them. They were measured like the networks above, on "
        f"{machine(report)}. OpenVINO as installed computes in {_installed_type(report)} here."
        f"{_openvino_inputs(report)}",
        _of_networks(report),
    ]


def _wrong_peer(report: dict[str, Any]) -> str:
    """A sentence on the graph attention network, if onnxruntime computes it wrongly on this CPU."""
    errors = [row["error"] for row in _ran(report) if row["network"] == "my_gat"]
    if not errors or errors[0] < _LARGE_ERROR:
        return ""
    return (
        " The error of `my_gat` is onnxruntime's on this CPU: its output also differs from "
        "PyTorch's and OpenVINO's, which agree with ours."
    )


def _openvino_inputs(report: dict[str, Any]) -> str:
    """A sentence for older reports, which says that OpenVINO copied its inputs in each run."""
    if report.get("openvino_inputs") == "set once":
        return ""
    return (
        " OpenVINO got its inputs with each run here. `perf` now sets them once, which is faster. "
        "So OpenVINO does better on networks below a millisecond than this table says."
    )


def _installed_type(report: dict[str, Any]) -> str:
    """OpenVINO's default type of arithmetic on the report's CPU."""
    return "bfloat16" if "bf16" in report["machine"]["cpu"] else "float32"


def _ran(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [row for row in report["rows"] if row["refused"] is None]


def _of_networks(report: dict[str, Any]) -> str:
    ran = _ran(report)
    columns = {
        "over ours, sequential": _SEQUENTIAL,
        "over onnxruntime": "onnxruntime, sequential",
        "over OpenVINO, f32": "OpenVINO, float32",
        "over OpenVINO": "OpenVINO, as installed",
        "over PyTorch": "PyTorch eager",
        "over torch.compile": "torch.compile",
    }
    columns = {k: v for k, v in columns.items() if any(v in row["ratios"] for row in ran)}
    rows: list[list[str]] = []
    for row in sorted(ran, key=lambda row: row["network"]):
        ratios = [row["ratios"].get(peer) for peer in columns.values()]
        rows.append(
            [row["network"], _SHIPS[row["scheduled"]], f"{row['median_us']['ours'] / 1e3:.2f}",
             *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
             f"{row['noise']:.2f}", f"{row['error']:.0e}", f"{row['compile_s']:.0f}"]
        )  # fmt: skip
    means = []
    for peer in columns.values():
        of = [row for row in ran if row["scheduled"]] if peer == _SEQUENTIAL else ran
        found = [row["ratios"][peer] for row in of if peer in row["ratios"]]
        means.append(f"{geometric(found):.2f}" if found else "")
    rows.append(["**geometric mean**", "", "", *means, "", "", ""])
    return table(["", "ships", "ms", *columns, "noise", "error", "compile s"], rows)


def _how(rows: Sequence[dict[str, Any]]) -> str:
    """Part of a sentence that tells how the ratios of a result file were measured."""
    if "intervals" in rows[0]:
        return "each in a process of its own, in turns after half a second of rest"
    return "from the medians of interleaved runs"


_LARGE_ERROR = 1e-3
_SEQUENTIAL = "ours, sequential"
_SHIPS = {True: "a schedule", False: "sequential"}
KINDS = {
    "recommenders, mixtures of experts": (
        "my_dlrm", "my_mmoe", "my_mmoe_b32", "my_wide_deep", "my_autoint_b64",
    ),
    "recurrent, both directions": ("my_bilstm", "my_crnn"),
    "state spaces": ("hf_mamba",),
    "graphs": ("my_gat",),
    "sound": ("my_hifigan",),
    "one token of a decoder": (
        "hf_qwen2_step", "hf_mixtral_step", "hf_whisper_step", "hf_t5_step",
    ),
    "transformers of text": (
        "hf_bert_small", "hf_bert_base", "hf_gpt2_small", "hf_t5enc", "hf_distilbert", "hf_albert",
        "hf_llama_small",
    ),
    "transformers and mixers of images": (
        "tv_vit_b_16", "tv_swin_t", "tv_convnext_tiny", "timm_mixer_s16", "timm_poolformer_s12",
        "timm_mobilevit_s", "timm_pvt_v2_b0", "hf_segformer_b0",
    ),
    "convolutions, several branches": (
        "tv_googlenet", "timm_inception_v4", "timm_hrnet_w18_small", "tv_densenet121",
        "timm_res2net50", "timm_dla34", "my_unet", "timm_nasnet_mobile", "my_u2netp", "my_yolov8n",
    ),
    "convolutions, one chain": (
        "tv_resnet50", "tv_resnext50", "tv_mobilenet_v2", "tv_mobilenet_v3_small",
        "tv_efficientnet_b0", "tv_mnasnet1_0", "tv_regnet_y_400mf", "tv_shufflenet_v2",
        "timm_ghostnet", "tv_r3d_18",
    ),
}  # fmt: skip


def where_it_pays(report: dict[str, Any]) -> list[str]:
    """The section about the networks that `compile` gives a schedule, not sequential execution."""
    rows = sorted(report["rows"], key=lambda row: float(row["ratio"][RESTED]))
    means = [geometric([row["ratio"][kind] for row in rows]) for kind in (RESTED, BACK_TO_BACK)]
    cells = [shipped_cells(row) for row in rows]
    cells.append(["**geometric mean**", "", "", f"{means[0]:.2f}", "", "", f"{means[1]:.2f}", ""])
    ships = sum(report["ships"].values())
    noises = [row["noise"][RESTED] for row in rows]
    return [
        "## Where a schedule ships\n\nMeasured by `python -m benchmarks.shipped_schedules "
        f"FOLDER` on {machine(report)}. There the artifacts of {ships} of {len(report['ships'])} "
        f"networks ran a schedule; the others ran sequentially. {len(rows)} of the schedules ran "
        "in this measurement. The *over sequential* columns have the time of the schedule divided "
        "by the time of sequential execution of the same kernels. Each of the two ran in a process "
        f"of its own, for {report['rounds']} rounds. *Interval* is the 95% confidence interval. "
        "Each turn began after half a second of rest. In the columns *back to back* it began at "
        "once. *Noise* "
        "is the ratio of two processes of sequential execution with rests, and ranges from "
        f"{interval((min(noises), max(noises)), 2)}. With rests, {_beyond(rows, RESTED)}. Back "
        f"to back, {_beyond(rows, BACK_TO_BACK)}.",
        table(
            ["", "kind", "ms", "over sequential", "interval", "noise", "back to back", "interval"],
            cells,
        ),
    ]


RESTED, BACK_TO_BACK = "rested", "back_to_back"


def shipped_cells(row: dict[str, Any]) -> list[str]:
    """The row of a network in the table of `where_it_pays`."""
    return [
        short(row["network"]),
        next((kind for kind, names in KINDS.items() if row["network"] in names), ""),
        f"{row['median_us'][RESTED]['ours'] / 1e3:.2f}",
        f"{row['ratio'][RESTED]:.3f}",
        interval(row["interval"][RESTED], 3),
        f"{row['noise'][RESTED]:.3f}",
        f"{row['ratio'][BACK_TO_BACK]:.3f}",
        interval(row["interval"][BACK_TO_BACK], 3),
    ]


def beyond(rows: Sequence[dict[str, Any]], kind: str) -> tuple[list[str], list[str]]:
    """The networks whose schedules were faster, and the networks whose schedules were slower.

    Parameters
    ----------
    kind: `RESTED` or `BACK_TO_BACK`.
    """
    faster = [row["network"] for row in rows if row["interval"][kind][1] < 1]
    slower = [row["network"] for row in rows if row["interval"][kind][0] > 1]
    return faster, slower


def _beyond(rows: Sequence[dict[str, Any]], kind: str) -> str:
    faster, slower = beyond(rows, kind)
    names = f" ({', '.join(map(short, slower))})" if slower else ""
    return (
        f"{len(faster)} of the schedules were faster than sequential execution beyond the "
        f"interval, and {len(slower)} slower{names}"
    )


def short(network: str) -> str:
    """The name of a network without its prefix, such as `tv_`, that tells its source."""
    return network.split("_", 1)[1]


def in_bf16(report: dict[str, Any], heading: str) -> list[str]:
    """A section about bf16: times of our artifacts, and errors of ours and of OpenVINO's."""
    columns = {
        "over ours, f32": "ours",
        "over onnxruntime": "onnxruntime, sequential",
        "over OpenVINO, f32": "OpenVINO, float32",
        "over OpenVINO": "OpenVINO, as installed",
    }
    found = [row for row in report["rows"] if row["bf16_ratios"]]
    rows = []
    for row in sorted(found, key=lambda row: str(row["network"])):
        ratios = [f"{row['bf16_ratios'][peer]:.2f}" for peer in columns.values()]
        errors = [f"{row['errors'][name]:.0e}" for name in ("ours, bf16", "OpenVINO, as installed")]
        rows.append([row["network"], *ratios, *errors])
    means = [geometric([row["bf16_ratios"][peer] for row in found]) for peer in columns.values()]
    rows.append(["**geometric mean**", *(f"{mean:.2f}" for mean in means), "", ""])
    return [
        f"## {heading}\n\nMeasured by `python -m benchmarks.zoo FOLDER --bf16` on "
        f"{machine(report)}, {_how(found)}. The *over* columns have "
        "the time of our artifact of `--precision bf16` divided by the time of each other "
        "contestant. The last two columns have the errors of our bf16 artifact and of OpenVINO as "
        f"installed, which also computes in bf16.{_openvino_inputs(report)} An error is the "
        "largest difference from onnxruntime's float32 output, divided by the largest absolute "
        "value of that output.",
        table(["", *columns, "error", "OpenVINO's"], rows),
    ]


def compile_time(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The section about seconds to compile: now, and before compiling was made faster.

    The last column is the share of operators for which two cold compilations chose the same kernel.
    """
    kinds = ("cold_before_s", "cold_s", "warm_before_s", "warm_s")
    cells = [
        [
            row["network"],
            *(f"{row[kind]:.1f}" for kind in kinds),
            f"{row['warm_s'] / row['cold_s']:.2f}",
            "yes" if row["alike"] else "no",
            f"{row['chosen_alike']:.2f}" if "chosen_alike" in row else "",
        ]
        for row in rows
    ]
    sums = {kind: sum(row[kind] for row in rows) for kind in kinds}
    alike = f"{sum(row['alike'] for row in rows)} of {len(rows)}"
    chosen = [row["chosen_alike"] for row in rows if "chosen_alike" in row]
    cells.append(
        [
            "**in all**",
            *(f"{sums[kind]:.0f}" for kind in kinds),
            f"{sums['warm_s'] / sums['cold_s']:.2f}",
            alike,
            f"{sum(chosen) / len(chosen):.2f}",
        ]
    )
    head = ["", "cold s before", "cold s", "warm s before", "warm s", "warm over cold", "the same"]
    return [
        "## Compiling\n\nMeasured by `python -m benchmarks.compile_time FOLDER [--again]` on a "
        "quiet machine. Each compilation has a process of its own. A *cold* compilation starts "
        "with an empty latency database. A *warm* compilation comes after a cold one, and reuses "
        "the measurements and the kernels of the cold one. The columns *before* have the times of "
        "older code, from before compiling was made faster. They were measured at another time "
        "than the other columns. *The same* says whether the cold and the warm artifact are the "
        "same, with kernels compared byte by byte. *Chosen alike* is the share of operators that "
        "got the same kernel in two cold compilations. Only some networks were compiled cold "
        "twice.",
        table([*head, "chosen alike"], cells),
    ]


def two_cores(report: dict[str, Any]) -> list[str]:
    """The section about a second core.

    The section tells how efficiently each runtime uses the second core, and which of our operators
    lose most time on two cores.
    """
    contestants = ("ours", "onnxruntime", "OpenVINO, float32")
    rows = []
    for row in report["rows"]:
        spoil = ", ".join(
            f"{s['operator']} {s['share']:.0%}" for s in row["spoilers"][:3] if s["share"] >= 0.02
        )
        rows.append([row["network"], *(f"{row['efficiency'][c]:.2f}" for c in contestants), spoil])
    means = [geometric([row["efficiency"][c] for row in report["rows"]]) for c in contestants]
    rows.append(["**geometric mean**", *(f"{mean:.2f}" for mean in means), ""])
    return [
        "## Two cores over one\n\nMeasured by `python -m benchmarks.two_cores FOLDER` on "
        f"{machine(report)}. Each entry is the time on one core over twice the time on two cores, "
        "for sequential execution. An entry of 1 is perfect. The last column names our operators "
        "that lose most time on two cores. Beside each is its loss, as a share of the time of "
        "both cores.",
        table(["", *contestants, "our largest losses"], rows),
    ]


def all_cores(report: dict[str, Any]) -> list[str]:
    """The section about `ios-both`, with large operators divided over the cores and undivided."""
    everything, whole, in_turn = "all cores", "one core", "sequential"
    ran = [row for row in report["rows"] if row["refused"] is None]
    rows = [
        [
            row["network"],
            str(row["merged"][everything]),
            *(
                f"{row['prices_us'][everything] / row['prices_us'][n]:.2f}"
                for n in (whole, in_turn)
            ),
            *(_check(row, name) for name in (whole, everything)),
            *(f"{row['us'][everything] / row['us'][n]:.2f}" for n in (whole, in_turn)),
            f"{row['ratios'][whole]:.2f} ({interval(row['intervals'][whole], 2)})",
            f"{row['us']['sequential, again'] / row['us'][in_turn]:.2f}",
        ]
        for row in ran
    ]
    before, now = (sum(row["ships"][name] for row in ran) for name in (whole, everything))
    prices = geometric([r["prices_us"][everything] / r["prices_us"][whole] for r in ran])
    times = geometric([row["us"][everything] / row["us"][whole] for row in ran])
    faster = sum(row["intervals"][whole][1] < 1 for row in ran)
    slower = sum(row["intervals"][whole][0] > 1 for row in ran)
    return [
        "## All cores for each operator\n\nMeasured by `python -m benchmarks.all_cores FOLDER` "
        f"on {machine(report)}. Other programs took {report['machine']['busy']:.0%} of the "
        "processor time when the measurement began. On a busy machine, sums of latencies are "
        "more reliable than times and speed checks, and the checks find a gain less often. "
        "`ios-both` now divides each large operator over all cores, merged operators too. "
        "*Before* this change, schedulers that merge operators did not divide them. So an "
        "operator that ran alone in a plan with several streams used one core.\n\nThe columns "
        "*makespan* have the makespan of `ios-both`, divided by its makespan before the change and "
        "by the makespan of sequential execution. A makespan is the sum of the latencies of "
        "the stages, which were measured again after the search. The columns *check* have the "
        "result of the speed check: the time of the schedule divided by the time of sequential "
        "execution of the same operators. If the ratio is **bold**, the artifact runs the "
        "schedule. Otherwise it runs sequentially. (Before the change, a sequential artifact had "
        "undivided operators.) The columns *time* have the time of the artifact in runs that no "
        "other program disturbed. *Pairs* has the time of the artifact divided by its time before "
        "the change, from the same rounds, with the 90% interval. *Noise* is the ratio of "
        f"sequential execution to itself.\n\nOf {len(ran)} artifacts, {before} ran a schedule of "
        f"`ios-both` before the change, and {now} after it. By pairs, the artifact is faster "
        f"than before, beyond the interval, on {faster} networks, and slower on {slower}. The "
        f"geometric mean of the ratios to the results before the change is {prices:.2f} for "
        f"makespans and {times:.2f} for undisturbed times. The schedules of `auto`, the default, "
        "are the same as before, because `auto` merges nothing, and has always divided operators.",
        table(
            [
                "", "merged", "makespan, over before", "makespan, over sequential",
                "check before", "check", "time, over before", "time, over sequential",
                "pairs", "noise",
            ],
            rows,
        ),
    ]  # fmt: skip


def _check(row: dict[str, Any], name: str) -> str:
    """The ratio of a speed check, in bold if the schedule passed; "sequential" without a check."""
    if name not in row["checks"]:
        return "sequential"
    ratio = f"{row['checks'][name]:.2f}"
    return f"**{ratio}**" if row["ships"][name] else ratio
