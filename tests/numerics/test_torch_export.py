"""Tests programs of `torch.export`: numbers, names and dynamic dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import tvm_interop
from tests.one_node import computed
from tvm_interop.errors import InputError, UnsupportedModelError
from tvm_interop.frontend import load_model, torch_program
from tvm_interop.frontend.size_conditions import SizeConditions, attach, check_sizes
from tvm_interop.frontend.torch_program import as_onnx

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")


class _Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class _Recurrent(torch.nn.Module):
    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(6, 10, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def _run(model: object, x: torch.Tensor, **options: object) -> np.ndarray:
    return computed(model, {"x": x.numpy()}, **options)[0]


def test_exported_program_and_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = _Net().eval(), torch.randn(1, 3, 12, 12)
    program = torch.export.export(net, (x,))
    path = tmp_path / "net.pt2"
    torch.export.save(program, path)
    want = net(x).detach().numpy()
    for model in (program, path):
        np.testing.assert_allclose(_run(model, x), want, 1e-4, 1e-5)


def test_no_warnings_of_pytorch_about_itself(recwarn: pytest.WarningsRecorder) -> None:
    load_model(torch.export.export(_Net().eval(), (torch.randn(1, 3, 8, 8),)))
    assert not [each for each in recwarn if "LeafSpec" in str(each.message)]


def test_operators_are_named_after_modules() -> None:
    program = torch.export.export(_Net().eval(), (torch.randn(1, 3, 8, 8),))
    main = load_model(program)["main"]
    names = {binding.var.name for block in main.body.blocks for binding in block.bindings}
    assert {"norm", "relu", "head"} <= names  # The exporter joins `conv` and `norm`.


def test_dynamic_dimension_takes_the_shape_given() -> None:
    net, x = _Net().eval(), torch.randn(4, 3, 12, 12)
    batch = torch.export.Dim("batch", min=1, max=16)
    program = torch.export.export(net, (torch.randn(2, 3, 12, 12),), dynamic_shapes=[{0: batch}])
    got = _run(program, x, input_shapes={"x": (4, 3, 12, 12)})
    np.testing.assert_allclose(got, net(x).detach().numpy(), 1e-4, 1e-5)
    with pytest.raises(UnsupportedModelError, match="input_shapes"):
        _run(program, x)


class _Resized(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        resize = torch.nn.functional.interpolate
        results = [
            *(resize(x, scale_factor=f) for f in (2, 0.5, (1.5, 0.7))),
            *(resize(x, size=s) for s in ((7, 15), (12, 20))),
            resize(x, scale_factor=(1.5, 0.7), recompute_scale_factor=True),
            resize(x, scale_factor=(1.5, 0.7), mode="bilinear"),
            resize(x, scale_factor=(1.5, 0.7), mode="bicubic"),
            resize(x, size=(1, 15), mode="bilinear", align_corners=True),
            resize(x, size=(1, 15), mode="bicubic"),
            resize(x, size=(1, 1), mode="bilinear"),
            resize(x, scale_factor=(1.5, 0.7), mode="bilinear", align_corners=True),
            resize(x, size=(3, 4), mode="bilinear", antialias=True),
            resize(x, size=(3, 4), mode="bicubic", antialias=True),
            resize(x, scale_factor=0.7, mode="bicubic", antialias=True),
        ]
        return torch.cat([each.flatten(2) for each in results], 2)


def test_images_are_resized_as_pytorch_does() -> None:
    x = torch.randn(2, 3, 6, 10)
    for shapes in (None, [{0: torch.export.Dim("batch", min=1, max=4)}]):
        module = _Resized() if shapes is None else _ResizedByWholeFactors()
        program = torch.export.export(module, (x,), dynamic_shapes=shapes)
        got = _run(program, x, input_shapes={} if shapes is None else {"x": (2, 3, 6, 10)})
        np.testing.assert_allclose(got, module(x).numpy(), 1e-5, 1e-5)


class _ResizedByWholeFactors(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        resize = torch.nn.functional.interpolate
        results = [resize(x, scale_factor=2, mode=m) for m in ("nearest", "bilinear", "bicubic")]
        results.append(resize(x, size=(7, 15)))
        return torch.cat([each.flatten(2) for each in results], 2)


class _ForEvenBatches(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] % 2 == 0 else x - 1


def test_sizes_that_break_a_condition_of_the_program_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for are_guards in (True, False):
        program = torch.export.export(
            _ForEvenBatches(),
            (torch.ones(4, 2),),
            dynamic_shapes=[{0: torch.export.Dim.AUTO}],
            prefer_deferred_runtime_asserts_over_guards=not are_guards,
        )
        np.testing.assert_array_equal(
            _run(program, torch.ones(6, 2), input_shapes={"x": (6, 2)}), 2
        )
        with pytest.raises(InputError, match=r"condition `.*2.*Give sizes that meet it"):
            _run(program, torch.ones(3, 2), input_shapes={"x": (3, 2)})
    assert "is not checked" not in caplog.text


def test_texts_of_conditions_are_never_executed(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["__import__('os').getpid() < 0", "1 // (x.size()[0] - 5) < 9"]
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 2])
    model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [value], []))
    attach(model, SizeConditions("the program", texts, {}))
    check_sizes(model, {"x": (6, 2)})
    assert "getpid" in caplog.text
    assert "is not checked" in caplog.text
    with pytest.raises(InputError, match=r"condition `1 // \(x\.size\(\)\[0\] - 5\) < 9`"):
        check_sizes(model, {"x": (5, 2)})


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"num_layers": 2, "bidirectional": True}),
        ("GRU", {"bias": False}),
        ("RNN", {"nonlinearity": "relu"}),
    ],
)
def test_recurrent_layers(kind: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    net, x = _Recurrent(kind, **options).eval(), torch.randn(2, 30, 6)
    want = net(x).detach().numpy()
    np.testing.assert_allclose(_run(torch.export.export(net, (x,)), x), want, 1e-4, 1e-5)


def test_token_outside_the_vocabulary_reads_inside_the_table() -> None:
    table = torch.nn.Embedding(5, 4).eval()
    program = torch.export.export(table, (torch.tensor([[1, 2]]),))
    artifact = tvm_interop.compile(program, scheduler="sequential", providers=["tvm"])
    module = tvm_interop.GraphModule(artifact)
    module.set_input(0, np.array([[3, 99]]))
    module.run()
    want = table.weight.detach().numpy()[[[3, 4]]]
    np.testing.assert_array_equal(module.get_output(0).numpy(), want)


class _Gathers(torch.nn.Module):
    def forward(self, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        table = torch.arange(20.0).reshape(4, 5)
        rows = torch.gather(table, 0, at[:, None].expand(3, 5))
        written = torch.zeros(4, 5).scatter(0, at[:, None].expand(3, 5), rows)
        return rows, table[at], written


def test_indices_of_data_stay_within_the_tensor() -> None:
    """No memory outside of the tensor is read or written, not even for a very large index."""
    program = torch.export.export(_Gathers(), (torch.tensor([0, 1, 2]),))
    artifact = tvm_interop.compile(program, scheduler="sequential", providers=["tvm"])
    module = tvm_interop.GraphModule(artifact)
    results = []
    for at in ([2, 0, 3], [2, -(2**40), 2**40]):
        module.set_input(0, np.array(at))
        module.run()
        results.append([module.get_output(i).numpy() for i in range(3)])
    for near, far, want in zip(*results, _Gathers()(torch.tensor([2, 0, 3])), strict=True):
        np.testing.assert_array_equal(near, want.numpy())
        np.testing.assert_array_equal(far, near)


def test_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken.pt2"
    path.write_bytes(b"not a program")
    with pytest.raises(UnsupportedModelError, match=r"broken\.pt2"):
        tvm_interop.compile(path)


class _GathersOfInputs(torch.nn.Module):
    def forward(self, table: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = torch.gather(table, 0, at[:, None].expand(at.shape[0], 5))
        written = torch.zeros_like(table).scatter(0, at[:, None].expand(at.shape[0], 5), rows)
        return rows, table[at], written


def test_indices_stay_within_dimensions_that_are_given_later() -> None:
    # The program does not contain the sizes of the table and of the indices. If indices had no
    # limits, the kernel would read memory 4 MB beyond the table.
    table, at = torch.arange(20.0).reshape(4, 5), torch.tensor([0, 1, 2])
    rows, some = torch.export.Dim("rows", min=2, max=64), torch.export.Dim("some", min=2, max=64)
    program = torch.export.export(
        _GathersOfInputs(), (table, at), dynamic_shapes=({0: rows}, {0: some})
    )
    artifact = tvm_interop.compile(
        program,
        input_shapes={"table": (4, 5), "at": (3,)},
        latency_db=":memory:",
        scheduler="sequential",
    )
    module = tvm_interop.GraphModule(artifact)

    def results(indices: list[int]) -> list[np.ndarray]:
        module.run(table=table.numpy(), at=np.array(indices))
        return [np.array(module.get_output(i).numpy()) for i in range(3)]

    for near, far, want in zip(
        results([2, 0, 3]),
        results([2, -(10**6), 10**6]),
        _GathersOfInputs()(table, torch.tensor([2, 0, 3])),
        strict=True,
    ):
        np.testing.assert_array_equal(near, want.numpy())
        np.testing.assert_array_equal(far, near)


class _Step(torch.nn.Module):
    """A network with a branch for long inputs. A program of `torch.export` has lost this branch."""

    def forward(self, past: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return mask * (3.0 if past.shape[0] > 16 else 1.0) + past.sum()


def _step(*, most: int) -> torch.export.ExportedProgram:
    past = torch.export.Dim("past", max=most)
    given = torch.randn(5), torch.randn(6)
    dims = {"past": {0: past}, "mask": {0: past + 1}}
    return torch.export.export(_Step(), given, dynamic_shapes=dims)


def test_sizes_beyond_what_was_exported_are_refused() -> None:
    program = _step(most=16)
    with pytest.raises(InputError, match=r"`past` has 17 where .* sizes from 1 to 16: .*larger"):
        load_model(program, {"past": (17,), "mask": (18,)})
    with pytest.raises(InputError, match=r"condition `mask.size\(\)\[0\] == 1 \+ past"):
        load_model(program, {"past": (12,), "mask": (16,)})


def test_sets_of_sizes_by_name(tmp_path: Path) -> None:
    torch.export.save(_step(most=16), path := tmp_path / "step.pt2")
    with pytest.raises(UnsupportedModelError, match=r'--dim "(s\d+)=1" on') as raised:
        load_model(path)
    name = str(raised.value).partition('--dim "')[2].partition("=")[0]
    made = tvm_interop.compile(
        path, shapes={name: {4, 7}}, scheduler="sequential", time_budget=0, providers=["tvm"]
    )
    past, mask = torch.randn(7), torch.randn(8)
    found = tvm_interop.GraphModule(made)({"past": past.numpy(), "mask": mask.numpy()})
    np.testing.assert_allclose(np.asarray(found[0]), _Step()(past, mask), 1e-4, 1e-5)
    with pytest.raises(InputError, match="no open dimension `batch`; it has `s"):
        tvm_interop.compile(path, shapes={"batch": {4, 7}})


class _Indices(torch.nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor, grid: torch.Tensor) -> tuple[object, ...]:
        sampled = torch.nn.functional.grid_sample(x, grid, align_corners=False)
        several = x[at, :, at], x[:, at, at - 4], x[:, :, at[:, None], at], x[:, at - 4]
        return x[-1], x[:, -2, 1], x[..., -1], sampled, *several


def test_indices_from_the_end_and_of_several_axes() -> None:
    x, at = torch.randn(4, 4, 4, 4), torch.tensor([0, 3, 1])
    given = (x, at, torch.rand(4, 2, 3, 2) * 2 - 1)
    program = torch.export.export(_Indices(), given)
    feeds = dict(zip(("x", "at", "grid"), (each.numpy() for each in given), strict=True))
    for got, want in zip(computed(program, feeds), _Indices()(*given), strict=True):
        np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-5)


class _Usual(torch.nn.Module):
    """Operators that TVM's own importer of programs refuses or gets wrong."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        f = torch.nn.functional
        pooled = [
            f.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            *f.max_pool2d(x, 2, return_indices=True),
        ]
        rows = torch.zeros(4, 6).scatter_add(0, at, x[0, 0, :4])
        ordered = [*x.sort(dim=2, stable=True, descending=True), *x.topk(2, 1), x.argsort(-1)]
        chosen = (x[x > 0].sum(), x.masked_select(x > 0).sum(), x.amax(), x.amin((1, -1)))
        spread = (*torch.var_mean(x, 1, correction=0), x.cumsum(-1), (x > 2).any(1))
        padded = f.pad(x, (2, 1, 0, 3), mode="reflect")
        cells = (f.adaptive_max_pool2d(x, (3, 1)), f.adaptive_avg_pool3d(x, (2, 3, 1)))
        middle = (x.median(), *x.kthvalue(3, 1), x.cumprod(2), x.median(-1, keepdim=True)[0])
        attention = f.scaled_dot_product_attention(x[0], x[1], x[0], is_causal=True)
        windows = (torch.hamming_window(7), torch.hamming_window(8, False, 0.6))
        at_zero = torch.atan2(torch.zeros(3), torch.tensor([-1.0, 0.0, 1.0]) * x[0, 0, 0, 0].abs())
        norms = [torch.cdist(x[0, 0], x[0, 1], p) for p in (0.0, 1.0, 2.0, 3.0, float("inf"))]
        return (
            torch.add(x, x * x, alpha=2), *pooled, rows, *ordered, *chosen, *spread, padded,
            *cells, *middle, attention, *windows, at_zero, *norms, torch.fmax(x, x.log())
        )  # fmt: skip


