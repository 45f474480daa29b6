"""`Session`, which runs a model with onnxruntime's method names and compiles it if needed."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._native.runtime import num_threads
from ..artifact.artifact import Artifact
from ..errors import CannotFillUpError, ExecutionError, InputError
from ..execution.arrays import shape_of
from ..execution.graph_module import GraphModule
from .after_fork import renew_in_children
from .binding import Binding
from .by_size import BySize, without_ranges
from .empty_inputs import ranges_from_1, why_not_padded, without_empty
from .given import (
    check_artifact_options,
    check_counts,
    check_providers,
    check_shapes,
    check_types,
    checked_feed,
    is_open,
    model_and_options,
    positions_of,
    threads_of,
)
from .like_onnxruntime import Callback, LikeOnnxruntime
from .open_binding import OpenBinding
from .pool import Pool
from .profile_file import ProfileFile
from .ready_shapes import ReadyShapes
from .replaced_weights import ReplacedWeights, refuse_adapters, with_adapters
from .sequences import WithSequences, with_sequences
from .sized_runs import SizedRuns
from .source import Source, artifact_or_source, with_tensors

if TYPE_CHECKING:
    from ..execution.operator_profile import OpProfile
    from .background import Background, CompileState
    from .compiled_once import Order

_LOG = logging.getLogger("tvm_interop")

_MOST_SHAPES = 64
"""The largest number of combinations of input shapes for which a session keeps instances.

The instances for the least recently used shapes are dropped first.
"""
_MOST_BYTES = 4 << 30
"""The largest total size of the tensors of a session's instances, in bytes.

