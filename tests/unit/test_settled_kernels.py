"""Tests that TVM's kernels are compiled only if they may win or the library lacks a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest

from tests import nets
from tvm_interop.compiler import cpu
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.compiler.backend import Kernels
from tvm_interop.machine.kernel_libraries import why_missing
from tvm_interop.measure.measured import MeasuredLatency
from tvm_interop.program.kinds.conv2d import Conv2d

pytestmark = pytest.mark.skipif(
    why_missing("onednn") is not None, reason=f"no oneDNN: {why_missing('onednn')}"
)


def model() -> onnx.ModelProto:
    """Two convolutions: `wide` has a 3x3 window, and `pointwise` a 1x1 window."""
    net = nets.Net()
    wide = net.conv(net.input("x", [1, 32, 16, 16]), "wide", (32, 32), 3)
    return net.model(net.conv(wide, "pointwise", (32, 32), 1))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The names of TVM's kernels in each library that is compiled, in order."""
    found: list[set[str]] = []
    build = Kernels._built

    def recorded(kernels: Kernels) -> bytes:
        found.append(kernels.names)
        return build(kernels)

    monkeypatch.setattr(Kernels, "_built", recorded)
    return found


def compilation(**options: object) -> Compilation:
    return Compilation(model(), CompileOptions(latency_db=":memory:", **options))  # type: ignore[arg-type]


def libraries(found: Compilation) -> dict[str, str | None]:
    return {op.name.split("/")[0]: op.library for op in found.program.operators}


def test_only_kernels_that_may_win_are_compiled(compiled: list[set[str]]) -> None:
    found = compilation(fallback=False)
    assert len(compiled[0]) == 1
    assert libraries(found)["wide"] == "onednn"


def test_tuned_kernels_are_all_compiled(
    compiled: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "TunedSchedule", lambda *_: lambda kernels: kernels)
    compilation(fallback=False, tuning_records="records")
    assert len(compiled[0]) == 2


def test_kernels_that_never_win_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The artifact will hold all of TVM's kernels, so all are compiled.

    But only kernels that may win run.
    """
    ran: set[str] = set()
    near = MeasuredLatency.near

    def recorded(latency: MeasuredLatency, ops: Sequence[int], us: Sequence[float]) -> list[int]:
        operators = [latency._program.operators[op] for op in ops]
        ran.update(op.name.split("/")[0] for op in operators if op.library is None)
        return near(latency, ops, us)

    monkeypatch.setattr(MeasuredLatency, "near", recorded)
    compilation(fallback=True)
    assert ran == {"pointwise"}


@pytest.mark.parametrize("keeps_all", [True, False])
def test_tvm_runs_what_the_library_computes_slowly(
    keeps_all: bool, compiled: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library has only its reference implementation, which is far too slow."""
    monkeypatch.setattr(
        MeasuredLatency,
        "has_only_reference",
        lambda latency, op: latency._program.operators[op].name.startswith("wide"),
    )
    assert libraries(compilation(fallback=keeps_all))["wide"] is None
    assert [len(names) for names in compiled[:2]] == ([2] if keeps_all else [1, 2])


@pytest.mark.parametrize(
    ("weight", "pixels", "may_win"),
    [
        ((32, 32, 3, 3), (128, 128), False),
        ((16, 16, 3, 3), (64, 64), False),
        ((16, 16, 3, 3), (65, 64), True),  # few channels, and a large image
        ((32, 32, 1, 1), (16, 16), True),
        ((32, 32, 1, 3), (16, 16), True),
        ((32, 24, 3, 3), (16, 16), True),  # 24 is not a multiple of 16
    ],
)
def test_where_tvm_may_win(
    weight: tuple[int, int, int, int], pixels: tuple[int, int], may_win: bool
) -> None:
    made, read, *_ = weight
    shapes = ((1, read, *pixels), weight, (1, made, *pixels))
    described = Conv2d(shapes=shapes, layouts=("plain",) * 3, dtype="float32", stored=(), cut=())
    assert described.tvm_may_win_on_cpu is may_win
    grouped = ((1, 2 * read, *pixels), weight, (1, made, *pixels))
    assert Conv2d(
        shapes=grouped, layouts=("plain",) * 3, dtype="float32", stored=(), cut=(), groups=2
    ).tvm_may_win_on_cpu
