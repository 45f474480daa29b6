"""Tests artifacts that the native library loads: their fields and their runs."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import TensorProto, helper

import tvm_interop
from tests import nets
from tests.nets import two_inputs_feed as feed
from tests.random_graphs.judge import moved
from tests.unit.test_onednn import needs_onednn
from tvm_interop import Artifact, GraphModule, load
from tvm_interop._native import cpu as _cpu
from tvm_interop._native import runtime as _runtime
from tvm_interop.artifact import artifact as artifact_module
from tvm_interop.execution.cpu import Instance
from tvm_interop.execution.native import NativeInstance


def outputs(module: GraphModule, seed: int = 0) -> list[bytes]:
    return [output.numpy().tobytes() for output in module(**feed(seed))]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("native") / "model.tar"
    return tvm_interop.compile(
        nets.two_inputs(), scheduler="greedy", keep_slower=True, streams=2, out=path
    )


@pytest.fixture
def path(compiled: Artifact) -> Path:
    assert compiled.path is not None
    return compiled.path


def test_what_was_compiled_and_what_was_loaded_give_the_same_bits(
    compiled: Artifact, path: Path
) -> None:
    ours, loaded = GraphModule(compiled), GraphModule(path)
    assert isinstance(ours._instance, Instance)
    assert isinstance(loaded._instance, NativeInstance)
    for seed in range(3):
        assert outputs(ours, seed) == outputs(loaded, seed)


def test_fields_are_read_when_they_are_used(compiled: Artifact, path: Path) -> None:
    loaded = load(path)
    module = GraphModule(loaded)
    assert outputs(module) == outputs(GraphModule(compiled))
    assert "plan" not in vars(loaded)
    assert loaded.plan == compiled.plan
    assert loaded.schedule == compiled.schedule
    assert loaded.native is not None
    with pytest.raises(AttributeError, match="an Artifact has no attribute `plam`"):
        loaded.plam  # noqa: B018


def test_a_changed_artifact_runs_as_it_is_now(compiled: Artifact, path: Path) -> None:
    loaded = load(path)
    before = outputs(GraphModule(loaded))
    loaded.weights = {v: np.zeros_like(array) for v, array in loaded.weights.items()}
    assert loaded.native is None
    assert outputs(GraphModule(loaded)) != before
    assert outputs(GraphModule(load(path))) == before


def test_weights_that_are_changed_in_place_count(path: Path) -> None:
    loaded = load(path)
    before = outputs(GraphModule(loaded))
    assert loaded.plan.operators  # Reading a plan does not drop the native model.
    assert loaded.native is not None
    for array in loaded.weights.values():
        array[...] = 0
    assert outputs(GraphModule(loaded)) != before
    assert outputs(GraphModule(load(path))) == before


def test_an_artifact_and_its_twin_without_warnings_share_what_was_read(path: Path) -> None:
    loaded = load(path)
    twin = loaded.at_home()
    assert not twin.from_elsewhere
    assert twin.plan is loaded.plan
    assert twin.native is loaded.native


@pytest.mark.parametrize("again", [copy.copy, lambda a: pickle.loads(pickle.dumps(a))])
def test_copies(again: Any, compiled: Artifact, path: Path) -> None:
    twin = again(load(path))
    assert twin.plan == compiled.plan
    assert outputs(GraphModule(twin)) == outputs(GraphModule(compiled))


def test_a_file_that_is_replaced_while_it_is_loaded(
    compiled: Artifact, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python has opened the old file, so the native library must not read the new file."""
    place, other = tmp_path / "model.tar", tmp_path / "other.tar"
    shutil.copy(path, place)
    tvm_interop.compile(nets.branches(), scheduler="sequential", out=other)

    def replace_and_load(*args: Any) -> _runtime.NativeModel:
        os.replace(other, place)
        return _runtime.NativeModel(*args)

    monkeypatch.setattr(artifact_module, "NativeModel", replace_and_load)
    loaded = load(place)
    assert loaded.plan == compiled.plan
    assert loaded.native is None
    assert outputs(GraphModule(loaded)) == outputs(GraphModule(compiled))


