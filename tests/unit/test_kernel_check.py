"""Tests that the check of kernels finds faults, and only faults."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

import tvm_interop
from tests import nets
from tests.planted_faults import FAULTS, kernels, with_fault
from tvm_interop._native.kernels import load_kernels
from tvm_interop.artifact.manifest import KernelCheck
from tvm_interop.compiler import checked_kernels, checked_libraries
from tvm_interop.compiler.checked_libraries import LibraryChecker
from tvm_interop.errors import ExecutionError
from tvm_interop.kernels import build, cpu_schedule
from tvm_interop.kernels.build import build_kernels
from tvm_interop.kernels.check import Checked, Findings, _Tolerance, find_fault, find_faults
from tvm_interop.kernels.numpy_kernel import NumpyKernel, numpy_kernel
from tvm_interop.kernels.reference import reference_target
from tvm_interop.kernels.reference_results import ReferenceResults, Room
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.kernel_libraries import library_version

pytestmark = pytest.mark.compiles_anew

SEEDS = range(4)
PLANTED = list(itertools.product(FAULTS, SEEDS))


def built(functions: dict[str, tirx.PrimFunc], path: Path, target: Any = "llvm") -> Any:
    module = tvm.IRModule(
        {name: func.with_attr("global_symbol", name) for name, func in functions.items()}
    )
    return load_kernels(build_kernels(module, target, path))


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return built(kernels(), tmp_path_factory.mktemp("kernels") / "r.so", reference_target())


def checked(name: str, library: Any, references: Any) -> Checked:
    function = kernels()[name]
    kernel = name if library is references else "planted"
    return of_floats(name, function, library[kernel], references[name])


def by_numpy(kernel: Checked) -> Checked:
    evaluated = numpy_kernel(kernel.function)
    assert evaluated is not None
    return dataclasses.replace(kernel, reference=evaluated)


def of_floats(name: str, function: tirx.PrimFunc, kernel: Any, reference: Any) -> Checked:
    inputs = ["float32"] * (len(function.params) - 1)
    return Checked(name, function, kernel, reference, inputs, ["float32"])


def test_nothing_is_found_where_nothing_is_wrong(references: Any, tmp_path: Path) -> None:
    library = built(kernels(), tmp_path / "k.so")
    for name, function in kernels().items():
        kernel = of_floats(name, function, library[name], references[name])
        assert find_fault(kernel) is None, name
        assert find_fault(by_numpy(kernel)) is None, name


def test_those_that_are_done_are_counted(references: Any, tmp_path: Path) -> None:
    library = built(kernels(), tmp_path / "k.so")
    each = [of_floats(n, f, library[n], references[n]) for n, f in kernels().items()]
    told: list[tuple[int, int]] = []
    find_faults(each, lambda done, total: told.append((done, total)))
    assert sorted(told) == [(i, len(each)) for i in range(1, len(each) + 1)]


@pytest.mark.parametrize(("fault", "seed"), PLANTED)
def test_a_planted_fault_is_found(fault: str, seed: int, references: Any, tmp_path: Path) -> None:
    """The kernel and the place of the fault are drawn at random."""
    rng = np.random.default_rng([seed, list(FAULTS).index(fault)])
    names = list(rng.permutation(list(kernels())))
    wrong = None
    while wrong is None:
        name = str(names.pop())
        wrong = with_fault(kernels()[name], fault, rng)
    library = built({"planted": wrong}, tmp_path / "k.so")
    kernel = checked(name, library, references)
    for each in (kernel, by_numpy(kernel)):
        assert find_fault(each) is not None, f"{fault} in `{name}`:\n{wrong.script()}"


@pytest.mark.skipif("avx512f" not in host_features(), reason="this CPU has no AVX-512")
def test_the_fault_of_llvm_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index wraps around in a kernel that TVM's own passes build (see `safe_remainders`)."""
    x = te.placeholder((4, 8, 4), name="x")
    y = te.compute((4, 16, 16), lambda i, j, k: x[i % 4, j % 8, k % 4], name="y")
    function = te.create_prim_func([x, y]).with_attr("global_symbol", "tile")
    references = built({"tile": function}, tmp_path / "r.so", reference_target())
    wide = {"kind": "llvm", "mcpu": "x86-64", "mattr": ["+avx2", "+avx512f"]}
    assert (
        find_fault(
            tile_checked(function, built({"tile": function}, tmp_path / "k.so", wide), references)
        )
        is None
    )
    monkeypatch.setattr(build, "PIPELINE", "default")
    library = built({"tile": function}, tmp_path / "wrong.so", wide)
    assert find_fault(tile_checked(function, library, references)) is not None


