"""Tests sessions for ranges whose sizes are compiled one by one, at their first runs."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import tvm_interop
from tests.nets import Net
from tvm_interop import InputError, Session
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.errors import CannotFillUpError
from tvm_interop.session.compiled_once import Order
from tvm_interop.session.pool import Pool
from tvm_interop.session.ready_shapes import ReadyShapes

QUICK: dict[str, Any] = {"scheduler": "sequential", "latency_db": ":memory:", "time_budget": 0}
SIZES = {"batch": (1, 3), "height": (5, 12), "width": (5, 12)}


def _segmenter() -> onnx.ModelProto:
    net = Net()
    x = net.input("x", ["batch", 2, "height", "width"])
    weight = net.input("weight", ["batch", 1, 1, 1])
    hidden = net.op("Relu", [net.conv(x, "first", (2, 4), 3)], "hidden")
    net.op("Mul", [net.conv(hidden, "second", (4, 3), 3), weight], "y")
    return net.model("y")


def _feed(batch: int, height: int, width: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([batch, height, width])
    return {
        "x": rng.standard_normal((batch, 2, height, width)).astype(np.float32),
        "weight": rng.standard_normal((batch, 1, 1, 1)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("by_size") / "segmenter.onnx"
    onnx.save(_segmenter(), path)
    return path


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    return tmp_path / "kept" / "artifacts"


def _assert_right(
    session: Session, feed: dict[str, np.ndarray], model: onnx.ModelProto | None = None
) -> None:
    theirs = onnxruntime.InferenceSession((model or _segmenter()).SerializeToString())
    for ours, wanted in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


def test_each_size_is_compiled_at_its_first_run(
    path: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ranges = {**SIZES, "batch": 2}
    with caplog.at_level(logging.WARNING), Session(path, shapes=ranges, **QUICK) as session:
        assert "each size of height 5 to 12 and width 5 to 12 at the first run" in caplog.text
        assert "operator `first/Conv`" in caplog.text
        assert "operator `first/Conv`" in (session.why_not_filled_up or "")
        assert session.ranges is None
        assert session.inputs[0].shape == ("batch", 2, "height", "width")
        for height, width in ((5, 12), (7, 6), (5, 12)):
            _assert_right(session, _feed(2, height, width))
        assert session.runs_by_size == {(5, 12): 2, (7, 6): 1}
        told = [record.message for record in caplog.records if "compiled `" in record.message]
        assert len(told) == 2
    caplog.clear()
    with Session(path, shapes=ranges, **QUICK) as again:
        # The second session repeats neither the proof nor the compilation.
        assert not [r for r in caplog.records if r.message.startswith("compiling")]
        assert again.why_not_filled_up == session.why_not_filled_up
        _assert_right(again, _feed(2, 7, 6))
        assert not [r for r in caplog.records if r.message.startswith("compiling")]


@pytest.mark.usefixtures("kept")
def test_more_than_two_ranges_run_one_by_one(path: Path) -> None:
    with Session(path, shapes=SIZES, **QUICK) as session:
        _assert_right(session, _feed(3, 5, 8))
        assert "a range for 3 dimensions" in (session.why_not_filled_up or "")
        assert session.runs_by_size == {(3, 5, 8): 1}


@pytest.mark.usefixtures("kept")
def test_dimensions_without_names_run_one_by_one() -> None:
    made = _segmenter()
    for dim in made.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    ranges = {"x[0]": 1, "batch": 1, "x[2]": (5, 12), "x[3]": 6}
    with Session(made, shapes=ranges, **QUICK) as session:
        _assert_right(session, _feed(1, 7, 6))
        assert session.runs_by_size == {(7,): 1}
        with pytest.raises(InputError, match=r"x\[2\] 13, and the session was made for x\[2\] 5"):
            session.run(None, _feed(1, 13, 6))


@pytest.mark.usefixtures("kept")
def test_long_ranges_run_one_by_one() -> None:
    net = Net()
    net.op("Neg", [net.input("x", ["time"])], "y")
    with Session(net.model("y"), shapes={"time": (1, 5000)}, **QUICK) as session:
        x = np.arange(4500, dtype=np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x)
        assert "sizes 1 to 5000" in (session.why_not_filled_up or "")
    with pytest.raises(InputError, match=r"no open dimension `tiem`.*did you mean `time`"):
        Session(net.model("y"), shapes={"tiem": (1, 5000)}, **QUICK)


@pytest.mark.usefixtures("kept")
def test_sums_and_repeated_dimensions_run_one_by_one() -> None:
    net = Net()
    past, mask = net.input("past", ["past", 3]), net.input("mask", ["past + 1", "1*past+1"])
    new = net.op("Concat", [past, net.weight(1, 3)], "new", axis=0)
    net.op("MatMul", [mask, new], "y")
    with Session(net.model("y"), shapes={"past": (1, 9)}, **QUICK) as session:
        rng = np.random.default_rng(0)
        feed = {
            "past": rng.standard_normal((4, 3)).astype(np.float32),
            "mask": rng.standard_normal((5, 5)).astype(np.float32),
        }
        theirs = onnxruntime.InferenceSession(net.model("y").SerializeToString())
        wanted = theirs.run(None, feed)[0]
        np.testing.assert_allclose(session.run(None, feed)[0], wanted, rtol=1e-4, atol=1e-5)
        feed["past"] = feed["past"][:3]
        with pytest.raises(InputError, match=r"`mask` has size 5 where .*`past \+ 1`, which is 4"):
            session.run(None, feed)


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize(
    ("feed", "message"),
    [
        (_feed(4, 5, 5), "input `x` has batch 4, and the session was made for batch 1 to 3"),
        (_feed(1, 13, 5), "input `x` has height 13, and .* for height 5 to 12"),
        (_feed(1, 5, 0), "input `x` has width 0, and .* for width 5 to 12"),
        (
            {**_feed(2, 5, 5), "weight": _feed(3, 5, 5)["weight"]},
            "`x` has batch 2, and input `weight` has batch 3: give all inputs the same batch",
        ),
        (
            {**_feed(1, 5, 5), "weight": np.zeros((1, 2, 1, 1), np.float32)},
            r"`weight` has shape \(1, 2, 1, 1\), and the model has \(batch, 1, 1, 1\)",
        ),
        ({**_feed(1, 5, 5), "weight": np.zeros(1, np.float32)}, r"`weight` has shape \(1,\)"),
    ],
)
def test_wrong_sizes_are_named(path: Path, feed: dict[str, np.ndarray], message: str) -> None:
    with Session(path, shapes=SIZES, **QUICK) as session:
        with pytest.raises(InputError, match=message):
            session.run(None, feed)
        assert session.runs_by_size == {}


@pytest.mark.usefixtures("kept")
def test_few_sizes_are_kept_ready(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_interop.session.session._MOST_SHAPES", 2)
    with Session(path, shapes={**SIZES, "batch": 1}, **QUICK) as session:
        for width in (5, 6, 5, 7):
            _assert_right(session, _feed(1, 5, width))
        assert session.runs_by_size == {(5, 5): 2, (5, 7): 1}


def test_an_artifact_needs_the_proof_and_points_to_sessions(path: Path) -> None:
    with pytest.raises(CannotFillUpError, match=r"or run the model by `Session`, which compiles"):
        tvm_interop.compile(path, shapes={**SIZES, "batch": 1}, **QUICK)


def test_a_refusal_that_cannot_be_read_is_found_out_again(path: Path, kept: Path) -> None:
    ranges = {**SIZES, "batch": 1}
    Session(path, shapes=ranges, **QUICK).close()
    (note,) = kept.glob("*.refused.json")
    note.write_text("[]")
    with Session(path, shapes=ranges, **QUICK) as session:
        assert "operator `first/Conv`" in (session.why_not_filled_up or "")
    assert "first/Conv" in note.read_text()


@pytest.mark.usefixtures("kept")
def test_large_sizes_are_dropped_by_their_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvm_interop.session.session._MOST_BYTES", 1)
    with Session(path, shapes={**SIZES, "batch": 1}, **QUICK) as session:
        for width in (5, 6):
            _assert_right(session, _feed(1, 5, width))
        assert session.runs_by_size == {(5, 6): 1}


@pytest.mark.usefixtures("kept")
def test_sizes_that_are_ready_do_not_wait_for_a_compilation(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    compiled = Order.compiled

    def slowly(order: Order) -> Artifact:
        begun.set()
        assert may_go_on.wait(60)
        return compiled(order)

    with Session(path, shapes={**SIZES, "batch": 1}, instances=2, **QUICK) as session:
        _assert_right(session, _feed(1, 5, 5))
        monkeypatch.setattr(Order, "compiled", slowly)
        late = [session.run_async(None, _feed(1, 5, 6)) for _ in range(2)]
        assert begun.wait(60)
        ready = threading.Thread(target=_assert_right, args=(session, _feed(1, 5, 5)))
        ready.start()
        ready.join(60)
        is_stuck = ready.is_alive()
        assert not late[0].done()
        may_go_on.set()
        assert not is_stuck
        first, second = (each.result(60)[0] for each in late)
        np.testing.assert_array_equal(first, second)
        assert session.runs_by_size == {(5, 5): 2, (5, 6): 2}


@pytest.mark.usefixtures("kept")
def test_a_new_size_answers_before_it_is_compiled_whole(path: Path) -> None:
    options = {**QUICK, "time_budget": None, "compile_in_background": True}
    with Session(path, shapes={**SIZES, "batch": 1}, **options) as session:
        for width in (5, 6):
            _assert_right(session, _feed(1, 5, width))
        assert [state.shapes["x"] for state in session.states] == [(1, 2, 5, 5), (1, 2, 5, 6)]
        assert session.wait_until_compiled(300)
        assert {state.runs_on for state in session.states} == {"whole"}
        _assert_right(session, _feed(1, 5, 6))
        assert session.runs_by_size == {(5, 5): 1, (5, 6): 2}


def test_bytes_of_instances_count_what_libraries_copy(path: Path) -> None:
    shapes = {"x": (1, 2, 8, 8), "weight": (1, 1, 1, 1)}
    nbytes = {}
    for provider in ("tvm", "onednn"):
        options = {**QUICK, "providers": [provider, "tvm"], "fallback": False}
        made = tvm_interop.compile(path, input_shapes=shapes, **options)
        pool, pools = Pool(made, 1), Pool(made, 2)
        nbytes[provider] = pool.own_nbytes + pool.turns_nbytes
        assert pools.own_nbytes + pools.turns_nbytes == 2 * nbytes[provider]
    assert nbytes["onednn"] > nbytes["tvm"]
    # The kernels take turns with the memory for copies, so only the largest copy counts.
    values = made.plan.values
    own = sum(v.nbytes for v in values if v.storage not in ("arena", "alias"))
    copied = [
        sum(values[v].nbytes for v in {*op.inputs, *op.outputs} if values[v].storage != "weight")
        for op in made.plan.operators
    ]
    assert len(copied) > 1
    assert nbytes["onednn"] <= made.plan.arena_bytes + own + max(copied)


def test_bytes_of_loaded_instances_count_once_what_sizes_share(path: Path, tmp_path: Path) -> None:
    pools = []
    for width in (8, 16):
        shapes = {"x": (1, 2, 8, width), "weight": (1, 1, 1, 1)}
        out = tmp_path / f"{width}.tar"
        tvm_interop.compile(path, input_shapes=shapes, out=out, **QUICK)
        pools.append(Pool(load(out), 1))
    small, large = pools
    ports = [*large.first.ports()[0], *large.first.ports()[1]]
    own = sum(int(np.prod(port.shape)) * np.dtype(port.dtype).itemsize for port in ports)
    assert large.own_nbytes == own
    assert large.turns_nbytes >= large.first.plan.arena_bytes
    assert large.turns_nbytes > small.turns_nbytes
    ready = ReadyShapes(8, small.own_nbytes + large.own_nbytes + large.turns_nbytes)
    assert ready.add((8,), small, None) == []
    assert ready.add((16,), large, None) == [], "memory that both sizes share must count once"
    less = ReadyShapes(8, small.own_nbytes + large.own_nbytes + large.turns_nbytes - 1)
    assert less.add((8,), small, None) == []
    assert less.add((16,), large, None) == [(8,)]


def test_stored_sizes_run_without_the_compiler(path: Path, kept: Path) -> None:
    """The session neither imports TVM nor reads a plan in Python, because both take seconds."""
    assert not kept.exists()
    shapes = {**SIZES, "batch": 1}
    program = f"""
