"""Whom we are measured against: one small interface, one class a peer.

A peer says why it is missing, or prepares a model and returns what runs it once. Whatever a peer
needs beyond the model (thread settings, warm-up, compilation) it finds before it is timed: each
is taken at its best.
"""

from __future__ import annotations

import importlib.util
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from . import torch_gpu

Feed = Mapping[str, np.ndarray]
Runner = Callable[[], list[np.ndarray]]
"""One inference: returns the outputs, in the model's order."""


class Peer(ABC):
    """Someone who can run an ONNX model."""

    name: str

    def missing(self) -> str | None:
        """Why it cannot take part here; None where it can."""
        return None

    @abstractmethod
    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        """Get ready to run `model` on `feed`; may set `self.setting`, told beside the figures."""

    setting: str = ""


def thread_choices() -> tuple[int, ...]:
    """The numbers of threads worth trying here."""
    cores = len(os.sched_getaffinity(0))
    return tuple(range(1, cores + 1)) if cores <= 4 else (1, cores // 2, cores)


class OnnxRuntime(Peer):
    """onnxruntime, operators in sequence or in parallel, with the best number of threads."""

    def __init__(self, parallel: bool, threads: tuple[int, ...]) -> None:
        self.name = f"onnxruntime, {'parallel' if parallel else 'sequential'}"
        self._parallel = parallel
        self._threads = threads

    def missing(self) -> str | None:
        return _not_installed("onnxruntime")

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        runners = {n: self._runner(model, feed, n) for n in self._threads}
        self.best_threads = min(runners, key=lambda n: _quick_median_s(runners[n]))
        self.setting = f"{self.best_threads} thread(s)"
        return runners[self.best_threads]

    def session(
        self, model: onnx.ModelProto, threads: int, profile_prefix: str | None = None
    ) -> Any:
        """A session; its profile goes to a file whose path begins with `profile_prefix`."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if profile_prefix is not None:
            options.enable_profiling = True
            options.profile_file_prefix = profile_prefix
        options.intra_op_num_threads = threads
        if self._parallel:
            options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
            options.inter_op_num_threads = max(self._threads)
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def _runner(self, model: onnx.ModelProto, feed: Feed, threads: int) -> Runner:
        session = self.session(model, threads)
        return lambda: session.run(None, dict(feed))


class OpenVino(Peer):
    """OpenVINO on the CPU: in float32, or in what it picks by itself, which may be bfloat16.

    Parameters
    ----------
    threads: by default as many as it picks.
    """

    def __init__(self, float32: bool, threads: int | None = None) -> None:
        self.name = "OpenVINO, float32" if float32 else "OpenVINO, as installed"
        self._float32 = float32
        self._threads = threads

    def missing(self) -> str | None:
        return _not_installed("openvino")

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        import openvino

        core = openvino.Core()
        config: dict[str, object] = {"PERFORMANCE_HINT": "LATENCY"}
        if self._float32:
            config["INFERENCE_PRECISION_HINT"] = "f32"
        if self._threads is not None:
            config["INFERENCE_NUM_THREADS"] = self._threads
        read = core.read_model(model.SerializeToString())
        read.reshape({v.name: list(feed[v.name].shape) for v in _inputs(model)})
        request = core.compile_model(read, "CPU", config).create_infer_request()
        outputs = range(len(model.graph.output))

        def run() -> list[np.ndarray]:
            request.infer(dict(feed), share_inputs=True)
            return [request.get_output_tensor(i).data for i in outputs]

        return run


class Torch(Peer):
    """PyTorch on the CPU: eager, or compiled by inductor.

    Parameters
    ----------
    program: a file of `torch.export` that holds the network; without one it is a twin of the ONNX
        graph.
    """

    def __init__(
        self, compiled: bool, threads: tuple[int, ...], program: Path | None = None
    ) -> None:
        self.name = "torch.compile" if compiled else "PyTorch eager"
        self._compiled = compiled
        self._threads = threads
        self._program = program

    def missing(self) -> str | None:
        return _not_installed("torch")

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
        best = min(runners, key=lambda n: _quick_median_s(runners[n]))
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
        # One graph of PyTorch's operators: inductor is to see the network, not our loop.
        with torch.no_grad():
            return make_fx(twin)(*inputs)


class RelaxVM(Peer):
    """TVM as it comes: its default pipeline and its virtual machine."""

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


class Ours(Peer):
    """This project, with one scheduler; all share one compilation and its measurements."""

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
    """What a schedule of ours is like, and whose it is where `auto` chose."""
    winner = f"{schedule.stats['winner']} won, " if "winner" in schedule.stats else ""
    stages = f"{len(schedule.stages)} stages, " if schedule.stages else ""
    return f"{winner}{stages}{sum(map(bool, schedule.streams))} stream(s)"


def read_in_place(module: Any, feed: Feed) -> Runner:
    """Runs `module` as the others run: inputs are read where they are, outputs come in arrays.

    The arrays are the same each time, as other runtimes keep theirs in a pool: the first touch of
    fresh memory costs more than a small operator does.
    """
    from tvm_interop.program.host_memory import aligned_copy

    kept = {name: aligned_copy(array) for name, array in feed.items()}
    for name, array in kept.items():
        module.set_input_zero_copy(name, array)
    outputs = [module.get_output(i).numpy() for i in range(module.get_num_outputs())]

    def run() -> list[np.ndarray]:
        module.run()
        for i, output in enumerate(outputs):
            module.get_output(i, out=output)
        return outputs

    return run


class TensorRT(Peer):
    """NVIDIA's TensorRT in fp32; takes part where its package and a GPU are."""

    name = "TensorRT"

    def missing(self) -> str | None:
        return _not_installed("tensorrt") or _no_gpu()

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
        config.clear_flag(trt.BuilderFlag.TF32)  # The others compute in fp32 too.
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


class TorchCudaGraph(Peer):
    """PyTorch replaying a CUDA graph; takes part where a GPU is."""

    name = "PyTorch CUDA graph"

    def missing(self) -> str | None:
        return torch_gpu.why_not() or None

    def prepare(self, model: onnx.ModelProto, feed: Feed) -> Runner:
        inputs = [feed[v.name] for v in _inputs(model)]
        return torch_gpu.TorchRunner(model, torch_gpu.captured, inputs).run


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {w.name for w in model.graph.initializer}
    return [v for v in model.graph.input if v.name not in weights]


def _quick_median_s(run: Runner, calls: int = 5) -> float:
    run()
    took = []
    for _ in range(calls):
        began = time.perf_counter()
        run()
        took.append(time.perf_counter() - began)
    return float(np.median(took))


def _not_installed(package: str) -> str | None:
    found = importlib.util.find_spec(package) is not None
    return None if found else f"the package `{package}` is not installed"


def _no_gpu() -> str | None:
    import torch

    return None if torch.cuda.is_available() else "there is no CUDA GPU here"
