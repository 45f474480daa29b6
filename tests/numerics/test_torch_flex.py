"""Tests PyTorch's `flex_attention`, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from tvm_interop.frontend.torch_program import as_onnx

torch = pytest.importorskip("torch", reason="PyTorch is not installed (extra `torch`)")
from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402


class _Flex(torch.nn.Module):
    """Attention whose scores change by a learned number of each head, and whose mask is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.randn(2, 5))
        self._mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 5, 5, device="cpu")

    def forward(self, q: Any, k: Any) -> Any:
        def change(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return score + (i - j) * 0.1 + self.bias[h, j]

        first = flex_attention(q, k, k, score_mod=change)
        return first + flex_attention(q, k[:, :1], k[:, :1], block_mask=self._mask, enable_gqa=True)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_written_with_other_operators() -> None:
    torch.manual_seed(0)
    module = _Flex().eval()
    q, k = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    with torch.no_grad():
        program = torch.export.export(module, (q, k))
        wanted = module(q, k).numpy()
    # Other tests compile the operators of this model.
    converted = ReferenceEvaluator(as_onnx(program))
    (got,) = converted.run(None, {"q": q.numpy(), "k": k.numpy()})
    np.testing.assert_allclose(got, wanted, 1e-5, 1e-5)
    # The conversion leaves the program as it is.
    assert any("flex_attention" in str(node.target) for node in program.graph.nodes)
