"""Tests programs of PyTorch in bfloat16, and bfloat16 in the server's protocol and over RPC."""

from __future__ import annotations

import json
import math
import urllib.request
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import onnx
import pytest

import tvm_interop
from tests.one_node import one_node
from tests.rpc import running_farm
from tvm_interop import GraphModule, InputError
from tvm_interop.frontend import torch_program
from tvm_interop.serving import Server
from tvm_interop.serving.server.json_tensors import read_numbers

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
QUICK: dict[str, Any] = {"scheduler": "sequential", "providers": ["tvm"], "time_budget": 0}


def product() -> tuple[tvm_interop.Artifact, np.ndarray, np.ndarray]:
    """A model of one matrix product, its input, and its output."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(BFLOAT16) for shape in ((2, 8), (8, 4)))
    model, _ = one_node("MatMul", [x, w], (1,))
    want = (x.astype(np.float32) @ w.astype(np.float32)).astype(BFLOAT16)
    return tvm_interop.compile(model, **QUICK), x, want


def _decoder() -> Any:
    """A block of a decoder as language models have it, with norms that compute in float32."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
    from torch import nn
    from torch.nn import functional

    class Norm(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(size) / 10 + 1)

        def forward(self, x: Any) -> Any:
            wide = x.to(torch.float32)
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * wide.to(x.dtype)

    class Decoder(nn.Module):
        def __init__(self, words: int = 50, size: int = 32, heads: int = 4) -> None:
            super().__init__()
            self.heads = heads
            self.embedding = nn.Embedding(words, size)
            self.norms = nn.ModuleList(Norm(size) for _ in range(3))
            self.attention = nn.ModuleList(nn.Linear(size, size, bias=False) for _ in range(4))
            self.gate, self.up = (nn.Linear(size, 4 * size, bias=False) for _ in range(2))
            self.down, self.head = nn.Linear(4 * size, size), nn.Linear(size, words)

        def forward(self, ids: Any, past: Any) -> tuple[Any, Any]:
            x = self.embedding(ids) + past
            batch, steps, size = x.shape
            normed = self.norms[0](x)
            q, k, v = (
                each(normed).view(batch, steps, self.heads, -1).transpose(1, 2)
                for each in self.attention[:3]
            )
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attention[3](mixed.transpose(1, 2).reshape(batch, steps, size))
            normed = self.norms[1](x)
            x = x + self.down(functional.silu(self.gate(normed)) * self.up(normed))
            return self.head(self.norms[2](x)), x

    torch.manual_seed(0)
    return Decoder().to(torch.bfloat16).eval()


def test_a_decoder_of_pytorch(tmp_path: Path) -> None:
    decoder = _decoder()
    import torch

    given = torch.arange(7)[None] * 5 % 50, torch.randn(1, 7, 32).to(torch.bfloat16)
    path = tmp_path / "decoder.pt2"
    torch.export.save(torch.export.export(decoder, given), path)
    artifact = tvm_interop.compile(path, **QUICK)
    check = artifact.manifest.program_check
    assert check is not None
    assert check.warning is None
    assert all(error is not None and 0 < error < 0.01 for error in check.errors.values())
    module = GraphModule(artifact)
    assert set(module.get_output_info()[1].values()) == {"bfloat16"}
    module.run({"ids": given[0], "past": given[1]})
    with torch.no_grad():
        narrow, wide = decoder(*given), decoder.to(torch.float32)(given[0], given[1].float())
    for i in range(2):
        found = torch.from_dlpack(module.get_output(i))
        assert found.dtype == torch.bfloat16
        error, own = (
            float((each.float() - wide[i]).norm() / wide[i].norm()) for each in (found, narrow[i])
        )
        # Most of our operators pass on float32 numbers without rounding them to bfloat16. So our
        # results are nearer to those in float32 than PyTorch's results in bfloat16.
        assert error < own < 0.01


def test_large_programs_become_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program becomes a file if its weights take too many bytes after widening to float32, even
    if the weights in bfloat16 are small enough."""
    decoder = _decoder()
    import torch

    given = torch.arange(7)[None] * 5 % 50, torch.randn(1, 7, 32).to(torch.bfloat16)
    program = torch.export.export(decoder, given)
    narrow = sum(each.numel() * 2 for each in program.state_dict.values())
    monkeypatch.setattr(torch_program, "_MOST_BYTES", 2 * narrow - 1)
    path = torch_program.as_onnx(program)
    assert isinstance(path, Path)
    artifact = tvm_interop.compile(program, **QUICK)
    assert artifact.manifest.program_check is not None
    assert artifact.manifest.program_check.warning is None
    monkeypatch.setattr(torch_program, "_MOST_BYTES", 4 * narrow)
    assert isinstance(torch_program.as_onnx(program), onnx.ModelProto)


def test_the_server_speaks_bfloat16() -> None:
    artifact, x, want = product()
    with Server({"net": artifact}, http_port=0, policy="sequential") as server:
        url = f"{server.http_url}/v2/models/net"
        url = url if url.startswith("http") else f"http://{url}"
        with urllib.request.urlopen(url) as answer:
            told = json.load(answer)
        assert [told[kind][0]["datatype"] for kind in ("inputs", "outputs")] == ["BF16"] * 2
        wanted = {"name": "x0", "datatype": "BF16", "shape": [2, 8]}
        numbers = {"inputs": [{**wanted, "data": x.astype(np.float64).tolist()}]}
        with urllib.request.urlopen(f"{url}/infer", json.dumps(numbers).encode()) as answer:
            got = json.load(answer)["outputs"][0]
        assert np.array_equal(np.array(got["data"], BFLOAT16).reshape(2, 4), want)
        sent = {**wanted, "parameters": {"binary_data_size": x.nbytes}}
        parameters = {"binary_data_output": True}
        head = json.dumps({"inputs": [sent], "parameters": parameters}).encode()
        request = urllib.request.Request(f"{url}/infer", head + x.tobytes())
        request.add_header("Inference-Header-Content-Length", str(len(head)))
        with urllib.request.urlopen(request) as answer:
            length = int(answer.headers["Inference-Header-Content-Length"])
            body = answer.read()
        assert np.array_equal(np.frombuffer(body[length:], BFLOAT16).reshape(2, 4), want)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1.00390625", 1.0), ("1.01171875", 1.015625), ("-0", -0.0), ("3.4e38", None), ("1e39", None)],
)
def test_numbers_in_json_are_rounded(text: str, wanted: float | None) -> None:
    def read() -> float:
        return float(read_numbers("x", "BF16", BFLOAT16, 1, msgspec.Raw(f"[{text}]".encode()))[0])

    if wanted is None:
        with pytest.raises(InputError, match="out of the range of BF16"):
            read()
    else:
        assert read() == wanted
        assert math.copysign(1, read()) == math.copysign(1, wanted)


@pytest.mark.slow
def test_a_server_of_rpc() -> None:
    artifact, x, want = product()
    for farm in running_farm(servers=1):
        farm.wait_for(1)
        module = GraphModule(artifact, farm.address)
        module.run({"x0": x})
        got = module.get_output(0).numpy()
        assert got.dtype == BFLOAT16
        assert np.array_equal(got, want)
        del module
