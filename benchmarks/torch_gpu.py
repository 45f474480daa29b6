"""Runs PyTorch on the GPU for comparison: eager, in a CUDA graph, or compiled by inductor.

PyTorch computes in fp32 without TF32, as our kernels do. It uses the fastest of cuDNN's algorithms,
which it looks for on the first call. Its time is measured with CUDA events on its stream, as ours
is.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

Call = Callable[[], Sequence[Any]]
"""Function that runs one inference on inputs that stay in place, and returns the output tensors."""


class TorchRunner:
    """A model in PyTorch with its inputs on the device. It runs on the device's current stream."""

    def __init__(
        self,
        model: onnx.ModelProto,
        way: Callable[[Any, Sequence[Any]], Call],
        inputs: Sequence[np.ndarray],
        device: str = "cuda",
    ) -> None:
        """Copy the weights, compile or capture the model, and run it once.

        Parameters
        ----------
        way: `eager`, `captured` or `compiled`.
        inputs: inputs in the model's order; `write` changes them.
        """
        import torch

        from .torch_twin import TorchTwin

        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._inputs = [torch.from_numpy(np.array(array)).to(device) for array in inputs]
        # Keep the weights alive, because a CUDA graph contains only their addresses.
        self._twin = TorchTwin(model).eval().to(device)
        with torch.no_grad():
            self._call = way(self._twin, self._inputs)
            self._call()

    def write(self, inputs: Sequence[np.ndarray]) -> None:
        """Copy new inputs to the device."""
        import torch

        for kept, array in zip(self._inputs, inputs, strict=True):
            kept.copy_(torch.from_numpy(np.array(array)))

    def run(self) -> list[np.ndarray]:
        """Run the model once, and return its outputs on the host."""
        import torch

        with torch.no_grad():
            return [output.cpu().numpy() for output in self._call()]

    def time(self) -> float:
        """Run the model once, and return the seconds that the GPU took."""
        import torch

        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.no_grad():
            began.record()
            self._call()
            ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) * 1e-3


def eager(twin: Any, inputs: Sequence[Any]) -> Call:
    """PyTorch's default: it launches the operators one after the other."""
    return lambda: twin(*inputs)


def captured(twin: Any, inputs: Sequence[Any]) -> Call:
    """A CUDA graph of all operators."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # Warm up: a graph cannot capture the setup in a kernel's first call.
            twin(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = twin(*inputs)

    def replay() -> Sequence[Any]:
        graph.replay()
        return outputs

    return replay


def compiled(twin: Any, inputs: Sequence[Any]) -> Call:
    """A model that inductor fuses, and captures into CUDA graphs if there is a GPU."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    # Trace one graph of PyTorch's operators, so that inductor does not see our loop over nodes.
    fused = torch.compile(make_fx(twin)(*inputs), mode="reduce-overhead")
    for _ in range(3):  # Inductor captures a CUDA graph on the second call.
        fused(*inputs)
    return lambda: fused(*inputs)


def why_not() -> str:
    """The reason why PyTorch cannot run on a GPU of this machine; empty if it can."""
    if importlib.util.find_spec("torch") is None:
        return "the package `torch` is not installed"
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"PyTorch does not load: {error}"
    if torch.cuda.is_available():
        return ""
    built = torch.version.cuda
    if built is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return f"PyTorch {torch.__version__}, built with CUDA {built}, finds no GPU"
