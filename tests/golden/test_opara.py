"""Tests Opara's figures for GoogLeNet, and that the recorded demands give the recorded schedules.

`benchmarks/results/kernel_demands.json` has the resources that each kernel needs on two
architectures, as they were read from machine code.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks import kernel_demands
from tvm_interop import OpGraph, operator_graph, schedule
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.machine.multiprocessors import GPUS, residency, waves
from tvm_interop.program.traits import OperatorTraits, are_memory_bound

NETWORKS: dict[str, Any] = json.loads(kernel_demands.RESULT.read_text())["networks"]
CASES = [(name, arch) for name, network in NETWORKS.items() for arch in network["archs"]]
PUBLISHED = {"opara": 28, "nimble": 4}
"""Streams for GoogLeNet, in section 5.2 of the paper."""


@pytest.mark.parametrize("scheduler", PUBLISHED)
def test_the_published_numbers_of_streams(scheduler: str) -> None:
    graph = operator_graph("googlenet", unit="schedule")
    assert schedule(graph, scheduler).num_streams == PUBLISHED[scheduler]


def test_a_compiled_googlenet_has_as_many() -> None:
    network = NETWORKS["googlenet"]
    assert network["nimble_streams"] == PUBLISHED["nimble"]
    assert set(network["opara"]) == {"sm_80", "sm_90"}
    for made in network["opara"].values():
        assert len(made["streams"]) == PUBLISHED["opara"]


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_recorded_demands_give_the_recorded_schedule(name: str, arch: str) -> None:
    again = kernel_demands.with_schedules(NETWORKS[name])
    assert again["opara"][arch] == NETWORKS[name]["opara"][arch]
    assert again["nimble_streams"] == NETWORKS[name]["nimble_streams"]


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_launches_are_algorithm_2(name: str, arch: str) -> None:
    """A plain transcription of Algorithm 2 finds the same launch order as the scheduler."""
    graph = kernel_demands.graph_of(NETWORKS[name])
    traits = kernel_demands.traits_of(NETWORKS[name], arch)
    assert algorithm_2(graph, traits) == NETWORKS[name]["opara"][arch]["launch_order"]


def algorithm_2(graph: OpGraph, traits: list[OperatorTraits]) -> list[int]:
    is_memory_bound = are_memory_bound(traits, kernel_demands.FLOPS_PER_BYTE)
    lists: dict[bool, list[int]] = {True: [], False: []}
    indegree = [len(graph.predecessors(op)) for op in range(graph.num_ops)]
    for op in range(graph.num_ops):
        if indegree[op] == 0:
            lists[bool(is_memory_bound[op])].append(op)
    queue: list[int] = []
    memory_is_next = True
    while lists[True] or lists[False]:
        chosen = lists[memory_is_next] or lists[not memory_is_next]
        memory_is_next = chosen is lists[False]
        # `min` takes the first operator in a tie.
        least = min(chosen, key=lambda op: traits[op].demand or 0.0)
        chosen.remove(least)
        queue.append(least)
        for successor in graph.successors(least):
            indegree[successor] -= 1
            if indegree[successor] == 0:
                lists[bool(is_memory_bound[successor])].append(successor)
    return queue


@pytest.mark.parametrize(("name", "arch"), CASES)
def test_every_kernel_can_be_launched(name: str, arch: str) -> None:
    gpu = next(gpu for gpu in GPUS.values() if gpu.arch == arch)
    launches = [
        kernel
        for traits in kernel_demands.traits_of(NETWORKS[name], arch)
        for kernel in traits.kernels
    ]
    assert launches
    for kernel in launches:
        assert residency(kernel, arch).blocks >= 1
        assert 0 < waves(kernel, gpu) < float("inf")


def test_the_recorded_operators_are_todays() -> None:
    """The test lowers the graph of GoogLeNet again, but compiles no kernels."""
    options = CompileOptions("cuda", archs=["sm_80", "sm_90"], providers=("tvm",))
    compilation = Compilation("googlenet", options)
    recorded = NETWORKS["googlenet"]["operators"]
    assert [name for name, *_ in recorded] == list(compilation.graph.names)
    assert [list(reads) for *_, reads in recorded] == [
        list(compilation.graph.predecessors(op)) for op in range(compilation.graph.num_ops)
    ]