def test_weights_given_later_keep_inputs_and_memory(compiled: Artifact, path: Path) -> None:
    modules = [GraphModule(compiled), GraphModule(path)]
    name, index = next(iter(compiled.plan.weight_indices().items()))
    weight = np.full_like(compiled.weights[index], 0.5)
    params = tvm.runtime.save_param_dict({name: tvm.runtime.tensor(weight)})
    given = tvm_interop.aligned_empty((1, 6), "float32")
    bound = []
    for module in modules:
        module.set_input("image", feed()["image"])
        module.set_input_zero_copy("vector", given)
        bound.append(module.set_output_zero_copy("scores"))
        module.load_params(params)
    given[...] = feed()["vector"]
    for module in modules:
        module.run()
    assert bound[0].tobytes() == bound[1].tobytes()
    assert bound[0].any()


def test_memory_outlives_the_module(path: Path) -> None:
    module = GraphModule(path)
    module.run(**feed())
    array = module._instance.read(module._instance.outputs[0].value)
    kept = array.copy()
    del module
    gc.collect()
    np.testing.assert_array_equal(array, kept)


def test_a_profile_runs_on_the_memory_that_was_bound(path: Path) -> None:
    module = GraphModule(path)
    module.run(**feed())
    wanted = module.get_output("scores").numpy()
    bound = module.set_output_zero_copy("scores")
    bound[...] = 0
    rows = module.profile()
    assert len(rows) == len(module.plan.operators)
    assert all(row.end_us - row.start_us >= row.off_core_us >= 0 for row in rows)
    np.testing.assert_array_equal(bound, wanted)


def test_an_output_of_an_input_that_was_bound_and_then_set(path: Path) -> None:
    module = GraphModule(path)
    given = tvm_interop.aligned_empty((1, 6), "float32")
    given[...] = feed()["vector"]
    module.set_input_zero_copy("vector", given)
    module.run(image=feed()["image"])
    module.set_input("vector", feed(1)["vector"])  # The caller's memory does not change.
    np.testing.assert_array_equal(given, feed()["vector"])
    np.testing.assert_array_equal(module.get_input("vector").numpy(), feed(1)["vector"])


