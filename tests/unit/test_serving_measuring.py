"""Tests how the latencies of models are measured for policies, with models of known latencies."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tvm_interop.serving.server import measuring
from tvm_interop.serving.server.any_model import AnyModel, Memory
from tvm_interop.serving.server.ticket import Ticket

ALONE_S = {1: 0.5, 2: 0.75, 4: 1.0}
SLOWER = {1: 2.0, 2: 1.0, 4: 1.5}
"""The factor of the latency while another instance runs, by batch size."""


class Told(AnyModel):
    """A model that takes no time, and reports how long it would take."""

    def __init__(self, instances: int) -> None:
        super().__init__("told", (), (), Memory(0, 0), tuple(ALONE_S))
        self._instances = instances

    @property
    def num_instances(self) -> int:
        return self._instances

    def run(self, slot: int, tickets: Sequence[Ticket]) -> None:
        raise NotImplementedError

    def run_once(self, slot: int, size: int) -> float:
        others = threading.enumerate()
        is_together = any(t.name == "tvm-interop-measure" for t in others)
        return ALONE_S[size] * (SLOWER[size] if is_together else 1)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "num_threads", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_each_batch_size_keeps_its_own_number_of_cores_busy() -> None:
    model = Told(2)
    measuring.warm_up(model)
    found = measuring.served_model(model).costs
    assert {size: costs.op_cores.tolist() for size, costs in found.items()} == {
        size: [slower] for size, slower in SLOWER.items()
    }
    assert {size: costs.op_us.tolist() for size, costs in found.items()} == {
        size: [seconds * 1e6] for size, seconds in ALONE_S.items()
    }


@pytest.mark.usefixtures("two_cores")
def test_a_single_instance_has_one_core_to_tell_of() -> None:
    model = Told(1)
    measuring.warm_up(model)
    found = measuring.served_model(model).costs
    assert {costs.op_cores.tolist()[0] for costs in found.values()} == {1.0}
    assert measuring.device([model]).cores == 1.0
