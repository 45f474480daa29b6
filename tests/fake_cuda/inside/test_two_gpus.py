"""Operators on two GPUs: copies between them, and events that one records and the other awaits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.fake_cuda import fake_gpu
from tests.fake_cuda.happens_before import Access, OpAccesses
from tvm_interop import ExecutionError, InputError, _cuda

DISPATCHES: tuple[_cuda.Dispatch, ...] = ("streams", "captured", "linked")


class Relay:
    """`double` on GPU 0, a copy to GPU 1, `increment` there, a copy back, `add` on GPU 0."""

    def __init__(self, dispatch: _cuda.Dispatch, drop_wait: bool = False) -> None:
        self.streams = _cuda.make_streams([0, 1])
        blocks = [_cuda.make_memory(0, 1024), _cuda.make_memory(1, 1024)]
        places = [("x", 0), ("doubled", 0), ("doubled@1", 1), ("incremented", 1)]
        places += [("incremented@0", 0), ("sum", 0)]
        self.names = [name for name, _ in places]
        self.values = [
            _cuda.tensor_within(blocks[device], 64 * i, (4,), "float32")
            for i, (_, device) in enumerate(places)
        ]
        kernels = fake_gpu.Kernels(
            {
                "double": lambda x, y: np.multiply(x, 2, out=y),
                "increment": lambda x, y: np.add(x, 1, out=y),
                "add": lambda a, b, y: np.add(a, b, out=y),
            }
        )
        self.executor = _cuda.make_executor(
            self.streams,
            self.values,
            ["double", "to 1", "increment", "to 0", "add"],
            [
                kernels.get_function("double", True),
                _cuda.peer_copy(self.values[1], self.values[2]),
                kernels.get_function("increment", True),
                _cuda.peer_copy(self.values[3], self.values[4]),
                kernels.get_function("add", True),
            ],
            [(0, 1), (1, 2), (2, 3), (3, 4), (1, 4, 5)],
            [0, 1, 1, 0, 0],
            [(), () if drop_wait else (0,), (), (2,), ()],
            dispatch,
        )

    def accesses(self) -> dict[str, OpAccesses]:
        def at(v: int) -> Access:
            begin = fake_gpu.address_of(self.values[v])
            return Access(self.names[v], begin, begin + 16)

        return {
            "double": OpAccesses((at(0),), (at(1),)),
            "increment": OpAccesses((at(2),), (at(3),)),
            "add": OpAccesses((at(1), at(4)), (at(5),)),
        }


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_tensors_travel_between_gpus(
    dispatch: _cuda.Dispatch, check_log: Callable[..., list[str]]
) -> None:
    relay = Relay(dispatch)
    assert _cuda.dispatch_of(relay.executor) == dispatch
    for number in (1.0, 5.0):
        fake_gpu.array_at(relay.values[0])[...] = number
        _cuda.run(relay.executor)
        np.testing.assert_array_equal(fake_gpu.array_at(relay.values[5]), number * 4 + 1)
    accesses = relay.accesses()
    del relay
    assert check_log(accesses) == []


def test_a_copy_that_does_not_wait_is_found(check_log: Callable[..., list[str]]) -> None:
    relay = Relay("captured", drop_wait=True)
    _cuda.run(relay.executor)
    accesses = relay.accesses()
    del relay
    assert any("race on `doubled`" in fault for fault in check_log(accesses))


def test_access_is_enabled_both_ways_and_checked(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    fake_gpu.start_log(log)
    _cuda.make_streams([0, 1, 1])
    fake_gpu.stop_log()
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    enabled = [
        (entry["device"], entry["peer"])
        for entry in entries
        if entry["call"] == "cudaDeviceEnablePeerAccess"
    ]
    assert enabled == [(0, 1), (1, 0)]
    fake_gpu.fail_next("cudaDeviceEnablePeerAccess", 2)
    with pytest.raises(ExecutionError, match="cudaDeviceEnablePeerAccess"):
        _cuda.make_streams([0, 1])


def test_a_copy_between_tensors_of_different_sizes_is_refused() -> None:
    block = _cuda.make_memory(0, 64)
    small = _cuda.tensor_within(block, 0, (4,), "float32")
    large = _cuda.tensor_within(block, 0, (5,), "float32")
    with pytest.raises(InputError, match="16 bytes cannot be copied to or from one of 20"):
        _cuda.peer_copy(small, large)
