"""Tests how kernels are compiled and identified."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, te, tirx, topi
from tvm.script import ir as I
from tvm.script import tirx as T

from tests import nets
from tvm_interop._native import cpu as _runtime
from tvm_interop._native.kernels import load_kernels
from tvm_interop._native.operators import BoundOperator
from tvm_interop.errors import DeviceError, ExecutionError
from tvm_interop.execution.cpu import as_tensor
from tvm_interop.frontend import load_model
from tvm_interop.kernels import build
from tvm_interop.kernels.build import (
    build_kernels,
    divisible_kernels,
    kernel_hashes,
    uses_parallel_loops,
)
from tvm_interop.program.host_memory import aligned_copy, aligned_empty
from tvm_interop.transform import DefaultCPUSchedule, LowerToUnits, extract

pytestmark = pytest.mark.compiles_anew


@I.ir_module
class _Kernels:
    @T.prim_func
    def double(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in range(4):
            b[i] = a[i] * T.float32(2)

    @T.prim_func
    def twice(x: T.Buffer((4,), "float32"), y: T.Buffer((4,), "float32")):
        for j in range(4):
            y[j] = x[j] * T.float32(2)

    @T.prim_func
    def triple(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")):
        for i in T.parallel(4):
            b[i] = a[i] * T.float32(3)


def test_a_kernel_that_does_not_compile_is_named(tmp_path: Path) -> None:
    @T.prim_func
    def odd(a: T.Buffer((4,), "bool"), b: T.Buffer((4,), "bool")):
        for i in range(4):
            b[i] = a[i] + a[i]

    kernels = tvm.IRModule({**dict(_Kernels.functions_items()), tvm.ir.GlobalVar("odd"): odd})
    with pytest.raises(DeviceError, match=r"kernel of operator `odd`: .*; compute the operator"):
        build_kernels(kernels, "llvm", tmp_path / "k.so")
    assert not list(tmp_path.iterdir())


def test_library_gives_every_kernel_by_name(tmp_path: Path) -> None:
    path = build_kernels(_Kernels, "llvm", tmp_path / "k.so")
    assert path == tmp_path / "k.so"
    library = tvm.runtime.load_module(path)
    source = tvm.runtime.tensor(np.arange(4, dtype=np.float32))
    for name, factor in (("double", 2), ("twice", 2), ("triple", 3)):
        result = tvm.runtime.empty((4,), "float32")
        library[name](source, result)
        np.testing.assert_array_equal(result.numpy(), factor * np.arange(4))
    assert [entry.name for entry in tmp_path.iterdir()] == ["k.so"]


def test_equal_kernels_share_a_hash() -> None:
    hashes = kernel_hashes(_Kernels)
    assert hashes["double"] == hashes["twice"]
    assert hashes["double"] != hashes["triple"]


_PRINT_HASHES = """
from tests import nets
from tvm_interop.frontend import load_model
from tvm_interop.kernels.build import kernel_hashes
from tvm_interop.transform import LowerToUnits, extract
program = extract(LowerToUnits()(load_model(nets.attention())))
for item in sorted(kernel_hashes(program.kernels).items()):
    print(*item)
"""


def test_hashes_are_the_same_in_another_process() -> None:
    program = extract(LowerToUnits()(load_model(nets.attention())))
    here = [f"{name} {value}" for name, value in sorted(kernel_hashes(program.kernels).items())]
    paths = f"import sys; sys.path[:0] = {sys.path!r}"
    there = subprocess.run(
        [sys.executable, "-c", f"{paths}\n{_PRINT_HASHES}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert there.stdout.split("\n")[:-1] == here
    assert len(here) > 3


def test_parallel_loops_are_found() -> None:
    assert uses_parallel_loops(_Kernels) == {"double": False, "twice": False, "triple": True}


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(DeviceError, match=r"no C\+\+ compiler.*apt install g\+\+"):
        build_kernels(_Kernels, "llvm", tmp_path / "k.so")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(DeviceError, match="`no-such-compiler`"):
        build_kernels(_Kernels, "llvm", tmp_path / "k.so")
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "k.so"
    path.write_bytes(b"old")
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(DeviceError, match="linking"):
        build_kernels(_Kernels, "llvm", path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="no-such-target"):
        build_kernels(_Kernels, "no-such-target", tmp_path / "k.so")


# The next tests are about kernels that run in shares.


def scheduled(model: Any) -> tvm.IRModule:
    return DefaultCPUSchedule()(extract(LowerToUnits()(load_model(model))).kernels)


def convolution(channels: int = 33) -> tvm.IRModule:
    """A scheduled convolution, which packs its data. By default, the number of its channels is not
    a multiple of a vector's length."""
    net = nets.Net()
    net.conv(net.input("x", [1, 16, 32, 32]), "y", (16, channels), 3)
    return scheduled(net.model("y"))


