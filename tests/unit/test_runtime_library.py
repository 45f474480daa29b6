"""Tests that the runtime library works without TVM.

The library must give the same results as `GraphModule`, and refuse the same files and inputs.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tvm_interop
from tests import nets
from tests.native_runtime import (
    BAD_ARTIFACT,
    EXECUTION,
    INVALID_ARGUMENT,
    SUBMIT,
    UNSUPPORTED,
    NativeModel,
    RuntimeLibraryError,
    ThreadPool,
    library,
    library_path,
)
from tests.served import perceptron
from tests.unit.test_onednn import needs_onednn
from tvm_interop.execution.open_instance import open_instance
from tvm_interop.machine.cpu_features import host_features
from tvm_interop.machine.library_files import ONEDNN
from tvm_interop.program.host_memory import aligned_copy, aligned_empty

NETS = {
    "branches": nets.branches,
    "attention": nets.attention,
    "norms": nets.norms,
    "split": nets.split,
    "inception": nets.inception_like,
    "float16": lambda: nets.in_float16(nets.branches()),
}


as_shipped = pytest.mark.skipif(
    "TVM_INTEROP_LIBRARY" in os.environ, reason="another build of the library is tested"
)


@pytest.fixture(autouse=True)
def _onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_INTEROP_ONEDNN_LIBRARY", ONEDNN.find())


def saved(net: onnx.ModelProto, path: Path, **options: Any) -> Path:
    """Compile `net` into the file `path`, and return the path."""
    options = {"scheduler": "greedy", "keep_slower": True, "streams": 2} | options
    tvm_interop.compile(net, latency_db=":memory:", **options).save(path)
    return path


def by_tvm_ffi(path: Path, inputs: dict[str, np.ndarray], shape: int = 0) -> list[np.ndarray]:
    """Return the results of the executor that Python makes from the plan and the weights, as it
    does for compilations and measurements."""
    artifact = tvm_interop.load(path)
    instance = open_instance([artifact, *artifact.others][shape])
    for port in instance.inputs:
        instance.write(port.value, inputs[port.name])
    instance.run()
    return [instance.read(port.value).copy() for port in instance.outputs]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    """Check that arrays have the same bits."""
    assert [(a.shape, a.dtype) for a in one] == [(b.shape, b.dtype) for b in other]
    assert [a.tobytes() for a in one] == [b.tobytes() for b in other]


@pytest.fixture(scope="module")
def branches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(nets.branches(), tmp_path_factory.mktemp("native") / "model.tar")


def inputs_of(model: NativeModel, seed: int = 3) -> list[np.ndarray]:
    """Random inputs in aligned memory."""
    rng = np.random.default_rng(seed)
    made = []
    for _, dtype, shape in model.infos("input"):
        made.append(aligned_empty(shape, dtype))
        made[-1][...] = (rng.standard_normal(shape) * 4).astype(dtype)
    return made


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("providers", [["tvm"], None], ids=["tvm", "all"])
def test_it_gives_the_same_bits(name: str, providers: list[str] | None, tmp_path: Path) -> None:
    net = NETS[name]()
    path = saved(net, tmp_path / "model.tar", providers=providers)
    model = NativeModel(path)
    types = [dtype for _, dtype, _ in model.infos("input")]
    feeds = {
        each: array.astype(dtype)
        for (each, array), dtype in zip(nets.feeds(net).items(), types, strict=True)
    }
    expected = by_tvm_ffi(path, feeds)
    assert [each[0] for each in model.infos("input")] == list(feeds)
    arrays = [aligned_copy(array) for array in feeds.values()]
    for _ in range(3):
        same(model.run(*arrays), expected)
    same(model.run_on_own_buffers(*arrays), expected)
    same(model.run(*arrays), expected)


def test_every_batch_size(tmp_path: Path) -> None:
    path = tmp_path / "model.tar"
    perceptron().save(path)
    for shape, size in enumerate([1, 2, 4]):
        model = NativeModel(path, shape=shape)
        assert library().tvi_model_num_shapes(model.model) == 3
        assert library().tvi_model_batch_size(model.model, shape) == size
        (array,) = inputs_of(model)
        assert array.shape[0] == size
        ((name, *_),) = model.infos("input")
        same(model.run(array), by_tvm_ffi(path, {name: array}, shape))
    with pytest.raises(RuntimeLibraryError, match="no shape 3; the model has 3") as caught:
        NativeModel(path, shape=3)
    assert caught.value.status == INVALID_ARGUMENT


def test_memory_that_is_not_aligned_is_copied(branches: Path) -> None:
    model = NativeModel(branches)
    arrays = inputs_of(model)
    expected = model.run(*arrays)

    def shifted(array: np.ndarray) -> np.ndarray:
        memory = np.zeros(array.nbytes + 65, np.uint8)
        begin = (1 - memory.ctypes.data) % 64
        view = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        view[...] = array
        return view

    made = model.run(*map(shifted, arrays), outputs=[shifted(array) for array in expected])
    same(made, expected)
    same(model.run(*arrays), expected)


def test_outputs_that_share_memory_with_inputs(tmp_path: Path) -> None:
    """The first output is written before the input has been read completely."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 64))
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (4, 64)) for n in ("a", "b")]
    weight = helper.make_tensor("w", TensorProto.FLOAT, (64, 64), np.eye(64).ravel() * 2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("MatMul", ["m", "w"], ["b"]),
    ]
    graph = helper.make_graph(nodes, "net", [x], outputs, [weight])
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model = NativeModel(saved(net, tmp_path / "model.tar", scheduler="sequential"))
    (array,) = inputs_of(model)
    first, second = model.run(array)
    np.testing.assert_array_equal(first, array * 2)
    np.testing.assert_array_equal(second, array * 4)
    for target in range(2):
        own = aligned_copy(array.copy())
        places = [aligned_empty(own.shape, own.dtype) for _ in range(2)]
        places[target] = own
        same(model.run(own, outputs=places), [first, second])


