"""Tests models that were compiled for two ranges: batches of sequences."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tvm_interop
from tests.masked_nets import WIDTH, encoder, feed_of_encoder, theirs
from tests.native_runtime import NativeModel, RuntimeLibraryError, load_in_both
from tests.nets import Net
from tests.pair_nets import decoder, pair_model
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.artifact.manifest import RowMask, RowSizes, SecondRange
from tvm_interop.cli.app import app
from tvm_interop.compiler.row_ranges import chosen_sizes, chosen_sizes_of
from tvm_interop.errors import ArtifactError, InputError
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.execution.open_instance import Shapes
from tvm_interop.serving import make_policy
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.model import Model

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
MASKS = (RowMask("attention_mask", "any"),)
BATCHES, LENGTHS = (1, 1, 1, 4, 4, 4), (1, 11, 32, 1, 11, 32)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("pair") / "encoder.tar"
    ranges = {"batch": (1, 4), "seq": (1, 32)}
    return tvm_interop.compile(encoder("batch"), shapes=ranges, most_sizes=6, out=path, **QUICK)


def _far(module: GraphModule, model: onnx.ModelProto, feed: dict[str, Any]) -> float:
    """The largest distance of outputs from onnxruntime's outputs."""
    both = list(zip(module(feed), theirs(model, feed), strict=True))
    assert [got.shape for got, _ in both] == [expected.shape for _, expected in both]
    return max(float(np.abs(np.asarray(got) - expected).max()) for got, expected in both)


def _random_sizes(count: int, most: tuple[int, int], seed: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    return [(int(rng.integers(1, most[0] + 1)), int(rng.integers(1, most[1] + 1)))
            for _ in range(count)]  # fmt: skip


@pytest.mark.parametrize("from_file", [True, False])
def test_an_encoder_is_right_for_any_batch_and_length(made: Artifact, from_file: bool) -> None:
    assert made.manifest.row_sizes == RowSizes("batch", BATCHES, MASKS, SecondRange("seq", LENGTHS))
    assert made.path is not None
    module, model = GraphModule(load(made.path) if from_file else made), encoder("batch")
    for batch, length in _random_sizes(30, (4, 32), seed=11):
        assert _far(module, model, feed_of_encoder(length, 1, batch)) < 1e-4


def test_a_decoder_is_right_for_any_batch_and_length() -> None:
    model = decoder()
    ranges = {"batch": (1, 3), "seq": (1, 20)}
    made = tvm_interop.compile(model, shapes=ranges, most_sizes=4, **QUICK)
    module = GraphModule(made)
    for batch, length in _random_sizes(30, (3, 20), seed=12):
        feed = feed_of_encoder(length, 1, batch)
        feed["input_ids"] %= 30
        del feed["token_type_ids"]
        assert _far(module, model, feed) < 1e-4


def test_what_stands_in_the_filled_part_changes_nothing(made: Artifact) -> None:
    module, feed = GraphModule(made), feed_of_encoder(17, 2, 3)
    alone = [np.array(out) for out in module(feed)]
    large = feed_of_encoder(32, 3, 4)
    large["attention_mask"][:, 17:] = 0
    for name, array in feed.items():
        large[name][:3, :17] = array
    among = [np.asarray(out) for out in module(large)]
    np.testing.assert_array_equal(alone[0], among[0][:3, :17])
    np.testing.assert_array_equal(alone[1], among[1][:3])


def test_kernels_of_libraries_leave_the_filled_part_out() -> None:
    """Neither padded positions nor a row whose mask is all 0 may change other results, although
    oneDNN's kernels choose their own order of additions."""
    made = tvm_interop.compile(
        encoder("batch", layers=1), input_shapes=dict.fromkeys(feed_of_encoder(1, 0), (3, 32)),
        scheduler="sequential", time_budget=0,
    )  # fmt: skip
    module, feed, outputs = GraphModule(made), feed_of_encoder(32, 4, 3), []
    feed["attention_mask"][:, 21:] = feed["attention_mask"][2] = 0
    for seed in (5, 6):
        for name in ("input_ids", "token_type_ids"):
            junk = feed_of_encoder(32, seed, 3)[name]
            feed[name][:, 21:], feed[name][2] = junk[:, 21:], junk[2]
        outputs.append([np.array(out) for out in module(feed)])
    np.testing.assert_array_equal(outputs[0][0][:2, :21], outputs[1][0][:2, :21])
    np.testing.assert_array_equal(outputs[0][1][:2], outputs[1][1][:2])


def test_a_session_names_both_dimensions(made: Artifact) -> None:
    session = tvm_interop.Session(made.path)
    assert [info.shape for info in session.inputs] == [("batch", "seq")] * 3
    assert [info.shape for info in session.outputs] == [("batch", "seq", 16), ("batch", 16)]
    feed = feed_of_encoder(9, 1, 2)
    for got, expected in zip(session.run(None, feed), theirs(encoder("batch"), feed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [((1, 1), 0), ((1, 2), 1), ((2, 1), 3), ((2, 11), 4), ((4, 12), 5), ((1, 32), 2)],
)
def test_a_run_takes_the_next_larger_size_of_each_dimension(
    made: Artifact, sizes: tuple[int, int], shape: int
) -> None:
    known = Shapes(made).row_range
    assert known is not None
    assert known.shape_for(sizes) == shape
    assert made.path is not None
    assert NativeModel(made.path).find_sizes(*sizes) == shape


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(5, 3)] * 3, r"have batch 5 and seq 3, .* compiled for batch 1 to 4 and seq 1 to 32"),
        ([(2, 33)] * 3, "have batch 2 and seq 33, and the model was compiled for batch 1 to 4"),
        ([(0, 3)] * 3, "have batch 0 and seq 3"),
        ([(2, 0)] * 3, "have batch 2 and seq 0"),
        ([(2, 3), (3, 3), (2, 3)], "`input_ids` has batch 2, and .*`attention_mask` has batch 3"),
        ([(2, 3), (2, 3), (2, 4)], "`input_ids` has seq 3, and .*`token_type_ids` has seq 4"),
        ([(2, 3, 1)] * 3, r"`input_ids` has shape \(2, 3, 1\), .* for \(batch, seq\)"),
    ],
)
def test_other_shapes_are_refused(
    made: Artifact, shapes: list[tuple[int, ...]], message: str
) -> None:
    names = feed_of_encoder(1, 0)
    feed = {name: np.ones(size, np.int64) for name, size in zip(names, shapes, strict=True)}
    with pytest.raises(InputError, match=message):
        GraphModule(made).run(feed)


