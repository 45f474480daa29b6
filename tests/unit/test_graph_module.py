"""Tests `GraphModule`, which runs an artifact and has the methods of TVM's graph executor."""

from __future__ import annotations

import dataclasses
import resource
import threading
import warnings
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
import tvm

import tvm_interop
from tests.nets import inception_like, two_inputs
from tests.nets import two_inputs_feed as feed
from tvm_interop import GraphModule, InputError, LatencyTable
from tvm_interop._native import cpu as _runtime
from tvm_interop.compiler.api import Compilation, CompileOptions
from tvm_interop.contrib import graph_executor
from tvm_interop.program.host_memory import aligned_empty


@pytest.fixture(scope="module")
def artifact() -> tvm_interop.Artifact:
    return tvm_interop.compile(two_inputs(), scheduler="greedy", streams=2, keep_slower=True)


@pytest.fixture
def module(artifact: tvm_interop.Artifact) -> GraphModule:
    return GraphModule(artifact)


def expected(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(two_inputs().SerializeToString())
    return session.run(None, inputs)


def outputs(module: GraphModule) -> list[np.ndarray]:
    return [module.get_output(i).numpy() for i in range(module.get_num_outputs())]


def assert_right(module: GraphModule, inputs: dict[str, np.ndarray]) -> None:
    for got, want in zip(outputs(module), expected(inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_run_with_keywords(module: GraphModule) -> None:
    module.run(**feed())
    assert_right(module, feed())


def test_set_input_by_name_index_and_keyword(module: GraphModule) -> None:
    inputs = feed(1)
    module.set_input("image", inputs["image"])
    module.set_input(1, tvm.runtime.tensor(inputs["vector"]))
    module.run()
    assert_right(module, inputs)
    module.set_input(**feed(2))
    module.run()
    assert_right(module, feed(2))


def test_inputs_keep_their_values(module: GraphModule) -> None:
    module.run(**feed(1))
    module.run(vector=feed(2)["vector"])
    assert_right(module, {"image": feed(1)["image"], "vector": feed(2)["vector"]})


def test_what_there_is(module: GraphModule) -> None:
    assert module.get_num_inputs() == 2
    assert module.get_num_outputs() == 2
    assert module.get_input_index("vector") == 1
    assert module.get_input_index("nothing") == -1
    assert module.get_output_index("scores") == 1
    shapes, dtypes = module.get_input_info()
    assert shapes == {"image": (1, 4, 2, 2), "vector": (1, 6)}
    assert dtypes == {"image": "float32", "vector": "float32"}
    module.set_input(**feed(3))
    np.testing.assert_array_equal(module.get_input("vector").numpy(), feed(3)["vector"])


def test_outputs_are_copies(module: GraphModule) -> None:
    module.run(**feed(1))
    first = module.get_output(1)
    kept = first.numpy().copy()
    module.run(**feed(2))
    np.testing.assert_array_equal(first.numpy(), kept)
    assert not np.array_equal(module.get_output(1).numpy(), kept)


def test_output_into_memory_of_ones_own(module: GraphModule) -> None:
    module.run(**feed())
    want = module.get_output(1).numpy()
    array = np.empty((1, 16), "float32")
    assert module.get_output(1, out=array) is array
    np.testing.assert_array_equal(array, want)
    tensor = tvm.runtime.empty((1, 16), "float32")
    module.get_output(1, out=tensor)
    np.testing.assert_array_equal(tensor.numpy(), want)
    with pytest.raises(InputError, match=r"float32 of shape \(1, 16\)"):
        module.get_output(1, out=np.empty((16,), "float32"))
    with pytest.raises(InputError, match="no output 2"):
        module.get_output(2)


def test_zero_copy_reads_the_callers_memory(module: GraphModule) -> None:
    image = aligned_empty((1, 4, 2, 2), "float32")
    for seed in range(3):
        module.set_input_zero_copy("image", image)
        image[...] = feed(seed)["image"]
        module.set_input("vector", feed(seed)["vector"])
        module.run()
        assert_right(module, feed(seed))


def test_zero_copy_of_a_tvm_tensor_outlives_its_name(module: GraphModule) -> None:
    module.set_input(**feed(4))
    module.set_input_zero_copy("image", tvm.runtime.tensor(feed(4)["image"]))
    module.run()
    assert_right(module, feed(4))


def test_zero_copy_refuses_what_it_cannot_use(module: GraphModule) -> None:
    odd = np.zeros(17, "float32")[1:].reshape(1, 4, 2, 2)
    if odd.ctypes.data % 64 == 0:
        odd = np.zeros(18, "float32")[2:].reshape(1, 4, 2, 2)
    with pytest.raises(InputError, match="multiple of 64"):
        module.set_input_zero_copy("image", odd)
    transposed = aligned_empty((1, 4, 2, 2), "float32").transpose(0, 1, 3, 2)
    with pytest.raises(InputError, match="contiguous"):
        module.set_input_zero_copy("image", transposed)


def test_what_is_set_after_zero_copy_leaves_the_callers_memory_alone(module: GraphModule) -> None:
    image = aligned_empty((1, 4, 2, 2), "float32")
    image[...] = feed(0)["image"]
    module.set_input_zero_copy("image", image)
    module.run(**feed(1))
    assert_right(module, feed(1))
    np.testing.assert_array_equal(image, feed(0)["image"])
    image[...] = 0  # The module no longer reads the array.
    module.run()
    assert_right(module, feed(1))


def test_inputs_of_any_name() -> None:
    names = ["value", "key", "self", "params"]
    nodes = [onnx.helper.make_node("Concat", names, ["y"], axis=0)]
    values = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in names
    ]
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [4])
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", values, [y]),
        opset_imports=[onnx.helper.make_opsetid("", 20)],
    )
    artifact = tvm_interop.compile(model, scheduler="sequential", latency_db=":memory:")
    given = {name: np.array([i], "float32") for i, name in enumerate(names)}
    for module in (GraphModule(artifact), graph_executor.GraphModule(artifact)):
        module.run(**given)
        np.testing.assert_array_equal(module.get_output(0).numpy(), [0, 1, 2, 3])
        module.set_input("key", np.array([7], "float32"))
        module.set_input(value=np.array([5], "float32"))
        module.run()
        np.testing.assert_array_equal(module.get_output(0).numpy(), [5, 7, 2, 3])