def test_usual_operators() -> None:
    torch.manual_seed(0)
    given = torch.randn(2, 3, 7, 6), torch.randint(0, 4, (4, 6))
    program = torch.export.export(_Usual(), given)
    feeds = dict(zip(("x", "at"), (each.numpy() for each in given), strict=True))
    found, wanted = computed(program, feeds, time_budget=0), _Usual()(*given)
    for i, (got, want) in enumerate(zip(found, wanted, strict=True)):
        np.testing.assert_allclose(got, want.numpy(), 1e-5, 1e-5, err_msg=str(i))
        assert got.dtype == want.numpy().dtype


def test_functions_of_numbers_near_zero() -> None:
    class Net(torch.nn.Module):
        def forward(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return [function(x) for x in inputs for function in (torch.log1p, torch.expm1)]

    inf = float("inf")
    usual = [0.0, 1e-7, -1e-7, 3e-6, -2e-4, 0.011, -0.3, 0.9, -1.0, 4.0, 11.0]
    x = torch.cat([torch.tensor([*usual, -inf, inf, float("nan")]), torch.linspace(-0.9, 5, 200)])
    inputs = [x.to(dtype) for dtype in (torch.float32, torch.float64, torch.float16)]
    program = torch.export.export(Net(), (inputs,))
    names = program.graph_signature.user_inputs
    feeds = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
    found = computed(program, feeds, time_budget=0)
    for i, (got, want) in enumerate(zip(found, Net()(inputs), strict=True)):
        step = torch.finfo(want.dtype).eps
        np.testing.assert_allclose(got, want.numpy(), 4 * step, 0, err_msg=str(i))


def test_an_input_may_be_an_output_and_another_may_be_unused() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, _spare: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x, x + 1, x

    x = torch.randn(2, 3)
    program = torch.export.export(Net(), (x, x))
    found = computed(program, {"x": x.numpy(), "_spare": x.numpy()}, time_budget=0)
    for got, want in zip(found, (x, x + 1, x), strict=True):
        np.testing.assert_array_equal(got, want.numpy())


def test_results_have_the_types_of_the_program() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            half = x.to(torch.float16)
            total = half.sum(1)  # PyTorch's exporter gives a float32 sum.
            return total, half + 1, x.to(torch.int32).cumsum(1)

    x = torch.arange(6.0).reshape(2, 3)
    found = computed(torch.export.export(Net(), (x,)), {"x": x.numpy()}, time_budget=0)
    for got, want in zip(found, Net()(x), strict=True):
        np.testing.assert_array_equal(got, want.numpy())
        assert got.dtype == want.numpy().dtype


class _Counts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("runs", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runs.add_(1)
        return x + self.runs


class _Learns(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.add_(1)
        return x + self.weight


class _Drops(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)


class _TwoResults(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[object, ...]:
        return x.shape[0], x + 1


class _WithLoss(torch.nn.Module):
    def __init__(self, name: str, **options: object) -> None:
        super().__init__()
        self._loss, self._options = getattr(torch.nn.functional, name), options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        classes = torch.zeros(2, 4, 4, dtype=torch.int64)
        labels = torch.zeros(2, 4, dtype=torch.int64)
        if self._options:
            return self._loss(x, classes, **self._options)
        return self._loss(x[:, :, 0, 0], labels)


class _Spectrum(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x)


class _Smoothed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        resize = torch.nn.functional.interpolate
        return resize(x, size=(3, 4), mode="bilinear", antialias=True, align_corners=True)


class _WithOwnStatistics(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, x[0, :, 0, 0], x[1, :, 0, 0], training=True)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (_Spectrum(), r"returns complex numbers, .*`torch\.view_as_real`"),
        (_Counts(), r"changes its buffer `runs` in each run.*\.eval\(\)"),
        (_Learns(), r"changes its parameter `weight` in each run"),
        (_Drops(), r"drops elements at random, .*`dropout_p=0\.0`"),
        (_TwoResults(), r"returns `2`, which is not a tensor"),
        (_WithLoss("multilabel_margin_loss"), "is a `multilabel_margin_loss`"),
        (_Smoothed(), "both `antialias` and `align_corners`"),
        (_WithOwnStatistics(), r"statistics of the batch, .*\.eval\(\)"),
        (torch.nn.AdaptiveMaxPool2d(2, return_indices=True), "the positions of maxima"),
        (torch.nn.AvgPool2d(2, divisor_override=3), "`avg_pool2d` has `divisor_override`"),
        (torch.nn.AvgPool3d(2, divisor_override=3), "`avg_pool3d` has `divisor_override`"),
    ],
)
def test_programs_that_would_give_other_results_are_refused(
    module: torch.nn.Module, message: str
) -> None:
    shape = (2, 3) if isinstance(module, (_Counts, _Learns, _TwoResults)) else (2, 4, 4, 4)
    with pytest.raises(UnsupportedModelError, match=message):
        load_model(torch.export.export(module, (torch.ones(shape),)))


def test_one_row_may_lose_its_dimension() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).squeeze()

    dims = ({0: torch.export.Dim.AUTO},)
    program = torch.export.export(Net(), (torch.ones(4, 6),), dynamic_shapes=dims)
    for batch in (1, 3):
        x = torch.ones(batch, 6)
        got = _run(program, x, input_shapes={"x": (batch, 6)}, time_budget=0)
        np.testing.assert_array_equal(got, program.module()(x).numpy())


def test_a_changed_file_is_converted_again(tmp_path: Path) -> None:
    path, x = tmp_path / "net.pt2", torch.ones(2, 3)
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4), (x,)), path)
    first = as_onnx(path)
    assert as_onnx(path) is first
    torch.export.save(torch.export.export(torch.nn.Linear(3, 5), (x,)), path)
    assert as_onnx(path).graph.output[0].type.tensor_type.shape.dim[1].dim_value == 5


def test_large_weights_go_through_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_program, "_MOST_BYTES", 10)
    net, x = torch.nn.Linear(64, 64).eval(), torch.randn(2, 64)
    converted = as_onnx(torch.export.export(net, (x,)))
    assert converted.is_file()
    np.testing.assert_allclose(
        computed(converted, {"input": x.numpy()}, time_budget=0)[0], net(x).detach(), 1e-5, 1e-5
    )
