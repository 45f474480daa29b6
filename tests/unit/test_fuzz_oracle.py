"""Tests that the fuzz test of artifacts notices a plan that shares memory wrongly."""

from __future__ import annotations

import msgspec
import pytest

import tvm_interop
from tests import nets
from tests.fuzz import remade
from tvm_interop.plan.plan import Plan


@pytest.fixture(scope="module")
def artifact() -> tvm_interop.Artifact:
    return tvm_interop.compile(
        nets.attention(), scheduler="opara", streams=2, threads=1, keep_slower=True,
        latency_db=":memory:", providers=["tvm"],
    )  # fmt: skip


def outputs(artifact: tvm_interop.Artifact, plan: Plan) -> list[bytes]:
    return remade._outputs(plan, artifact.load_kernels(), artifact.weights)


def test_the_same_operators_in_order_give_the_same_bits(artifact: tvm_interop.Artifact) -> None:
    alone = remade.in_order(artifact.plan)
    assert len(alone.streams) == 1
    assert alone.arena_bytes > artifact.plan.arena_bytes
    assert outputs(artifact, alone) == outputs(artifact, artifact.plan)


def test_tensors_on_top_of_each_other_are_noticed(artifact: tvm_interop.Artifact) -> None:
    plan = artifact.plan
    piled = msgspec.structs.replace(
        plan,
        values=tuple(
            msgspec.structs.replace(value, offset=0) if value.storage == "arena" else value
            for value in plan.values
        ),
    )
    assert outputs(artifact, remade.in_order(piled)) == outputs(artifact, plan)
    # On several streams, wrong results depend on when operators run. So put all operators on one
    # stream, where the results are wrong in each run.
    one = msgspec.structs.replace(
        piled,
        streams=plan.streams[:1],
        operators=tuple(msgspec.structs.replace(op, stream=0, waits=()) for op in plan.operators),
    )
    assert outputs(artifact, one) != outputs(artifact, plan)