def test_key_and_value_by_name_as_the_graph_executor_had_them(module: GraphModule) -> None:
    module.set_input(**feed(2))
    module.set_input(key="image", value=feed(3)["image"])
    module.run()
    assert_right(module, {**feed(2), "image": feed(3)["image"]})
    with pytest.raises(InputError, match="no input `value`"):
        module.run(value=feed(3)["image"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("picture", np.zeros((1, 6), "float32"), "no input `picture`; it has `image`"),
        (2, np.zeros((1, 6), "float32"), "no input `2`"),
        ("vector", np.zeros((6,), "float32"), r"shape \(1, 6\).*got float32 of shape \(6,\)"),
        ("vector", np.zeros((1, 6), "float64"), "`vector` must be float32 of.*got float64"),
        ("vector", None, "`vector` was given no value"),
    ],
)
def test_wrong_inputs_are_named(
    module: GraphModule, key: str | int, value: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        module.set_input(key, value)


def test_a_wrong_input_changes_no_other(module: GraphModule) -> None:
    module.run(**feed(1))
    with pytest.raises(InputError):
        module.set_input(image=feed(2)["image"], vector=np.zeros(3, "float32"))
    module.run()
    assert_right(module, feed(1))


def test_load_params_replaces_weights(artifact: tvm_interop.Artifact) -> None:
    module = GraphModule(artifact)
    module.run(**feed())
    before = outputs(module)
    weights = {v.name: i for i, v in enumerate(artifact.plan.values) if v.storage == "weight"}
    zeros = {n: tvm.runtime.tensor(np.zeros_like(artifact.weights[i])) for n, i in weights.items()}
    module.load_params(tvm.runtime.save_param_dict(zeros))
    module.run(**feed())
    assert all(not output.any() for output in outputs(module))
    # The artifact keeps its own weights, so another module is not affected.
    other = GraphModule(artifact)
    other.run(**feed())
    assert all(map(np.array_equal, outputs(other), before))
    with pytest.raises(InputError, match="no weight `nothing`"):
        module.load_params(
            tvm.runtime.save_param_dict({"nothing": tvm.runtime.tensor(np.zeros(1))})
        )


def test_benchmark_gives_seconds(module: GraphModule) -> None:
    result = module.benchmark(tvm.cpu(), repeat=3, number=2, **feed())
    assert len(result.results) == 3
    assert 0 < result.min <= result.median <= result.max
    assert module.benchmark(repeat=2, number=1, min_repeat_ms=5).mean > 0
    assert module.benchmark(repeat=2, number=2, end_to_end=True).mean > 0
    with pytest.raises(tvm_interop.DeviceError, match="CPU"):
        module.benchmark(tvm.cuda())


def test_profile_has_a_row_an_operator(module: GraphModule) -> None:
    module.set_input(**feed())
    rows = module.profile()
    assert {row.name for row in rows} == {op.name for op in module.plan.operators}
    ended = {row.name: row.end_us for row in rows}
    for op in module.plan.operators:
        row = next(r for r in rows if r.name == op.name)
        assert row.stream == op.stream
        for wait in op.waits:
            assert ended[module.plan.operators[wait].name] <= row.start_us
    assert_right(module, feed())


def test_ten_thousand_runs_with_alternating_inputs() -> None:
    """Each run returns its own output, not the output of an earlier run, and no memory leaks."""
    artifact = tvm_interop.compile(
        inception_like(size=6, channels=8), scheduler="greedy", streams=2, keep_slower=True
    )
    module = GraphModule(artifact)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((1, 8, 6, 6)).astype("float32") for _ in range(2)]
    expected = []
    for x in inputs:
        module.run(x=x)
        expected.append(module.get_output(0).numpy())
    assert not np.array_equal(*expected)
    for i in range(1000):
        module.run(x=inputs[i % 2])
        module.get_output(0)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(10_000):
        module.run(x=inputs[i % 2])
        assert np.array_equal(module.get_output(0).numpy(), expected[i % 2])
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    # If the 40 bytes of each run's output were kept, `grown_kib` would be above 2048.
    assert grown_kib < 1024