def test_a_convolution_has_few_statements() -> None:
    """TVM's passes took longer than LLVM when each multiply-add of a tile was a statement."""
    (kernel,) = convolution().functions.values()
    stores: list[Any] = []
    tvm_ffi.structural_walk(kernel.body, (tirx.BufferStore, stores.append))
    assert len(stores) < 60


def softmax() -> tvm.IRModule:
    net = nets.Net()
    net.op("Softmax", [net.input("x", [300, 200])], "y", axis=-1)
    return scheduled(net.model("y"))


def pool() -> tvm.IRModule:
    net = nets.Net()
    x = net.input("x", [1, 16, 32, 32])
    net.op("MaxPool", [x], "y", kernel_shape=[3, 3], pads=[1] * 4, strides=[1, 1])
    return scheduled(net.model("y"))


def double_then_add(parallel: Sequence[str], returned: Sequence[str] = "c") -> tvm.IRModule:
    """A kernel with two loops: b = 2 a, and then c = 1 + b, which reads b in reverse order.

    Parameters
    ----------
    parallel: the tensors whose loops are parallel.
    returned: the tensors that are outputs.
    """
    a = te.placeholder((64,), "float32", "a")
    b = te.compute((64,), lambda i: a[i] * 2.0, "b")
    c = te.compute((64,), lambda i: b[63 - i] + 1.0, "c")
    outputs = [tensor for tensor in (b, c) if tensor.op.name in returned]
    schedule = s_tir.Schedule(te.create_prim_func([a, *outputs]))
    for name in parallel:
        schedule.parallel(schedule.get_loops(schedule.get_sblock(name))[0])
    return tvm.IRModule({"kernel": schedule.mod["main"].with_attr("global_symbol", "kernel")})


def nested() -> tvm.IRModule:
    """A kernel with a parallel loop inside a serial loop. These loops write a buffer, and another
    loop reads the buffer."""
    a = te.placeholder((8, 8), "float32", "a")
    b = te.compute((8, 8), lambda i, j: a[i, j] * 2.0, "b")
    c = te.compute((8, 8), lambda i, j: b[j, i] + 1.0, "c")
    schedule = s_tir.Schedule(te.create_prim_func([a, c]))
    for name, loop in (("b", 1), ("c", 0)):
        schedule.parallel(schedule.get_loops(schedule.get_sblock(name))[loop])
    return tvm.IRModule({"kernel": schedule.mod["main"].with_attr("global_symbol", "kernel")})


@pytest.mark.parametrize(
    ("kernels", "is_divisible"),
    [
        (convolution, True),  # Each share packs the data for itself.
        (softmax, True),
        (pool, True),  # Each iteration reads only what it has written itself.
        (lambda: double_then_add("c"), True),
        (lambda: double_then_add("b"), False),  # The parallel loop writes a buffer of its own.
        (lambda: double_then_add("bc"), False),
        (lambda: double_then_add("c", "bc"), False),  # A serial loop writes an output.
        (lambda: double_then_add("bc", "bc"), False),  # A share would read data of another share.
        (nested, False),  # A share would compute only a part of each row.
        (lambda: double_then_add(""), False),
        (lambda: convolution(1), False),  # The kernel is too small to have a parallel loop.
        (lambda: _Kernels, False),  # The kernel does not consist of blocks.
    ],
)
def test_which_kernels_can_be_divided(
    kernels: Callable[[], tvm.IRModule], is_divisible: bool
) -> None:
    module = kernels()
    assert bool(divisible_kernels(module)) == is_divisible
    assert divisible_kernels(module) <= uses_parallel_loops(module).keys()


