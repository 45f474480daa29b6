"""Tests compilations that several threads of a process start at once."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import onnx
import pytest
from tvm import relax

import tvm_interop
from tests.forks import in_forked_child
from tests.nets import Net, chain, feeds
from tvm_interop.compiler.one_at_a_time import one_at_a_time
from tvm_interop.errors import UnsupportedModelError


def _compiled(model: onnx.ModelProto) -> tvm_interop.Artifact:
    return tvm_interop.compile(
        model, scheduler="sequential", streams=1, providers=["tvm"], latency_db=":memory:"
    )


def test_several_threads() -> None:
    models, out = [chain(length) for length in (1, 2, 3, 4)], sys.stdout
    with ThreadPoolExecutor(len(models)) as pool:
        artifacts = list(pool.map(_compiled, models))
    assert sys.stdout is out
    for model, artifact in zip(models, artifacts, strict=True):
        alone = tvm_interop.GraphModule(_compiled(model))
        for one, other in zip(
            tvm_interop.GraphModule(artifact)(feeds(model)), alone(feeds(model)), strict=True
        ):
            assert one.numpy().tobytes() == other.numpy().tobytes()


def test_a_fork_beside_a_thread_that_compiles() -> None:
    """The child gets the lock and the builder of a thread that it does not have."""
    began, may_end = threading.Event(), threading.Event()

    @one_at_a_time
    def compiles() -> None:
        relax.BlockBuilder._stack.append(relax.BlockBuilder())
        began.set()
        may_end.wait(60)
        relax.BlockBuilder._stack.pop()

    thread = threading.Thread(target=compiles)
    thread.start()
    assert began.wait(60)
    assert in_forked_child(lambda: _compiled(chain(1))) == ""
    may_end.set()
    thread.join()
    _compiled(chain(1))


def test_a_refused_node_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """TVM's importer prints the inputs of such a node, with all weights."""
    net = Net()
    net.op("MatMul", [net.input("x", ["n", 3]), net.weight(4, 5)], "y")
    with pytest.raises(UnsupportedModelError, match="node `y/MatMul`"):
        tvm_interop.compile(
            net.model("y", check=False), input_shapes={"x": (2, 3)}, latency_db=":memory:"
        )
    assert capsys.readouterr().out == ""
