"""Seconds to compile networks, cold and warm. `python -m benchmarks.compile_time FOLDER`.

Each network of the folder (`NAME.onnx`) is compiled by the command line, in processes of its own:
`cold` with an empty database and nothing kept, `warm` once more after that. Both artifacts are then
compared: the same kernels, byte for byte, the same plan and the same schedule.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tvm_interop


def main() -> int:
    arguments = _arguments()
    if arguments.artifacts is not None:
        arguments.artifacts.mkdir(parents=True, exist_ok=True)
    paths = [arguments.folder / f"{name}.onnx" for name in arguments.networks]
    found = [
        _compiled(path, arguments) for path in paths or sorted(arguments.folder.glob("*.onnx"))
    ]
    print("| | cold s | warm s | warm over cold | alike |\n|---|--:|--:|--:|---|")
    for row in found:
        ratio = row["warm_s"] / row["cold_s"]
        alike = "yes" if row["alike"] else "no"
        seconds = f"{row['cold_s']:.1f} | {row['warm_s']:.1f}"
        print(f"| {row['network']} | {seconds} | {ratio:.2f} | {alike} |")
    totals = [sum(row[kind] for row in found) for kind in ("cold_s", "warm_s")]
    print(f"in all {totals[0]:.1f} s cold, {totals[1]:.1f} s warm")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(row["alike"] for row in found) else 1


def _compiled(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        row: dict[str, Any] = {"network": path.stem}
        artifacts = []
        for kind in ("cold", "warm"):
            out = Path(folder) / f"{kind}.tar"
            if kind == "cold" and arguments.artifacts is not None:
                out = arguments.artifacts / f"{path.stem}.tar"
            command = [sys.executable, "-m", "tvm_interop", "compile", str(path), "-o", str(out)]
            command += ["--latency-db", str(Path(folder) / "latency.db")]
            command += ["--precision", arguments.precision, "--scheduler", arguments.scheduler]
            began = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            row[f"{kind}_s"] = time.perf_counter() - began
            print(f"{path.stem} {kind} {row[f'{kind}_s']:.1f} s", file=sys.stderr)
            artifacts.append(tvm_interop.load(out))
        cold, warm = artifacts
        row["alike"] = (
            cold.kernels == warm.kernels
            and cold.plan == warm.plan
            and cold.schedule.to_json() == warm.schedule.to_json()
        )
        return row


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="of NAME.onnx")
    parser.add_argument("networks", nargs="*", metavar="NAME", help="which (default: all)")
    parser.add_argument("--scheduler", default="auto", help="ours (default: %(default)s)")
    parser.add_argument("--precision", default="f32", help="f32 or bf16 (default: %(default)s)")
    parser.add_argument("--artifacts", type=Path, help="a folder to keep the cold ones in")
    parser.add_argument("--json", type=Path, help="write what was found there")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
