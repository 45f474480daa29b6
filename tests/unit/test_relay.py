"""Tests the names of Relay: old scripts run with other imports, and removed names raise errors."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from tvm import relax

from tests.nets import Net, feeds, inception_like, two_inputs
from tests.numerics.onnx_oracle import run_onnxruntime
from tvm_interop import DeviceError, GraphModule, InputError, contrib, load, relay
from tvm_interop.contrib import graph_executor

SCRIPTS = Path(__file__).resolve().parents[1] / "relay_era"


@pytest.fixture(scope="module")
def library() -> relay.Library:
    mod, params = relay.frontend.from_onnx(two_inputs())
    return relay.build(mod, "llvm", params=params, scheduler="greedy")


def test_only_the_imports_differ() -> None:
    before, after = (
        (SCRIPTS / name).read_text().splitlines() for name in ("before.py", "after.py")
    )
    changed = [line[2:] for line in difflib.ndiff(before, after) if line.startswith(("- ", "+ "))]
    assert sorted(changed) == [
        "from tvm import relay",
        "from tvm.contrib import graph_executor",
        "from tvm_interop import relay",
        "from tvm_interop.contrib import graph_executor",
    ]


def test_a_script_of_relays_time(tmp_path: Path) -> None:
    onnx.save(inception_like(), tmp_path / "net.onnx")
    arguments = ["net.onnx", *(["x86"] if platform.machine() == "x86_64" else [])]
    ran = subprocess.run(
        [sys.executable, str(SCRIPTS / "after.py"), *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "class" in ran.stdout
    data = np.random.default_rng(0).uniform(-1, 1, (1, 8, 14, 14)).astype("float32")
    expected = run_onnxruntime(inception_like(), {"x": data})["y"]
    np.testing.assert_allclose(np.load(tmp_path / "output.npy"), expected, rtol=1e-4, atol=1e-6)
    module = GraphModule(load(tmp_path / "net.tar"))
    module.run(x=data)
    np.testing.assert_array_equal(module.get_output(0).numpy(), np.load(tmp_path / "output.npy"))


def test_a_scheduled_module_keeps_its_schedule() -> None:
    mod, _ = relay.frontend.from_onnx(inception_like())
    mod = relay.transform.InterOpSchedule("greedy", streams=2)(mod)
    library = relay.build(mod, tvm.target.Target("llvm"), keep_slower=True)
    assert library.artifact.schedule.scheduler == "greedy"


def test_params_are_bound() -> None:
    net = Net()
    product = net.op("MatMul", [net.input("x", [2, 4]), net.input("weight", [4, 3])], "y")
    mod, params = relay.frontend.from_onnx(net.model(product))
    assert params == {}
    weight = np.arange(12, dtype="float32").reshape(4, 3)
    library = relay.build(mod, params={"weight": tvm.runtime.tensor(weight)})
    module = graph_executor.GraphModule(library["default"](tvm.cpu()))
    assert list(module.get_input_info()[0]) == ["x"]
    module.run(x=np.ones((2, 4)))
    np.testing.assert_array_equal(module.get_output(0).numpy(), np.ones((2, 4)) @ weight)
    with pytest.raises(InputError, match="`wait`; it has x, weight"):
        relay.build(mod, params={"wait": weight})


def test_inputs_become_the_models_type(library: relay.Library) -> None:
    module = graph_executor.GraphModule(library["default"](tvm.cpu(0)))
    data = feeds(two_inputs())
    module.set_input(0, data["image"].astype("float64"))
    module.set_input("vector", data["vector"].tolist())
    module.run()
    reference = GraphModule(library.artifact)
    reference.run(**data)
    for i in range(2):
        np.testing.assert_array_equal(module.get_output(i).numpy(), reference.get_output(i).numpy())
    with pytest.raises(InputError, match="`vector` must be float32"):
        module.set_input("vector", np.zeros((6, 1)))
    with pytest.raises(InputError, match="no input `picture`"):
        module.set_input("picture", np.zeros((6, 1)))


def test_what_a_library_is_not(library: relay.Library) -> None:
    with pytest.raises(InputError, match="export_library"):
        _graph, _lib, _params = library
    with pytest.raises(InputError, match='lib\\["default"\\]'):
        library["main"]
    with pytest.raises(DeviceError, match="built for `cpu`"):
        library["default"](tvm.device("cuda", 0))
    assert len(library.get_params()) == 3


def test_wrong_arguments() -> None:
    with pytest.raises(InputError, match="keep_params_in_input"):
        relay.frontend.from_onnx(two_inputs(), freeze_params=False)
    with pytest.raises(InputError, match="opset 17, not 11"):
        relay.frontend.from_onnx(two_inputs(), opset=11)
    with pytest.raises(InputError, match="`image` of the model is float32, not int8"):
        relay.frontend.from_onnx(two_inputs(), dtype={"image": "int8"})
    mod, _ = relay.frontend.from_onnx(two_inputs(), dtype={"image": "float32"}, opset=17)
    with pytest.raises(DeviceError, match="`-libs` has no meaning"):
        relay.build(mod, "llvm -libs=mkl")
    with pytest.raises(DeviceError, match="cannot read `fast`"):
        relay.build(mod, "llvm fast")
    with pytest.raises(DeviceError, match="target_host"):
        relay.build(mod, "llvm", "cuda")


@pytest.mark.parametrize(
    ("statement", "counterpart"),
    [
        ("from tvm_interop.relay import quantize", "no counterpart"),
        ("from tvm_interop.relay.transform import FoldConstant", "relax.transform.FoldConstant"),
        ("from tvm_interop.relay.frontend import from_keras", "export the model to ONNX"),
        ("from tvm_interop.relay.frontend import from_pytorch", "from_exported_program"),
        ("from tvm_interop.contrib import debug_executor", "GraphModule.profile"),
        ("from tvm_interop.contrib.graph_executor import create", "tvm_interop.load"),
        ("from tvm_interop import relay; relay.nn.conv2d", "tvm.relax.op.nn"),
    ],
)
def test_a_name_that_is_gone(statement: str, counterpart: str) -> None:
    with pytest.raises(ImportError, match=counterpart):
        exec(statement)


def test_names_that_never_were() -> None:
    for module in (relay, relay.transform, relay.frontend, contrib, graph_executor):
        assert not hasattr(module, "no_such_name")
        assert not hasattr(module, "__wrapped__")


def test_every_counterpart_is_there() -> None:
    """Each name that our errors recommend exists."""
    from tvm_interop.relay.counterparts import CONTRIB, FRONTEND, RELAY

    for text in (*RELAY.values(), *FRONTEND.values(), *CONTRIB.values()):
        for path in text.replace(", or ", " and ").split(" and "):
            needs_torch = path.startswith("tvm.relax.frontend.torch")
            if needs_torch and importlib.util.find_spec("torch") is None:
                continue  # TVM's importer needs PyTorch, which may be missing.
            assert not path or _is_there(path), path
    assert relax.op.nn.conv2d is not None


def _is_there(path: str) -> bool:
    parts = path.split(".")
    for i in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:i]))
        except ImportError:
            continue
        for part in parts[i:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False
