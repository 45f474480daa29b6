"""Opara: networks on the GPUs of its paper, simulated block by block."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from tvm_interop import Schedule, schedule
from tvm_interop.scheduling.block_simulation import BlockRun, simulate_blocks

from ..block_calibration import Parameters
from ..block_orders import GRAPH_LAUNCH_US, Subject, along, assumed
from ..kernel_demands import FLOPS_PER_BYTE
from .sources import read

GPU_NAMES = {"a100": "A100", "rtx2080super": "RTX 2080 SUPER"}
MODELS = {
    "inception_v3": "rtx2080super",
    "googlenet": "rtx2080super",
    "bert_base": "a100",
    "t5_encoder": "a100",
}
"""The models of Fig. 5, and the GPU on which the paper ran each. It does not say which sizes of
BERT and T5 it took. Here they are BERT base and the encoder of T5 small."""
FORMS = ("CUDA Graph", "Nimble", "Opara")
KERNELS = (
    "The blocks of cuDNN's kernels are assumed, not known, and their times come from data sheets. "
    f"A launch of a CUDA graph takes {GRAPH_LAUNCH_US:g} us, by our own assumption."
)


@functools.cache
def fitted() -> Parameters:
    """The parameters of the simulator that were fitted to the IOS paper's times on a V100."""
    return Parameters(**read("block_simulation")["parameters"])


@functools.cache
def subject(network: str, gpu: str, batch: int = 1) -> Subject:
    """A network on a GPU, with the kernels that cuDNN is assumed to run."""
    return assumed(network, gpu, fitted(), GRAPH_LAUNCH_US, batch)


def schedule_of(found: Subject, form: str) -> Schedule:
    """The schedule of one of `FORMS`, or `Opara's streams, order 1`.

    Order 1 is the depth-first topological order of section 2.3.
    """
    graph = found.graph
    if form == "CUDA Graph":
        return Schedule(form, graph.names, streams=(tuple(graph.topological_order()),))
    if form == "Nimble":
        ids = tuple(graph.topological_order())
        return replace(schedule(graph, "nimble"), launch_order=ids)
    if form == "Opara":
        return schedule(graph, "opara", traits=found.traits, flops_per_byte=FLOPS_PER_BYTE)
    order = depth_first(found)
    return along(graph, [order.index(op) for op in range(graph.num_ops)])


def depth_first(found: Subject) -> list[int]:
    """A depth-first topological order: an operator's readers follow it as soon as they can."""
    graph = found.graph
    seen: set[int] = set()
    finished: list[int] = []

    def visit(op: int) -> None:
        if op in seen:
            return
        seen.add(op)
        for reader in reversed(graph.successors(op)):
            visit(reader)
        finished.append(op)

    for op in reversed(range(graph.num_ops)):
        if not graph.predecessors(op):
            visit(op)
    return finished[::-1]


@functools.cache
def run(network: str, gpu: str, form: str, batch: int = 1) -> BlockRun:
    """The simulated run of one schedule."""
    found = subject(network, gpu, batch)
    return simulate_blocks(found.graph, schedule_of(found, form), found.kernels, found.on)


def ms(network: str, gpu: str, form: str, batch: int = 1) -> float:
    """Milliseconds of the simulated run."""
    return run(network, gpu, form, batch).makespan_us / 1e3


def most_at_once(found: BlockRun) -> int:
    """The most operators that run at the same time."""
    events = sorted(
        event for _, _, start, end in found.timeline if end > start
        for event in ((start, 1), (end, -1))
    )  # fmt: skip
    running = most = 0
    for _, change in events:
        running += change
        most = max(most, running)
    return most


def active_share(found: Subject, ran: BlockRun) -> float:
    """The share of time in which a multiprocessor has a block, as a mean over all multiprocessors.
    A kernel counts as busy on as many multiprocessors as it has blocks, from its start to its end.
    So at the end of a kernel, when only its last blocks run, too many multiprocessors count as
    busy.
    """
    events: list[tuple[float, int]] = []
    for op, _, start, end in ran.timeline:
        blocks = max((kernel.blocks for kernel in found.kernels[op]), default=0)
        events += [(start, blocks), (end, -blocks)]
    active, blocks, before = 0.0, 0, 0.0
    for at, change in sorted(events):
        active += (at - before) * min(1.0, blocks / found.on.multiprocessors)
        blocks, before = blocks + change, at
    return active / ran.makespan_us


def text(numbers: Sequence[float], digits: int = 3) -> list[str]:
    """Numbers as cells of a table."""
    return [f"{number:.{digits}f}" for number in numbers]
