"""Tests the comparison of compiled programs of `torch.export` with PyTorch."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import tvm_interop
from tests.native_runtime import load_in_both
from tvm_interop import Artifact, ArtifactError
from tvm_interop.artifact.manifest import Precision, Quantised
from tvm_interop.artifact.program_check import ProgramCheck
from tvm_interop.cli import compile as command
from tvm_interop.cli.app import run_app
from tvm_interop.compiler import cpu
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.program_check import LIMIT, _bound, _compared, _error
from tvm_interop.errors import UnsupportedModelError
from tvm_interop.frontend import program_sizes, torch_operators, torch_program
from tvm_interop.frontend.program_example import Example, run_example

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}
IN_SESSION: dict[str, Any] = {**QUICK, "providers": None}
DIFFERS = r"`atan2` by 0\.\d+ \(at most 0\.001 is expected.*may be wrong: compare .*report the diff"


class _Of(torch.nn.Module):
    """A network that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def _program(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> Any:
    return torch.export.export(_Of(function), inputs, **options)


def _open() -> Any:
    """The dimensions of the only input of an `_Of`, which may have 1 to 16 rows."""
    return (({0: torch.export.Dim("n", min=1, max=16)},),)


def _angles() -> Any:
    """A program with the outputs `atan2` and `argmax`."""
    torch.manual_seed(0)
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    return _program(lambda x, y: (torch.atan2(x, y), (x + y).argmax(-1)), x, y)


def _check(artifact: Artifact) -> ProgramCheck:
    check = artifact.manifest.program_check
    assert check is not None
    return check


def _unchecked(artifact: Artifact) -> str:
    check = _check(artifact)
    assert check.errors == {}
    assert check.unchecked is not None
    return check.unchecked


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings about PyTorch."""
    return [each for each in caplog.messages if "PyTorch" in each]


@pytest.fixture
def is_converted_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert `atan2(x, y)` to `atan(x + y)`."""
    own = torch_operators.translations()

    def wrong(x: Any, y: Any) -> Any:
        return torch_operators.op.Atan(torch_operators.op.Add(x, y))

    table = {**own, torch.ops.aten.atan2.default: wrong}
    monkeypatch.setattr(torch_operators, "translations", lambda: table)


@pytest.mark.usefixtures("is_converted_wrong")
def test_a_wrong_conversion_is_told(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    made = tvm_interop.compile(_angles(), out=tmp_path / "model.tar", **QUICK)
    check = _check(made)
    assert check.errors["argmax"] == 0
    assert check.differing.keys() == {"atan2"}
    (warning,) = _warnings(caplog)
    assert f"`atan2` by {check.errors['atan2']:.2g} " in warning
    assert pytest.approx(check.largest) == check.errors["atan2"]
    assert re.search(DIFFERS, warning)
    assert _check(load_in_both(tmp_path / "model.tar")) == check


def test_a_right_conversion_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    check = _check(tvm_interop.compile(_angles(), **QUICK))
    assert check.unchecked is None
    assert check.inputs == "example"
    assert check.bound == LIMIT
    assert check.errors.keys() == {"atan2", "argmax"}
    assert check.largest is not None
    assert check.largest < 1e-6
    assert _warnings(caplog) == []
    assert "differ from PyTorch's by at most" in str(check)


def test_other_models_are_not_compared() -> None:
    made = tvm_interop.compile(torch_program.as_onnx(_angles()), **QUICK)
    assert made.manifest.program_check is None
    # Older versions of this package refuse a field that they do not know, so an artifact that does
    # not need the field must not have it.
    assert b"program_check" not in made.manifest.to_json()


@pytest.mark.parametrize("is_file", [False, True])
def test_without_example_inputs(
    is_file: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    program: Any = _angles()
    program.example_inputs = None
    if is_file:
        torch.export.save(program, tmp_path / "net.pt2")
        program = tmp_path / "net.pt2"
    made = tvm_interop.compile(program, **QUICK)
    assert "has no example inputs" in _unchecked(made)
    assert len(_warnings(caplog)) == 1
    assert _check(made).largest is None


def _looked_up(ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(30.0).reshape(10, 3)[ids] * torch.arange(ids.shape[0])[:, None]


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({"input_shapes": {"args_0": (9,)}}, 9),
        ({"input_shapes": [{"args_0": (2,)}, {"args_0": (9,)}]}, 9),
        ({"batch_sizes": [8, 3]}, 8),
        ({"input_shapes": {"args_0": (4,)}}, 4),
    ],
)
def test_open_dimensions_have_the_largest_compiled_size(
    options: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []

    def noted(artifact: Artifact, example: Example, options: CompileOptions) -> ProgramCheck:
        runs.append((artifact.input_shapes[0]["args_0"], example.inputs["args_0"]))
        return _compared(artifact, example, options)

    monkeypatch.setattr("tvm_interop.compiler.program_check._compared", noted)
    ids = torch.tensor([7, 1, 9, 2])
    program = _program(_looked_up, ids, dynamic_shapes=_open())
    check = _check(tvm_interop.compile(program, **options, **QUICK))
    ((compiled, given),) = runs
    assert compiled == (size,)
    np.testing.assert_array_equal(given, np.resize(ids.numpy(), size))
    assert check.inputs == ("example" if size == 4 else "resized")
    assert check.unchecked is None
    assert check.largest == 0


@pytest.mark.usefixtures("is_converted_wrong")
def test_ranges_are_compared(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    program = _program(lambda x: torch.atan2(x, x * x), torch.randn(4, 6), dynamic_shapes=_open())
    torch.export.save(program, tmp_path / "net.pt2")
    name = next(iter(program.range_constraints))
    made = tvm_interop.compile(
        tmp_path / "net.pt2", shapes={str(name): (1, 8)}, most_sizes=2, **QUICK
    )
    assert _check(made).inputs == "resized"
    assert made.manifest.row_sizes is not None
    (warning,) = _warnings(caplog)
    assert "example inputs, repeated or cut to the compiled shapes, these outputs" in warning


class _Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, how: str, *, pair: dict[str, torch.Tensor]) -> torch.Tensor:
        added = pair["b"] - 2 * pair["a"]
        return x + added if how == "add" else x * added


def test_dictionaries_and_texts_as_arguments() -> None:
    x = torch.arange(6.0)
    pair = {"b": torch.ones(6), "a": torch.full((6,), 5.0)}
    program = torch.export.export(_Named(), (x, "add"), {"pair": pair})
    made = tvm_interop.compile(program, **QUICK)
    assert _check(made).errors == {"add": 0.0}
    # The program's string argument does not become an input, and no input is named after it.
    assert list(made.input_shapes[0]) == ["x", "pair_b", "pair_a"]
    (got,) = tvm_interop.GraphModule(made)(
        x=x.numpy(), pair_a=pair["a"].numpy(), pair_b=pair["b"].numpy()
    )
    np.testing.assert_array_equal(got, program.module()(x, "add", pair=pair))


def _with_places(ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(16.0)[ids + ids.shape[0]]


def test_a_program_that_fails_in_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    program = _program(_with_places, torch.tensor([7, 1, 9, 2]), dynamic_shapes=_open())
    made = tvm_interop.compile(program, input_shapes={"args_0": (12,)}, **QUICK)
    why = _unchecked(made)
    assert "PyTorch does not run the program" in why
    assert "repeated or cut to the compiled shapes: IndexError: index" in why
    (warning,) = _warnings(caplog)
    assert why in warning


def test_outputs_without_any_number(caplog: pytest.LogCaptureFixture) -> None:
    made = tvm_interop.compile(_program(lambda x: x / 0, torch.zeros(3)), **QUICK)
    assert _unchecked(made) == "PyTorch gives no finite number on the example inputs"
    assert len(_warnings(caplog)) == 1


def test_the_example_inputs_stay_as_they_are() -> None:
    x = torch.ones(3)
    program = _program(lambda x: x.add_(1) * 2, x)
    x.fill_(1)
    run = run_example(program, {})
    assert isinstance(run, Example)
    np.testing.assert_array_equal(run.inputs["args_0"], np.ones(3))
    np.testing.assert_array_equal(run.outputs[0], np.full(3, 4))
    assert x.tolist() == [1, 1, 1]


def test_a_file_that_changes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.pt2"
    torch.export.save(_angles(), path)

    class Progress:
        def __call__(self, *_: Any) -> None: ...

        def say(self, what: str) -> None:
            if "PyTorch" in what:
                path.write_bytes(b"another program")

    made = tvm_interop.compile(path, progress=Progress(), **QUICK)
    assert "net.pt2` has changed while it was compiled" in _unchecked(made)


def test_a_cpu_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "runs_here", lambda target: False)
    monkeypatch.setattr(
        "tvm_interop.compiler.program_check.run_example", lambda *_: pytest.fail("PyTorch ran")
    )
    assert cpu.NOT_THIS_CPU in _unchecked(tvm_interop.compile(_angles(), **QUICK))


def _example(outputs: Sequence[Any], **inputs: Any) -> Example:
    return Example(inputs, list(outputs), False, 0.0)


def test_a_model_that_does_not_fit_the_program(made: Artifact) -> None:
    x = np.zeros((4, 6), np.float32)
    check = _compared(made, _example([x], args_0=x, args_1=x), CompileOptions())
    assert check.unchecked is not None
    assert "args_0, args_1 and 1 outputs, and the compiled model" in check.unchecked
    check = _compared(made, _example([x, x], args_0=x, args_1=x[:1]), CompileOptions())
    assert check.unchecked is not None
    assert "the compiled model does not run: input `args_1`" in check.unchecked


def test_what_counts_as_an_error() -> None:
    want = np.array([3.0, -4.0], np.float32)
    assert _error(want, want) == 0
    assert _error(np.array([3.0, -3.0], np.float32), want) == pytest.approx(0.2)
    assert _error(np.array([np.nan, -4.0], np.float32), want) == math.inf
    assert _error(want, np.array([np.nan, -4.0], np.float32)) == 0
    assert _error(want, np.array([np.nan, np.inf], np.float32)) is None
    assert _error(want.astype(np.float64), want) == math.inf
    assert _error(want[:1], want) == math.inf
    assert _error(want[:0], want[:0]) is None
    assert _error(np.array([1, 2, 3, 5]), np.array([1, 2, 3, 4])) == 0.25
    assert _error(np.array([True, True]), np.array([True, False])) == 0.5


def test_bounds(made: Artifact) -> None:
    def bound(eps: float = 2.0**-23, allow_tf32: bool = False, **fields: Any) -> float:
        manifest = msgspec.structs.replace(made.manifest, **fields)
        options = CompileOptions(allow_tf32=allow_tf32)
        artifact = dataclasses.replace(made, manifest=manifest)
        return _bound(artifact, Example({}, [], False, eps), options)

    in_bf16 = Precision(keep_f32=(), error=0.05, largest_difference=0.1, inputs="random")
    assert bound() == LIMIT
    assert bound(2.0**-10) == bound(allow_tf32=True) == 2.0**-7
    assert bound(quantised=Quantised({}, {})) == 2.0**-4
    assert bound(precision=in_bf16) == 0.1
    half = run_example(_program(lambda x: (x.half() * 2).float(), torch.ones(2)), {})
    assert isinstance(half, Example)
    assert half.eps == 2.0**-10


@pytest.mark.parametrize(
    "wrong",
    [
        ProgramCheck({"y": -1.0}),
        ProgramCheck({"y": "far"}),  # type: ignore[dict-item]
        ProgramCheck({}, bound=-1.0),
        ProgramCheck({}, inputs="random"),  # type: ignore[arg-type]
        ProgramCheck({}, unchecked=7),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_field_is_refused(made: Artifact, wrong: ProgramCheck, tmp_path: Path) -> None:
    _saved(made, wrong, tmp_path / "model.tar")
    with pytest.raises(ArtifactError, match=r"program_check"):
        load_in_both(tmp_path / "model.tar")


@pytest.mark.parametrize(
    "check",
    [
        ProgramCheck({}, unchecked="there is no GPU"),
        ProgramCheck({"y": None, "z": 0.5}, 1e-3, "resized"),
    ],
)
def test_both_readers_take_it(made: Artifact, check: ProgramCheck, tmp_path: Path) -> None:
    _saved(made, check, tmp_path / "model.tar")
    assert _check(load_in_both(tmp_path / "model.tar")) == check


def test_infinite_errors_are_told() -> None:
    check = ProgramCheck({"y": 0.5, "z": None}, 1e-3)
    assert list(check.differing.items()) == [("z", math.inf), ("y", 0.5)]
    assert "PyTorch's: `z` by inf, `y` by 0.5 (" in str(check)


def _saved(made: Artifact, check: ProgramCheck, path: Path) -> None:
    manifest = msgspec.structs.replace(made.manifest, program_check=check)
    dataclasses.replace(made, manifest=manifest).save(path)


@pytest.fixture(scope="module")
def made() -> Artifact:
    return tvm_interop.compile(_angles(), **QUICK)


def test_commands_print_it(
    made: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, page = str(tmp_path / "model.tar"), str(tmp_path / "page.html")
    made.save(path)
    typed = ["show", path, "--no-run", "-o", page]
    assert run_app(typed) == 0
    assert f"  {_check(made)}\n" in capsys.readouterr().out
    assert "the outputs differ from PyTorch's by at most" in command._summary(made, None)
    assert "outputs differ from PyTorch&#39;s by" in Path(page).read_text()
    assert run_app([*typed, "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["records"]
    assert told["program_check"] == msgspec.to_builtins(_check(made))
    assert command._facts(made)["program_check"] == told["program_check"]


@pytest.mark.usefixtures("is_converted_wrong")
def test_a_stored_artifact_repeats_the_warning(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.export.save(_angles(), tmp_path / "net.pt2")
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    for says in ("on the program's example", "`net` was compiled before: on the program's example"):
        caplog.clear()
        with tvm_interop.Session(tmp_path / "net.pt2", **IN_SESSION):
            (warning,) = _warnings(caplog)
        assert warning.startswith(says)
        assert re.search(DIFFERS, warning)


def test_a_stored_artifact_without_a_difference_says_nothing(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.export.save(_angles(), tmp_path / "net.pt2")
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    caplog.set_level(logging.INFO, "tvm_interop")
    for _ in range(2):
        with tvm_interop.Session(tmp_path / "net.pt2", **IN_SESSION):
            assert _warnings(caplog) == []
    assert "was compiled before" in caplog.text


@pytest.mark.usefixtures("is_converted_wrong")
def test_a_session_of_a_program_compares_each_size_and_converts_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []
    export = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", lambda *a, **k: calls.append(0) or export(*a, **k))
    program = _program(lambda x: torch.atan2(x, x * x), torch.randn(4, 6), dynamic_shapes=_open())
    with tvm_interop.Session(program, **IN_SESSION) as session:
        for size in (3, 5):
            session.run(None, {"args_0": np.ones((size, 6), np.float32)})
            assert len(_warnings(caplog)) == (1 if size == 3 else 2)
    assert len(calls) == 1


class _ForEvenBatches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] % 2 == 0 else x - 1


def test_guards_under_another_name_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has guards: conditions on its sizes. If a later PyTorch renamed them, we would miss
    them, and a batch of 3 would run code for even batches. So an error is raised instead."""
    program, fixed = (
        torch.export.export(_ForEvenBatches(), (torch.ones(4, 2),), dynamic_shapes=dims)
        for dims in ([{0: torch.export.Dim.AUTO}], None)
    )
    monkeypatch.setattr(program_sizes, "_GUARDS", "_guards_of_later")
    with pytest.raises(UnsupportedModelError, match=r"not find the conditions that PyTorch \d"):
        tvm_interop.compile(program, input_shapes={"x": (3, 2)}, **QUICK)
    assert _check(tvm_interop.compile(fixed, **QUICK)).largest == 0
