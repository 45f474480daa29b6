"""Tests programs of `torch.export` that are compiled for ranges of sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_interop
from tvm_interop.errors import CannotFillUpError, InputError, UnsupportedModelError
from tvm_interop.frontend.torch_program import as_onnx

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")

QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


class _Encoder(torch.nn.Module):
    """A layer of attention, whose mask excludes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(30, 8), torch.nn.Embedding(16, 8)
        self.heads, self.norm = torch.nn.Linear(8, 24), torch.nn.LayerNorm(8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(length))
        q, k, v = self.heads(x).view(batch, length, 3, 2, 4).permute(2, 0, 3, 1, 4)
        is_token = mask[:, None, None, :].to(torch.bool)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=is_token)
        return self.norm(x + y.transpose(1, 2).reshape(batch, length, 8))


class _Ranker(torch.nn.Module):
    """Scores rows by the products of embeddings with each other, as DLRM does."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.numbers = torch.nn.Embedding(20, 8), torch.nn.Linear(5, 8)
        self.top = torch.nn.Linear(8 + 6, 1)
        self.pairs = [each.tolist() for each in torch.tril_indices(4, 4, -1)]

    def forward(self, numbers: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.numbers(numbers))
        both = torch.cat([x[:, None], self.items(items)], 1)
        products = (both @ both.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))


def _convolutions() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, 3),
        torch.nn.Softmax(-1),
    )


def _sentences(length: int) -> tuple[torch.Tensor, ...]:
    mask = torch.arange(length) < torch.randint(1, length + 1, (2, 1))
    return torch.randint(0, 30, (2, length)), mask.to(torch.int64)


def _images(batch: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(batch, 3, 8, 8),)


def _rows(batch: int) -> tuple[torch.Tensor, ...]:
    return torch.randn(batch, 5), torch.randint(0, 20, (batch, 3))


def _exported(
    module: Any, inputs: Callable[[int], tuple[torch.Tensor, ...]], axis: int, *limits: int
) -> Any:
    """Export a module whose inputs share the dimension `axis`, which has these limits."""
    torch.manual_seed(0)
    dim = torch.export.Dim("size", min=limits[0], max=limits[1])
    example = inputs(4)
    return torch.export.export(module.eval(), example, dynamic_shapes=({axis: dim},) * len(example))


def _inputs(program: Any) -> list[str]:
    return list(program.graph_signature.user_inputs)


def _name(program: Any) -> str:
    """PyTorch's name of the first open dimension."""
    inputs = [each for each in program.graph.nodes if each.name in _inputs(program)]
    dims = [dim for each in inputs for dim in each.meta["val"].shape]
    return next(str(dim) for dim in dims if not isinstance(dim, int))


def _feed(program: Any, tensors: tuple[torch.Tensor, ...]) -> dict[str, np.ndarray]:
    return {n: t.numpy() for n, t in zip(_inputs(program), tensors, strict=True)}


@pytest.mark.parametrize(
    ("module", "inputs", "axis", "limits", "most_sizes"),
    [
        (_Encoder, _sentences, 1, (2, 12), 2),
        (_convolutions, _images, 0, (1, 9), 3),
        (_Ranker, _rows, 0, (1, 9), 2),
    ],
    ids=["attention", "convolutions", "ranker"],
)
def test_all_sizes_of_a_range_are_right(
    module: Any, inputs: Any, axis: int, limits: tuple[int, int], most_sizes: int
) -> None:
    program = _exported(module(), inputs, axis, *limits)
    name, (least, most) = _name(program), limits
    made = tvm_interop.compile(program, shapes={name: limits}, most_sizes=most_sizes, **QUICK)
    run = tvm_interop.GraphModule(made)
    for size in range(least, most + 1):
        # A run of the largest size leaves numbers where the next run has padding.
        run(_feed(program, inputs(most)))
        tensors = inputs(size)
        (got,) = run(_feed(program, tensors))
        want = program.module()(*tensors).detach().numpy()
        np.testing.assert_allclose(np.asarray(got), want, 1e-4, 1e-4)
    with pytest.raises(InputError, match=rf"{most + 1}.* was compiled for .*{name}"):
        run(_feed(program, inputs(most + 1)))
    if len(tensors) > 1:
        with pytest.raises(InputError, match=rf"has {name} {least}, .* give all inputs the same"):
            run(_feed(program, (inputs(least)[0], inputs(most)[1])))