def _masks(kind: str) -> dict[str, np.ndarray]:
    feed = feed_of_encoder(7, 0, 2)
    feed["attention_mask"][1] = 0
    if kind == "padded on the left":
        feed["attention_mask"][1, 3:] = 1
    if kind == "negative":
        feed["attention_mask"][1, 3:] = -1
    return feed


def test_each_row_of_a_mask_may_begin_with_0(made: Artifact) -> None:
    feed = _masks("padded on the left")
    assert _far(GraphModule(made), encoder("batch"), feed) < 1e-4


@pytest.mark.parametrize("kind", ["a row without 1", "negative"])
def test_a_mask_that_leaves_a_row_out_is_refused(made: Artifact, kind: str) -> None:
    feed, module = _masks(kind), GraphModule(made)
    with pytest.raises(InputError, match="from 0 to 1, and 1 somewhere for each batch"):
        module.run(feed)
    assert made.path is not None
    outputs = [np.zeros((2, 7, 16), np.float32), np.zeros((2, 16), np.float32)]
    with pytest.raises(RuntimeLibraryError, match="one of them must be 1 for each batch"):
        NativeModel(made.path, shape=4).run_sizes((2, 7), *feed.values(), outputs=outputs)
    # If only the batch is padded, and not the length, the mask may have any values.
    full = {name: array[:, :1] for name, array in feed.items()}
    assert _far(module, encoder("batch"), full) < 1e-4