def tile_checked(function: tirx.PrimFunc, library: Any, references: Any) -> Checked:
    return of_floats("tile", function, library["tile"], references["tile"])


@pytest.fixture
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_kernels, "_right", set())


def planted_while_scheduling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make later schedules leave out the last iteration of the first loop of each kernel."""
    schedule = cpu_schedule.schedule_kernel

    def wrong(func: tirx.PrimFunc, *args: Any) -> tirx.PrimFunc:
        scheduled = schedule(func, *args)
        planted = with_fault(scheduled, "last iteration is missing", np.random.default_rng(0))
        return planted or scheduled

    monkeypatch.setattr(cpu_schedule, "schedule_kernel", wrong)


def compiled(**options: Any) -> tvm_interop.Artifact:
    options = {"scheduler": "sequential", "latency_db": ":memory:", "providers": ["tvm"], **options}
    return tvm_interop.compile(nets.chain(), **options)


@pytest.mark.usefixtures("_nothing_remembered")
def test_a_kernel_at_fault_is_built_plainly_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = compiled()
    assert right.manifest.kernel_check == KernelCheck(checked=len(set(kernel_names(right))))
    planted_while_scheduling(monkeypatch)
    with caplog.at_level(logging.WARNING):
        mended = compiled()
    check = mended.manifest.kernel_check
    assert check is not None
    assert set(check.plain) == set(kernel_names(mended))
    for name in check.plain:
        assert caplog.text.count(f"kernel `{name}` is wrong as it was compiled") == 1
    np.testing.assert_allclose(output(mended), output(right), 1e-5, 1e-6)
    again = compiled().manifest.kernel_check
    assert again == check, "a correct plain kernel does not prove that the scheduled one is"


def kernel_names(artifact: tvm_interop.Artifact) -> list[str]:
    return [op.kernel for op in artifact.plan.operators]


def output(artifact: tvm_interop.Artifact) -> np.ndarray:
    module = tvm_interop.GraphModule(artifact)
    for name, value in nets.feeds(nets.chain()).items():
        module.set_input(name, value)
    module.run()
    return module.get_output(0).numpy()


@pytest.mark.usefixtures("_nothing_remembered")
def test_a_kernel_that_is_wrong_however_it_is_built_does_not_ship(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        checked_kernels,
        "find_faults",
        lambda kernels, _: Findings({kernel.name: "it is odd" for kernel in kernels}, {}),
    )
    with pytest.raises(ExecutionError, match="is wrong with and without a schedule: it is odd"):
        compiled()


@pytest.mark.usefixtures("_nothing_remembered")
def test_what_numpy_fails_on_is_checked_against_a_plain_build(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(NumpyKernel, "__call__", broken)
    planted_while_scheduling(monkeypatch)
    with caplog.at_level(logging.WARNING):
        check = compiled().manifest.kernel_check
    assert check is not None
    assert check.plain, "the fault must be found without NumPy too"
    for name in check.plain:
        assert f"NumPy cannot evaluate kernel `{name}`" in caplog.text
    assert "MemoryError('no room')" in caplog.text


@pytest.mark.usefixtures("_nothing_remembered")
def test_what_is_kept_is_not_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TVM_INTEROP_KEPT", raising=False)
    calls = []
    find = checked_kernels.find_faults
    monkeypatch.setattr(
        checked_kernels,
        "find_faults",
        lambda kernels, _: calls.append(len(kernels)) or find(kernels),
    )
    db = tmp_path / "latency.db"
    cold = compiled(latency_db=db)
    assert len(calls) == 1
    checked_kernels._right.clear()  # Forget all verdicts on kernels, as in a new process.
    warm = compiled(latency_db=db)
    assert len(calls) == 1
    assert warm.manifest.kernel_check == cold.manifest.kernel_check
    compiled(latency_db=db, fresh=True)
    assert len(calls) == 2


@pytest.mark.usefixtures("_nothing_remembered")
def test_what_is_too_large_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_kernels, "_MOST_BYTES", 0)
    check = compiled().manifest.kernel_check
    assert check is not None
    assert check.checked == 0
    assert check.too_large > 0


@pytest.mark.usefixtures("_nothing_remembered")
def test_long_kernels_are_checked_against_their_own_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_kernels, "_LONG", 0)
    monkeypatch.setattr(LibraryChecker, "reference", lambda checker, kernel: None)
    check = compiled().manifest.kernel_check
    assert check is not None
    assert check.checked > 0
    assert not check.plain


@pytest.mark.skipif(library_version("onednn") is None, reason="oneDNN is not here")
@pytest.mark.usefixtures("_nothing_remembered")
def test_both_kernels_of_an_operator_share_the_results_of_their_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library's kernel and TVM's kernel are checked on the same numbers."""
    monkeypatch.setattr(checked_libraries, "_right", set())
    evaluated: list[tuple[int, bytes]] = []
    evaluate = NumpyKernel.__call__

    def counted(kernel: NumpyKernel, tensors: Any, results: Any) -> None:
        evaluated.append((id(kernel.function), b"".join(array.tobytes() for array in tensors)))
        evaluate(kernel, tensors, results)

    monkeypatch.setattr(NumpyKernel, "__call__", counted)
    net = nets.Net()
    conv = net.conv(net.input("x", [1, 16, 6, 6]), "conv", (16, 16), 3)
    made = tvm_interop.compile(
        net.model(conv),
        scheduler="sequential",
        latency_db=":memory:",
        fresh=True,
        providers=["onednn"],
    )
    check = made.manifest.kernel_check
    assert check is not None
    assert (check.checked, check.libraries) == (1, 1)
    assert len(evaluated) == len(set(evaluated)) > 1


