"""Makes the section of `docs/benchmarks.md` with the results of `benchmarks.kernel_demands`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_interop.machine.multiprocessors import (
    GPUS,
    Gpu,
    residency,
    share_of_multiprocessor,
    waves,
)
from tvm_interop.program.kernel_demand import KernelDemand
from tvm_interop.program.traits import OperatorTraits, are_memory_bound

from .kernel_demands import FLOPS_PER_BYTE, traits_of
from .markdown import table

_GPU_OF = {"sm_80": "a100", "sm_90": "h100"}
_PUBLISHED = {"googlenet": (28, 4)}
"""The numbers of streams of Opara and of Nimble in the paper on Opara (section 5.2)."""
_EXAMPLE, _EXAMPLE_ARCH, _BLOCK = "googlenet", "sm_90", "inception_3a/"


def section(report: dict[str, Any]) -> list[str]:
    """The paragraphs of the section on the resources of kernels, as Markdown."""
    networks = report["networks"]
    rows = [
        _row(name, network, arch) for name, network in networks.items() for arch in network["archs"]
    ]
    head = [
        "", "GPU", "operators", "demand", "blocks held", "by registers", "by threads",
        "within a wave", "streams, Opara", "Nimble", "moved",
    ]  # fmt: skip
    return [
        "## What kernels ask of a GPU, and Opara's schedules\n\nWritten by `python -m "
        "benchmarks.kernel_demands --full`, without a GPU. Registers and shared memory are read "
        "from the machine code of TVM's kernels, and blocks and threads from their launches. "
        "Nothing here is timed. The *demand* of an operator is the largest share of a "
        "multiprocessor's threads, registers or shared memory that one block takes. *Blocks "
        "held* are the blocks of the kernel that one multiprocessor holds at once. Both columns "
        "have the least, the median and the most of all operators. *By registers* and *by "
        "threads* count the operators for which registers or threads limit the number of blocks "
        "held. *Within a wave* counts the operators whose blocks all fit on the GPU at once, so "
        "that other operators may run beside them. *Moved* counts the operators whose place in "
        "Opara's launch order differs from their id.",
        table(head, rows),
        _against_the_paper(networks),
        _example(networks[_EXAMPLE]),
    ]


def _row(name: str, network: dict[str, Any], arch: str) -> list[str]:
    gpu = GPUS[_GPU_OF[arch]]
    traits = traits_of(network, arch)
    largest = [_largest(found.kernels, arch) for found in traits if found.kernels]
    held = [residency(kernel, arch) for kernel in largest]
    limits = Counter(found.limited_by for found in held)
    made = network["opara"][arch]
    moved = sum(op != place for place, op in enumerate(made["launch_order"]))
    return [
        name,
        f"{_GPU_OF[arch].upper()}, {arch}",
        str(len(traits)),
        _spread([found.demand or 0.0 for found in traits], 3),
        _spread([found.blocks for found in held], 0),
        str(limits["registers"]),
        str(limits["threads"]),
        str(sum(_waves(found, gpu) <= 1 for found in traits)),
        str(len(made["streams"])),
        str(network["nimble_streams"]),
        str(moved),
    ]


def _against_the_paper(networks: dict[str, Any]) -> str:
    parts = []
    for name, (opara, nimble) in _PUBLISHED.items():
        network = networks[name]
        ours = {len(made["streams"]) for made in network["opara"].values()}
        parts.append(
            f"For {name}, in the paper on Opara, Opara has {opara} streams and Nimble has "
            f"{nimble}. Here Opara has {' and '.join(map(str, sorted(ours)))}, and Nimble has "
            f"{network['nimble_streams']}."
        )
    return (
        " ".join(parts) + " The other networks of the paper are graphs of PyTorch's operators. TVM "
        "fuses operators, so the numbers of streams are not comparable."
    )


def _example(network: dict[str, Any]) -> str:
    traits = traits_of(network, _EXAMPLE_ARCH)
    memory = are_memory_bound(traits, FLOPS_PER_BYTE)
    stream_of = {
        op: number
        for number, ops in enumerate(network["opara"][_EXAMPLE_ARCH]["streams"])
        for op in ops
    }
    rows = []
    for op in network["opara"][_EXAMPLE_ARCH]["launch_order"]:
        name = network["operators"][op][0]
        if not name.startswith(_BLOCK):
            continue
        kernel = _largest(traits[op].kernels, _EXAMPLE_ARCH)
        held = residency(kernel, _EXAMPLE_ARCH)
        rows.append(
            [
                name.removeprefix(_BLOCK),
                "memory" if memory[op] else "arithmetic",
                str(kernel.blocks),
                str(kernel.threads),
                str(kernel.registers),
                str(kernel.shared_bytes),
                f"{traits[op].demand:.3f}",
                f"{held.blocks}, {held.limited_by}",
                str(stream_of[op]),
            ]
        )
    head = [
        "", "bound by", "blocks", "threads", "registers", "shared bytes", "demand", "blocks held",
        "stream",
    ]  # fmt: skip
    return (
        f"One block of {_EXAMPLE} on {_EXAMPLE_ARCH}, `{_BLOCK.rstrip('/')}`, in Opara's launch "
        f"order:\n\n{table(head, rows)}"
    )


def _largest(kernels: Sequence[KernelDemand], arch: str) -> KernelDemand:
    return max(kernels, key=lambda kernel: share_of_multiprocessor(kernel, arch))


def _waves(traits: OperatorTraits, gpu: Gpu) -> float:
    return max((waves(kernel, gpu) for kernel in traits.kernels), default=0.0)


def _spread(numbers: Sequence[float], digits: int) -> str:
    ends = (min(numbers), float(np.median(numbers)), max(numbers))
    return ", ".join(f"{number:.{digits}f}" for number in ends)