def test_a_program_in_c_fills_up_both_dimensions(made: Artifact) -> None:
    assert made.path is not None
    module = GraphModule(made)
    for shape, sizes in ((5, (3, 20)), (5, (4, 31)), (5, (2, 32)), (4, (4, 11)), (1, (1, 6))):
        native = NativeModel(made.path, shape=shape)
        for seed in (1, 2):
            feed = feed_of_encoder(sizes[1], seed, sizes[0])
            outputs = [np.zeros((*sizes, 16), np.float32), np.zeros((sizes[0], 16), np.float32)]
            native.run_sizes(sizes, *feed.values(), outputs=outputs)
            for got, expected in zip(outputs, module(feed), strict=True):
                np.testing.assert_array_equal(got, np.asarray(expected))


def test_the_first_rows_of_own_buffers_count(made: Artifact) -> None:
    assert made.path is not None
    native, feed = NativeModel(made.path, shape=5), feed_of_encoder(20, 3, 2)
    whole = feed_of_encoder(32, 4, 4)
    for name, array in feed.items():
        whole[name][:2, :20] = array
    whole["attention_mask"][2:] = 7  # A run of two rows does not read the rows from the third on.
    for position, array in enumerate(whole.values()):
        native.write_own_buffer(position, array)
    outputs = [np.zeros((2, 20, 16), np.float32), np.zeros((2, 16), np.float32)]
    native.run_sizes((2, 20), None, None, None, outputs=outputs)
    for got, expected in zip(outputs, GraphModule(made)(feed), strict=True):
        np.testing.assert_array_equal(got, np.asarray(expected))


def test_a_program_in_c_must_give_both_sizes(made: Artifact) -> None:
    assert made.path is not None
    native = NativeModel(made.path, shape=5)
    with pytest.raises(RuntimeLibraryError, match="2 ranges, `batch` `seq`, and there are 1"):
        native.find_rows(3)
    with pytest.raises(RuntimeLibraryError, match="2 ranges"):
        native.run_rows(3, None, None, None, outputs=[None, None])
    for sizes, message in (((5, 3), "rows of `batch` is 5"), ((2, 0), "rows of `seq` is 0")):
        with pytest.raises(RuntimeLibraryError, match=message):
            native.find_sizes(*sizes)
        with pytest.raises(RuntimeLibraryError, match=message):
            native.run_sizes(sizes, None, None, None, outputs=[None, None])


def test_a_server_takes_requests_of_any_size(made: Artifact) -> None:
    with Executor([Model("encoder", made)], lambda: make_policy("sequential")) as server:
        for batch, length in ((3, 20), (1, 1), (4, 32), (2, 11)):
            feed = feed_of_encoder(length, 1, batch)
            expected = theirs(encoder("batch"), feed)
            for got, wanted in zip(server.infer("encoder", feed), expected, strict=True):
                assert got.shape == wanted.shape
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        for sizes, message in (((5, 3), "have batch 5 and seq 3"), ((2, 33), "batch 2 and seq 33")):
            with pytest.raises(InputError, match=message):
                server.infer("encoder", feed_of_encoder(sizes[1], 0, sizes[0]))
        with pytest.raises(InputError, match="and 1 somewhere for each batch"):
            server.infer("encoder", _masks("a row without 1"))


def test_positions_may_come_first_in_memory(tmp_path: Path) -> None:
    """A mask and an output whose first dimension is the sequence."""
    net = Net()
    x, keep = net.input("x", ["seq", "batch", WIDTH]), net.input("keep", ["seq", "batch", 1])
    masked = net.op("Mul", [x, keep], "masked")
    total = net.op("ReduceSum", [masked, net.constant(np.array([0]))], "total", keepdims=0)
    net.op("Relu", [net.op("MatMul", [x, net.weight(WIDTH, 4)], "wide")], "y")
    model, path = net.model("y", total, check=False), tmp_path / "first.tar"
    ranges = {"seq": (1, 6), "batch": (1, 3)}
    made = tvm_interop.compile(model, shapes=ranges, most_sizes=4, out=path, **QUICK)
    rows = made.manifest.row_sizes
    assert rows is not None
    assert (rows.dimension, rows.where_one) == ("batch", {"x": "nowhere"})
    module, rng = GraphModule(load(path)), np.random.default_rng(0)
    for batch, length in ((2, 4), (3, 2), (1, 5), (2, 6)):
        feed = {
            "x": rng.standard_normal((length, batch, WIDTH)).astype(np.float32),
            "keep": rng.random((length, batch, 1)).astype(np.float32),
        }
        assert _far(module, model, feed) < 1e-5
        outputs = [np.zeros(out.shape, np.float32) for out in theirs(model, feed)]
        native = NativeModel(path, shape=NativeModel(path).find_sizes(batch, length))
        native.run_sizes((batch, length), *feed.values(), outputs=outputs)
        for got, expected in zip(outputs, module(feed), strict=True):
            np.testing.assert_array_equal(got, np.asarray(expected))