class _Of(torch.nn.Module):
    """A network that calls a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def _of(function: Callable[[torch.Tensor], torch.Tensor], least: int = 1, most: int = 9) -> Any:
    """A program of one input of shape (batch, 6)."""
    return _exported(_Of(function), lambda batch: (torch.randn(batch, 6),), 0, least, most)


def _even_only(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] % 2 == 0 else x * 3


@pytest.fixture(scope="module")
def for_even_batches() -> Any:
    dims = ({0: torch.export.Dim.AUTO},)
    return as_onnx(torch.export.export(_Of(_even_only), (torch.ones(4, 6),), dynamic_shapes=dims))


@pytest.fixture(scope="module")
def from_3_to_9() -> Any:
    return as_onnx(_of(lambda x: x * 2, 3, 9))


def _compiled(model: Any, given: Any) -> Any:
    name = model.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    most = {"most_sizes": 2} if isinstance(given, tuple) else {}
    return tvm_interop.compile(model, shapes={name: given}, **most, **QUICK)


@pytest.mark.parametrize("given", [(2, 6), {2, 3}])
def test_sizes_that_break_a_condition_of_the_program_are_refused(
    given: Any, for_even_batches: Any
) -> None:
    """The program lacks the branch for odd batches."""
    with pytest.raises(InputError, match=r"\(3, 6\): it was exported under .* `x.*% 2 == 0`"):
        _compiled(for_even_batches, given)


@pytest.mark.parametrize("given", [(2, 5), (5, 10), {5, 10}])
def test_sizes_that_the_program_was_not_exported_for_are_refused(
    given: Any, from_3_to_9: Any
) -> None:
    with pytest.raises(InputError, match=r"has (2|10) where .* `s\d+` with sizes from 3 to 9"):
        _compiled(from_3_to_9, given)


def test_open_dimensions_without_sizes_are_told_with_their_ranges(
    for_even_batches: Any, from_3_to_9: Any
) -> None:
    with pytest.raises(UnsupportedModelError, match=r'from 3 to 9, which --shapes "s\d+=3\.\.9"'):
        tvm_interop.compile(from_3_to_9, **QUICK)
    with pytest.raises(UnsupportedModelError, match=r'--input-shapes "x:\[1,6\]"$'):
        tvm_interop.compile(for_even_batches, **QUICK)


def test_sizes_beside_the_given_ones_need_not_be_allowed(
    for_even_batches: Any, from_3_to_9: Any
) -> None:
    """To prove that rows are independent, other sizes than the given sizes are compiled too.

    The program allows all of these sizes.
    """
    assert _compiled(from_3_to_9, (4, 9)).manifest.row_sizes.sizes == (4, 9)
    made = tvm_interop.compile(for_even_batches, batch_sizes=[2], **QUICK)
    assert made.manifest.batch_sizes == (2,)


class _Grown(torch.nn.Module):
    """Appends a row, as a decoder with a past does."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x[:1]]) * mask[:, None]


def test_a_sum_has_no_range() -> None:
    past = torch.export.Dim("past", min=1, max=8)
    dims = ({0: past}, {0: past + 1})
    program = torch.export.export(
        _Grown(), (torch.randn(4, 6), torch.randn(5)), dynamic_shapes=dims
    )
    name = _name(program)
    with pytest.raises(CannotFillUpError, match=rf"`mask` has shape \({name} \+ 1\)"):
        tvm_interop.compile(program, shapes={name: (1, 8)}, **QUICK)
    with pytest.raises(UnsupportedModelError, match=rf"was exported for `{name}` from 1 to 8$"):
        tvm_interop.compile(program, **QUICK)


def test_a_size_between_the_compiled_ones_is_noticed() -> None:
    """The program multiplies by 2 for 7 rows, and by 1 for other sizes. If the range were compiled,
    7 rows would be padded to a compiled size and multiplied by 1."""
    program = _of(lambda x: x * torch.where(torch.full((1,), x.shape[0]) == 7, 2.0, 1.0))
    with pytest.raises(InputError, match=r"do not grow evenly with it: compare s\d+ 7 with s\d+ 6"):
        _compiled(as_onnx(program), (1, 9))


def test_a_session_compiles_what_cannot_be_filled_up(tmp_path: Path) -> None:
    program = _of(lambda x: x - x.mean(0), 2, 9)
    name = _name(program)
    torch.export.save(program, tmp_path / "net.pt2")
    x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    quick = {**QUICK, "providers": None, "latency_db": tmp_path / "db"}
    for model, given in ((tmp_path / "net.pt2", {name: (2, 9)}), (program, None)):
        with tvm_interop.Session(model, shapes=given, **quick) as session:
            assert session.inputs[0].shape == (name, 6)
            (got,) = session.run([session.outputs[0].name], {"x": x})
            np.testing.assert_allclose(got, x - x.mean(0), 1e-5, 1e-6)
            assert session.runs_by_size == ({(3,): 1} if given else {})
            with pytest.raises(InputError, match=rf"{name}.* 2 to 9"):
                session.run(None, {"x": np.zeros((10, 6), np.float32)})


def test_a_mask_may_forbid_padding_after_the_artifact_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second session finds the artifact, so it does not convert the program before this run."""
    monkeypatch.setenv("TVM_INTEROP_KEPT", str(tmp_path / "kept"))
    program = _exported(_Encoder(), _sentences, 1, 2, 12)
    torch.export.save(program, tmp_path / "net.pt2")
    ids, mask = _sentences(5)
    mask[:] = 0
    wanted = program.module()(ids, mask).detach()
    options = {**QUICK, "providers": None, "shapes": {_name(program): (2, 12)}, "most_sizes": 2}
    for _ in range(2):
        with tvm_interop.Session(tmp_path / "net.pt2", **options) as session:
            (got,) = session.run(None, _feed(program, (ids, mask)))
            np.testing.assert_allclose(got, wanted, atol=1e-5)
            assert session.runs_by_size == {(2,): 0, (12,): 0, (5,): 1}