The instances for the shapes that were used last are kept even if their own tensors are larger.
"""


class Session(
    LikeOnnxruntime, SizedRuns, ReplacedWeights, WithSequences, AbstractContextManager["Session"]
):
    """A model ready to run, with the method names of onnxruntime's `InferenceSession`.

    Several threads may call `run` at once. Each call takes one of the session's instances, and
    waits if all instances are busy. Outputs are new arrays, which later runs do not change.

    A model that is not an artifact is compiled, which takes from seconds to minutes. The logger
    `tvm_interop` reports this. The artifact is stored beside the database of latencies. The next
    session with the same file and options on the same machine uses the stored artifact. A model
    with open dimensions is compiled for each combination of input shapes that `run` gets. With
    `compile_in_background` the session answers before the compilation has ended: see `states`.

    With ranges in `shapes`, all sizes run without further compilation if inputs may be padded
    (filled up) to a larger size. Otherwise a warning gives the reason, and each size is compiled at
    its first run. If inputs may be padded, but the mask of a single run forbids padding, only the
    size of this run is compiled separately.

    Attributes
    ----------
    inputs, outputs: names, shapes and dtypes of the model's inputs and outputs.
    path: the path of the last artifact that was loaded or compiled; None if it is not in a file.

    Examples
    --------
    >>> with Session("model.onnx") as session:  # Compiles it, or finds it compiled.
    ...     (scores,) = session.run(None, {session.inputs[0].name: image})
    >>> scores.tolist()
    [[0.0, 0.0, 2.0]]
    """

    def __init__(
        self,
        model: Any = None,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        *,
        threads: int | None = None,
        instances: int = 1,
        compile_in_background: bool = False,
        **options: Any,
    ) -> None:
        """Load `model`; compile it first unless it is an artifact or was compiled before.

        Parameters
        ----------
        model: an artifact, the path of an artifact, the bytes of an ONNX file, or a model as
            `compile` takes it, such as the path of an ONNX file, the name of a network or an
            `onnx.ModelProto`.
        sess_options: an `onnxruntime.SessionOptions`. Only `intra_op_num_threads` has an effect.
        providers: execution providers as in onnxruntime. The list must include the CPU, unless
            `target` is another device.
        provider_options: ignored. It exists because onnxruntime has this parameter.
        threads: the number of cores to compile for; by default all cores that this process may use.
        instances: the number of runs that can be active at once. All instances share the threads of
            this process.
        compile_in_background: whether to answer as soon as possible. A model that must be compiled
            is first compiled without measurements, in seconds. Another process then compiles it in
            full, and later runs use its result. The answers of the two artifacts may differ in the
            last bits.
        options: more options for `compile`, such as `input_shapes`, `scheduler` or `progress`.

        Raises
        ------
        UnsupportedModelError, ArtifactError, InputError, DeviceError
            The same cases as for `compile`, `load` and `GraphModule`. Also `DeviceError` if the
            model must be compiled and a package for that is not installed.
        """
        check_counts(instances, threads)
        model, options = model_and_options(model, options)
        check_providers(providers, options.get("target", "llvm"))
        self._with_weights = {}
        again = dict(options, threads=threads, instances=instances, sess_options=sess_options)
        self._again = partial(Session, compile_in_background=compile_in_background, **again)
        streams, threads = threads, threads or threads_of(sess_options)
        self._session_options = sess_options
        self._profile = ProfileFile.wanted_by(sess_options)
        self._instances, self._is_closed = instances, False
        self._renew()
        renew_in_children(self, Session._renew)
        self._by_shape = ReadyShapes(_MOST_SHAPES, _MOST_BYTES)
        self._pool: Pool | None = None
        self._source: Source | None = None
        self._options, self._ranges = ranges_from_1(options)
        self._background: Background | None = None
        self._by_size: BySize | None = None
        self.path: Path | None = None
        given = artifact_or_source(model)
        if isinstance(given, Artifact):
            check_artifact_options(self._options, given.cores, threads)
            # The user has given `threads`, so do not warn about idle cores.
            self._take(given if threads is None else given.at_home())
            return
        self._source = given
        if threads is not None:
            # onnxruntime may start more threads than there are cores. Here that would be slower.
            streams = streams or min(threads, num_threads())
            self._options = {"streams": streams, "threads": 1, **self._options}
        if compile_in_background:
            from .background import Background, check_background

            check_background(self._options, given.model, given.digest)
            self._background = Background()
            # If nobody closes the session, end the compiling process when Python deletes the
            # session or the program ends.
            weakref.finalize(self, self._background.let_go)
        given = self._source = with_tensors(given, self._order(given, None).is_stored)
        self.inputs, self.outputs = given.inputs, given.outputs
        if not is_open(given, options):
            self._compile_whole(given)

    def _compile_whole(self, given: Source) -> None:
        """Compile the model for all runs, or find its artifact, and use it."""
        order = self._order(given, None)
        try:
            artifact, is_quick = self._compiled(order)
        except CannotFillUpError as error:
            shapes = {**self._options["shapes"], **self._ranges}
            self._by_size = BySize(given, shapes, error, _MOST_SHAPES)
            return
        self._take(artifact)
        if is_quick:
            self._improve(order)

    def _renew(self) -> None:
        """Make a new lock and worker threads, also in a forked child."""
        self._compiling = threading.Lock()
        self._workers = ThreadPoolExecutor(self._instances, "tvm_interop.Session")

    def _take(self, artifact: Artifact) -> None:
        """Use `artifact` for all runs, for inputs of any shapes."""
        self._pool = Pool(artifact, self._instances)
        self.inputs, self.outputs = with_sequences(self._pool.infos(), self._source)
        self.path = artifact.path

    def __repr__(self) -> str:
        return (
            f"Session({self.path or (self._source.name if self._source else 'in memory')}: inputs "
            f"{', '.join(map(str, self.inputs))}, outputs {', '.join(map(str, self.outputs))})"
        )

    def __getstate__(self) -> Any:
        # Not `__reduce__`, so that a subclass with methods for pickling of its own can be pickled.
        raise ExecutionError(
            "a Session uses threads and memory of this process: it can be neither copied nor "
            "pickled. Make another session from the model where you need it"
        )

    def __exit__(self, *_: object) -> None:
        """Close the session at the end of a `with` block."""
        self.close()

    def close(self) -> None:
        """End the runs of `run_async`, stop background compilations, and free memory and threads.

        A run that `run_async` has begun ends before this method returns. A run that is still
        waiting for its turn runs too, unless its model must be compiled first.
        """
        self._is_closed = True
        if self._background is not None:
            self._background.close()
        # In a callback of `run_async`, this thread is one of those that the method would wait for.
        self._workers.shutdown(wait=threading.current_thread() not in self._workers._threads)
        self._pool = None
        self._by_shape.close()
        self._close_with_weights()

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
        output_names: the names of the outputs to return, in this order. None and an empty list
            return all.
        input_feed: the inputs by name. A value is an array, a tensor of a library that supports
            DLPack, or a list of numbers. An input of strings is an array or a list of `str`.
        run_options: ignored, except adapters of `tvm_interop.onnxruntime.RunOptions`, which give
            weights as inputs.

        Returns
        -------
        The outputs, as new arrays. An output of strings is an array of `str`, of dtype object.

        Raises
        ------
        InputError
            An input is missing or unknown, has the wrong shape or dtype, or there is no such
            output.
        ExecutionError
            An operator failed, or the session was closed.
        """
        self._check_is_open()
        return self._answer(output_names, with_adapters(input_feed, run_options))

    def _answer(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[np.ndarray]:
        if other := self._with_weights_of(input_feed):
            return list(other._answer(output_names, input_feed))
        wanted = positions_of(output_names, self.outputs)
        feed = checked_feed(input_feed, self.inputs)
        error = why_not_padded(self._source, feed, self._ranges) if self._pool else None
        if error is None:
            try:
                return self._run_on(self._pool_for(feed), feed, wanted)
            except CannotFillUpError as refused:
                if self._source is None:
                    raise
                error = refused
        results = self._run_on(self._pool_for(feed, error), feed, wanted)
        self._count_at_own_size({name: shape_of(array) for name, array in feed.items()})
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callback | None = None,
        user_data: Any = None,
        run_options: Any = None,
    ) -> Future[list[np.ndarray]]:
        """Run the model in the background.

        The arrays in `input_feed` must not change until the run has ended.

        Parameters
        ----------
        output_names, input_feed, run_options: as for `run`.
        callback: a function to call after the run. The function gets the results, `user_data` and
            "", which means that there was no error. If the run fails, the function gets None,
            `user_data` and the error message. That includes a run whose future was cancelled.
        user_data: any object to pass to `callback`.

        Returns
        -------
        A future with the result or the error of `run`.
        """
        self._check_is_open()
        if callback is not None and not callable(callback):
            raise InputError(f"`callback` is {callback!r}; give a function, or None")
        feed = with_adapters(input_feed, run_options)
        future = self._workers.submit(self._answer, output_names, feed)
        if callback is not None:
            call = callback

            def tell(done: Future[list[np.ndarray]]) -> None:
                if done.cancelled():
                    call(None, user_data, "the run was cancelled before it began")
                    return
                error = done.exception()
                call(done.result() if error is None else None, user_data, str(error or ""))

            future.add_done_callback(tell)
        return future

    def profile(self, input_feed: Mapping[str, Any]) -> list[OpProfile]:
        """Run once and return the times at which each operator ran; see `GraphModule.profile`."""
        self._check_is_open()
        if other := self._with_weights_of(input_feed):
            return list(other.profile(input_feed))
        feed = checked_feed(input_feed, self.inputs)
        return self._pool_for(feed).profile(feed)

    def io_binding(self) -> Binding | OpenBinding:
        """Return a new binding, which uses the caller's memory for inputs and outputs.

        If the model has open dimensions, outputs are copied to the caller's memory.
        """
        self._check_is_open()
        if self._pool is None or self._pool.has_open_shapes:
            return OpenBinding(self.run, self.inputs, self.outputs)
        return Binding(self._current)

    def run_with_iobinding(self, binding: Binding | OpenBinding, run_options: Any = None) -> None:
        """Run the model on the inputs and outputs of `binding`; see `run` for `run_options`."""
        self._check_is_open()
        refuse_adapters(run_options)
        binding.run()

    def _check_is_open(self) -> None:
        if self._is_closed:
            raise ExecutionError("the session was closed: make a new one")

    # Compiling.

    @property
    def states(self) -> list[CompileState]:
        """The state of the compilation for each combination of input shapes.

        With `compile_in_background`, the list has an element for each combination of input shapes.
        The element says which artifact runs: the artifact compiled without measurements (`quick`)
        or the completely compiled artifact (`whole`). It also gives the time at which this artifact
        began to run, and the state of the compilation in the background, with the error if the
        compilation failed. Without `compile_in_background`, or if the session was made from an
        artifact, the list is empty.
        """
        return [] if self._background is None else self._background.states()

    def wait_until_compiled(self, timeout: float | None = None) -> bool:
        """Wait until all shapes that the session has seen are compiled in the background.

        Parameters
        ----------
        timeout: the longest wait, in seconds; None for no limit.

        Returns
        -------
        Whether completely compiled artifacts run now for all shapes. False if `timeout` has passed,
        a compilation failed, or the session was closed.
        """
        return self._background is None or self._background.wait(timeout)

    def _order(self, source: Source, shapes: Mapping[str, tuple[int, ...]] | None) -> Order:
        from .compiled_once import order_of

        options = self._options if shapes is None else without_ranges(self._options)
        return order_of(source, options, shapes)

    def _compiled(self, order: Order) -> tuple[Artifact, bool]:
        """Return the artifact to run now, and whether it was compiled without measurements."""
        found = order.found()
        if self._background is None:
            return found or order.for_new_shapes(), False
        if found is None:
            return order.compiled_quickly(), True
        self._background.note_whole(order)
        return found, False

    def _improve(self, order: Order, key: tuple[Any, ...] = ()) -> None:
        """Compile in the background. Later runs, for open inputs of shapes `key`, use it."""
        assert self._background is not None
        # A weak reference, so that a compilation in the background does not keep the session alive.
        this = weakref.ref(self)

        def use(artifact: Artifact) -> None:
            session = this()
            if session is not None:
                session._replace(key, artifact)

        self._background.start(order, use)

    def _replace(self, key: tuple[Any, ...], artifact: Artifact) -> None:
        """Run `artifact` from now on for open inputs of the shapes `key`.

        Runs that have already begun use the old artifact to their end. The last of these runs frees
        the old artifact's memory.

        Raises
        ------
        ExecutionError
            The new artifact has other inputs or outputs.
        """
        old = self._by_shape.get(key) if key else self._pool
        if old is None:
            # The session has dropped these shapes to make room for other shapes. The next run with
            # these shapes finds the stored artifact.
            return
        made = Pool(artifact, self._instances)
        if made.infos() != old.infos():
            raise ExecutionError(
                "the new artifact has other inputs or outputs than the old one; make a new session"
            )
        made.count_with(old)
        if key:
            is_used = self._by_shape.replace(key, made)
        else:
            with self._compiling:
                is_used = not self._is_closed
                self._pool = made if is_used else None
        if is_used:
            self.path = artifact.path

    def _current(self) -> tuple[Artifact, GraphModule] | None:
        """The artifact that the session runs now, and one of its modules; None after `close`."""
        pool = self._pool
        return None if pool is None else (pool.artifact, pool.first)

    def _pool_for(self, feed: Mapping[str, Any], error: CannotFillUpError | None = None) -> Pool:
        """Return the instances for the inputs `feed`; compile the model for their shapes if needed.

        Parameters
        ----------
        error: the reason why the instances for ranges of sizes refused these inputs; None if these
            instances were not tried.
        """
        pool = self._pool
        if pool is not None and error is None:
            return pool
        self._check_is_open()  # Another thread may have closed the session by now.
        assert self._source is not None, "only a model that is compiled here lacks instances"
        # A program whose artifact was stored has not been converted yet, so its inputs are unknown.
        self._source = with_tensors(self._source, bool(self._source.inputs))
        open_ = [info.name for info in self._source.inputs if info.is_open]
        shapes = {name: shape_of(feed[name]) for name in open_}
        key = tuple(shapes.values())
        count = None
        if self._by_size is not None:
            count = partial(self._by_size.count, self._by_size.sizes_of(shapes))
        if pool := self._by_shape.use(key, count):
            return pool
        with self._compiling:  # One compilation at a time; runs do not wait.
            self._check_is_open()
            # Another thread may have compiled the model for these shapes by now.
            pool = self._by_shape.use(key, count)
            if pool is not None:
                return pool
            check_types(feed, self._source.inputs)
            check_shapes(shapes, self._source.inputs)
            order = self._order(*without_empty(self._source, shapes))
            if error is not None:
                _LOG.warning("`%s` runs at its own size: %s", self._source.name, error.why)
            artifact, is_quick = self._compiled(order)
            pool = Pool(artifact, self._instances)
            for dropped in self._by_shape.add(key, pool, count):
                for known in (self._background, self._by_size):
                    if known is not None:
                        known.forget(dropped)
            self.path = artifact.path
            if is_quick:
                self._improve(order, key)
            return pool
