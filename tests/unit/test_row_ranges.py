"""Tests models that were compiled for a range of sizes of one dimension."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tvm
from typer.testing import CliRunner

import tvm_interop
from tests.native_runtime import NativeModel, RuntimeLibraryError
from tests.nets import Net
from tvm_interop.artifact.artifact import Artifact, load
from tvm_interop.artifact.manifest import RowSizes
from tvm_interop.cli.app import app
from tvm_interop.compiler.row_ranges import MOST_ROWS, chosen_sizes
from tvm_interop.errors import ArtifactError, InputError
from tvm_interop.execution.graph_module import GraphModule

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def _ranker(batch: int | str = "batch") -> onnx.ModelProto:
    """Scores rows by numbers and by embeddings of `items`. The embeddings are an output too."""
    net = Net()
    numbers = net.input("numbers", [batch, 6])
    items = net.input("items", [batch, 3], onnx.TensorProto.INT64)
    found = net.op("Gather", [net.weight(20, 4), items], "found")
    flat = net.op("Flatten", [found], "flat")
    both = net.op("Concat", [numbers, flat], "both", axis=1)
    hidden = net.op("Relu", [net.op("MatMul", [both, net.weight(18, 8)], "product")], "hidden")
    net.op("Softmax", [net.op("MatMul", [hidden, net.weight(8, 5)], "sum")], "scores", axis=-1)
    return net.model("scores", "found")


def _feed(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng([seed, rows])
    return {
        "numbers": rng.standard_normal((rows, 6)).astype(np.float32),
        "items": rng.integers(0, 20, (rows, 3)),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    path = tmp_path_factory.mktemp("range") / "ranker.tar"
    return tvm_interop.compile(_ranker(), shapes={"batch": (1, 9)}, most_sizes=3, out=path, **QUICK)


def _expected(feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    found: list[np.ndarray] = onnxruntime.InferenceSession(
        _ranker().SerializeToString(), providers=["CPUExecutionProvider"]
    ).run(None, feed)
    return found


@pytest.mark.parametrize("from_file", [True, False])
def test_any_size_of_the_range_is_right(made: Artifact, from_file: bool) -> None:
    assert made.manifest.row_sizes == RowSizes("batch", (1, 4, 9))
    assert made.path is not None
    module = GraphModule(load(made.path) if from_file else made)
    for rows in (9, 1, 2, 5, 3, 8, 4, 7, 6):
        feed = _feed(rows)
        for got, expected in zip(module(feed), _expected(feed), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-6)


def test_rows_that_fill_up_change_nothing(made: Artifact) -> None:
    """The values in the padded rows do not change the bits of the given rows."""
    module = GraphModule(made)
    few, many = _feed(6), _feed(9)
    for name, array in few.items():
        many[name][:6] = array
    alone = [np.asarray(out) for out in module(few)]
    for ours, among in zip(alone, module(many), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(among)[:6])


def test_a_session_names_the_dimension_and_runs_any_size(made: Artifact) -> None:
    session = tvm_interop.Session(made.path)
    assert [info.shape for info in session.inputs] == [("batch", 6), ("batch", 3)]
    assert [info.shape for info in session.outputs] == [("batch", 5), ("batch", 3, 4)]
    for rows in (2, 9):
        scores, found = session.run(["scores", "found"], _feed(rows))
        np.testing.assert_allclose(scores, _expected(_feed(rows))[0], rtol=1e-5, atol=1e-6)
        assert found.shape == (rows, 3, 4)


def test_inputs_are_kept_and_must_agree(made: Artifact) -> None:
    module = GraphModule(made)
    module.run(_feed(5))
    with pytest.raises(InputError, match=r"input `items` changes its shape too, to \(6, 3\)"):
        module.set_input(numbers=_feed(6)["numbers"])
    module.set_input(numbers=_feed(5, 1)["numbers"])
    module.run()
    mixed = {"numbers": _feed(5, 1)["numbers"], "items": _feed(5)["items"]}
    expected = _expected(mixed)[0]
    np.testing.assert_allclose(np.asarray(module.get_output(0)), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(module.get_input("items")), mixed["items"])
    assert module.get_input_info()[0]["items"] == (5, 3)
    assert module.get_output_zero_copy("scores").shape == (5, 5)
    np.testing.assert_allclose(module.get_output_zero_copy(0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"numbers": (10, 6), "items": (10, 3)}, "have 10 rows, and .* for 1 to 9 of `batch`"),
        ({"numbers": (0, 6), "items": (0, 3)}, "have 0 rows, .*leave the run out"),
        ({"numbers": (2, 6), "items": (3, 3)}, "`numbers` has batch 2, and .*`items` has batch 3"),
        (
            {"numbers": (2, 7), "items": (2, 3)},
            r"`numbers` has shape \(2, 7\), .* for \(batch, 6\)",
        ),
    ],
)
def test_other_shapes_are_refused(
    made: Artifact, feed: dict[str, tuple[int, ...]], message: str
) -> None:
    arrays = {
        name: np.zeros(shape, np.int64 if name == "items" else np.float32)
        for name, shape in feed.items()
    }
    with pytest.raises(InputError, match=message):
        GraphModule(made).run(arrays)


def test_memory_of_the_caller_needs_a_size_that_was_compiled(made: Artifact) -> None:
    module = GraphModule(made)
    module.run(_feed(3))
    with pytest.raises(InputError, match=r"run of 3 rows is padded.* for, 1, 4, 9"):
        module.set_output_zero_copy("scores")
    module.run(_feed(4))
    scores = module.set_output_zero_copy("scores")
    module.run()
    np.testing.assert_allclose(scores, _expected(_feed(4))[0], rtol=1e-5, atol=1e-6)


def test_weights_can_be_replaced_for_all_sizes(made: Artifact) -> None:
    """In an instance with changeable weights, tensors have other indices than in a native
    instance."""
    assert made.path is not None
    module = GraphModule(load(made.path))
    module.run(_feed(6))
    name, array = next(
        (module.plan.values[v].name, module.artifact.weights[v])
        for v in module.artifact.weights
        if module.artifact.weights[v].shape == (8, 5)
    )
    module.load_params(tvm.runtime.save_param_dict({name: tvm.runtime.tensor(0 * array)}))
    for rows in (6, 2, 9):
        module.run(_feed(rows))
        np.testing.assert_allclose(np.asarray(module.get_output(0)), np.full((rows, 5), 0.2))


def test_a_server_joins_requests_of_such_a_model(made: Artifact) -> None:
    assert made.manifest.batch_sizes == (1, 4, 9)


def _steps() -> onnx.ModelProto:
    """Computes each step of two sequences separately, and merges the sequences in the output."""
    net = Net()
    x = net.input("x", [2, "length", 6])
    bias = net.op("Add", [net.input("bias", [6]), net.weight(6)], "shifted")
    wide = net.op("MatMul", [net.op("Add", [x, bias], "sum"), net.weight(6, 8)], "wide")
    turned = net.op("Transpose", [wide], "turned", perm=[1, 0, 2])
    net.op("Reshape", [turned, net.constant(np.array([-1, 8], np.int64))], "y")
    return net.model("y")


def test_rows_may_lie_along_another_dimension(tmp_path: Path) -> None:
    model = _steps()
    made = tvm_interop.compile(
        model, shapes={"length": (2, 7)}, most_sizes=2, out=tmp_path / "a.tar", **QUICK
    )
    assert made.manifest.batch_sizes == ()
    session = tvm_interop.Session(tmp_path / "a.tar")
    assert [info.shape for info in session.inputs] == [(2, "length", 6), (6,)]
    assert session.outputs[0].shape == ("2*length", 8)
    import onnxruntime

    theirs = onnxruntime.InferenceSession(model.SerializeToString())
    for length in range(2, 8):
        rng = np.random.default_rng(length)
        feed = {
            "x": rng.standard_normal((2, length, 6)).astype(np.float32),
            "bias": rng.standard_normal(6).astype(np.float32),
        }
        np.testing.assert_allclose(
            session.run(None, feed)[0], theirs.run(None, feed)[0], rtol=1e-5, atol=1e-6
        )


def _like(shapes: list[tuple[int, ...]], shift: int) -> list[np.ndarray]:
    """Arrays of float32, `shift` bytes after an address that is a multiple of 64."""
    made = []
    for shape in shapes:
        nbytes = 4 * int(np.prod(shape))
        memory = np.full(nbytes + 128, 255, np.uint8)
        begin = -memory.ctypes.data % 64 + shift
        made.append(memory[begin : begin + nbytes].view(np.float32).reshape(shape))
    return made


@pytest.mark.parametrize("shift", [0, 4])
def test_a_program_in_c_runs_any_size(made: Artifact, shift: int) -> None:
    assert made.path is not None
    models = [NativeModel(made.path, shape=shape) for shape in range(3)]
    module = GraphModule(made)
    for rows in (5, 9, 5, 2, 1, 4, 6, 3):
        shape = models[0].find_rows(rows)
        assert (1, 4, 9)[shape] == min(size for size in (1, 4, 9) if size >= rows)
        feed = _feed(rows)
        outputs = _like([(rows, 5), (rows, 3, 4)], shift)
        models[shape].run_rows(rows, feed["numbers"], feed["items"], outputs=outputs)
        for got, expected in zip(outputs, module(feed), strict=True):
            np.testing.assert_array_equal(got, np.asarray(expected))
            last = got.reshape(-1).view(np.uint8)[-1:]
            behind = np.lib.stride_tricks.as_strided(last, (9,), (1,))
            assert (behind[1:] == 255).all(), "rows of the padding were written"


def test_the_same_memory_may_have_other_numbers_of_rows(made: Artifact) -> None:
    assert made.path is not None
    model, feed = NativeModel(made.path, shape=2), _feed(9)
    inputs = feed["numbers"], feed["items"]
    whole, some = _like([(9, 5), (9, 3, 4)], 0), _like([(9, 5), (9, 3, 4)], 0)
    model.run_rows(9, *inputs, outputs=whole)
    for rows in (5, 9, 3):
        for array in some:
            array[...] = 7
        model.run_rows(rows, *inputs, outputs=some)
        for ours, all_rows in zip(some, whole, strict=True):
            np.testing.assert_array_equal(ours[:rows], all_rows[:rows])
            assert (ours[rows:] == 7).all()


def test_c_runs_rows_along_any_dimension(tmp_path: Path) -> None:
    tvm_interop.compile(
        _steps(), shapes={"length": (2, 7)}, most_sizes=2, out=tmp_path / "a.tar", **QUICK
    )
    session = tvm_interop.Session(tmp_path / "a.tar")
    model = NativeModel(tmp_path / "a.tar", shape=1)
    for length in (7, 3, 5, 2):
        rng = np.random.default_rng(length)
        x = rng.standard_normal((2, length, 6)).astype(np.float32)
        bias = rng.standard_normal(6).astype(np.float32)
        (y,) = _like([(2 * length, 8)], 0)
        model.run_rows(length, x, bias, outputs=[y])
        expected = session.run(None, {"x": x, "bias": bias})[0]
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_outputs_may_share_memory_with_inputs_in_c(tmp_path: Path) -> None:
    net = Net()
    net.op("MatMul", [net.input("x", ["batch", 6]), net.weight(6, 6)], "y")
    made = tvm_interop.compile(
        net.model("y"), shapes={"batch": (1, 4)}, most_sizes=2, out=tmp_path / "a.tar", **QUICK
    )
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    (expected,) = GraphModule(made)(x)
    (shared,) = _like([(3, 6)], 0)
    shared[...] = x
    NativeModel(tmp_path / "a.tar", shape=1).run_rows(3, shared, outputs=[shared])
    np.testing.assert_array_equal(shared, np.asarray(expected))


def test_numbers_of_rows_that_c_cannot_run(made: Artifact, tmp_path: Path) -> None:
    assert made.path is not None
    model = NativeModel(made.path, shape=1)
    feed, outputs = _feed(4), _like([(9, 5), (9, 3, 4)], 0)
    for rows in (0, -1, 5, 2**62):
        with pytest.raises(RuntimeLibraryError, match=f"`batch` is {rows}, .* runs 1 to 4"):
            model.run_rows(rows, feed["numbers"], feed["items"], outputs=outputs)
    for rows in (0, 10):
        with pytest.raises(RuntimeLibraryError, match=f"`batch` is {rows}, .* for 1 to 9"):
            model.find_rows(rows)
    tvm_interop.compile(_ranker(2), out=tmp_path / "one.tar", **QUICK)
    whole = NativeModel(tmp_path / "one.tar")
    with pytest.raises(RuntimeLibraryError, match="not compiled for a range of rows"):
        whole.find_rows(1)
    with pytest.raises(RuntimeLibraryError, match="not compiled for a range of rows"):
        whole.run_rows(1, *_feed(2).values(), outputs=outputs)


def test_a_model_whose_rows_depend_on_each_other_is_refused() -> None:
    net = Net()
    scores = net.op("Softmax", [net.input("x", ["batch", 4])], "scores", axis=0)
    net.op("Relu", [scores], "y")
    with pytest.raises(InputError, match=r"range of `batch`.*operator `scores/Softmax`.*rows"):
        tvm_interop.compile(net.model("y"), shapes={"batch": (1, 4)}, **QUICK)


def test_batch_sizes_of_a_model_whose_rows_depend_on_each_other_get_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    net = Net()
    mean = net.op("ReduceMean", [net.input("x", ["batch", 4])], "mean", axes=[0])
    net.op("Sub", ["x", mean], "y")
    tvm_interop.compile(net.model("y"), batch_sizes=[1, 2], **QUICK)
    assert "rows of a batch may depend on each other" in caplog.text
    assert "`mean/ReduceMean`" in caplog.text
    caplog.clear()
    tvm_interop.compile(_ranker(), batch_sizes=[2], **QUICK)
    assert "depend on each other" not in caplog.text


def test_a_model_that_holds_its_batch_has_no_range_but_may_be_served() -> None:
    net = Net()
    turned = net.op("Reshape", [net.input("x", ["n", 4]), net.constant(np.array([2, 2, 2]))], "t")
    net.op("Reshape", [turned, net.constant(np.array([2, 4]))], "y")
    model = net.model("y")
    with pytest.raises(InputError, match=r"of `n`.*be imported for the input shapes.*dynamic"):
        tvm_interop.compile(model, shapes={"n": (2, 3)}, **QUICK)
    assert tvm_interop.compile(model, batch_sizes=[2], **QUICK).manifest.batch_sizes == (2,)


def _with_shared_parts(outputs: int) -> onnx.ModelProto:
    """A model with an input that all rows share. Its second output is the same for all rows."""
    net = Net()
    x = net.input("x", ["batch", 4])
    net.op("MatMul", [x, net.input("shared", [4, 3])], "y")
    net.op("Identity", [net.weight(5, 2)], "anchors")
    return net.model(*("y", "anchors")[:outputs], check=False)


@pytest.mark.parametrize("outputs", [1, 2])
def test_all_rows_may_share_an_input_and_an_output(outputs: int, tmp_path: Path) -> None:
    model, path = _with_shared_parts(outputs), tmp_path / "shared.tar"
    rng = np.random.default_rng(0)
    made = tvm_interop.compile(model, shapes={"batch": (1, 5)}, most_sizes=2, out=path, **QUICK)
    assert made.manifest.row_sizes == RowSizes("batch", (1, 5))
    assert made.manifest.batch_sizes == ()  # Requests with different shared inputs are not joined.
    for module in (GraphModule(made), GraphModule(load(path))):
        for rows in (1, 3, 5):
            shape = rows, 4
            feed = {name: rng.standard_normal(of).astype(np.float32)
                    for name, of in (("x", shape), ("shared", (4, 3)))}  # fmt: skip
            found = module(feed)
            assert [each.shape for each in found] == [(rows, 3), (5, 2)][:outputs]
            np.testing.assert_allclose(found[0], feed["x"] @ feed["shared"], atol=1e-5)


def test_a_module_of_relax_has_no_ranges() -> None:
    with pytest.raises(InputError, match=r"range is for ONNX models and .*`input_shapes`"):
        tvm_interop.compile(tvm.IRModule(), shapes={"n": (1, 4)}, **QUICK)


def test_a_module_of_relax_has_no_sets_of_sizes_by_name() -> None:
    with pytest.raises(InputError, match=r"for programs of torch.export, and .*`input_shapes`"):
        tvm_interop.compile(tvm.IRModule(), shapes={"n": {1, 4}}, **QUICK)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"batch": (4, 1)}, "sizes 4 to 1"),
        ({"batch": (0, 4)}, "sizes 0 to 4"),
        ({"batch": (1, MOST_ROWS + 1)}, f"sizes from 1 to {MOST_ROWS}"),
        ({}, r"`shapes` is \{\}, and gives no dimension a range"),
        ({"batch": (4, 4)}, "gives no dimension a range"),
        ({4: (1, 4)}, "by the names of dimensions"),
        ({"numbers": (1, 4)}, r"no open dimension `numbers`.*`numbers` has shape \(batch, 6\)"),
        ({"batch": "1..4"}, "value '1..4'"),
        ({"batch": (1, 2, 3)}, r"value \(1, 2, 3\)"),
        ({"batch": (1, True)}, r"value \(1, True\)"),
        ({"bacth": (1, 4)}, "no open dimension `bacth`.*did you mean `batch`"),
        ({"batch": (1, 4), "more": (1, 2)}, "no open dimension `more`"),
        ({"batch": (1, 4), "b": (1, 2), "c": (1, 2)}, "a range for 3 dimensions"),
    ],
)
def test_ranges_of_no_use_are_refused(shapes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_interop.compile(_ranker(), shapes=shapes, **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"batch": (1, 4)}, "batch_sizes": [1]}, "leave them out"),
        ({"shapes": {"batch": (1, 4)}, "input_shapes": {"numbers": (1, 6)}}, "leave them out"),
        ({"shapes": {"batch": (1, 4)}, "most_sizes": 1}, "`most_sizes` is 1"),
        ({"shapes": {"batch": (1, 4)}, "target": {"kind": "cuda"}}, "for models on a CPU"),
        ({"shapes": [("batch", 1, 4)]}, "`shapes` is "),
        ({"most_sizes": 4, "batch_sizes": [1]}, "`most_sizes` is for a range"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        tvm_interop.compile(_ranker(), **options, **QUICK)


@pytest.mark.parametrize("dims", [["length", "length"], ["length + 1"]])
def test_a_dimension_that_is_more_than_one_of_an_input_has_no_range(dims: list[str]) -> None:
    net = Net()
    net.op("Relu", [net.input("x", [*dims, 3])], "y")
    with pytest.raises(InputError, match="give `length` one size"):
        tvm_interop.compile(net.model("y"), shapes={"length": (2, 4)}, **QUICK)


def test_chosen_sizes_are_the_best_of_all_choices() -> None:
    def cost(sizes: tuple[int, ...], least: int, most: int) -> float:
        at = (min(s for s in sizes if s >= each) for each in range(least, most + 1))
        rows = range(least, most + 1)
        return sum((size + 1) / (each + 1) for size, each in zip(at, rows, strict=True))

    for least, most, count in ((1, 12, 3), (3, 11, 4), (1, 9, 2), (5, 6, 4)):
        found = chosen_sizes(least, most, count)
        inner = range(least + 1, most)
        best = min(
            cost((least, *some, most), least, most)
            for k in range(count - 1)
            for some in itertools.combinations(inner, k)
        )
        assert found == sorted(found)
        assert (found[0], found[-1]) == (least, most)
        assert len(found) <= count
        assert cost(tuple(found), least, most) == pytest.approx(best)
    assert chosen_sizes(1, 4, 9) == [1, 2, 3, 4]


def _damaged(made: Artifact, path: Path, sizes: tuple[int, ...], monkeypatch: Any) -> None:
    rows = RowSizes("batch", sizes)
    broken = Artifact(
        made.plan, made.schedule, made.machine_code(), made.weights,
        msgspec.structs.replace(made.manifest, row_sizes=rows), made.fallback, others=made.others,
    )  # fmt: skip
    monkeypatch.setattr("tvm_interop.artifact.writing.check_rows", lambda *_: None)
    broken.save(path)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 4), "numbers of rows .* for 3 shapes"),
        ((1, 4, 4), "all different"),
        ((0, 4, 9), "above 0"),
        ((1, 4, 8), "must grow with the number of rows"),
        ((2, 4, 9), "must grow with the number of rows"),
    ],
)
def test_both_readers_refuse_wrong_numbers_of_rows(
    made: Artifact,
    sizes: tuple[int, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _damaged(made, tmp_path / "bad.tar", sizes, monkeypatch)
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path / "bad.tar", kernels=False)
    with pytest.raises(RuntimeLibraryError, match="rows"):
        NativeModel(tmp_path / "bad.tar")


def test_the_command_line_compiles_a_range(tmp_path: Path) -> None:
    onnx.save(_ranker(), tmp_path / "ranker.onnx")
    command = ["compile", str(tmp_path / "ranker.onnx"), "-o", str(tmp_path / "r.tar")]
    quick = ["--scheduler", "sequential", "--providers", "tvm", "--time-budget", "0"]
    told = CliRunner().invoke(app, [*command, *quick, "--shapes", "batch=1..6", "--json"])
    assert told.exit_code == 0, told.output
    sizes = [1, 2, 3, 4, 5, 6]
    assert json.loads(told.stdout)["row_sizes"] == {"dimension": "batch", "sizes": sizes}
    told = CliRunner().invoke(
        app, [*command, *quick, "--shapes", "batch=1..6", "--most-sizes", "2"]
    )
    assert "shapes: batch 1 to 6, compiled for 1, 6; other sizes are padded" in told.stdout
    told = CliRunner().invoke(app, [*command, *quick, "--shapes", "batch=1-6"])
    assert told.exit_code != 0
    assert "--shapes: cannot read `batch=1-6`" in str(told.exception)


def test_what_has_no_range_is_written_as_before(tmp_path: Path) -> None:
    tvm_interop.compile(_ranker(2), **QUICK).save(tmp_path / "one.tar")
    assert b"row_sizes" not in (tmp_path / "one.tar").read_bytes()
    assert load(tmp_path / "one.tar").manifest.version == 2
