"""Tests that buffers inside kernels become tensors of the plan, and that results stay the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx

from tests.nets import inception_like
from tests.workspaces import two_attentions
from tvm_interop import PlanError, Schedule, UnsupportedModelError
from tvm_interop.compiler.api import CompileOptions
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.kernels import cuda_schedule
from tvm_interop.kernels.build_cuda import build_cuda_kernels, kernels_with_workspace
from tvm_interop.lowering.lift_workspaces import lift_workspace, lift_workspaces
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.program import Operator, Program, Value

OPTIONS = CompileOptions("cuda", archs=["sm_90"])
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")


def row_sums() -> tirx.PrimFunc:
    """A kernel that doubles its input into its own buffer, and adds up the buffer's rows."""
    x = te.placeholder((8, 16), "float32", name="x")
    doubled = te.compute((8, 16), lambda i, j: x[i, j] * 2.0, name="doubled")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((8,), lambda i: te.sum(doubled[i, k], axis=k), name="y")
    return te.create_prim_func([x, y]).with_attr("global_symbol", "row_sums")


def side_by_side() -> Program:
    """Two operators with the kernel `row_sums`. One value already has the name of a workspace."""
    names = [("x", (8, 16)), ("a", (8,)), ("b", (8,)), ("a:doubled", (8, 16))]
    return Program(
        [Value(name, shape, "float32") for name, shape in names],
        [Operator("a", "row_sums", (0,), (1,)), Operator("b", "row_sums", (0,), (2,))],
        inputs=(0, 3),
        outputs=(1, 2),
        kernels=tvm.IRModule({"row_sums": row_sums()}),
    )


def test_a_workspace_is_an_argument_more() -> None:
    func = row_sums()
    lifted, buffers = lift_workspace(func)
    assert [param.name for param in lifted.params] == ["x", "y", "doubled"]
    assert [buffer.name for buffer in buffers] == ["doubled"]
    assert len(func.params) == 2  # The kernel `func` does not change.
    assert lift_workspace(lifted) == (lifted, [])
    x = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    y, workspace = np.zeros(8, np.float32), np.zeros((8, 16), np.float32)
    tensors = [tvm.runtime.tensor(array) for array in (x, y, workspace)]
    tvm.compile(tvm.IRModule({"row_sums": lifted}), target="llvm")["row_sums"](*tensors)
    np.testing.assert_allclose(tensors[1].numpy(), (2 * x).sum(axis=1), rtol=1e-5)
    # The kernel has written its intermediate results into the workspace.
    np.testing.assert_array_equal(tensors[2].numpy(), 2 * x)


def test_each_operator_gets_its_own() -> None:
    program = side_by_side()
    lifted = lift_workspaces(program)
    assert [op.outputs for op in lifted.operators] == [(1, 4), (2, 5)]
    assert [(v.name, v.shape) for v in lifted.values[4:]] == [
        ("a:doubled_2", (8, 16)),
        ("b:doubled", (8, 16)),
    ]
    assert kernels_with_workspace(program.kernels) == {"row_sums"}
    assert kernels_with_workspace(lifted.kernels) == set()
    assert len(program.values) == 4
    assert lift_workspaces(lifted) is lifted


def plan_of(streams: list[list[int]]) -> Plan:
    program = lift_workspaces(side_by_side())
    return make_plan(program, Schedule("by hand", ("a", "b"), streams=streams), device="cuda:0")


def test_it_lives_as_long_as_its_operator() -> None:
    in_turn, at_once = plan_of([[0, 1]]), plan_of([[0], [1]])
    offset = {v.name: v.offset for v in in_turn.values}
    assert offset["a:doubled_2"] == offset["b:doubled"] == 0
    assert in_turn.arena_bytes == 512
    offset = {v.name: v.offset for v in at_once.values}
    assert abs((offset["a:doubled_2"] or 0) - (offset["b:doubled"] or 0)) == 512
    assert at_once.arena_bytes == 1024


def test_operators_that_share_one_side_by_side_are_caught() -> None:
    plan = plan_of([[0], [1]])
    values = tuple(
        msgspec.structs.replace(v, offset=0) if v.storage == "arena" else v for v in plan.values
    )
    broken = msgspec.structs.replace(plan, values=values)
    with pytest.raises(
        PlanError, match=r"`a` writes and `b` writes bytes .* nothing orders the two"
    ):
        read_plan(broken.to_json())


@needs_nvcc
def test_kernels_of_tvms_that_need_one(tmp_path: Path) -> None:
    """The workspaces in TVM's kernels are found and become tensors, and the changed kernels
    compile."""
    program = Compilation(two_attentions(), OPTIONS).program
    lifted = [v for v in program.values if ":" in v.name]
    assert len(lifted) == 8
    build_cuda_kernels(program.kernels, tmp_path / "kernels.so", ("sm_90",))


def test_one_within_the_loops_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer within loops may belong to one thread, or be used again in each iteration."""

    def keep(func: tirx.PrimFunc, target: object, name: str) -> tirx.PrimFunc:
        return within_loops(func)

    monkeypatch.setattr(cuda_schedule, "schedule_kernel", keep)
    with pytest.raises(UnsupportedModelError, match=r"`a1/Conv`.*in memory that TVM lends"):
        Compilation(inception_like(), OPTIONS)


def within_loops(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A copy of `func` in which an inner block allocates the buffers."""
    root = func.body.block
    scratch = tirx.decl_buffer((4,), "float32", name="scratch")
    inner = s_tir.SBlock([], [], [], "inner", root.body, None, [*root.alloc_buffers, scratch])
    realized = s_tir.SBlockRealize([], tirx.const(True), inner)
    outer = s_tir.SBlock([], [], [], "root", realized)
    body = s_tir.SBlockRealize([], tirx.const(True), outer)
    return tirx.PrimFunc(func.params, body, func.ret_type, func.attrs)
