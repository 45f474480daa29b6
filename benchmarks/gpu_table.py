"""Gathers findings of visits to a GPU's machine in a result file, and makes a section from it.

    python -m benchmarks.gpu_table VISIT.json ... --commit 1234567 --out FILE [--note TEXT]

Each `VISIT.json` is a file that `gpu_visit.py` wrote. If several files have findings of the same
step, the findings of the last file count. `--commit` is the commit from which the bundle was made.
The text of `--note` stands below the tables.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .gpu import AGAIN, FASTEST, SCHEDULERS, TORCH, TORCH_COMPILE
from .gpu_report import ROUNDS
from .markdown import table

SEQUENTIAL = "sequential"
FASTEST_SUFFIX = FASTEST.removeprefix(SEQUENTIAL)
EAGER, GRAPH = TORCH
SAME, FLOAT16 = "same bits", "_float16"
_KEPT = (
    "operators", "numbers", "library_numbers", "kernels", "bits", "no_graph", "stages_measured",
    "stages_refused", "search_s", "median_us", "launch_us", "back_to_back_us", "peer_errors",
    "not_run",
)  # fmt: skip
"""The names of the findings on a network that the result file keeps."""


def gathered(visits: Sequence[Path], commit: str, note: str = "") -> dict[str, Any]:
    """The findings of several visits, joined into one report."""
    steps: dict[str, Any] = {}
    for visit in visits:
        steps |= json.loads(visit.read_text())["steps"]
    began = min(step["began_s"] for step in steps.values() if "began_s" in step)
    found = {name: step.get("found", {}) for name, step in steps.items()}
    equipment = found["versions"]
    return {
        "machine": {
            "cpu": equipment["cpu"],
            "cores": equipment["cores"],
            "gpu": equipment["nvidia-smi"],
            "packages": {name: equipment[name] for name in ("torch", "cudnn", "cublaslt", "nvcc")},
            "commit": commit,
            "command": "sh run.sh, in the bundle of make gpu-bundle",
            "date": datetime.fromtimestamp(began, timezone.utc).isoformat(timespec="seconds"),
        },
        "note": note,
        "steps": {
            name: {key: step.get(key) for key in ("state", "seconds", "why")}
            for name, step in steps.items()
        },
        "networks": {
            name.removeprefix("time "): _network(facts, found)
            for name, facts in found.items()
            if name.startswith("time ") and facts.get("median_us")
        },
        "checks": {
            name.removeprefix("check "): {k: facts[k] for k in ("numbers", "bits", "early_us")}
            for name, facts in found.items()
            if name.startswith("check ") and "numbers" in facts
        },
        "library_cases": found.get("library-cases", {}),
        "interfaces": {n: f for n, f in found.items() if n.startswith("interfaces ")},
        "probes": {n: f["probes"] for n, f in found.items() if n.startswith("probes")},
    }  # fmt: skip


def _network(facts: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: facts[key] for key in _KEPT}
    kept["implementations"] = {
        name: dict(Counter(of_operators.values()).most_common())
        for name, of_operators in facts["implementations"].items()
        if name.startswith(SEQUENTIAL)
    }
    kept["compiled_us"] = found.get(f"compile {facts['network']}", {}).get("compiled_us", {})
    return kept


def section(report: Mapping[str, Any]) -> list[str]:
    """The section of `docs/benchmarks.md`, as Markdown."""
    machine, networks = report["machine"], report["networks"]
    gpu, driver = machine["gpu"].split(", ")[:2]
    medians = [network["median_us"] for network in networks.values()]
    noise = max(abs(1 - us[AGAIN] / us[SEQUENTIAL]) for us in medians)
    torch = machine["packages"]["torch"].split()[0]
    return [
        f"## On a GPU\n\nMeasured on one {gpu} (driver {driver}, {machine['cores']} cores of "
        f"{machine['cpu']}) by the programs in the bundle of `make gpu-bundle`, on "
        f"{machine['date'][:10]}. The batch is 1, and the type float32 without TF32. All "
        f"contestants of a network run in interleaved rounds, and the median of {ROUNDS} rounds "
        "counts. The time is the GPU's, between two events. Sequential execution, measured a "
        f"second time, differs from the first by at most {noise:.1%}. The kernels have TVM's "
        "default schedules, without tuning, and were compiled on another machine. PyTorch is "
        f"{torch}, with cuDNN's own search for algorithms. TensorRT did not take part.",
        "*Fastest kernels* are the fastest of TVM's, cuDNN's and cuBLASLt's kernels for each "
        "operator. *Ours* is the fastest scheduler with the fastest kernels, in one CUDA graph. "
        "It is given as a share of sequential execution with the same kernels, and as a share of "
        "the time of PyTorch in a CUDA graph. All times are in microseconds.",
        _absolute(networks),
        "Each entry is the time of a scheduler divided by the time of sequential execution with "
        "the same kernels. "
        "*Folded* is Opara with its streams combined into at most eight.",
        _shares(networks),
        " ".join(filter(None, (_checks(report), report["note"]))),
    ]  # fmt: skip


def summary(report: Mapping[str, Any]) -> str:
    """A Markdown paragraph: the time of the fastest scheduler, as a share of two other times."""
    networks = {name: each["median_us"] for name, each in report["networks"].items()}
    gpu = report["machine"]["gpu"].split(",")[0]
    of_sequential = {n: _share(_best(us), us.get(FASTEST)) for n, us in networks.items()}
    of_graph = {n: _share(_best(us), us.get(GRAPH)) for n, us in networks.items()}
    return (
        f"**On a GPU**, an {gpu}, in one CUDA graph. The time of the fastest scheduler, as a share "
        "of the time of sequential execution of the same kernels, was: "
        f"{_listed(of_sequential)}. As a share of the time of PyTorch in a CUDA graph, it was: "
        f"{_listed(of_graph)}."
    )


def _listed(shares: Mapping[str, str]) -> str:
    known = sorted((share, name) for name, share in shares.items() if share)
    return ", ".join(f"{name} ({share})" for share, name in known)


def _absolute(networks: Mapping[str, Any]) -> str:
    head = [
        "", "TVM's kernels, sequential", "fastest kernels, sequential", "ours", "of sequential",
        "PyTorch eager", "PyTorch graph", "torch.compile", "of PyTorch graph",
    ]  # fmt: skip
    rows = []
    for name, network in networks.items():
        us = network["median_us"]
        ours = _best(us)
        compiled = network["compiled_us"].get(TORCH_COMPILE)
        rows.append([
            name, _us(us[SEQUENTIAL]), _us(us.get(FASTEST)), _us(ours),
            _share(ours, us.get(FASTEST)), _us(us.get(EAGER)), _us(us.get(GRAPH)), _us(compiled),
            _share(ours, us.get(GRAPH)),
        ])  # fmt: skip
    return table(head, rows)


def _shares(networks: Mapping[str, Any]) -> str:
    rows = []
    for name, network in networks.items():
        us = network["median_us"]
        for suffix, kernels in (("", "TVM's"), (FASTEST_SUFFIX, "fastest")):
            base = SEQUENTIAL + suffix
            if base in us:
                shares = [_share(us.get(s + suffix), us[base]) for s in SCHEDULERS]
                rows.append([f"{name}, {kernels} kernels", *shares])
    return table(["", *SCHEDULERS], rows)  # fmt: skip


def _checks(report: Mapping[str, Any]) -> str:
    checks, networks = report["checks"], report["networks"]
    runs = {
        name: [some[name] for some in (checks, networks) if name in some]
        for name in {**networks, **checks}
    }
    right = sum(all(run["numbers"] == "right" for run in some) for some in runs.values())
    same = sum(all({*run["bits"].values()} == {"same"} for run in some) for some in runs.values())
    narrow = sum(name.endswith(FLOAT16) for name in runs)
    ways = [way for found in report["interfaces"].values() for way in found if found[way] == SAME]
    cases = [case for case in report["library_cases"].values() if isinstance(case, dict)]
    good = sum(case["error"] <= 1 and case["same_bits"] for case in cases)
    left = [
        f"`{name}` ({step['why']})"
        for name, step in report["steps"].items()
        if step["state"] not in ("done", "not needed")
    ]
    sentences = [
        f"The outputs of {right} of {len(runs)} networks and small models agree with "
        f"onnxruntime's ({narrow} of all are in float16), and in {same} of them all schedules have "
        "the same bits as sequential execution.",
        f"{good} of {len(cases)} operators of cuDNN and cuBLASLt are right.",
    ]
    if report["steps"].get("sanitizer", {}).get("state") == "done":
        sentences.append(
            "compute-sanitizer's memcheck and racecheck find nothing in a small network, and "
            "memcheck finds the fault that was planted in a kernel."
        )
    if ways:
        sentences.append(f"These ways to run a model give the same bits: {', '.join(ways)}.")
    if left:
        sentences.append(f"Steps that did not run to their end: {'; '.join(left)}.")
    return " ".join(sentences)


def _best(us: Mapping[str, float]) -> float | None:
    scheduled = [us[s + FASTEST_SUFFIX] for s in SCHEDULERS if s + FASTEST_SUFFIX in us]
    return min(scheduled, default=None)


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:,.0f}" if us >= 100 else f"{us:.1f}"


def _share(us: float | None, of: float | None) -> str:
    return "" if us is None or of is None else f"{us / of:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("visits", nargs="+", type=Path, help="files that gpu_visit.py wrote")
    parser.add_argument("--commit", required=True, help="commit from which the bundle was made")
    parser.add_argument("--note", default="", help="a sentence for readers of the results")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the report")
    arguments = parser.parse_args()
    report = gathered(arguments.visits, arguments.commit, arguments.note)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    print("\n\n".join(section(report)))


if __name__ == "__main__":
    main()
