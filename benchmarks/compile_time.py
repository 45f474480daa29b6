"""Measures seconds to compile networks, cold and warm: `python -m benchmarks.compile_time FOLDER`.

Each network of the folder (`NAME.onnx`) is compiled by the command line, each time in a new
process. `cold` starts with an empty latency database. `warm` compiles the network again with the
database that `cold` filled. The two artifacts must be alike: the same kernels byte for byte, the
same plan and the same schedule.

An installed package has its modules as bytecode. So that a source checkout is measured alike, its
bytecode is written first, even if `PYTHONDONTWRITEBYTECODE` is set.

With `--again`, each network is compiled cold a second time. The last column is then the share of
operators for which both cold runs chose the same kernel. Kernels are chosen by measurement, so a
small share means that the choice depends on chance.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tvm_interop
from benchmarks.options import add_json


def main() -> int:
    arguments = _arguments()
    if arguments.artifacts is not None:
        arguments.artifacts.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", "import tvm_interop; tvm_interop.compile"]
    subprocess.run(command, check=True, env=_with_bytecode())
    paths = [arguments.folder / f"{name}.onnx" for name in arguments.networks]
    found = [
        _compiled(path, arguments) for path in paths or sorted(arguments.folder.glob("*.onnx"))
    ]
    print("| | cold s | warm s | warm over cold | same artifact | same kernels when cold twice |")
    print("|---|--:|--:|--:|---|--:|")
    for row in found:
        ratio = row["warm_s"] / row["cold_s"]
        alike = "yes" if row["alike"] else "no"
        seconds = f"{row['cold_s']:.1f} | {row['warm_s']:.1f}"
        chosen = f"{row['chosen_alike']:.3f}" if "chosen_alike" in row else ""
        print(f"| {row['network']} | {seconds} | {ratio:.2f} | {alike} | {chosen} |")
    totals = [sum(row[kind] for row in found) for kind in ("cold_s", "warm_s")]
    print(f"in all {totals[0]:.1f} s cold, {totals[1]:.1f} s warm")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row["alike"] for row in found) else 1


def _compiled(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    row: dict[str, Any] = {"network": path.stem}
    with tempfile.TemporaryDirectory() as scratch:
        cold_path = (arguments.artifacts or Path(scratch)) / f"{path.stem}.tar"
        database = Path(scratch) / "latency.db"
        row["cold_s"] = _seconds(path, cold_path, database, arguments)
        row["warm_s"] = _seconds(path, Path(scratch) / "warm.tar", database, arguments)
        cold = tvm_interop.load(cold_path)
        warm = tvm_interop.load(Path(scratch) / "warm.tar")
        row["alike"] = (
            cold.kernels == warm.kernels
            and cold.plan == warm.plan
            and cold.schedule.to_json() == warm.schedule.to_json()
        )
        if arguments.again:
            again = Path(scratch) / "again.tar"
            _seconds(path, again, Path(scratch) / "other.db", arguments)
            row["chosen_alike"] = _chosen_alike(cold, tvm_interop.load(again))
    return row


def _seconds(path: Path, out: Path, database: Path, arguments: argparse.Namespace) -> float:
    """Compile the model at `path` in a new process, and return the seconds that this takes."""
    command = [sys.executable, "-m", "tvm_interop", "compile", str(path), "-o", str(out)]
    command += ["--latency-db", str(database)]
    command += ["--precision", arguments.precision, "--scheduler", arguments.scheduler]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=_with_bytecode())
    took_s = time.perf_counter() - began
    print(f"{path.stem} {out.stem} {took_s:.1f} s", file=sys.stderr)
    return took_s


def _with_bytecode() -> dict[str, str]:
    """The environment for processes that write and use bytecode."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def _chosen_alike(one: tvm_interop.Artifact, other: tvm_interop.Artifact) -> float:
    """The share of operators, 0 to 1, with the same kernel and provider in both artifacts."""

    def choices(artifact: tvm_interop.Artifact) -> Counter[str]:
        operators = json.loads(artifact.plan.to_json())["operators"]
        names = ("name", "library", "description", "share")
        return Counter(json.dumps([operator[name] for name in names]) for operator in operators)

    mine, theirs = choices(one), choices(other)
    return (mine & theirs).total() / max(mine.total(), theirs.total())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of files NAME.onnx")
    parser.add_argument(
        "networks", nargs="*", metavar="NAME", help="networks to compile (default: all)"
    )
    parser.add_argument("--scheduler", default="auto", help="our scheduler (default: %(default)s)")
    parser.add_argument("--precision", default="f32", help="f32 or bf16 (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="compile cold a second time")
    parser.add_argument(
        "--artifacts", type=Path, help="folder in which to keep the artifacts of cold runs"
    )
    add_json(parser, "the results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