def test_outputs_that_are_inputs_or_the_same_tensor(tmp_path: Path) -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 32))
    names = ("a", "b", "c")
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 32)) for n in names]
    nodes = [
        helper.make_node("Identity", ["x"], ["a"]),
        helper.make_node("Relu", ["x"], ["b"]),
        helper.make_node("Identity", ["b"], ["c"]),
    ]
    graph = helper.make_graph(nodes, "net", [x], outputs)
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model = NativeModel(saved(net, tmp_path / "model.tar"))
    (array,) = inputs_of(model)
    expected = [array, np.maximum(array, 0), np.maximum(array, 0)]
    same(model.run(array), expected)
    same(model.run_on_own_buffers(array), expected)


def test_times_of_operators(branches: Path) -> None:
    model = NativeModel(branches)
    plan = tvm_interop.load(branches).plan
    times = model.profile()
    assert sorted(time.name.decode() for time in times) == sorted(o.name for o in plan.operators)
    assert all(0 <= time.start_ns <= time.end_ns for time in times)
    assert {time.stream for time in times} == set(range(len(plan.streams)))
    assert library().tvi_model_num_threads(model.model, 0) == len(plan.streams)


def test_many_threads_share_a_model(branches: Path) -> None:
    model = NativeModel(branches)
    arrays = inputs_of(model)
    expected = model.run(*arrays)
    wrong: list[int] = []

    def work() -> None:
        own = NativeModel(branches)
        for i in range(50):
            made = own.run(*arrays)
            if [a.tobytes() for a in made] != [b.tobytes() for b in expected]:
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_model_runs_on_the_programs_threads(tmp_path: Path) -> None:
    """This process has helper threads already, so a new process makes the instance."""
    program = (
        "import os, sys, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tests.native_runtime import NativeModel, ThreadPool\n"
        "from tests.unit.test_runtime_library import inputs_of\n"
        "threads_now = lambda: len(os.listdir('/proc/self/task'))\n"
        "with ThreadPoolExecutor(2) as executor:\n"
        "    list(executor.map(lambda _: time.sleep(0.1), range(2)))\n"
        "    before = threads_now()\n"
        "    model = NativeModel(sys.argv[1], pool=ThreadPool.of(executor, 2))\n"
        "    all_made = [model.run(*inputs_of(model)) for _ in range(100)]\n"
        "    print(len(model.profile()), threads_now() - before)\n"
        "    expected = NativeModel(sys.argv[1]).run(*inputs_of(model))\n"
        "    for made in all_made:\n"
        "        assert [a.tobytes() for a in made] == [a.tobytes() for a in expected]\n"
        "    print(threads_now() - before)\n"
        "    del model\n"
    )
    path = saved(nets.inception_like(), tmp_path / "model.tar")
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    operators, started, started_without_pool = map(int, done.stdout.split())
    assert operators == len(tvm_interop.load(path).plan.operators)
    assert started == 0
    assert started_without_pool > 0


