"""Tests small networks that PyTorch exports: the results must be near PyTorch's results."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import pytest

import tvm_interop

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
from benchmarks import zoo_networks  # noqa: E402

nn, F = torch.nn, torch.nn.functional


class _Mobile(nn.Module):
    """Inverted residuals with squeeze and excitation, as in MobileNet-V3 and EfficientNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish())
        self.wide = nn.Sequential(nn.Conv2d(16, 64, 1), nn.BatchNorm2d(64), nn.SiLU())
        self.deep = nn.Sequential(nn.Conv2d(64, 64, 5, 1, 2, groups=64), nn.BatchNorm2d(64))
        self.squeeze, self.excite = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 64, 1)
        self.narrow = nn.Conv2d(64, 16, 1)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = F.hardswish(self.deep(self.wide(x)))
        scale = F.adaptive_avg_pool2d(y, 1)
        y = y * F.hardsigmoid(self.excite(F.relu(self.squeeze(scale))))
        return self.head((x + self.narrow(y)).mean((2, 3)))


class _Block(nn.Module):
    def __init__(self, width: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).chunk(3, -1)
        q, k, v = (part.reshape(batch, length, 4, width // 4).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class _VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        self.first = nn.Parameter(torch.randn(1, 1, 64))
        self.positions = nn.Parameter(torch.randn(1, 17, 64))
        self.blocks = nn.Sequential(*(_Block(64, causal=False) for _ in range(2)))
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.positions
        return self.head(self.blocks(x)[:, 0])


class _Decoder(nn.Module):
    """A language model like GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(100, 64), nn.Embedding(32, 64)
        self.blocks = nn.Sequential(*(_Block(64, causal=True) for _ in range(2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return self.blocks(x) @ self.words.weight.T


class _Dlrm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(50, 16) for _ in range(6))
        self.bottom = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(65, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        dense = self.bottom(found[0])
        z = torch.stack([dense, *found], 1)
        pairs = torch.bmm(z, z.transpose(1, 2)).flatten(1)
        return self.top(torch.cat([dense, pairs], 1))


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(24, 32, 2, bidirectional=True, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


_ZOO = {
    "mobile": (_Mobile, lambda: (torch.randn(2, 3, 32, 32),)),
    "vision_transformer": (_VisionTransformer, lambda: (torch.randn(2, 3, 32, 32),)),
    "decoder": (_Decoder, lambda: (torch.randint(0, 100, (1, 20)),)),
    "dlrm": (_Dlrm, lambda: (torch.randint(0, 50, (4, 6)),)),
    "recurrent": (_Recurrent, lambda: (torch.randn(1, 40, 24),)),
    "fields": (
        lambda: zoo_networks.AutoInt(fields=6, width=8),
        lambda: (torch.randint(0, 1000, (4, 6)),),
    ),
    "sound": (
        lambda: zoo_networks.keep_variance(zoo_networks.HifiGan(width=48)),
        lambda: (torch.randn(1, 80, 6),),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["torch.export", "onnx"])
@pytest.mark.parametrize("name", list(_ZOO))
def test_near_pytorch(name: str, form: str) -> None:
    torch.manual_seed(0)
    make, inputs = _ZOO[name]
    net, given = make().eval(), inputs()
    with torch.no_grad():
        want = net(*given).numpy()
    assert want.std() > 0.01  # Constant outputs would hide faults.
    artifact = tvm_interop.compile(
        _exported(net, given, form),
        scheduler="sequential",
        providers=["tvm"],
        latency_db=":memory:",
    )
    module = tvm_interop.GraphModule(artifact)
    for i, x in enumerate(given):
        module.set_input(i, x.numpy())
    module.run()
    got = module.get_output(0).numpy()
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def _exported(net: nn.Module, given: tuple[torch.Tensor, ...], form: str) -> object:
    with warnings.catch_warnings(action="ignore"):
        if form == "torch.export":
            return torch.export.export(net, given)
        file = io.BytesIO()
        torch.onnx.export(net, given, file, dynamo=False, opset_version=18)
        return onnx.ModelProto.FromString(file.getvalue())
