"""Tests a few random graphs. `make graphs` runs more, with new seeds each day."""

from __future__ import annotations

import pytest

from tests.random_graphs.generator import random_graph
from tests.random_graphs.judge import judged
from tests.random_graphs.minimise import smallest
from tvm_interop.frontend import converters

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", [3, 16, 24, 30])
def test_right_and_the_same_by_every_schedule(seed: int) -> None:
    record = judged(seed)
    assert not {"wrong", "bits", "raw", "refused"} & record.keys(), record


@pytest.mark.parametrize("seed", [47, 142])
def test_control_flow_is_right_and_the_same_by_every_schedule(seed: int) -> None:
    kinds = {node.op_type for node in random_graph(seed).build().graph.node}
    assert kinds & {"If", "Loop", "Scan"}
    record = judged(seed)
    assert not {"wrong", "bits", "raw", "refused", "unclear"} & record.keys(), record


SEED_WITH_NEG = 339


def test_a_fault_is_found_named_and_cut_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault is a `Neg` that does not change its input."""
    monkeypatch.setitem(converters._CONVERTERS, "Neg", lambda bb, inputs, attrs: inputs[0])
    record = judged(SEED_WITH_NEG)
    assert any(fault.startswith("Neg ") for fault in record["wrong"])
    found = smallest(SEED_WITH_NEG)
    assert found is not None
    assert [node.op_type for node in found[0].graph.node] == ["Neg"]
    assert found[0].ByteSize() < 2000
