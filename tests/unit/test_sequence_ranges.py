"""Tests models that were compiled for a range of lengths of a sequence with a mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

import tvm_interop
from tests.masked_nets import WIDTH, encoder, feed_of_encoder, model, of_given, proof, theirs
from tests.native_runtime import NativeModel, RuntimeLibraryError
from tests.random_masked import RandomMasked
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.artifact.manifest import RowMask, RowSizes
from tvm_interop.cli.app import app
from tvm_interop.errors import ArtifactError, InputError
from tvm_interop.execution.graph_module import GraphModule
from tvm_interop.lowering.independent_rows import RowsDependError
from tvm_interop.lowering.masked_positions import Masks
from tvm_interop.serving import make_policy
from tvm_interop.serving.server.executor import Executor
from tvm_interop.serving.server.model import Model

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
MASK = (RowMask("attention_mask", "any"),)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("range") / "encoder.tar"
    shapes = {"seq": (1, 128)}
    return tvm_interop.compile(encoder(), shapes=shapes, most_sizes=3, out=path, **QUICK)


def test_any_length_is_right(made: Artifact) -> None:
    assert made.manifest.row_sizes == RowSizes("seq", (1, 34, 128), MASK)
    assert made.path is not None
    session = tvm_interop.Session(made.path)
    assert [info.shape for info in session.inputs] == [(1, "seq")] * 3
    assert [info.shape for info in session.outputs] == [(1, "seq", 16), (1, 16)]
    lengths, worst = np.random.default_rng(7).integers(1, 129, 30), 0.0
    for length in map(int, lengths):
        feed = feed_of_encoder(length, 1)
        for got, expected in zip(session.run(None, feed), theirs(encoder(), feed), strict=True):
            assert got.shape == expected.shape
            worst = max(worst, float(np.abs(got - expected).max()))
    assert worst < 1e-4


def test_what_stands_in_the_filled_part_changes_nothing(made: Artifact) -> None:
    """The kernels run on a padded input, with other numbers in place of the padding."""
    module, feed = GraphModule(made), feed_of_encoder(50, 2)
    alone = [np.array(out) for out in module(feed)]
    long = {**feed_of_encoder(128, 3), "attention_mask": np.zeros((1, 128), np.int64)}
    for name, array in feed.items():
        long[name][:, :50] = array
    among = [np.asarray(out) for out in module(long)]
    np.testing.assert_array_equal(alone[0], among[0][:, :50])
    np.testing.assert_array_equal(alone[1], among[1])


def test_kernels_of_libraries_leave_the_filled_part_out() -> None:
    """Padding must not change the results of oneDNN's kernels either, although oneDNN chooses the
    order of additions."""
    made = tvm_interop.compile(
        encoder(), input_shapes=dict.fromkeys(feed_of_encoder(64, 0), (1, 64)),
        scheduler="sequential", time_budget=0,
    )  # fmt: skip
    module, feed = GraphModule(made), feed_of_encoder(64, 4)
    feed["attention_mask"][:, 41:] = 0
    outputs = []
    for seed in (5, 6):
        for name in ("input_ids", "token_type_ids"):
            feed[name][:, 41:] = feed_of_encoder(64, seed)[name][:, 41:]
        outputs.append([np.array(out) for out in module(feed)])
    np.testing.assert_array_equal(outputs[0][0][:, :41], outputs[1][0][:, :41])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][1])


def _masks_of_no_use() -> list[np.ndarray]:
    negative = feed_of_encoder(40, 0)["attention_mask"]
    negative[0, 3] = -1
    return [np.zeros((1, 40), np.int64), negative, np.full((1, 40), 2)]


@pytest.mark.parametrize("number", range(3))
def test_a_mask_that_leaves_everything_out_is_refused(made: Artifact, number: int) -> None:
    feed = {**feed_of_encoder(40, 0), "attention_mask": _masks_of_no_use()[number]}
    module = GraphModule(made)
    with pytest.raises(InputError, match=r"`attention_mask` is a mask.* 0 to 1, and 1 somewhere"):
        module.run(feed)
    full = {**feed_of_encoder(34, 0), "attention_mask": feed["attention_mask"][:, :34]}
    for got, expected in zip(module(full), theirs(encoder(), full), strict=True):
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)


def test_a_refused_mask_leaves_the_inputs_as_they_were(made: Artifact) -> None:
    module, feed = GraphModule(made), feed_of_encoder(50, 4)
    before = [np.array(out) for out in module(feed)]
    for length in (20, 50):  # For a length of 20, the module needs another shape.
        refused = feed_of_encoder(length, 5)
        refused["attention_mask"][:] = 0
        with pytest.raises(InputError, match="`attention_mask` is a mask"):
            module.set_input(**refused)
        module.run()
        for i, expected in enumerate(before):
            np.testing.assert_array_equal(np.asarray(module.get_output(i)), expected)


def test_a_mask_of_0_alone_would_be_wrong(made: Artifact) -> None:
    """A softmax of equal numbers gives each padded position a weight above 0, so the mask must
    be refused."""
    feed = {**feed_of_encoder(128, 0), "attention_mask": np.zeros((1, 128), np.int64)}
    short = {name: array[:, :40] for name, array in feed.items()}
    wrong = np.asarray(GraphModule(made)(feed)[0])[:, :40]
    assert np.abs(wrong - theirs(encoder(), short)[0]).max() > 1e-3


def test_several_rows(tmp_path: Path) -> None:
    shapes = {"seq": (2, 12)}
    made = tvm_interop.compile(encoder(2), shapes=shapes, most_sizes=2, **QUICK)
    assert made.manifest.row_sizes == RowSizes(
        "seq", (2, 12), (RowMask("attention_mask", "first"),)
    )
    module = GraphModule(made)
    for length in (5, 12, 9, 2):
        feed = feed_of_encoder(length, 1, batch=2)
        for got, expected in zip(module(feed), theirs(encoder(2), feed), strict=True):
            np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)
    feed = feed_of_encoder(5, 1, batch=2)
    feed["attention_mask"][1] = [0, 1, 1, 1, 1]
    with pytest.raises(InputError, match="and 1 at the first seq"):
        module.run(feed)


def test_a_program_in_c_fills_masks_with_0(made: Artifact) -> None:
    assert made.path is not None
    native, module = NativeModel(made.path, shape=2), GraphModule(made)
    for length in (40, 127, 2, 128):
        feed = feed_of_encoder(length, 5)
        outputs = [np.zeros((1, length, 16), np.float32), np.zeros((1, 16), np.float32)]
        native.run_rows(length, *feed.values(), outputs=outputs)
        for got, expected in zip(outputs, theirs(encoder(), feed), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
        if length in (40, 127):
            for got, expected in zip(outputs, module(feed), strict=True):
                np.testing.assert_array_equal(got, np.asarray(expected))
    outputs = [np.zeros((1, 1, 16), np.float32), np.zeros((1, 16), np.float32)]
    with pytest.raises(RuntimeLibraryError, match="is 1, and this instance has the shape for 128"):
        native.run_rows(1, *feed_of_encoder(1, 5).values(), outputs=outputs)
    for mask in _masks_of_no_use():
        feed = {**feed_of_encoder(40, 0), "attention_mask": mask}
        outputs = [np.zeros((1, 40, 16), np.float32), np.zeros((1, 16), np.float32)]
        with pytest.raises(RuntimeLibraryError, match="mask `attention_mask` does not allow"):
            native.run_rows(40, *feed.values(), outputs=outputs)


def test_a_server_takes_any_length(made: Artifact) -> None:
    with Executor([Model("encoder", made)], lambda: make_policy("sequential")) as server:
        for length in (40, 1, 128):
            feed = feed_of_encoder(length, 6)
            for got, wanted in zip(
                server.infer("encoder", feed), theirs(encoder(), feed), strict=True
            ):
                np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
        with pytest.raises(InputError, match=r"have 129 rows, .* for 1 to 128"):
            server.infer("encoder", feed_of_encoder(129, 0))


def test_a_sum_needs_no_mask() -> None:
    """A sum needs no mask, because positions that are padded with 0 add nothing."""
    summed = model(lambda net: net.do("ReduceSum", "x", net.ints(1), keepdims=0))
    made = tvm_interop.compile(summed, shapes={"seq": (1, 9)}, most_sizes=2, **QUICK)
    assert made.manifest.row_sizes == RowSizes("seq", (1, 9), (RowMask("x", "nowhere"),))
    module = GraphModule(made)
    for length in (5, 1, 9):
        x = np.random.default_rng(length).standard_normal((1, length, WIDTH)).astype(np.float32)
        feed = {"x": x, "mask": np.zeros((1, length), np.int64)}
        np.testing.assert_allclose(np.asarray(module(feed)[0]), x.sum(1), rtol=1e-5, atol=1e-5)


def test_attention_without_a_mask_is_refused_by_name() -> None:
    made = model(lambda net: net.mixed(net.scores()))
    with pytest.raises(InputError, match=r"range of `seq`.*`t4/Softmax` takes the maximum"):
        tvm_interop.compile(made, shapes={"seq": (1, 9)}, **QUICK)


def test_the_command_line_compiles_and_runs_a_range(tmp_path: Path) -> None:
    onnx.save(encoder(layers=1), tmp_path / "encoder.onnx")
    command = ["compile", str(tmp_path / "encoder.onnx"), "-o", str(tmp_path / "e.tar")]
    quick = ["--scheduler", "sequential", "--providers", "tvm", "--time-budget", "0"]
    told = CliRunner().invoke(app, [*command, *quick, "--shapes", "seq=1..9", "--most-sizes", "2"])
    assert told.exit_code == 0, told.output
    assert "; other sizes are padded, `attention_mask` with 0" in told.stdout
    np.savez(tmp_path / "feed.npz", **feed_of_encoder(6, 1))
    inputs = ["--inputs", str(tmp_path / "feed.npz"), "-o", str(tmp_path / "out.npz")]
    told = CliRunner().invoke(app, ["run", str(tmp_path / "e.tar"), *inputs])
    assert told.exit_code == 0, told.output
    expected = theirs(encoder(layers=1), feed_of_encoder(6, 1))
    with np.load(tmp_path / "out.npz") as outputs:
        np.testing.assert_allclose(outputs["states"], expected[0], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(outputs["pooled"], expected[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (RowMask("nothing", "any"), "`nothing` cannot be a mask"),
        (RowMask("pooled", "first"), "`pooled` cannot be a mask"),
    ],
)
def test_both_readers_refuse_wrong_masks(
    made: Artifact, mask: RowMask, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = RowSizes("seq", (1, 34, 128), (mask,))
    broken = Artifact(
        made.plan, made.schedule, made.machine_code(), made.weights,
        msgspec.structs.replace(made.manifest, row_sizes=rows), made.fallback, others=made.others,
    )  # fmt: skip
    monkeypatch.setattr("tvm_interop.artifact.writing.check_rows", lambda *_: None)
    broken.save(tmp_path / "bad.tar")
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path / "bad.tar", kernels=False)
    with pytest.raises(RuntimeLibraryError, match=message):
        NativeModel(tmp_path / "bad.tar")


def test_a_range_without_masks_is_written_as_before(made: Artifact) -> None:
    plain = msgspec.structs.replace(made.manifest, row_sizes=RowSizes("batch", (1, 4)))
    assert json.loads(plain.to_json())["row_sizes"] == {"dimension": "batch", "sizes": [1, 4]}


def _outputs_agree(random: RandomMasked, masks: Masks) -> bool:
    """Whether padding leaves the results at the given positions as they are without padding."""

    def outputs(garbage: int | None) -> np.ndarray:
        feed = random.feed(garbage, masks.names, all_ones=masks.anchor == "all")
        return theirs(random.model(), feed)[0]

    alone = outputs(None)
    found = [of_given(outputs(seed)) for seed in (0, 1)]
    same = np.allclose(found[0], found[1], rtol=1e-4, atol=1e-4, equal_nan=True)
    return same and np.allclose(found[0], alone, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("begin", range(0, 60, 20))
def test_what_is_proven_of_random_graphs_is_true(begin: int) -> None:
    proven = 0
    for seed in range(begin, begin + 20):
        random = RandomMasked(seed)
        try:
            masks = proof(random.model())
        except RowsDependError:
            continue
        proven += 1
        assert _outputs_agree(random, masks), f"seed {seed}"
    assert 2 <= proven < 20
