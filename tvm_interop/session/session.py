"""`Session`: a model that is loaded, compiled first if need be, and run by names."""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..artifact.artifact import Artifact
from ..errors import DeviceError, ExecutionError, InputError, did_you_mean
from ..execution.arrays import shape_of
from ..execution.graph_module import GraphModule
from ..execution.operator_profile import OpProfile
from ..plain_data import is_whole
from .binding import Binding
from .compiled_once import compiled_once
from .source import Source, artifact_or_source
from .tensor_info import TensorInfo, infos_of_plan

_MOST_SHAPES = 16
"""Of a model with open dimensions: for so many shapes of its inputs it stays in memory."""
Callback = Callable[[list[np.ndarray] | None, Any, str], object]
"""What onnxruntime calls after `run_async`: the results, the user's data, and the error if any."""


class Session(AbstractContextManager["Session"]):
    """A model ready to run, under the names that users of onnxruntime know.

    `run` may be called from several threads: each call takes one of the session's instances, and
    waits for one where all are busy. Outputs are new arrays, which no later run changes.

    A model that is no artifact is compiled, which takes from seconds to minutes and is told by the
    logger `tvm_interop`, and the artifact is kept beside the database of latencies: the next
    session of the same file, with the same options on the same machine, finds it. A model with open
    dimensions is compiled for each shape that `run` is given.

    Attributes
    ----------
    inputs, outputs: what the model takes and gives.
    path: of the artifact that runs; None where there is none yet, or it is in no file.

    Examples
    --------
    >>> session = Session("model.onnx")  # doctest: +SKIP
    >>> logits, *_ = session.run(None, {"image": image})  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        *,
        threads: int | None = None,
        instances: int = 1,
        **options: Any,
    ) -> None:
        """Load `model`; compile it first unless it is an artifact or was compiled before.

        Parameters
        ----------
        model: an artifact or its path, or what `compile` takes: an ONNX file's path, a network's
            name, an `onnx.ModelProto`; also the bytes of an ONNX file.
        sess_options: an `onnxruntime.SessionOptions`, of which `intra_op_num_threads` counts.
        providers: as onnxruntime has them; the CPU must be among them, unless `target` is given.
        threads: cores to compile for; by default all that this process may use.
        instances: how many runs may go on at once. All share the threads of this process.
        options: more for `compile`, such as `input_shapes`, `scheduler` or `progress`.

        Raises
        ------
        UnsupportedModelError, ArtifactError, InputError, DeviceError
            As `compile`, `load` and `GraphModule`; what compiles is not installed.
        """
        if not is_whole(instances) or instances < 1:
            raise InputError(f"`instances` is {instances!r}; give a whole number, 1 or more")
        _check_providers(providers, options.get("target", "llvm"))
        threads = threads or getattr(sess_options, "intra_op_num_threads", 0) or None
        self._instances = instances
        self._is_closed = False
        self._compiling = threading.Lock()
        self._workers = ThreadPoolExecutor(instances, "tvm_interop.Session")
        self._by_shape: OrderedDict[tuple[Any, ...], _Pool] = OrderedDict()
        self._pool: _Pool | None = None
        self._source: Source | None = None
        self._options = options
        self.path: Path | None = None
        given = artifact_or_source(model)
        if isinstance(given, Artifact):
            self._check_artifact_options(given.plan.streams, threads)
            # Who says how many threads there are to be knows of cores that stay idle.
            self._take(given if threads is None else replace(given, from_elsewhere=False))
            return
        self._source = given
        if threads is not None:
            self._options = {"streams": threads, "threads": 1, **options}
        if _is_open(given, options):
            self.inputs, self.outputs = given.inputs, given.outputs
        else:
            self._take(compiled_once(given, self._options))

    def _take(self, artifact: Artifact) -> None:
        """Run `artifact`, whatever comes."""
        self._pool = _Pool(artifact, self._instances)
        self.inputs, self.outputs = infos_of_plan(artifact.plan)
        self.path = artifact.path

    def _check_artifact_options(self, streams: Sequence[Any], threads: int | None) -> None:
        if self._options:
            raise InputError(
                f"`{'`, `'.join(self._options)}`: options are for models that are compiled, and "
                "this is an artifact, which is compiled already; leave them out"
            )
        wanted = sum(stream.threads for stream in streams)
        if threads is not None and threads < wanted:
            raise InputError(
                f"the artifact was compiled for {wanted} threads, and `threads` is {threads}: give "
                "the model instead of the artifact, or limit this process with "
                "tvm_interop.set_num_threads"
            )

    def __repr__(self) -> str:
        return (
            f"Session({self.path or (self._source.name if self._source else 'in memory')}: inputs "
            f"{', '.join(map(str, self.inputs))}, outputs {', '.join(map(str, self.outputs))})"
        )

    def __reduce__(self) -> Any:
        raise ExecutionError(
            "a Session has threads and memory of this process: it can be neither copied nor "
            "pickled. Make one of the same model where it is needed"
        )

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give memory and threads back, once the runs that go on have ended."""
        self._is_closed = True
        self._workers.shutdown()
        self._pool = None
        self._by_shape.clear()

    # What there is.

    def get_inputs(self) -> list[TensorInfo]:
        """The inputs: each has `name`, `shape` and `type`."""
        return list(self.inputs)

    def get_outputs(self) -> list[TensorInfo]:
        """The outputs: each has `name`, `shape` and `type`."""
        return list(self.outputs)

    def get_providers(self) -> list[str]:
        """The device that it runs on, under onnxruntime's name for it."""
        on_gpu = self._pool is not None and any(
            stream.device.startswith("cuda") for stream in self._pool.artifact.plan.streams
        )
        return ["CUDAExecutionProvider"] if on_gpu else ["CPUExecutionProvider"]

    def get_modelmeta(self) -> Any:
        """`custom_metadata_map` holds what the exporter wrote into the model, by name.

        Raises
        ------
        InputError
            The session was made of an artifact, which does not hold it.
        """
        if self._source is None:
            raise InputError(
                "an artifact does not hold what the exporter wrote into the model: make the "
                "session of the ONNX file"
            )
        return SimpleNamespace(custom_metadata_map=dict(self._source.metadata))

    # Running.

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[np.ndarray]:
        """Run the model.

        Parameters
        ----------
        output_names: the outputs that are wanted, in this order; None wants all.
        input_feed: by name: arrays, tensors of any library that speaks DLPack, or lists of numbers.
        run_options: as onnxruntime has them; none of them counts here.

        Returns
        -------
        The outputs, as new arrays.

        Raises
        ------
        InputError
            An input is missing, unknown, or of the wrong shape or type; there is no such output.
        ExecutionError
            An operator failed, or the session was closed.
        """
        wanted = self._positions(output_names)
        feed = self._checked_feed(input_feed)
        pool = self._pool_for(feed)
        module = pool.modules.get()
        try:
            module.run(feed)
            values = [module.plan.values[v] for v in module.plan.outputs]
            made = {i: np.empty(values[i].shape, values[i].dtype) for i in wanted}
            return [module.get_output(i, out=made[i]) for i in wanted]
        finally:
            pool.modules.put(module)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback | None = None,
        user_data: Any = None,
    ) -> Future[list[np.ndarray]]:
        """Run the model in the background.

        The arrays in `input_feed` must stay as they are until the run has ended.

        Parameters
        ----------
        callback: called with the results, `user_data` and an empty text; or with None, `user_data`
            and what went wrong.

        Returns
        -------
        A future of what `run` returns or raises.
        """
        self._check_is_open()
        future = self._workers.submit(self.run, output_names, input_feed)
        if callback is not None:
            call = callback

            def tell(done: Future[list[np.ndarray]]) -> None:
                error = done.exception()
                call(done.result() if error is None else None, user_data, str(error or ""))

            future.add_done_callback(tell)
        return future

    def profile(self, input_feed: Mapping[str, Any]) -> list[OpProfile]:
        """Run once and tell when each operator ran (see `GraphModule.profile`)."""
        feed = self._checked_feed(input_feed)
        pool = self._pool_for(feed)
        module = pool.modules.get()
        try:
            module.set_input(**feed)
            return module.profile()
        finally:
            pool.modules.put(module)

    def io_binding(self) -> Binding:
        """Memory of the caller's that inputs are read from and outputs are written to."""
        self._check_is_open()
        if self._pool is None:
            raise InputError(
                "a model with open dimensions has no memory to bind before it is compiled: give "
                "`input_shapes` when the session is made"
            )
        return Binding(self._pool.artifact)

    def run_with_iobinding(self, binding: Binding) -> None:
        """Run the model on what was bound."""
        self._check_is_open()
        binding.run()

    def _check_is_open(self) -> None:
        if self._is_closed:
            raise ExecutionError("the session was closed: make a new one")

    def _positions(self, names: Sequence[str] | None) -> list[int]:
        known = [info.name for info in self.outputs]
        for name in names or ():
            if name not in known:
                raise InputError(
                    f"no output `{name}`{did_you_mean(str(name), known)}: the model has "
                    f"{', '.join(map(str, self.outputs))}"
                )
        return [known.index(name) for name in (known if names is None else names)]

    def _checked_feed(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs, lists of numbers as arrays; all that there are, and none besides."""
        self._check_is_open()
        if not isinstance(feed, Mapping):
            raise InputError(
                f"the inputs are a `{type(feed).__name__}`; give a dictionary of arrays by name"
            )
        known = {info.name: info for info in self.inputs}
        wanted = ", ".join(map(str, self.inputs)) or "none"
        for name in feed:
            if name not in known:
                raise InputError(
                    f"the model has no input `{name}`{did_you_mean(str(name), list(known))}; it "
                    f"has {wanted}"
                )
        missing = [name for name in known if name not in feed]
        if missing:
            raise InputError(f"input `{missing[0]}` is missing; the model's inputs are {wanted}")
        return {name: _with_type(feed[name], info) for name, info in known.items()}

    # Compiling.

    def _pool_for(self, feed: Mapping[str, Any]) -> _Pool:
        """The instances that run inputs of these shapes; compiled now if need be."""
        if self._pool is not None:
            return self._pool
        assert self._source is not None, "what is compiled already has its instances"
        shapes = {info.name: shape_of(feed[info.name]) for info in self.inputs if info.is_open}
        key = tuple(shapes.values())
        with self._compiling:
            self._check_is_open()
            if key not in self._by_shape:
                artifact = compiled_once(self._source, self._options, shapes)
                self._by_shape[key] = _Pool(artifact, self._instances)
                self.path = artifact.path
                if len(self._by_shape) > _MOST_SHAPES:
                    self._by_shape.popitem(last=False)
            self._by_shape.move_to_end(key)
            return self._by_shape[key]


class _Pool:
    """Instances of one artifact, of which each call takes one."""

    def __init__(self, artifact: Artifact, instances: int) -> None:
        self.artifact = artifact
        self.modules: queue.LifoQueue[GraphModule] = queue.LifoQueue()
        for _ in range(instances):
            self.modules.put(GraphModule(artifact))


def _is_open(source: Source, options: Mapping[str, Any]) -> bool:
    """Whether shapes must be waited for: an input has open dimensions that nobody gave."""
    given = options.get("input_shapes") or {}
    if options.get("batch_sizes") is not None or not isinstance(given, Mapping):
        return False
    return any(info.is_open and info.name not in given for info in source.inputs)


def _with_type(value: Any, info: TensorInfo) -> Any:
    """A list of numbers as an array of the input's type; arrays and tensors as they are."""
    if hasattr(value, "__dlpack__") or hasattr(value, "__array__") or value is None:
        return value
    try:
        return np.asarray(value, info.dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"input {info} cannot be made from the given value: {error}") from error


def _check_providers(providers: Sequence[Any] | None, target: Any) -> None:
    names = [name if isinstance(name, str) else name[0] for name in providers or ()]
    if names and "CPUExecutionProvider" not in names and str(target).startswith("llvm"):
        raise DeviceError(
            f"`providers` is {names}, and a session runs on the CPU unless `target` says "
            'otherwise: add "CPUExecutionProvider", or give target="cuda"'
        )