def test_a_wrong_pool_is_refused(branches: Path) -> None:
    model = NativeModel(branches)
    with ThreadPoolExecutor(1) as executor:
        right = ThreadPool.of(executor, 1)
        wrong = {
            "`pool` is NULL": None,
            "`struct_size` is 3; set it to sizeof(tvi_thread_pool)": ThreadPool(
                3, None, 1, right.submit
            ),
            "`submit` of the pool is NULL": ThreadPool(right.struct_size, None, 1, SUBMIT()),
            "`num_threads` of the pool is -1; it must be from 0 to 4095": ThreadPool(
                right.struct_size, None, -1, right.submit
            ),
        }
        for message, pool in wrong.items():
            with pytest.raises(RuntimeLibraryError, match=re.escape(message)) as caught:
                model.open_on_pool(pool)
            assert caught.value.status == INVALID_ARGUMENT


def test_the_digest_must_be_right(branches: Path) -> None:
    digest = hashlib.sha256(branches.read_bytes()).hexdigest()
    NativeModel(branches, sha256=digest.encode())
    NativeModel(branches, sha256=digest.upper().encode())
    with pytest.raises(RuntimeLibraryError, match="it is not the file that you mean") as caught:
        NativeModel(branches, sha256=b"0" * 64)
    assert caught.value.status == BAD_ARTIFACT
    assert str(branches) in str(caught.value)
    with pytest.raises(RuntimeLibraryError, match="give 64 hexadecimal digits") as caught:
        NativeModel(branches, sha256=b"abc")
    assert caught.value.status == INVALID_ARGUMENT


