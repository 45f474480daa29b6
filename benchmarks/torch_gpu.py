"""PyTorch on the GPU, beside us: eager, replaying a CUDA graph, compiled by inductor.

In fp32 without TF32, as our kernels are, with the fastest of cuDNN's algorithms, which it looks for
on the first call. Timed with CUDA events on the stream that it runs on, as we are on ours.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx

Call = Callable[[], Sequence[Any]]
"""One inference on inputs that stay where they are; returns the outputs' tensors."""


class TorchRunner:
    """A model in PyTorch with its inputs in place; runs on the device's current stream."""

    def __init__(
        self,
        model: onnx.ModelProto,
        way: Callable[[Any, Sequence[Any]], Call],
        inputs: Sequence[np.ndarray],
        device: str = "cuda",
    ) -> None:
        """Do what takes long: copy the weights, compile or capture, run once.

        Parameters
        ----------
        way: `eager`, `captured` or `compiled`.
        inputs: in the model's order; `write` changes them.
        """
        import torch

        from .torch_twin import TorchTwin

        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self._inputs = [torch.from_numpy(np.array(array)).to(device) for array in inputs]
        twin = TorchTwin(model).eval().to(device)
        with torch.no_grad():
            self._call = way(twin, self._inputs)
            self._call()

    def write(self, inputs: Sequence[np.ndarray]) -> None:
        """Change the inputs."""
        import torch

        for kept, array in zip(self._inputs, inputs, strict=True):
            kept.copy_(torch.from_numpy(np.array(array)))

    def run(self) -> list[np.ndarray]:
        """Run once; the outputs, copied to the host."""
        import torch

        with torch.no_grad():
            return [output.cpu().numpy() for output in self._call()]

    def time(self) -> float:
        """Seconds the GPU took for one run."""
        import torch

        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.no_grad():
            began.record()
            self._call()
            ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) * 1e-3


def eager(twin: Any, inputs: Sequence[Any]) -> Call:
    """Each operator launched in turn, as PyTorch comes."""
    return lambda: twin(*inputs)


def captured(twin: Any, inputs: Sequence[Any]) -> Call:
    """All operators in one CUDA graph."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # What a kernel does on its first call cannot be captured.
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
    """Fused by inductor, and captured by it into CUDA graphs where there is a GPU."""
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    # One graph of PyTorch's operators: inductor is to see the network, not our loop.
    fused = torch.compile(make_fx(twin)(*inputs), mode="reduce-overhead")
    for _ in range(3):  # It captures on the second call.
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