Shares = Sequence[tuple[int, int] | None]


def run_shares(library: Any, kernels: tvm.IRModule, shares: Shares) -> np.ndarray:
    """The output after the shares have run in the given order. Unwritten numbers are NaN."""
    ((var, func),) = kernels.functions_items()
    rng = np.random.default_rng(0)
    *inputs, output = ([int(size) for size in param.ty.shape] for param in func.params)
    arrays = [aligned_copy(rng.standard_normal(shape).astype(np.float32)) for shape in inputs]
    arrays.append(aligned_empty(output, np.float32))
    arrays[-1].fill(np.nan)
    tensors = [as_tensor(array) for array in arrays]
    function = library.get_function(var.name_hint)
    executor = _runtime.make_executor(
        1,
        1,
        tensors,
        [
            BoundOperator(f"share {i}", function, range(len(tensors)), share=share)
            for i, share in enumerate(shares)
        ],
    )
    _runtime.run(executor)
    return arrays[-1]


@pytest.mark.parametrize("make", [convolution, softmax, pool, lambda: double_then_add("c")])
def test_shares_in_any_order_are_the_whole(
    make: Callable[[], tvm.IRModule], tmp_path: Path
) -> None:
    kernels = make()
    library = load_kernels(build_kernels(kernels, "llvm", tmp_path / "k.so"))
    whole = run_shares(library, kernels, [None])
    assert np.isfinite(whole).all()
    for count in (1, 2, 3):
        for order in permutations(range(count)):
            got = run_shares(library, kernels, [(i, count) for i in order])
            np.testing.assert_array_equal(got, whole)


def test_more_shares_than_iterations(tmp_path: Path) -> None:
    kernels = double_then_add("c")
    library = load_kernels(build_kernels(kernels, "llvm", tmp_path / "k.so"))
    got = run_shares(library, kernels, [(i, 100) for i in range(100)])
    np.testing.assert_array_equal(got, run_shares(library, kernels, [None]))


@pytest.mark.parametrize("make", [convolution, softmax, lambda: double_then_add("c")])
def test_a_share_alone_writes_its_part_only(
    make: Callable[[], tvm.IRModule], tmp_path: Path
) -> None:
    kernels = make()
    library = load_kernels(build_kernels(kernels, "llvm", tmp_path / "k.so"))
    written = [~np.isnan(run_shares(library, kernels, [(i, 3)])) for i in range(3)]
    assert all(part.any() for part in written)
    np.testing.assert_array_equal(np.sum(written, axis=0), 1)


def test_a_library_that_was_not_taken_over_runs_whole(tmp_path: Path) -> None:
    kernels = double_then_add("c")
    library = tvm.runtime.load_module(str(build_kernels(kernels, "llvm", tmp_path / "k.so")))
    whole = run_shares(library, kernels, [None])
    np.testing.assert_array_equal(run_shares(library, kernels, [(1, 3)]), whole)
    assert np.isfinite(whole).all()


def test_a_share_ends_with_its_operator(tmp_path: Path) -> None:
    """A thread that has run one share of a kernel runs the next kernel as a whole."""
    kernels = double_then_add("c")
    library = load_kernels(build_kernels(kernels, "llvm", tmp_path / "k.so"))
    got = run_shares(library, kernels, [(1, 3), None])
    np.testing.assert_array_equal(got, run_shares(library, kernels, [None]))


def test_only_libraries_that_are_loaded_are_taken_over(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match=r"k\.so` is not loaded"):
        _runtime.take_over_parallel_loops(str(tmp_path / "k.so"))
    library = load_kernels(build_kernels(double_then_add(""), "llvm", tmp_path / "serial.so"))
    assert library.get_function("kernel") is not None


# The next tests are about kernels that are built in several files, on several threads.


def chain_of(count: int = 9) -> tvm.IRModule:
    """A module of `count` kernels. Each adds 1 to a tensor of another length."""
    kernels = {}
    for length in range(1, count + 1):
        a = te.placeholder((length,), name="a")
        b = topi.add(a, 1.0)
        kernels[f"k{length}"] = te.create_prim_func([a, b]).with_attr("global_symbol", f"k{length}")
    return tvm.IRModule(kernels)