def test_a_model_without_operators_leaves_no_cores_idle(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    node = helper.make_node("Identity", ["x"], ["y"])
    net = helper.make_model(
        helper.make_graph([node], "same", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    artifact = tvm_interop.compile(net, out=tmp_path / "model.tar", latency_db=":memory:")
    assert not artifact.plan.operators
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (y_array,) = GraphModule(tmp_path / "model.tar")(np.ones(2, "float32"))
    np.testing.assert_array_equal(y_array, np.ones(2, "float32"))


def test_all_share_one_pool_of_threads(path: Path) -> None:
    before = tvm_interop.num_threads()
    try:
        tvm_interop.set_num_threads(3)
        assert _cpu.num_threads() == _runtime.num_threads() == 3
    finally:
        tvm_interop.set_num_threads(before)


def test_compiled_and_loaded_are_timed_in_one_run(compiled: Artifact, path: Path) -> None:
    modules = {"compiled": GraphModule(compiled), "loaded": GraphModule(path)}
    times = tvm_interop.measure_interleaved(modules, repeats=4)
    assert {name: us.shape for name, us in times.items()} == {"compiled": (4,), "loaded": (4,)}
    assert all((us > 0).all() for us in times.values())


@needs_onednn
def test_a_missing_library_in_a_process_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    tvm_interop.compile(nets.two_inputs(), "llvm", "lios", path, providers=["onednn"])
    program = (
        "import sys, logging\n"
        "logging.basicConfig()\n"
        "from tests.nets import two_inputs_feed as feed\n"
        "import numpy as np, tvm_interop\n"
        "module = tvm_interop.GraphModule(sys.argv[1])\n"
        "assert module.artifact.native.uses_fallback\n"
        "assert module.plan == module.artifact.fallback\n"
        "np.savez(sys.argv[2], *[output.numpy() for output in module(**feed())])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, path, tmp_path / "out.npz"],
        env=os.environ | {"TVM_INTEROP_ONEDNN_LIBRARY": "/none.so"},
        stderr=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    assert "compiled for kernel library `onednn`, which is missing here" in done.stderr
    module = GraphModule(path)
    with np.load(tmp_path / "out.npz") as found:
        for name, output in zip(found.files, module(**feed()), strict=True):
            np.testing.assert_allclose(found[name], output.numpy(), rtol=1e-5, atol=1e-6)


def test_a_run_on_the_callers_memory_copies_no_input(path: Path) -> None:
    module = GraphModule(path)
    given, wanted = feed(1), outputs(GraphModule(path), 1)
    for elements in range(16):
        shifted = {name: moved(array, elements) for name, array in given.items()}
        made = module.run_on(shifted, range(module.get_num_outputs()))
        assert [array.tobytes() for array in made.values()] == wanted
    # The module's own inputs were never written.
    assert not any(module.get_input(name).numpy().any() for name in given)


def test_a_run_on_the_callers_memory_changes_nothing_for_later_runs(path: Path) -> None:
    module, mine = GraphModule(path), feed(1)
    name = next(iter(mine))
    module.set_input(**feed(2))
    bound = moved(feed(3)[name], 1)
    module.set_input_zero_copy(name, bound)
    first = module.run_on(mine, [0])[0]
    kept = first.copy()
    module.run()
    expected = GraphModule(path)(**{**feed(2), name: bound})
    assert module.get_output(0).numpy().tobytes() == expected[0].numpy().tobytes()
    np.testing.assert_array_equal(first, kept)
    assert module.run_on(mine, [0])[0].tobytes() == kept.tobytes()


def test_inputs_that_are_not_contiguous_or_in_place_are_copied(path: Path) -> None:
    module, given = GraphModule(path), feed(1)
    scattered = {name: np.asfortranarray(array) for name, array in given.items()}
    bytewise = {}
    for name, array in given.items():
        memory = np.empty(array.nbytes + 1, np.uint8)
        bytewise[name] = np.ndarray(array.shape, array.dtype, memory, 1)
        bytewise[name][...] = array
    for inputs in (scattered, bytewise):
        made = module.run_on(inputs, [0])
        assert made[0].tobytes() == outputs(GraphModule(path), 1)[0]


def test_a_run_on_some_inputs_keeps_the_others(path: Path) -> None:
    module, given = GraphModule(path), feed(1)
    first, *others = given
    with pytest.warns(RuntimeWarning, match=f"its inputs `{others[0]}` were never set"):
        module.run_on({first: given[first]}, [0])
    module.set_input(**{name: given[name] for name in others})
    made = module.run_on({first: given[first]}, [0])
    assert made[0].tobytes() == outputs(GraphModule(path), 1)[0]


def test_a_module_is_not_timed_on_memory_that_was_lent(path: Path) -> None:
    """When `benchmark` is called, the caller may have freed the memory that an earlier run used. So
    a timed run uses the module's own memory."""
    module = GraphModule(path)
    module.set_input(**feed(2))
    module.run_on(feed(1), [0])
    module.benchmark(repeat=1, number=1)
    assert module.get_output(0).numpy().tobytes() == outputs(GraphModule(path), 2)[0]


def leaky(alpha: float) -> Artifact:
    """A model whose kernel has the same name for each slope `alpha`."""
    net = nets.Net()
    net.op("LeakyRelu", [net.input("x", [1, 8])], "y", alpha=alpha)
    return tvm_interop.compile(
        net.model("y"), scheduler="sequential", streams=1, providers=["tvm"],
        latency_db=":memory:",
    )  # fmt: skip


_DAEMON = """
import os, sys
import numpy as np
from tvm_interop import GraphModule

def run(module):
    module.run(x=-np.ones((1, 8), np.float32))
    print(module.get_output(0).numpy()[0, 0])

first = GraphModule("first.tar")
run(first)
os.closerange(3, 1000)
second = GraphModule("second.tar")
run(second)
run(first)
"""


def test_kernels_stay_apart_where_a_program_closes_all_descriptors(tmp_path: Path) -> None:
    """Programs that become daemons close all descriptors, whose numbers are then used again."""
    leaky(0.125).save(tmp_path / "first.tar")
    leaky(0.5).save(tmp_path / "second.tar")
    ran = subprocess.run(
        [sys.executable, "-c", _DAEMON], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["-0.125", "-0.5", "-0.125"], ran.stderr


def test_a_file_that_cannot_be_opened_leaves_one_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(artifact_module, "open", refuse, raising=False)
    with pytest.raises(tvm_interop.ArtifactError, match="Permission denied; give the path"):
        load(path)
    gc.collect()
    assert not unraisable
