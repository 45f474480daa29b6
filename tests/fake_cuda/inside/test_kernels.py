"""Compiles TVM's kernels, and lets TVM load and launch them under the fake CUDA."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import tvm
import tvm_ffi
from tvm import te

from tests.fake_cuda.fake_gpu import DISPATCHES
from tvm_interop import Schedule
from tvm_interop._native import cuda as _cuda
from tvm_interop.execution.cuda import CudaInstance
from tvm_interop.kernels.build_cuda import build_cuda_kernels, cuda_target
from tvm_interop.kernels.cuda_schedule import DefaultCUDASchedule
from tvm_interop.plan.make import make_plan
from tvm_interop.program.program import Operator, Program, Value

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def doubling() -> tvm.IRModule:
    x = te.placeholder((100,), "float32", name="x")
    y = te.compute((100,), lambda i: x[i] * 2.0, name="y")
    func = te.create_prim_func([x, y]).with_attr("global_symbol", "double")
    return DefaultCUDASchedule(cuda_target(("sm_90",)))(tvm.IRModule({"double": func}))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    return build_cuda_kernels(doubling(), path, ("sm_90",))


@pytest.fixture
def without_tvm_cuda() -> Iterator[None]:
    """TVM without its CUDA runtime, as on a machine without a driver."""
    name = "ffi.Module.create.cuda"
    create = tvm_ffi.get_global_func(name)
    tvm_ffi.remove_global_func(name)
    yield
    tvm_ffi.register_global_func(name, create)


@pytest.mark.usefixtures("without_tvm_cuda")
def test_the_library_is_the_same_without_tvms_cuda_runtime(library: Path, tmp_path: Path) -> None:
    """The module that we write has the same bytes as the module that TVM saves."""
    ours = build_cuda_kernels(doubling(), tmp_path / "kernels.so", ("sm_90",))
    assert _imports_of(ours) == _imports_of(library)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_tvms_kernels_run_on_the_planned_streams(
    dispatch: _cuda.Dispatch, library: Path, check_log: Callable[..., list[str]]
) -> None:
    names = ("a", "left", "right")
    program = Program(
        values=[Value(name, (100,), "float32") for name in ("x", *names)],
        operators=[
            Operator(n, "double", (i,), (o,))
            for n, i, o in zip(names, (0, 1, 1), (1, 2, 3), strict=True)
        ],
        inputs=(0,),
        outputs=(2, 3),
    )
    schedule = Schedule("by hand", names, streams=[[0, 1], [2]])
    plan = make_plan(program, schedule, device="cuda:0")
    instance = CudaInstance(plan, tvm.runtime.load_module(str(library)), {}, dispatch=dispatch)
    assert instance.dispatch == dispatch
    instance.run()
    del instance
    assert check_log() == []


def test_they_take_tensors_at_any_part_of_another(library: Path) -> None:
    """TVM's checks of arguments require no larger alignment than `GPU_PART_ALIGNMENT`."""
    kernel = tvm.runtime.load_module(str(library)).get_function("double", True)
    block = _cuda.make_memory(0, 2048)
    x, y = (_cuda.tensor_within(block, at, (100,), "float32") for at in (0, 1024 + 32))
    kernel(x, y)


def _imports_of(library: Path) -> bytes:
    """The section of a kernel library in which its host code finds the modules that it imports."""
    symbol = ctypes.c_char.in_dll(ctypes.CDLL(str(library)), "__tvm_ffi__library_bin")
    address = ctypes.addressof(symbol)
    nbytes = ctypes.c_uint64.from_address(address).value
    return ctypes.string_at(address, 8 + nbytes)