def test_positions_without_a_mask_are_refused_by_name() -> None:
    made = pair_model(lambda net: net.mixed(net.scores()))
    with pytest.raises(InputError, match=r"ranges of `batch` and `seq`.*`t4/Softmax` takes the"):
        tvm_interop.compile(made, shapes={"batch": (1, 3), "seq": (1, 9)}, **QUICK)


def test_an_output_may_be_the_same_for_all_sizes() -> None:
    net = Net()
    net.op("Relu", [net.input("x", ["batch", "seq", 4])], "y")
    net.op("Identity", [net.weight(5, 2)], "anchors")
    model = net.model("y", "anchors", check=False)
    ranges = {"batch": (1, 3), "seq": (1, 4)}
    module = GraphModule(tvm_interop.compile(model, shapes=ranges, most_sizes=4, **QUICK))
    for sizes in ((1, 3), (2, 2), (3, 4)):
        x = np.full((*sizes, 4), 2, np.float32)
        assert [each.shape for each in module({"x": x})] == [(*sizes, 4), (5, 2)]


def test_a_dimension_that_a_single_row_loses_is_refused() -> None:
    made = pair_model(lambda net: net.do("Squeeze", net.attention()))
    with pytest.raises(InputError, match=r"for ranges: `t\d+` has the shapes"):
        tvm_interop.compile(made, shapes={"batch": (1, 3), "seq": (1, 4)}, most_sizes=4, **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"batch": (1, 4), "seq": (0, 4)}}, "`seq` the sizes 0 to 4"),
        ({"shapes": {"batch": (1, 4), "sqe": (1, 4)}}, "no open dimension `sqe`.*`seq`"),
        ({"shapes": {"batch": (1, 4)}}, "`batch` a range, but gives no size for other open dim"),
        ({"shapes": {"batch": (1, 4), "seq": (1, 9)}, "most_sizes": 3}, "3: give .* 4 or more"),
    ],
)
def test_ranges_of_no_use_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_interop.compile(encoder("batch"), **options, **QUICK)


def test_sizes_are_shared_out_between_both_dimensions() -> None:
    assert chosen_sizes_of([(1, 32)], 8) == (chosen_sizes(1, 32, 8),)
    assert chosen_sizes_of([(1, 8), (1, 128)], 8) == ([1, 8], chosen_sizes(1, 128, 4))
    assert chosen_sizes_of([(1, 128), (1, 8)], 8) == (chosen_sizes(1, 128, 4), [1, 8])
    assert chosen_sizes_of([(1, 2), (1, 2)], 8) == ([1, 2], [1, 2])
    assert chosen_sizes_of([(4, 5), (1, 100)], 9) == ([4, 5], chosen_sizes(1, 100, 4))


def _changed(rows: RowSizes, **fields: Any) -> RowSizes:
    return msgspec.structs.replace(rows, **fields)


