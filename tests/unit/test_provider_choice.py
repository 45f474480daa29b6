"""Tests of the choice between TVM's kernels and a library's, and of what is measured for it.

The latencies are made up.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests import nets
from tests.made_up_latency import MadeUp, two_islands
from tvm_interop.compiler.kernel_choice import choose_kernels
from tvm_interop.compiler.provider_choice import fastest_plain
from tvm_interop.compiler.row_kernels import with_row_kernels
from tvm_interop.frontend import load_model
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.program.program import Operator, Program
from tvm_interop.transform import LowerToUnits, extract

pytestmark = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


@pytest.mark.parametrize(("tvm_us", "takes_library"), [(9.6, True), (9.4, False)])
def test_tvms_kernel_is_taken_where_it_is_clearly_faster(
    tvm_us: float, takes_library: bool
) -> None:
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(two_islands())))
    choice = fastest_plain(
        program,
        ("tvm", "onednn"),
        lambda program: MadeUp(program, lambda op: 10.0 if op.library else tvm_us),
        margin=0.95,
    )
    described = {op.library for op in choice.program.operators if op.description is not None}
    assert described == {"onednn" if takes_library else None}
    assert set(choice.us.values()) == {10.0 if takes_library else tvm_us}


class _Far(MadeUp):
    """TVM's kernels are far slower than the library's kernels, and must not be measured."""

    def near(self, ops: Sequence[int], than_us: Sequence[float]) -> list[int]:
        return [op for op in ops if self._operators[op].library is not None]

    def stages(self, stages: object) -> np.ndarray:
        for groups in stages:  # type: ignore[attr-defined]
            assert self._operators[groups[0][0]].library is not None
        return super().stages(stages)


def test_kernels_that_are_far_slower_are_not_measured() -> None:
    program = extract(LowerToUnits(libraries=("onednn",))(load_model(two_islands())))
    choice = fastest_plain(
        program, ("tvm", "onednn"), lambda program: _Far(program, lambda op: 10.0)
    )
    described = {op.library for op in choice.program.operators if op.description is not None}
    assert described == {"onednn"}


class _SlowPooling(MadeUp):
    """The library's pooling is far slower than TVM's on plain tensors, where it must not be
    measured, and faster on blocked tensors. The library's other kernels are the fastest."""

    def __init__(self, program: Program) -> None:
        super().__init__(program, lambda op: 20.0 if op.library is None else 1.0)

    def near(self, ops: Sequence[int], than_us: Sequence[float]) -> list[int]:
        return [op for op in ops if not self._is_slow(self._operators[op])]

    def stages(self, stages: object) -> np.ndarray:
        for groups in stages:  # type: ignore[attr-defined]
            assert not self._is_slow(self._operators[groups[0][0]])
        return super().stages(stages)

    def _is_slow(self, op: Operator) -> bool:
        kind = op.description
        is_pooling = kind is not None and kind.op == "max_pool2d"
        return is_pooling and op.library is not None and set(kind.layouts) == {"plain"}


def pooled(between_convs: bool) -> Program:
    net = nets.Net()
    x = net.input("x", [1, 16, 8, 8])
    x = net.conv(x, "first", (16, 16), 3) if between_convs else x
    x = net.op("MaxPool", [x], "pool", kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    x = net.conv(x, "last", (16, 16), 3) if between_convs else x
    return extract(LowerToUnits(libraries=("onednn",))(load_model(net.model(x))))


def test_a_librarys_kernel_that_is_far_slower_is_not_measured() -> None:
    alone = choose_kernels(pooled(False), ("tvm", "onednn"), _SlowPooling)
    assert [op.library for op in alone.operators] == [None]
    between = choose_kernels(pooled(True), ("tvm", "onednn"), _SlowPooling)
    assert {op.library for op in between.operators} == {"onednn"}
    (pool,) = (op for op in between.operators if op.name.startswith("pool"))
    assert pool.description is not None
    assert set(pool.description.layouts) != {"plain"}


@pytest.mark.parametrize(("columns", "takes_library"), [(256, True), (255, False)])
def test_tvm_does_not_win_large_products_of_a_row(columns: int, takes_library: bool) -> None:
    """TVM's kernel is faster here, but must not be chosen for a large matrix. While kernels are
    measured, the matrix is in the cache. In a model, the product reads it from memory.
    """
    net = nets.Net()
    net.op("MatMul", [net.input("x", (1, 256)), net.weight(256, columns)], "y")
    lowered = extract(LowerToUnits(libraries=("onednn",))(load_model(net.model("y"))))
    choice = fastest_plain(
        with_row_kernels(lowered),
        ("tvm", "onednn"),
        lambda program: MadeUp(program, lambda op: 10.0 if op.library else 5.0),
    )
    assert [op.library for op in choice.program.operators] == ["onednn" if takes_library else None]


class _Noisy(MadeUp):
    """A latency is the mean of the measurements in `runs`.

    The key False has the measurements of TVM's kernels, and the key True has the measurements of
    the library's kernels. A new measurement gives 10 us.
    """

    def __init__(self, program: Program, runs: dict[bool, list[float]]) -> None:
        self._runs = runs
        super().__init__(program, lambda op: float(np.mean(runs[op.library is not None])))
        self.measured = 1 if len(runs[True]) == 1 else 0

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        from_library = self._operators[stages[0][0][0]].library is not None
        self._runs[from_library].append(10.0)
        return len(stages)


@pytest.mark.parametrize(("fluke_us", "rounds"), [(9.3, 1), (2.0, 0)])
def test_what_is_close_is_measured_again(fluke_us: float, rounds: int) -> None:
    net = nets.Net()
    program = extract(
        LowerToUnits(libraries=("onednn",))(
            load_model(net.model(net.conv(net.input("x", [1, 16, 6, 6]), "conv", (16, 16), 3)))
        )
    )
    runs = {True: [10.0], False: [fluke_us]}
    choice = fastest_plain(
        program, ("tvm", "onednn"), lambda program: _Noisy(program, runs), margin=0.95
    )
    assert [len(runs[library]) for library in (True, False)] == [1 + rounds] * 2
    (op,) = choice.program.operators
    assert op.library == ("onednn" if rounds else None)


class _Asked(MadeUp):
    """Latencies in which TVM's kernel and the library's kernel take equally long. The list `again`
    gets the names of the operators whose kernels are measured again."""

    measured = 1

    def __init__(self, program: Program, again: list[list[str]]) -> None:
        self._again = again
        super().__init__(program, lambda op: 0.1 if op.name.startswith("small") else 10.0)

    def measure_again(self, stages: Sequence[Sequence[Sequence[int]]]) -> int:
        self._again.append([self._operators[groups[0][0]].name for groups in stages])
        return 0


def test_operators_that_do_not_matter_are_not_measured_again() -> None:
    net = nets.Net()
    x = net.input("x", [1, 16, 6, 6])
    for name in ("small_a", "large_a", "small_b", "large_b"):
        x = net.conv(x, name, (16, 16), 3)
    lower = LowerToUnits(libraries=("onednn",))
    program = extract(lower(load_model(net.model(x))))
    again: list[list[str]] = []
    fastest_plain(program, ("tvm", "onednn"), lambda program: _Asked(program, again))
    assert len(again) == 2
    for names in again:
        assert [name.split("/")[0] for name in names] == ["large_a", "large_b"]
