"""Lists the resources of a GPU that each operator of a network needs, and Opara's schedules.

    python -m benchmarks.kernel_demands [NETWORK ...] [--full] [--archs sm_80 sm_90]

The networks are compiled for each architecture by nvcc; no GPU is needed. The registers and the
shared memory of each kernel are read from its machine code, and its blocks and threads from its
launches. From these numbers the program computes how many blocks a multiprocessor holds, and how
much of a multiprocessor each operator demands. From the demands follow Opara's launch order and
streams. The output also has Nimble's streams. Nothing is timed, so every machine with the same
compilers finds the same numbers.

The results of a named network replace this network's results in the result file. Results of other
networks stay. `--full` adds NASNet-A, which takes longest to compile.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tvm_interop import OpGraph, schedule
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.kernels.build_cuda import DEFAULT_ARCHS
from tvm_interop.machine.gpu_traits import gpu_traits, largest_share
from tvm_interop.machine.kernel_libraries import TVM
from tvm_interop.program.kernel_demand import GpuKernel
from tvm_interop.program.traits import OperatorTraits

DEFAULT = (
    "squeezenet",
    "googlenet",
    "inception_v3",
    "randwire",
    "bert_base",
    "mixture_of_experts",
)
LONGEST = "nasnet_a"
RESULT = Path(__file__).parent / "results" / "kernel_demands.json"
FLOPS_PER_BYTE = 10.0
"""The default of the option `flops_per_byte` of the scheduler `opara`."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", help="by default all but the longest")
    parser.add_argument("--full", action="store_true", help=f"also {LONGEST}")
    parser.add_argument("--archs", nargs="+", default=list(DEFAULT_ARCHS))
    parser.add_argument(
        "--only-schedules", action="store_true", help="compile nothing, and schedule anew"
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args(arguments)
    found = json.loads(options.out.read_text()) if options.out.exists() else {"networks": {}}
    if options.only_schedules:
        found["networks"] = {
            name: with_schedules(network) for name, network in found["networks"].items()
        }
        options.out.write_text(_text(found))
        return
    for name in [*(options.networks or DEFAULT), *[LONGEST] * options.full]:
        found["networks"][name] = with_schedules(compiled(name, options.archs))
        options.out.write_text(_text(found))
        print(f"{name}: {len(found['networks'][name]['operators'])} operators", flush=True)


def compiled(model: Any, archs: Sequence[str]) -> dict[str, Any]:
    """The operators of a model, and the resources that each kernel needs on each architecture."""
    options = CompileOptions("cuda", archs=list(archs), providers=(TVM,), latency_db=":memory:")
    compilation = Compilation(model, options)
    graph, program = compilation.graph, compilation.program
    kernels = compilation.artifact(compilation.sequential()).manifest.gpu_kernels
    traits = gpu_traits(program, kernels, archs[0])
    return {
        "archs": list(archs),
        "operators": [
            [op.name, op.kernel, int(found.flops), int(found.nbytes), list(graph.predecessors(i))]
            for i, (op, found) in enumerate(zip(program.operators, traits, strict=True))
        ],
        "kernels": msgspec.to_builtins(
            {op.kernel: kernels[op.kernel] for op in program.operators if op.kernel in kernels}
        ),
    }


def with_schedules(network: dict[str, Any]) -> dict[str, Any]:
    """A network with Nimble's streams, and Opara's streams and launches on each architecture."""
    graph = graph_of(network)
    opara = {}
    for arch in network["archs"]:
        made = schedule(
            graph, "opara", traits=traits_of(network, arch), flops_per_byte=FLOPS_PER_BYTE
        )
        opara[arch] = {
            "streams": [list(ops) for ops in made.streams],
            "launch_order": list(made.launch_order or ()),
        }
    nimble = schedule(graph, "nimble").num_streams
    return {**network, "width": graph.width, "nimble_streams": nimble, "opara": opara}


def graph_of(network: dict[str, Any]) -> OpGraph:
    """The graph of a network in the result file."""
    operators = network["operators"]
    edges = [(before, i) for i, (*_, reads) in enumerate(operators) for before in reads]
    return OpGraph.from_edges([name for name, *_ in operators], edges)


def traits_of(network: dict[str, Any], arch: str) -> list[OperatorTraits]:
    """The traits of each operator of a network in the result file."""
    kernels = msgspec.convert(network["kernels"], dict[str, GpuKernel])
    found = []
    for _, kernel, flops, nbytes, _ in network["operators"]:
        launches = kernels[kernel].launches[arch] if kernel in kernels else ()
        found.append(OperatorTraits(flops, nbytes, largest_share(launches, arch), kernels=launches))
    return found


def _text(found: dict[str, Any]) -> str:
    """The results as JSON text, with a line for each operator, kernel and list."""
    lines = ['{"networks": {']
    names = sorted(found["networks"])
    for name in names:
        network = found["networks"][name]
        lines.append(f" {json.dumps(name)}: {{")
        parts = []
        for key, value in network.items():
            if isinstance(value, list):
                rows = ",\n".join(f"   {json.dumps(row)}" for row in value)
                parts.append(f"  {json.dumps(key)}: [\n{rows}]")
            elif isinstance(value, dict):
                rows = ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
                parts.append(f"  {json.dumps(key)}: {{\n{rows}}}")
            else:
                parts.append(f"  {json.dumps(key)}: {json.dumps(value)}")
        lines.append(",\n".join(parts))
        lines.append(" }" + ("," if name != names[-1] else ""))
    return "\n".join([*lines, "}}"]) + "\n"


if __name__ == "__main__":
    main()