BROKEN: dict[str, tuple[Callable[[RowSizes], RowSizes], str]] = {
    "another order": (
        lambda rows: _changed(rows, second=SecondRange("seq", LENGTHS[::-1])),
        "must grow with",
    ),
    "same name": (
        lambda rows: _changed(rows, second=SecondRange("batch", LENGTHS)),
        "two ranges of `batch`",
    ),
    "too few": (
        lambda rows: _changed(rows, second=SecondRange("seq", LENGTHS[:5])),
        "numbers of rows",
    ),
    "none": (lambda rows: _changed(rows, second=SecondRange("seq", ())), "numbers of rows|sizes"),
    "a combination twice": (
        lambda rows: _changed(rows, second=SecondRange("seq", (1, 11, 32, 1, 11, 11))),
        "a shape for each combination",
    ),
    "one size alone": (
        lambda rows: _changed(rows, sizes=(1,) * 6, second=SecondRange("seq", (1, 2, 3, 4, 5, 6))),
        "a shape for each combination",
    ),
    "zero": (
        lambda rows: _changed(rows, second=SecondRange("seq", (0, 11, 32, 0, 11, 32))),
        "above 0",
    ),
    "other sizes": (
        lambda rows: _changed(rows, second=SecondRange("seq", (1, 11, 33, 1, 11, 33))),
        "must grow with",
    ),
    "the first range alone": (lambda rows: _changed(rows, second=None), "numbers of rows"),
    "a mask that is not an input": (
        lambda rows: _changed(rows, masks=(RowMask("pooled", "any"),)),
        "`pooled` cannot be a mask",
    ),
    "a huge size": (
        lambda rows: _changed(rows, second=SecondRange("seq", (1, 11, 2**62, 1, 11, 2**62))),
        "must grow with",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_both_readers_refuse_wrong_ranges(
    made: Artifact, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, message = BROKEN[name]
    rows = made.manifest.row_sizes
    assert rows is not None
    manifest = msgspec.structs.replace(made.manifest, row_sizes=change(rows))
    broken = Artifact(
        made.plan, made.schedule, made.machine_code(), made.weights, manifest, made.fallback,
        others=made.others,
    )  # fmt: skip
    monkeypatch.setattr("tvm_interop.artifact.writing.check_rows", lambda *_: None)
    broken.save(tmp_path / "bad.tar")
    with pytest.raises(ArtifactError, match=message):
        load_in_both(tmp_path / "bad.tar", kernels=False)
    with pytest.raises(RuntimeLibraryError):
        NativeModel(tmp_path / "bad.tar")


def test_the_command_line_compiles_and_runs_two_ranges(tmp_path: Path) -> None:
    model = encoder("batch", layers=1)
    onnx.save(model, tmp_path / "encoder.onnx")
    command = ["compile", str(tmp_path / "encoder.onnx"), "-o", str(tmp_path / "e.tar")]
    quick = ["--scheduler", "sequential", "--providers", "tvm", "--time-budget", "0"]
    ranges = ["--shapes", "batch=1..3,seq=1..8", "--most-sizes", "4"]
    told = CliRunner().invoke(app, [*command, *quick, *ranges])
    assert told.exit_code == 0, told.output
    assert (
        "batch 1 to 3 and seq 1 to 8, compiled for 1, 3 times 1, 8; other sizes are padded"
        in told.stdout
    )
    assert "all sizes, a run computes 2.15 times the rows that it is given" in told.stdout
    feed = feed_of_encoder(6, 1, 2)
    np.savez(tmp_path / "feed.npz", **feed)
    inputs = ["--inputs", str(tmp_path / "feed.npz"), "-o", str(tmp_path / "out.npz")]
    told = CliRunner().invoke(app, ["run", str(tmp_path / "e.tar"), *inputs])
    assert told.exit_code == 0, told.output
    with np.load(tmp_path / "out.npz") as outputs:
        for name, expected in zip(("states", "pooled"), theirs(model, feed), strict=True):
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-4)
    told = CliRunner().invoke(app, [*command, *quick, *ranges, "--json"])
    found = json.loads(told.stdout)
    batches, lengths = (1 + 3 / 2 + 1) / 3, (1 + sum(8 / n for n in range(2, 9))) / 8
    assert found["mean_filling"] == pytest.approx(batches * lengths)
    assert found["row_sizes"] == {
        "dimension": "batch",
        "sizes": [1, 1, 3, 3],
        "masks": [{"input": "attention_mask", "one_at": "any"}],
        "second": {"dimension": "seq", "sizes": [1, 8, 1, 8]},
    }
