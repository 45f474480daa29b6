"""Tests how users call a `GraphModule`: inputs by name or position, tensors of PyTorch, paths."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import tvm

import tvm_interop
from tests.nets import Net, branches, two_inputs
from tests.nets import two_inputs_feed as feed
from tvm_interop import ArtifactError, ExecutionError, GraphModule, InputError
from tvm_interop.program.host_memory import aligned_empty


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> tvm_interop.Artifact:
    path = tmp_path_factory.mktemp("edges") / "model.tar"
    return tvm_interop.compile(two_inputs(), scheduler="greedy", keep_slower=True, out=path)


@pytest.fixture
def module(artifact: tvm_interop.Artifact) -> GraphModule:
    return GraphModule(artifact)


def scores(module: GraphModule) -> np.ndarray:
    return module.get_output(1).numpy()


@pytest.fixture
def wanted(artifact: tvm_interop.Artifact) -> np.ndarray:
    module = GraphModule(artifact)
    module.run(**feed())
    return scores(module)


def test_an_output_by_name(module: GraphModule, wanted: np.ndarray) -> None:
    module.run(**feed())
    np.testing.assert_array_equal(module.get_output("scores").numpy(), wanted)
    assert module.get_output_info()[0]["scores"] == (1, 16)
    assert module.get_output_info()[1]["scores"] == "float32"
    with pytest.raises(InputError, match=r"no output `logits`; its outputs are: .*`scores`"):
        module.get_output("logits")


def test_a_module_of_a_path(artifact: tvm_interop.Artifact, wanted: np.ndarray) -> None:
    assert artifact.path is not None
    for path in (str(artifact.path), Path(artifact.path)):
        module = GraphModule(path)
        module.run(**feed())
        np.testing.assert_array_equal(scores(module), wanted)
    with pytest.raises(ArtifactError, match=r"nowhere\.tar"):
        GraphModule("nowhere.tar")
    with pytest.raises(InputError, match="not of a `Linear`"):
        GraphModule(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_inputs_by_position_and_in_a_dictionary(module: GraphModule, wanted: np.ndarray) -> None:
    module.run(feed())
    np.testing.assert_array_equal(scores(module), wanted)
    module.run(*feed().values())
    np.testing.assert_array_equal(scores(module), wanted)
    module.run({"image": feed()["image"]}, vector=feed()["vector"])
    np.testing.assert_array_equal(scores(module), wanted)
    with pytest.raises(InputError, match=r"1 array\(s\) given, and the model has 2 .*`vector`"):
        module.run(feed()["image"])


def test_the_only_input_by_position() -> None:
    module = GraphModule(tvm_interop.compile(branches(), scheduler="sequential"))
    x = np.ones((1, 8, 8, 8), "float32")
    module.run(x)
    got = module.get_output(0).numpy()
    module.run(x=x)
    np.testing.assert_array_equal(module.get_output(0).numpy(), got)


def test_numpy_reads_an_output(module: GraphModule, wanted: np.ndarray) -> None:
    module.run(**feed())
    output = module.get_output(1)
    assert isinstance(output, tvm.runtime.Tensor)
    np.testing.assert_array_equal(np.asarray(output), wanted)
    assert np.asarray(output).dtype == np.float32
    assert np.asarray(output, "float64").dtype == np.float64
    own = np.array(output)
    own[...] = 0
    np.testing.assert_array_equal(output.numpy(), wanted)


def test_a_run_on_zeros_is_told_once(module: GraphModule) -> None:
    with pytest.warns(RuntimeWarning, match="`image`, `vector` were never set"):
        module.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.run()


def test_a_run_on_what_was_set_is_not(module: GraphModule) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module.set_input("image", feed()["image"])
        module.set_input_zero_copy("vector", tvm.runtime.tensor(feed()["vector"]))
        module.run()


def test_a_call_gives_all_outputs(module: GraphModule, wanted: np.ndarray) -> None:
    for outputs in (module(**feed()), module(feed()), module(*feed().values())):
        assert len(outputs) == 2
        np.testing.assert_array_equal(outputs[1].numpy(), wanted)
    module(image=np.zeros((1, 4, 2, 2), "float32"))
    # The outputs of the earlier run are copies, so the new run has not changed them.
    np.testing.assert_array_equal(outputs[1].numpy(), wanted)


def test_a_module_is_given_back_at_the_end_of_with(artifact: tvm_interop.Artifact) -> None:
    with GraphModule(artifact) as module:
        module.run(**feed())
        memory = weakref.ref(module._instance)
    assert memory() is None
    for attempt in (
        module.run,
        module.profile,
        lambda: module.get_output(0),
        lambda: module(feed()),
    ):
        with pytest.raises(ExecutionError, match="the module was closed"):
            attempt()
    assert "image" in repr(module)
    module.close()  # A second call of `close` does nothing.


def test_a_closed_module_of_several_shapes_opens_none() -> None:
    shapes = [{"x": (n, 8, 8, 8)} for n in (1, 2)]
    artifact = tvm_interop.compile(branches(batch="n"), scheduler="sequential", input_shapes=shapes)
    module = GraphModule(artifact)
    module.close()
    for n in (1, 2):
        with pytest.raises((ExecutionError, InputError)):
            module.run(np.zeros((n, 8, 8, 8), "float32"))
    assert not module._instances


def test_torch_in_and_out(module: GraphModule, wanted: np.ndarray) -> None:
    module.run(**{name: torch.from_numpy(array) for name, array in feed().items()})
    out = torch.empty((1, 16))
    assert module.get_output("scores", out=out) is out
    np.testing.assert_array_equal(out.numpy(), wanted)
    with pytest.raises(InputError, match=r"`out` must be float32 .*, got float64"):
        module.get_output("scores", out=torch.empty((1, 16), dtype=torch.float64))
    with pytest.raises(InputError, match="contiguous"):
        module.get_output("scores", out=torch.empty((16, 2)).T[:1])
    with pytest.raises(InputError, match="read-only"):
        module.get_output("scores", out=np.broadcast_to(np.float32(0), (1, 16)))
    with pytest.raises(InputError, match="`out` is a `list`"):
        module.get_output("scores", out=[0.0] * 16)


def test_torch_out_without_tvm(artifact: tvm_interop.Artifact, wanted: np.ndarray) -> None:
    """An output must be copied into a tensor of PyTorch even if TVM is not imported. The method
    `copyfrom` of TVM's tensors is then missing."""
    assert artifact.path is not None
    code = (
        "import sys, numpy as np, torch, tvm_interop\n"
        "module = tvm_interop.GraphModule(sys.argv[1])\n"
        "module.run(dict(np.load(sys.argv[2])))\n"
        "out = torch.empty((1, 16))\n"
        "assert module.get_output('scores', out=out) is out\n"
        "np.save(sys.argv[3], out.numpy())\n"
        "assert 'tvm' not in sys.modules\n"
    )
    inputs, output = artifact.path.with_suffix(".npz"), artifact.path.with_suffix(".npy")
    np.savez(inputs, **feed())
    command = [sys.executable, "-c", code, str(artifact.path), str(inputs), str(output)]
    subprocess.run(command, check=True, timeout=300)
    np.testing.assert_array_equal(np.load(output), wanted)