def test_results_are_remembered_while_there_is_room() -> None:
    results = ReferenceResults(Room(left=100))
    calls: list[int] = []

    def evaluate() -> tuple[str, list[np.ndarray]]:
        calls.append(1)
        return "", [np.zeros(20, "float32")]

    for number in (0, 0, 1, 1):
        results.of(number, evaluate)
    assert len(calls) == 3


def test_kernels_of_another_processor_are_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_kernels, "runs_here", lambda target: False)
    check = compiled().manifest.kernel_check
    assert check is not None
    assert check.checked == 0
    assert check.unchecked == "this machine's CPU cannot run kernels for their target"


@pytest.mark.parametrize("kind", ["ordinary", "large"])
def test_numbers_beside_nan_are_compared_as_they_are_without(kind: Any) -> None:
    """A result without NaN is compared by a shorter computation. Numbers in a result with NaN must
    get the same verdicts."""
    draw = np.random.default_rng(0)
    want = (1e3 * draw.standard_normal(999)).astype(np.float32)
    moved = np.concatenate([np.logspace(-6, 1, 998), [0]]).astype(np.float32)
    for got in (want + moved, want - moved):
        found = _Tolerance(want, terms=9.0, kind=kind)._outside(got)
        assert 0 < found.sum() < found.size
        beside = _Tolerance(np.append(want, np.float32(np.nan)), terms=9.0, kind=kind)
        np.testing.assert_array_equal(
            beside._outside(np.append(got, np.float32(np.nan))), [*found, False]
        )
    none = np.zeros((0, 3), np.float32)
    assert not _Tolerance(none, terms=1.0, kind=kind)._outside(none).any()