@pytest.mark.parametrize("threads", [1, 2])
def test_all_kernels_are_in_the_library_however_many_threads_build_it(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runtime, "num_threads", lambda: threads)
    code = build_kernels(chain_of(), "llvm", tmp_path / "k.so").read_bytes()
    library = load_kernels(tmp_path / "k.so")
    for length in range(1, 10):
        out = as_tensor(aligned_empty((length,), "float32"))
        library[f"k{length}"](as_tensor(aligned_copy(np.full(length, 2, np.float32))), out)
        np.testing.assert_array_equal(out.numpy(), np.full(length, 3))
    assert build_kernels(chain_of(), "llvm", tmp_path / "k.so").read_bytes() == code


def test_threads_that_build_heed_the_pass_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_runtime, "num_threads", lambda: 2)
    compile_one, seen = tvm.compile, []

    def compile_and_note(*args: Any, **kwargs: Any) -> Any:
        context = tvm.transform.PassContext.current()
        seen.append((threading.current_thread(), context.opt_level, dict(context.config)))
        return compile_one(*args, **kwargs)

    monkeypatch.setattr(tvm, "compile", compile_and_note)
    config = {"tirx.disable_vectorize": True}
    with tvm.transform.PassContext(opt_level=1, config=config):
        build_kernels(chain_of(), "llvm", tmp_path / "k.so")
    assert {(level, *found.items()) for _, level, found in seen} == {(1, *config.items())}
    assert threading.main_thread() not in {thread for thread, *_ in seen}
    # Instruments of passes are made for one thread, so all passes run on the calling thread.
    seen.clear()
    with tvm.transform.PassContext(instruments=[tvm.instrument.PassTimingInstrument()]):
        build_kernels(chain_of(), "llvm", tmp_path / "k.so")
    assert {thread for thread, *_ in seen} == {threading.main_thread()}


@tvm.instrument.pass_instrument
class _Passes:
    """An instrument that notes the names of the passes that run."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def run_before_pass(self, module: tvm.IRModule, info: Any) -> None:
        self.names.add(str(info.name))


@pytest.mark.parametrize("make", [convolution, softmax])
def test_code_without_the_passes_for_gpus_is_the_same(
    make: Callable[[], tvm.IRModule], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test also fails if TVM renames its passes for GPUs, which would then run again."""
    target, kernels = tvm.target.Target("llvm"), make()
    all_passes, fewer = _Passes(), _Passes()
    with tvm.transform.PassContext(instruments=[all_passes]):
        build.write_object(kernels, target, tmp_path / "all.o")
    disabled: list[str] = []
    monkeypatch.setattr(_runtime, "num_threads", lambda: 2)
    compile_one = tvm.compile

    def compile_and_note(*args: Any, **kwargs: Any) -> Any:
        disabled.extend(tvm.transform.PassContext.current().disabled_pass)
        return compile_one(*args, **kwargs)

    monkeypatch.setattr(tvm, "compile", compile_and_note)
    build_kernels(chain_of(), "llvm", tmp_path / "k.so")
    assert disabled
    with tvm.transform.PassContext(instruments=[fewer], disabled_pass=[*set(disabled)]):
        build.write_object(kernels, target, tmp_path / "fewer.o")
    assert all_passes.names - fewer.names == set(disabled)
    assert (tmp_path / "all.o").read_bytes() == (tmp_path / "fewer.o").read_bytes()


def test_kernels_assume_nothing_of_addresses() -> None:
    """LLVM may use instructions that fail at an address with a smaller alignment than assumed."""
    x = te.placeholder((64,), name="x")
    schedule = s_tir.Schedule(te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1)]))
    schedule.vectorize(schedule.get_loops(schedule.get_sblock("compute"))[0])

    def assumed(pipeline: str) -> bool:
        compiled = tvm.compile(schedule.mod, target="llvm", tir_pipeline=pipeline)
        return "align 64" in compiled.mod.inspect_source("ll")

    assert assumed("default")
    assert not assumed(build.PIPELINE)