def test_what_is_no_name_and_no_index(module: GraphModule, wanted: np.ndarray) -> None:
    module.run({0: feed()["image"], "vector": feed()["vector"]})
    np.testing.assert_array_equal(scores(module), wanted)
    for key in (None, [0], 1.0):
        with pytest.raises(InputError, match="an output is chosen by its name or its index"):
            module.get_output(key)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"an input is chosen by .*, not by a `ndarray`"):
        module.set_input(feed()["image"])  # type: ignore[arg-type]


def test_a_tensor_that_requires_grad(module: GraphModule) -> None:
    tensor = torch.zeros((1, 6), requires_grad=True)
    with pytest.raises(InputError, match=r"input `vector` .*requires grad.*`\.detach\(\)`"):
        module.set_input("vector", tensor)
    with pytest.raises(InputError, match=r"`out` .*requires grad"):
        module.get_output("scores", out=torch.zeros((1, 16), requires_grad=True))


def test_a_tensor_that_is_not_negated_yet(module: GraphModule, wanted: np.ndarray) -> None:
    """PyTorch may negate a tensor only when the tensor is used. Until then, its memory holds the
    numbers with the opposite sign, and DLPack would pass on these wrong numbers."""
    parts = [torch.zeros(1, 6), -torch.from_numpy(feed()["vector"])]
    tensor = torch.view_as_complex(torch.stack(parts, -1)).conj().imag
    with pytest.raises(InputError, match=r"input `vector` .*negated.*`\.resolve_neg\(\)`"):
        module.set_input("vector", tensor)
    with pytest.raises(InputError, match=r"`out` .*negated"):
        module.get_output("scores", out=torch.view_as_complex(torch.zeros(1, 16, 2)).conj().imag)
    module.run(image=feed()["image"], vector=tensor.resolve_neg())
    np.testing.assert_array_equal(scores(module), wanted)


def test_what_is_no_array(module: GraphModule) -> None:
    with pytest.raises(InputError, match="input `vector` cannot be read from a `list`"):
        module.set_input("vector", [[1.0], [2.0, 3.0]])
    with pytest.raises(InputError, match="input `vector` cannot be read from a `Tensor`"):
        module.set_input("vector", torch.zeros((1, 6), device="meta"))


def test_a_module_is_neither_pickled_nor_copied(module: GraphModule) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(ExecutionError, match="neither copied nor pickled"):
            attempt(module)


def test_one_line_each(module: GraphModule, artifact: tvm_interop.Artifact) -> None:
    program = tvm_interop.compiler.api.new_compilation(
        two_inputs(), tvm_interop.compiler.api.CompileOptions(), {}
    ).program
    shown = [repr(each) for each in (module, artifact, artifact.plan, artifact.schedule, program)]
    for text, name in zip(
        shown, ("GraphModule", "Artifact", "Plan", "Schedule", "Program"), strict=True
    ):
        assert text.startswith(f"{name}("), text
        assert "\n" not in text
        assert len(text) < 300
    assert "image float32[1, 4, 2, 2]" in shown[0]
    assert "model.tar" in shown[1]


def test_an_input_that_is_returned_may_be_overwritten(tmp_path: Path) -> None:
    """Another output gets the memory of the input. It is copied there after each run."""
    net = Net()
    state, step = net.input("state", [4, 16]), net.input("step", [4, 16])
    net.op("Add", [state, step], "next")
    net.op("Identity", [state], "before")
    path = tmp_path / "model.tar"
    made = tvm_interop.compile(net.model("next", "before"), scheduler="sequential", out=path)
    for source in (made, path):
        module = GraphModule(source)
        memory = aligned_empty((4, 16), np.float32)
        memory[...] = 3
        module.set_input_zero_copy("state", memory)
        module.set_input("step", np.full((4, 16), 2, np.float32))
        module.set_output_zero_copy("next", memory)
        for run in range(3):
            module.run()
            np.testing.assert_array_equal(module.get_output("before").numpy(), 3 + 2 * run)
            np.testing.assert_array_equal(memory, 5 + 2 * run)