import sys
import numpy as np
from tvm_interop import Session
options = dict(scheduler="sequential", latency_db=sys.argv[1], time_budget=0)
with Session({str(path)!r}, shapes={shapes!r}, **options) as session:
    for width in (5, 6):
        x = np.ones((1, 2, 5, width), np.float32)
        session.run(None, {{"x": x, "weight": np.ones((1, 1, 1, 1), np.float32)}})
    assert len(session.runs_by_size) == 2
print([name for name in ("tvm", "tvm_interop.plan.check") if name in sys.modules])
"""
    command = [sys.executable, "-c", program, str(kept.parent / "latencies.db")]
    told = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    assert told[0].stdout.strip() != "[]", "the first process has compiled"
    assert told[1].stdout.strip() == "[]"


def test_a_range_may_begin_at_0() -> None:
    """A batch without rows is compiled alone, and other batches are padded."""
    net = Net()
    x, y = (net.input(name, ["batch", 4]) for name in ("x", "y"))
    net.op("MatMul", [net.op("Add", [x, y], "sum"), net.weight(4, 3)], "z")
    model = net.model("z")
    with Session(model, shapes={"batch": (0, 3)}, most_sizes=2, **QUICK) as session:
        for rows in (2, 0, 2):
            _assert_right(session, {name: np.ones((rows, 4), np.float32) for name in (x, y)}, model)
        assert session.why_not_filled_up is None
        assert session.runs_by_size[(3,)] == 2
        assert session.runs_by_size[(0,)] == 1
        feed = {x: np.ones((0, 4), np.float32), y: np.ones((2, 4), np.float32)}
        with pytest.raises(InputError, match="input `x` has batch 0, and input `y` has batch 2"):
            session.run(None, feed)


def test_the_cache_of_a_decoder_may_begin_empty() -> None:
    """A cache and one more position cannot be padded, so each size is compiled."""
    net = Net()
    cache, new = net.input("cache", [1, "past", 4]), net.input("new", [1, 1, 4])
    net.input("bias", [1, "past + 1", 1])
    net.op("Add", [net.op("Concat", [cache, new], "present", axis=1), "bias"], "y")
    model = net.model("y", "present")
    with Session(model, shapes={"past": (0, 9)}, **QUICK) as session:
        for past in (0, 1):
            shapes = {"cache": (1, past, 4), "new": (1, 1, 4), "bias": (1, past + 1, 1)}
            feed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
            _assert_right(session, feed, model)
        assert "past + 1" in str(session.why_not_filled_up)
        assert session.runs_by_size == {(0,): 1, (1,): 1}
