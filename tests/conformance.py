"""A suite of tests that every kind of executor must pass.

A class of tests derives from `InstanceSuite` and says how an instance of its device is made. The
tests run a program of two chains of operators on two streams. The chains change streams at every
operator, so each operator waits for an operator on the other stream.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tvm_interop import DeviceError, Schedule
from tvm_interop.execution.instance import ChangeableInstance, PlanInstance
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Operator, Program, Value

WIDTH = 64
KERNEL = "serial"
"""The name of a kernel that adds 1 to each of `WIDTH` numbers."""
LENGTH = 6
INPUT, WEIGHT = 0, 1


def crossing_chains() -> Program:
    """A program of two chains of `LENGTH` operators, one from the input and one from a weight."""
    values = [Value("x", (WIDTH,), "float32"), Value("w", (WIDTH,), "float32")]
    operators = []
    last = [INPUT, WEIGHT]
    for i in range(LENGTH):
        for chain in range(2):
            values.append(Value(f"{'xw'[chain]}{i}", (WIDTH,), "float32"))
            made = len(values) - 1
            operators.append(Operator(f"{'xw'[chain]}_op{i}", KERNEL, (last[chain],), (made,)))
            last[chain] = made
    weight = np.full(WIDTH, 100, np.float32)
    return Program(values, operators, (INPUT,), tuple(last), weights={WEIGHT: weight})


def crossing_plan(device: str) -> Plan:
    """A plan in which each chain changes its stream at every operator."""
    program = crossing_chains()
    names = tuple(op.name for op in program.operators)
    orders = [[2 * i + (i + s) % 2 for i in range(LENGTH)] for s in range(2)]
    return make_plan(program, Schedule("by hand", names, streams=orders), device=device)


class InstanceSuite:
    """The suite. A subclass has fixtures `instance` and `other`: two instances of the plan.

    Attributes
    ----------
    reads_in_place: whether the device reads the host's memory without a copy.
    changes_weights: whether one instance can get other weights than the plan's other instances.
    """

    reads_in_place = False
    changes_weights = True

    @pytest.fixture
    def instance(self) -> PlanInstance:
        raise NotImplementedError

    @pytest.fixture
    def other(self) -> PlanInstance:
        raise NotImplementedError

    def test_it_fits_the_protocol(self, instance: PlanInstance) -> None:
        assert isinstance(instance, PlanInstance)
        assert len(instance.plan.streams) == 2
        assert any(op.waits for op in instance.plan.operators)

    def test_numbers_and_inputs_that_stay(self, instance: PlanInstance) -> None:
        x = np.arange(WIDTH, dtype=np.float32)
        instance.write(instance.inputs[0].value, x)
        for _ in range(3):
            instance.run()
            np.testing.assert_array_equal(instance.read(instance.inputs[0].value), x)
            from_input, from_weight = (instance.read(port.value) for port in instance.outputs)
            np.testing.assert_array_equal(from_input, x + LENGTH)
            np.testing.assert_array_equal(from_weight, np.float32(100 + LENGTH))

    def test_outputs_that_are_wanted(self, instance: PlanInstance) -> None:
        outputs = [port.value for port in instance.outputs]
        for number in (1, 2):
            instance.write(instance.inputs[0].value, np.full(WIDTH, number, np.float32))
            instance.run(outputs[:number])
            for _ in range(2):
                got = [float(np.array(instance.read(v))[0]) for v in outputs]
                assert got == [number + LENGTH, 100 + LENGTH]

    def test_a_weight_is_replaced_in_one_instance_alone(
        self, instance: PlanInstance, other: PlanInstance
    ) -> None:
        if not self.changes_weights:
            assert not isinstance(instance, ChangeableInstance)
            return
        assert isinstance(instance, ChangeableInstance)
        instance.replace(WEIGHT, np.zeros(WIDTH, np.float32))
        instance.run()
        other.run()
        output = instance.outputs[1].value
        np.testing.assert_array_equal(instance.read(output), np.float32(LENGTH))
        np.testing.assert_array_equal(other.read(output), np.float32(100 + LENGTH))

    def test_memory_is_read_in_place_or_that_is_refused(self, instance: PlanInstance) -> None:
        port = instance.inputs[0].value
        instance.write(port, np.zeros(WIDTH, np.float32))
        block = np.zeros(WIDTH + 16, np.float32)
        begin = -block.ctypes.data % 64 // 4
        memory = block[begin : begin + WIDTH]
        memory[:] = 7
        if self.reads_in_place:
            instance.rebind(port, memory)
        else:
            with pytest.raises(DeviceError, match="set_input"):
                instance.rebind(port, memory)
        instance.run()
        expected = np.float32(7 + LENGTH if self.reads_in_place else LENGTH)
        np.testing.assert_array_equal(instance.read(instance.outputs[0].value), expected)

    def test_a_profile_keeps_orders_and_waits(self, instance: PlanInstance) -> None:
        rows = {row.op: (row.stream, row.start_us, row.end_us) for row in instance.profile()}
        plan = instance.plan
        assert sorted(rows) == list(range(len(plan.operators)))
        for op, (stream, start, end) in rows.items():
            assert stream == plan.operators[op].stream
            assert 0 <= start <= end
            for before in plan.operators[op].waits:
                assert rows[before][2] <= start
        for ops in plan.stream_orders():
            assert all(rows[before][2] <= rows[after][1] for before, after in pairwise(ops))

    def test_runs_are_timed(self, instance: PlanInstance, other: PlanInstance) -> None:
        assert instance.time(3) > 0
        if instance.clock is None:
            return
        assert instance.clock is other.clock
        rows = instance.clock.measure_interleaved([instance.executor, other.executor], 1, 4)
        assert [len(row) for row in rows] == [4, 4]
        assert all(seconds > 0 for row in rows for seconds in row)

    def test_one_may_go_while_another_stays(
        self, instance: PlanInstance, other: PlanInstance
    ) -> None:
        instance.run()
        del instance
        other.write(other.inputs[0].value, np.ones(WIDTH, np.float32))
        other.run()
        np.testing.assert_array_equal(other.read(other.outputs[0].value), np.float32(1 + LENGTH))
