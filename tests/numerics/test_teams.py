"""Tests that kernels give the same bits for every number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests import nets
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.kernels.build import uses_parallel_loops
from tvm_interop.models import light
from tvm_interop.plan.make import make_plan


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("shufflenet", marks=pytest.mark.slow)])
def test_one_thread_and_two(name: str) -> None:
    model = light.build(name)
    compilation = Compilation(model, CompileOptions(streams=1, threads=2, latency_db=":memory:"))
    shared = uses_parallel_loops(compilation.program.kernels)
    assert sum(shared.values()) > len(shared) / 3, "too few kernels use two threads"
    feeds = nets.feeds(model)
    results = []
    for threads in (1, 2, 1):
        plan = make_plan(compilation.program, compilation.sequential(), threads, True)
        instance = compilation.instance(plan)
        for v in compilation.program.inputs:
            instance.arrays[v][...] = feeds[compilation.program.values[v].name]
        instance.run()
        results.append([instance.arrays[v].copy() for v in compilation.program.outputs])
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, want)
