"""The runtimes that this package is compared with.

Some of the runtimes are engines in `tvm_interop.perf.engines`. This module adds the others.

Each runtime takes part with its best settings: it compiles, warms up and finds its best number of
threads before it is timed.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tvm_interop.perf.engines import (
    Engine,
    Feed,
    OnnxRuntime,
    OpenVino,
    Runner,
    best_of,
    not_installed,
    read_in_place,
    thread_choices,
)

from . import torch_gpu

__all__ = [
    "Feed",
    "OnnxRuntime",
    "OpenVino",
    "Ours",
    "Peer",
    "RelaxVM",
    "Runner",
    "TensorRT",
    "Torch",
    "TorchCudaGraph",
    "read_in_place",
    "setting_of",
    "thread_choices",
]

Peer = Engine


class _OneAtATime(Engine):
    """The base class of engines that cannot do several runs at the same time."""

    @abstractmethod
    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        """Prepare to run `model` on `feed`, and return a function that runs it once.

        A subclass may set `self.setting`, a description that is printed beside the results.
        """

    def lanes(self, model: onnx.ModelProto, feed: Feed, number: int) -> list[Runner]:
        if number != 1:
            raise ValueError(f"{self.name} cannot do {number} runs at once: ask for 1")
        return [self.prepare(model, feed)]


class Torch(_OneAtATime):
    """PyTorch on the CPU: eager, or compiled by inductor.

    Parameters
    ----------
    threads: numbers of threads to try.
    program: file of `torch.export` with the network; None for a `TorchTwin` of the ONNX graph.
    """

    def __init__(
        self, compiled: bool, threads: tuple[int, ...], program: Path | None = None
    ) -> None:
        self.name = "torch.compile" if compiled else "PyTorch eager"
        self._compiled = compiled
        self._threads = threads
        self._program = program

    def missing(self) -> str | None:
        return not_installed("torch")

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        import torch

        inputs = [torch.from_numpy(np.array(feed[v.name])) for v in _inputs(model)]
        network = self._network(model, inputs)
        if self._compiled:
            network = torch.compile(network)

        def run_with(threads: int) -> Runner:
            def run() -> list[np.ndarray]:
                if torch.get_num_threads() != threads:
                    torch.set_num_threads(threads)
                with torch.inference_mode():
                    found = network(*inputs)
                return [y.numpy() for y in ((found,) if torch.is_tensor(found) else found)]

            return run

        runners = {n: run_with(n) for n in self._threads}
        best = best_of({n: [run] for n, run in runners.items()})
        self.setting = f"{best} thread(s)"
        return runners[best]

    def _network(self, model: onnx.ModelProto, inputs: list[Any]) -> Any:
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        from .torch_twin import TorchTwin

        if self._program is not None:
            return torch.export.load(self._program).module()
        twin: Any = TorchTwin(model).eval()
        if not self._compiled:
            return twin
        # Trace one graph of PyTorch's operators, so that inductor does not see the loop in `twin`.
        with torch.no_grad():
            return make_fx(twin)(*inputs)


class RelaxVM(_OneAtATime):
    """TVM with its default pipeline and Relax's virtual machine."""

    name = "TVM, Relax VM"

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        import tvm
        from tvm import relax

        from tvm_interop.frontend import load_model

        module = load_model(model)
        machine = relax.VirtualMachine(tvm.compile(module, "llvm"), tvm.cpu())
        inputs = [tvm.runtime.tensor(np.array(feed[v.name])) for v in _inputs(model)]

        def run() -> list[np.ndarray]:
            result = machine["main"](*inputs)
            several = not hasattr(result, "numpy")
            return [y.numpy() for y in result] if several else [result.numpy()]

        return run


class Ours(_OneAtATime):
    """This package with one scheduler. All schedulers share a compilation and its measurements."""

    def __init__(self, compilation: Any, scheduler: str) -> None:
        self.name = f"ours, {scheduler}"
        self._compilation = compilation
        self._scheduler = scheduler

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        from tvm_interop import GraphModule

        schedule = self._compilation.schedule(self._scheduler)
        module = GraphModule(self._compilation.artifact(schedule))
        self.setting = setting_of(schedule)
        self.search_s = schedule.stats["search_us"] / 1e6

        return read_in_place(module, feed)


def setting_of(schedule: Any) -> str:
    """A short description of one of our schedules: its stages and streams.

    For the scheduler `auto` it also names the scheduler that `auto` chose.
    """
    winner = f"{schedule.stats['winner']} won, " if "winner" in schedule.stats else ""
    stages = f"{len(schedule.stages)} stages, " if schedule.stages else ""
    return f"{winner}{stages}{sum(map(bool, schedule.streams))} stream(s)"


class TensorRT(_OneAtATime):
    """NVIDIA's TensorRT in fp32. It takes part if its package is installed and there is a GPU."""

    name = "TensorRT"

    def missing(self) -> str | None:
        return not_installed("tensorrt") or _no_gpu()

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        import tensorrt as trt
        import torch

        logger = trt.Logger(trt.Logger.WARNING)
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        if not parser.parse(model.SerializeToString()):
            raise RuntimeError(f"TensorRT cannot read the model: {parser.get_error(0)}")
        config = builder.create_builder_config()
        config.clear_flag(trt.BuilderFlag.TF32)  # No runtime here uses TF32.
        plan = builder.build_serialized_network(network, config)
        engine = trt.Runtime(logger).deserialize_cuda_engine(plan)
        context = engine.create_execution_context()
        stream = torch.cuda.Stream()
        tensors = {v.name: torch.from_numpy(np.array(feed[v.name])).cuda() for v in _inputs(model)}
        for value in model.graph.output:
            shape = tuple(engine.get_tensor_shape(value.name))
            tensors[value.name] = torch.empty(shape, device="cuda")
        for name, tensor in tensors.items():
            context.set_tensor_address(name, tensor.data_ptr())

        def run() -> list[np.ndarray]:
            context.execute_async_v3(stream.cuda_stream)
            stream.synchronize()
            return [tensors[v.name].cpu().numpy() for v in model.graph.output]

        return run


class TorchCudaGraph(_OneAtATime):
    """PyTorch that replays a CUDA graph. It takes part if there is a GPU."""

    name = "PyTorch CUDA graph"

    def missing(self) -> str | None:
        return torch_gpu.why_not() or None

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        inputs = [feed[v.name] for v in _inputs(model)]
        return torch_gpu.TorchRunner(model, torch_gpu.captured, inputs).run


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {w.name for w in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in weights]


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA GPU here"
