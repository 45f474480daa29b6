"""Tests that a compiled model runs without TVM's Python package, whose import takes seconds."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tvm_interop
from tests.nets import branches
from tests.served import perceptron
from tvm_interop.serving.server.model import Model

_RUN = """
import sys
import numpy as np
import tvm_interop
from tvm_interop import GraphModule, Session

path, x = sys.argv[1], np.load(sys.argv[2])
module = GraphModule(path)
module.run(x)
output = module.get_output(0)
assert type(output).__name__ == "HostTensor", type(output)
assert type(output.numpy()) is np.ndarray
again = np.zeros_like(output.numpy())
assert output.copyto(again) is again
output.copyfrom(again)
module.set_input(0, output.copyfrom(x) if output.shape == x.shape else x)
[found] = Session(path).run(None, {"x": x})
assert np.array_equal(again, found)
np.save(sys.argv[3], found)
for name in ("tvm", "tvm_ffi", "torch", "onnx", "msgspec"):
    assert name not in sys.modules, name

import tvm

# TVM finds that its runtime is loaded. TVM's error keeps its name, and our error keeps its class.
module.run(x)
assert isinstance(module.get_output(0), tvm.runtime.Tensor)
np.testing.assert_array_equal(np.asarray(module.get_output(0)), found)
from tvm_interop._native import passes

graph = passes.graph_make(["one"], np.zeros(0, np.int64).tobytes())
try:
    passes.heft(graph, np.ones(1).tobytes(), b"", 0, False)
except tvm_interop.ScheduleError as error:
    assert "`gpus` is 0" in str(error)
else:
    raise AssertionError("no GPUs were taken")
"""


@pytest.mark.parametrize("scheduler", ["sequential", "ios"])
def test_a_compiled_model_runs_without_importing_tvm(tmp_path: Path, scheduler: str) -> None:
    artifact = tvm_interop.compile(branches(), scheduler=scheduler, streams=2)
    path, x_path, y_path = (tmp_path / name for name in ("model.tar", "x.npy", "y.npy"))
    artifact.save(path)
    x = np.linspace(-1, 1, 512, dtype="float32").reshape(1, 8, 8, 8)
    np.save(x_path, x)
    command = [sys.executable, "-c", _RUN, str(path), str(x_path), str(y_path)]
    subprocess.run(command, check=True, timeout=300)
    module = tvm_interop.GraphModule(artifact)
    module.run(x)
    np.testing.assert_array_equal(np.load(y_path), module.get_output(0).numpy())


def test_a_model_is_served_without_tvm(tmp_path: Path) -> None:
    """Neither TVM, nor tvm-ffi, nor PyTorch is imported to load and run a model."""
    perceptron().save(tmp_path / "net.tar")
    script = (
        "import sys; from tvm_interop import load; "
        "from tvm_interop.serving.server.executor import Executor; "
        "from tvm_interop.serving.server.model import Model; "
        "import tvm_interop.serving.server.server; "
        "model = Model('net', load(sys.argv[1]), 2); model.run_once(1, model.sizes[0]); "
        "print(model.memory, sorted({'tvm', 'tvm_ffi', 'onnx', 'torch'} & set(sys.modules)))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "net.tar")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    read_in_python = tvm_interop.load(tmp_path / "net.tar")
    assert read_in_python.weights
    assert read_in_python.native is None
    memory = Model("net", read_in_python, 2).memory
    assert ran.stdout.strip() == f"{memory} []"


def test_the_verb_serve_starts_without_tvm(tmp_path: Path) -> None:
    perceptron().save(tmp_path / "net.tar")
    command = ["-X", "importtime", "-m", "tvm_interop", "serve", str(tmp_path / "net.tar")]
    said = []
    with subprocess.Popen(
        [sys.executable, *command, "--http-port", "0", "--no-grpc"],
        stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        assert server.stderr is not None
        for line in server.stderr:
            said.append(line)
            if "ready: net" in line:
                server.send_signal(signal.SIGTERM)
    assert server.returncode == 0, "".join(said)[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in said if line.startswith("import time:")}
    assert "tvm_interop.serving.server.server" in imported
    assert not imported & {"tvm", "onnx"}