def test_too_few_cores_are_told_of() -> None:
    too_many = _runtime.num_threads() + 1
    compilation = Compilation(inception_like(), CompileOptions(latency_db=":memory:"))
    latency = LatencyTable([1.0] * compilation.graph.num_ops)
    schedule = compilation.schedule("greedy", latency, streams=too_many)
    if schedule.num_streams < too_many:
        pytest.skip(f"the network has fewer branches than {too_many}")
    with pytest.warns(RuntimeWarning, match=f"compiled for {too_many} cores"):
        module = GraphModule(compilation.artifact(schedule))
    module.run(x=np.zeros((1, 8, 14, 14), "float32"))
    assert np.isfinite(module.get_output(0).numpy()).all()


@pytest.mark.parametrize("cores", [1, 2])
def test_idle_cores_are_told_of(tmp_path: Path, cores: int) -> None:
    """A module warns about idle cores if its artifact comes from a file, because the file may come
    from a machine with fewer cores.

    An artifact that was compiled in this process gives no warning about idle cores, because its
    user has chosen the number of cores.
    """
    path, before = tmp_path / "model.tar", tvm_interop.num_threads()
    tvm_interop.set_num_threads(2)
    try:
        own = tvm_interop.compile(
            inception_like(), scheduler="sequential", streams=1, threads=cores, out=path,
            latency_db=":memory:",
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            GraphModule(own)
            tvm_interop.Session(path, threads=cores).close()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            GraphModule(path)
        told = [str(warning.message) for warning in caught]
        assert any("compiled for 1 core, and this process may use 2" in t for t in told) == (
            cores == 1
        ), told
    finally:
        tvm_interop.set_num_threads(before)


def test_time_without_a_core_is_told() -> None:
    compilation = Compilation(inception_like(), CompileOptions(latency_db=":memory:"))
    latency = LatencyTable([1.0] * compilation.graph.num_ops)
    module = GraphModule(compilation.artifact(compilation.schedule("greedy", latency, streams=2)))
    assert len(module.plan.streams) == 2
    module.run(x=np.zeros((1, 8, 14, 14), "float32"))
    before = tvm_interop.num_threads()
    tvm_interop.set_num_threads(1)
    try:
        rows = module.profile()
    finally:
        tvm_interop.set_num_threads(before)
    assert {row.thread for row in rows} == {0}
    assert all(row.lost_us >= 0.0 for row in rows)
    # One thread runs both streams, so one stream has to wait while the other runs.
    assert max(row.lost_us for row in rows) >= min(row.end_us - row.start_us for row in rows)


def test_a_plan_that_needs_more_memory_than_there_is(artifact: tvm_interop.Artifact) -> None:
    plan = msgspec.structs.replace(artifact.plan, arena_bytes=2**60)
    with pytest.raises(tvm_interop.DeviceError, match=r"needs 1073741824.0 GiB .* smaller inputs"):
        GraphModule(dataclasses.replace(artifact, plan=plan))


def test_two_modules_in_two_threads(artifact: tvm_interop.Artifact) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            module = GraphModule(artifact)
            for _ in range(200):
                module.run(**feed(seed))
            assert_right(module, feed(seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_plan_that_names_a_kernel_which_is_not_there() -> None:
    """A plan names a missing kernel if it is combined with the kernels of another model."""
    artifact = tvm_interop.compile(two_inputs(), scheduler="sequential", providers=["tvm"])
    operators = [msgspec.structs.replace(op, kernel="nothing") for op in artifact.plan.operators]
    plan = msgspec.structs.replace(artifact.plan, operators=operators)
    with pytest.raises(tvm_interop.ArtifactError, match="the kernel library has no `nothing`"):
        GraphModule(dataclasses.replace(artifact, plan=plan))
