"""The engines that can be measured, such as onnxruntime: one interface and a class per engine.

An engine either says why it is missing, or prepares a model and returns a function that runs the
model once. To prepare, an engine compiles the model, warms up and finds its fastest setting, such
as the number of threads. The time of these preparations is not measured.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Feed: TypeAlias = Mapping[str, np.ndarray]
Runner: TypeAlias = Callable[[], list[np.ndarray]]
"""A function that runs the model once and returns the outputs, in the model's order."""


class Engine(ABC):
    """The interface of an engine that can run models.

    Attributes
    ----------
    name: the engine's name.
    setting: the fastest setting that `prepare` or `lanes` found, as text to show with results.
    """

    name: str
    setting: str = ""

    def missing(self) -> str | None:
        """Return why the engine cannot run on this machine, or None if it can."""
        return None

    @abstractmethod
    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        """Prepare to run `model` on the inputs `feed` in `number` threads at once.

        Parameters
        ----------
        model: the path of an ONNX file, or an `onnx.ModelProto`.
        feed: the inputs, by name.
        number: the number of concurrent runs.

        Returns
        -------
        A list of functions, one for each thread. Each function runs the model once.
        """

    def prepare(self, model: Any, feed: Feed) -> Runner:
        """Prepare to run `model` on `feed`, one run at a time."""
        return self.lanes(model, feed, 1)[0]


class OnnxRuntime(Engine):
    """onnxruntime with its fastest setting: a number of threads, and operators in sequence or in
    parallel.
    """

    def __init__(self, parallel: bool = False, threads: tuple[int, ...] | None = None) -> None:
        self.name = f"onnxruntime, {'parallel' if parallel else 'sequential'}"
        self._parallel = parallel
        self._threads = thread_choices() if threads is None else threads

    def missing(self) -> str | None:
        return not_installed("onnxruntime")

    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        found = {n: [self._runner(model, feed, n)] * number for n in self._threads}
        self.best_threads = best_of(found)
        self.setting = f"{self.best_threads} thread(s)"
        return found[self.best_threads]

    def session(self, model: Any, threads: int, profile_prefix: str | None = None) -> Any:
        """Return a session.

        If `profile_prefix` is given, the session writes a profile to a file. The path of this file
        begins with `profile_prefix`.
        """
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
            _as_given(model), options, providers=["CPUExecutionProvider"]
        )

    def _runner(self, model: Any, feed: Feed, threads: int) -> Runner:
        session = self.session(model, threads)
        return lambda: session.run(None, dict(feed))


class OpenVino(Engine):
    """OpenVINO on the CPU.

    Each concurrent run has its own inference request, whose inputs are set once and read in place,
    as in OpenVINO's own `benchmark_app`. Passing the inputs with every run costs some 25
    microseconds more. For several concurrent runs, OpenVINO's settings for latency and for
    throughput are both tried, and the faster setting is used.

    Parameters
    ----------
    float32: whether to compute in float32. Otherwise OpenVINO chooses a precision, which may be
        bfloat16.
    threads: the number of threads; by default OpenVINO chooses the number.
    """

    def __init__(self, float32: bool = True, threads: int | None = None) -> None:
        self.name = "OpenVINO, float32" if float32 else "OpenVINO, as installed"
        self._float32 = float32
        self._threads = threads

    def missing(self) -> str | None:
        return not_installed("openvino")

    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        hints = ("LATENCY",) if number == 1 else ("LATENCY", "THROUGHPUT")
        found = {hint: self._with_hint(model, feed, number, hint) for hint in hints}
        best = best_of(found)
        self.setting = f"hint {best}"
        return found[best]

    def _with_hint(self, model: Any, feed: Feed, number: int, hint: str) -> list[Runner]:
        import openvino

        core = openvino.Core()
        config: dict[str, object] = {"PERFORMANCE_HINT": hint}
        if number > 1:
            config["PERFORMANCE_HINT_NUM_REQUESTS"] = number
        if self._float32:
            config["INFERENCE_PRECISION_HINT"] = "f32"
        if self._threads is not None:
            config["INFERENCE_NUM_THREADS"] = self._threads
        read = core.read_model(_as_given(model))
        names = [value.any_name for value in read.inputs]
        read.reshape({name: list(feed[name].shape) for name in names})
        compiled = core.compile_model(read, "CPU", config)
        outputs = range(len(read.outputs))
        kept = {name: np.asarray(array, order="C") for name, array in feed.items()}

        def runner() -> Runner:
            request = compiled.create_infer_request()
            for name in names:
                request.set_tensor(name, openvino.Tensor(kept[name], shared_memory=True))

            def run() -> list[np.ndarray]:
                request.infer()
                return [request.get_output_tensor(i).data for i in outputs]

            return run

        return [runner() for _ in range(number)]