def test_files_that_are_no_artifacts(branches: Path, tmp_path: Path) -> None:
    whole = branches.read_bytes()
    path = tmp_path / "model.tar"
    copy = "copy the file again, or make an artifact with `tvm-interop compile`"
    for data, message, advice in (
        (b"", "truncated or not an artifact", copy),
        (b"x" * 2000, "truncated or not an artifact", copy),
        (whole[: len(whole) // 2], "truncated", copy),
        (whole.replace(b'"cpu:0"', b'"cpu:1"'), "is damaged", "compile the model again"),
    ):
        path.write_bytes(data)
        with pytest.raises(RuntimeLibraryError, match=message) as caught:
            NativeModel(path)
        assert caught.value.status == BAD_ARTIFACT
        assert str(caught.value).endswith(f"; {advice}")
        with pytest.raises(tvm_interop.ArtifactError, match=message) as python:
            tvm_interop.load(path)
        assert str(python.value).endswith(f"; {advice}")
    for missing in (tmp_path / "none.tar", tmp_path):
        with pytest.raises(RuntimeLibraryError, match=f"{missing}.*; (give|make) "):
            NativeModel(missing)


def test_kernels_of_another_cpu_are_refused(branches: Path, tmp_path: Path) -> None:
    artifact = tvm_interop.load(branches)
    artifact.manifest = msgspec.structs.replace(artifact.manifest, cpu_features=("avx9",))
    artifact.save(tmp_path / "model.tar")
    with pytest.raises(
        RuntimeLibraryError, match="instructions that this machine lacks: avx9"
    ) as e:
        NativeModel(tmp_path / "model.tar")
    assert e.value.status == UNSUPPORTED


def test_it_knows_this_cpu(branches: Path, tmp_path: Path) -> None:
    artifact = tvm_interop.load(branches)
    artifact.manifest = msgspec.structs.replace(artifact.manifest, cpu_features=host_features())
    artifact.save(tmp_path / "model.tar")
    NativeModel(tmp_path / "model.tar")


@needs_onednn
def test_without_the_kernel_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model runs in a process of its own, because a loaded library stays loaded."""
    path = saved(nets.inception_like(), tmp_path / "model.tar")
    assert any(op.library for op in tvm_interop.load(path).plan.operators)
    monkeypatch.setenv("TVM_INTEROP_ONEDNN_LIBRARY", str(tmp_path / "none.so"))
    program = (
        "import sys\n"
        "from tests.native_runtime import NativeModel, RuntimeLibraryError, library\n"
        "from tests.unit.test_runtime_library import inputs_of\n"
        "model = NativeModel(sys.argv[1])\n"
        "print(library().tvi_model_warning(model.model).decode())\n"
        "made = model.run(*inputs_of(model))\n"
        "print(len(made))\n"
        "try:\n"
        "    NativeModel(sys.argv[1], needs_onednn=1)\n"
        "except RuntimeLibraryError as error:\n"
        "    print(error.status, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    warning, count, refusal = done.stdout.splitlines()
    assert "none.so" in warning
    assert "TVM's kernels run, one after the other" in warning
    assert count == "1"
    assert refusal.startswith(f"{UNSUPPORTED} ")


FAILING = """
import sys
if sys.argv[2] == "before":
    import tvm
from tests.native_runtime import NativeModel, RuntimeLibraryError
from tests.unit.test_runtime_library import inputs_of
model = NativeModel(sys.argv[1])
if sys.argv[2] == "after":
    import tvm
try:
    model.run(*inputs_of(model))
except RuntimeLibraryError as error:
    print(error.status, error)
print("----")
if sys.argv[2] != "without":
    import tvm_interop
    from tvm_interop.execution.open_instance import open_instance
    instance = open_instance(tvm_interop.load(sys.argv[1]))
    try:
        instance.run()
    except tvm_interop.ExecutionError as error:
        print(error)
"""


@pytest.mark.parametrize("tvm", ["before", "after", "without"])
def test_a_kernel_that_fails_says_why(branches: Path, tmp_path: Path, tvm: str) -> None:
    """Errors of TVM's runtime and of this library are kept separately, even if both are in one
    process."""
    artifact = saved_with_a_wrong_kernel(tmp_path / "model.tar")
    done = subprocess.run(
        [sys.executable, "-c", FAILING, str(artifact), tvm],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    native, _, by_python = done.stdout.partition("\n----\n")
    status, _, text = native.partition(" ")
    assert int(status) == EXECUTION
    assert re.match(r"operator `.*` failed: .*mismatch", text, re.IGNORECASE)
    assert by_python.strip() == ("" if tvm == "without" else text.strip())


def saved_with_a_wrong_kernel(path: Path) -> Path:
    """An artifact with a kernel that is made for tensors of another shape."""
    artifact = tvm_interop.compile(
        nets.branches(), scheduler="sequential", providers=["tvm"], latency_db=":memory:"
    )
    one, other = [op for op in artifact.plan.operators if len(op.inputs) == 1][:2]
    assert one.kernel != other.kernel
    operators = tuple(
        msgspec.structs.replace(op, kernel=other.kernel) if op.name == one.name else op
        for op in artifact.plan.operators
    )
    artifact.plan = msgspec.structs.replace(artifact.plan, operators=operators)
    artifact.save(path)
    return path


def test_only_the_interface_is_exported() -> None:
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", library_path()], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = {line.split()[-1] for line in lines}
    header = (Path(__file__).parents[2] / "runtime/include/tvm_interop/runtime.h").read_text()
    assert names == set(re.findall(r"\btvi_\w+(?=\()", header))


@as_shipped
def test_it_needs_the_c_library_alone() -> None:
    needed = subprocess.run(
        ["readelf", "-d", library_path()], capture_output=True, text=True, check=True
    ).stdout
    names = set(re.findall(r"NEEDED.*\[(.*?)\.so", needed))
    assert names <= {
        "libc",
        "libm",
        "libstdc++",
        "libgcc_s",
        "libdl",
        "libpthread",
        "ld-linux-x86-64",
    }


@as_shipped
def test_it_is_small(tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, library_path()], check=True)
    assert stripped.stat().st_size <= 2**20


def test_older_artifacts(tmp_path: Path) -> None:
    """The library still reads old artifacts.

    Artifacts of version 1 keep their weights in a file of NumPy's format.
    """
    for packed in sorted((Path(__file__).parents[1] / "data" / "artifacts").glob("*.tar.xz")):
        path = tmp_path / packed.stem
        path.write_bytes(lzma.decompress(packed.read_bytes()))
        model = NativeModel(path)
        arrays = inputs_of(model)
        names = [name for name, *_ in model.infos("input")]
        same(model.run(*arrays), by_tvm_ffi(path, dict(zip(names, arrays, strict=True))))
