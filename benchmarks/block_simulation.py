"""Simulates the experiments of the papers on IOS and Opara with thread blocks, without a GPU.

    python -m benchmarks.block_simulation [--only calibration | orders]

`calibration` fits the simulator to one half of the IOS paper's times on a V100, and judges it on
the other half (`block_calibration`). `orders` compares launch orders for Opara on the GPUs of its
paper (`block_orders`). Nothing is timed, so every machine finds the same numbers. Both parts
together take about ten minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .block_calibration import (
    FITTED_FORMS,
    FITTED_NETWORKS,
    FORMS,
    JUDGED_NETWORKS,
    PAPER_MS,
    TENSORRT_MS,
    Parameters,
    fit,
    mean_error,
    simulated_ms,
)
from .block_orders import (
    FEWER_ORDERS,
    GRAPH_LAUNCH_US,
    ORDERS,
    SHEETS,
    assumed,
    compiled,
    fig_3,
    orders_of,
)
from .kernel_demands import RESULT as DEMANDS
from .paper_kernels import paper_graph

RESULT = Path(__file__).parent / "results" / "block_simulation.json"
_ASSUMED = ("googlenet", "inception_v3")
"""The networks of the paper on Opara whose kernels are assumed too."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=("calibration", "orders"))
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.only != "orders":
        found.update(calibration())
        options.out.write_text(_text(found))
    if options.only != "calibration":
        found.update(launch_orders(Parameters(**found["parameters"])))
        options.out.write_text(_text(found))


def calibration() -> dict[str, Any]:
    """The fitted parameters, and the time of each network in each schedule of the IOS paper."""
    networks = {name: paper_graph(name) for name in PAPER_MS}
    found, error = fit(networks)
    print(f"fitted: {found}, error {error:.3f}", flush=True)
    simulated: dict[tuple[str, str], float] = {}
    for name, network in networks.items():
        for form in FORMS:
            simulated[name, form] = simulated_ms(network, found, form)
            print(f"{name}, {form}: {simulated[name, form]:.3f} ms", flush=True)
    judged = {key: ms for key, ms in simulated.items() if key[0] in JUDGED_NETWORKS}
    searched = {
        key: ms
        for key, ms in simulated.items()
        if key[0] in FITTED_NETWORKS and key[1] not in FITTED_FORMS
    }
    return {
        "parameters": asdict(found),
        "errors": {
            "fitted": error,
            "judged": mean_error(judged),
            "searched": mean_error(searched),
        },
        "ios": [
            {
                "network": name,
                "form": form,
                "simulated_ms": round(ms, 4),
                "paper_ms": PAPER_MS[name][FORMS.index(form)],
            }
            for (name, form), ms in simulated.items()
        ],
        "tensorrt_ms": TENSORRT_MS,
    }


def launch_orders(found: Parameters) -> dict[str, Any]:
    """Each network in several launch orders on each GPU, and Opara's Fig. 3."""
    networks = json.loads(DEMANDS.read_text())["networks"]
    rows = []
    for gpu in SHEETS:
        subjects = [compiled(n, networks[n], gpu, found, GRAPH_LAUNCH_US) for n in networks]
        subjects += [assumed(name, gpu, found, GRAPH_LAUNCH_US) for name in _ASSUMED]
        for subject in subjects:
            row = orders_of(subject, FEWER_ORDERS.get(subject.network, ORDERS))
            rows.append(asdict(row))
            print(row, flush=True)
    return {"orders": rows, "fig_3": [asdict(case) for case in fig_3(found)]}


def _text(found: dict[str, Any]) -> str:
    """The results as JSON text, with a line for each entry of a list."""
    parts = []
    for key, value in found.items():
        if isinstance(value, list):
            rows = ",\n".join(f"  {json.dumps(row)}" for row in value)
            parts.append(f" {json.dumps(key)}: [\n{rows}]")
        else:
            parts.append(f" {json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