class TorchProgram(Engine):
    """PyTorch, which runs a program of torch.export, either eagerly or compiled by inductor.

    `prepare` tries the program eagerly and compiled, and uses the faster way.
    """

    name = "PyTorch"

    def __init__(self, threads: tuple[int, ...] | None = None) -> None:
        self._threads = thread_choices() if threads is None else threads

    def missing(self) -> str | None:
        return not_installed("torch")

    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        """Prepare the program in the `.pt2` file `model`; `feed` has its inputs in order."""
        import torch

        network = torch.export.load(os.fspath(model)).module()
        inputs = [torch.from_numpy(np.array(array)) for array in feed.values()]

        def with_threads(call: Callable[..., Any], threads: int) -> Runner:
            def run() -> list[np.ndarray]:
                if torch.get_num_threads() != threads:
                    torch.set_num_threads(threads)
                with torch.inference_mode():
                    found = call(*inputs)
                return [y.numpy() for y in ((found,) if torch.is_tensor(found) else found)]

            return run

        found = {("eager", n): [with_threads(network, n)] * number for n in self._threads}
        compiled = torch.compile(network)
        try:
            with_threads(compiled, max(self._threads))()
        except Exception:  # Inductor needs a C++ compiler, and does not support every operator.
            self.setting = "eager, as inductor cannot compile it here, "
        else:
            found |= {("compiled", n): [with_threads(compiled, n)] * number for n in self._threads}
        mode, threads = best_of(found)
        self.setting = f"{self.setting or f'{mode}, '}{threads} thread(s)"
        return found[mode, threads]


class Artifact(Engine):
    """An artifact of this package. Each concurrent run has its own instance of the artifact."""

    def __init__(
        self,
        name: str,
        sha256: str | None = None,
        trusted_keys: Sequence[str | os.PathLike[str]] | None = None,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self._loading: dict[str, Any] = {"sha256": sha256, "trusted_keys": trusted_keys}
        self._threads = threads

    def lanes(self, model: Any, feed: Feed, number: int) -> list[Runner]:
        from ..artifact.artifact import load
        from ..execution.graph_module import GraphModule
        from ..execution.threads import set_num_threads

        if self._threads is not None:
            set_num_threads(self._threads)
        artifact = load(model, **self._loading)
        streams = artifact.plan.streams
        self.setting = f"{len(streams)} stream(s), {sum(s.threads for s in streams)} thread(s)"
        return [read_in_place(GraphModule(artifact), feed) for _ in range(number)]


def read_in_place(module: Any, feed: Feed) -> Runner:
    """Return a function that runs `module` and reuses memory in every run, as other runtimes do.

    Inputs are read in place. A module on a GPU copies its inputs once, before the first run.
    Outputs are copied to the same arrays in each run. Other runtimes also reuse memory, from a
    pool. New memory in each run would cost time, because the first access to new memory takes
    longer than a small operator.
    """
    from ..errors import DeviceError
    from ..program.host_memory import aligned_copy

    kept = {name: aligned_copy(array) for name, array in feed.items()}
    for name, array in kept.items():
        try:
            module.set_input_zero_copy(name, array)
        except DeviceError:
            module.set_input(name, array)
    outputs = [module.get_output(i).numpy() for i in range(module.get_num_outputs())]

    def run() -> list[np.ndarray]:
        module.run()
        for i, output in enumerate(outputs):
            module.get_output(i, out=output)
        return outputs

    return run


def thread_choices() -> tuple[int, ...]:
    """Return the numbers of threads that engines try on this machine."""
    cores = len(os.sched_getaffinity(0))
    return tuple(range(1, cores + 1)) if cores <= 4 else (1, cores // 2, cores)


def best_of(candidates: Mapping[Any, Sequence[Runner]]) -> Any:
    """Return the key of the fastest candidate, such as a setting of an engine.

    A runner is a function that runs the model once. In one try, all runners of a candidate are
    called at once, each in a thread. Tries in the first tenth of a second do not count. The
    candidate's time is the median of the tries in another tenth of a second, but of at least five
    tries. There is a pause before each candidate, because onnxruntime's threads spin for some time
    after a run.
    """
    if len(candidates) == 1:
        return next(iter(candidates))
    return min(candidates, key=lambda key: _median_s(candidates[key]))


def _median_s(runners: Sequence[Runner]) -> float:
    time.sleep(_REST_S)
    _tries_s(runners, least=1)
    return float(np.median(_tries_s(runners, least=5)))


def _tries_s(runners: Sequence[Runner], least: int) -> list[float]:
    """Return the times of `least` or more tries, in seconds. A try calls all runners at once."""
    took: list[float] = []
    end = time.perf_counter() + _TRIES_S
    while len(took) < least or time.perf_counter() < end:
        began = time.perf_counter()
        threads = [threading.Thread(target=run) for run in runners[1:]]
        for thread in threads:
            thread.start()
        runners[0]()
        for thread in threads:
            thread.join()
        took.append(time.perf_counter() - began)
    return took


_REST_S = 0.2
_TRIES_S = 0.1


def not_installed(package: str) -> str | None:
    """Return None if the Python package `package` is installed, or else a message."""
    found = importlib.util.find_spec(package) is not None
    return None if found else f"the package `{package}` is not installed"


def _as_given(model: Any) -> Any:
    """Return `model` as text if it is a path, otherwise as the bytes of an ONNX file."""
    is_path = isinstance(model, (str, Path))
    return str(model) if is_path else model.SerializeToString()
