"""Compiles the models of a session in another process, while the session already runs them."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from ..artifact.artifact import Artifact, load
from ..errors import ExecutionError, InputError, TVMInteropError
from ..python_command import python_command
from .compiled_once import Order, is_own_scheduler, is_plain

_LOG = logging.getLogger("tvm_interop")

LENGTH_BYTES = 8
"""Before its job, the compiling process is sent the length of the job: a number of this many
bytes."""
_ENDS_WITHIN_S = 5.0
"""A compiling process that is told to end is killed if it has not ended after this many seconds."""
_MOST_SAID = 600
"""If a process fails, the error message ends with at most this many last characters of its output.
"""

Use = Callable[[Artifact], None]
"""A function that lets the session use a finished artifact."""


class CompileState(NamedTuple):
    """The state of a session for one combination of input shapes: the artifact and its compilation.

    Attributes
    ----------
    shapes: the shapes of the inputs that the model leaves open, by name; empty if there are none.
    runs_on: `quick` for the artifact that was compiled without measurements, `whole` for the
        artifact that was compiled with all measurements and checks.
    since: the time at which the session began to run this artifact.
    background: state of the compilation in the background: `waiting`, `compiling` or `failed`;
        `done` if nothing is left to compile.
    error: why the compilation in the background failed; None if it did not fail.
    """

    shapes: dict[str, tuple[int, ...]]
    runs_on: Literal["quick", "whole"]
    since: datetime
    background: Literal["waiting", "compiling", "done", "failed"]
    error: str | None = None


class _Job(NamedTuple):
    order: Order
    use: Use


class Background:
    """Compiles models one after another, each in a separate process with low priority.

    A thread of this process waits for each compiling process. A compiling process ends when `close`
    is called, or when this process ends, even if it is killed. A forked child of this process
    compiles nothing. For this child, compilations that had not ended at the time of the fork count
    as failed.
    """

    def __init__(self) -> None:
        """Make the object. A process is started only when a model must be compiled."""
        self._states: dict[tuple[Any, ...], CompileState] = {}
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._in_use = threading.RLock()  # `close` may lock it twice.
        self._thread: threading.Thread | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._pid = os.getpid()

    def states(self) -> list[CompileState]:
        """Return the states of all combinations of shapes, in the order of their first runs."""
        states = list(self._states.values())
        if os.getpid() == self._pid:
            return states
        return [_of_fork(state) for state in states]

    def note_whole(self, order: Order) -> None:
        """Record that the session runs a completely compiled artifact for the shapes of `order`."""
        self._note(CompileState(order.shapes, "whole", _now(), "done"))

    def forget(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Forget the state of `shapes`, because the session has dropped the instances for them."""
        with self._changed:
            self._states.pop(tuple(shapes), None)

    def start(self, order: Order, use: Use) -> None:
        """Compile in the background. Afterwards a thread of this object calls `use(artifact)`."""
        is_fork = os.getpid() != self._pid
        if is_fork:
            # If another thread held the condition's lock at the time of the fork, nothing in this
            # process ever releases this lock. So make a new condition.
            self._changed = threading.Condition()
        self._note(CompileState(order.shapes, "quick", _now(), "waiting"))
        if is_fork:
            _LOG.warning("`%s`%s stays compiled quickly: %s", *_named(order), _FORKED)
            return
        self._jobs.put(_Job(order, use))
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="tvm_interop.Background", daemon=True
            )
            self._thread.start()

    def wait(self, timeout: float | None) -> bool:
        """Wait until nothing is left to compile, and return whether all compilations succeeded."""

        def is_over() -> bool:
            return self._is_closed or all(
                state.background in ("done", "failed") for state in self.states()
            )

        if os.getpid() == self._pid:
            with self._changed:
                self._changed.wait_for(is_over, timeout)
        return all(state.background == "done" for state in self.states())

    def let_go(self) -> None:
        """Tell the compiling process to end, without waiting for its end.

        If the session is changing to a new artifact at this moment, wait until the change is done.
        """
        if os.getpid() != self._pid:
            return  # This is a forked child: its parent process ends the compiling process.
        self._is_closed = True
        self._jobs.put(None)
        with self._in_use:
            process = self._process
        if process is not None:
            _tell_to_end(process)
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End the compiling process, and wait until it has ended."""
        self.let_go()
        thread = self._thread
        if os.getpid() == self._pid and thread not in (None, threading.current_thread()):
            assert thread is not None
            thread.join()

    # `_work` runs in the thread that `start` starts.

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self._is_closed:
            order = job.order
            try:
                self._compile(job)
            except Exception as error:
                if self._is_closed:
                    return
                told = str(error) if isinstance(error, TVMInteropError) else repr(error)
                self._change(order, background="failed", error=told)
                _LOG.warning(
                    "compiling `%s`%s in the background failed, and the session goes on with what "
                    "was compiled quickly: %s",
                    *_named(order),
                    told,
                )

    def _compile(self, job: _Job) -> None:
        order = job.order
        if not self._change(order, background="compiling"):
            return  # The session dropped these shapes in favour of newer ones.
        payload = pickle.dumps(job_of(order))
        with tempfile.TemporaryFile() as said:
            with self._in_use:
                if self._is_closed:
                    return
                self._process = process = self._started(said)
            try:
                answer = _answer(process, payload)
                path = answer.get("path")
                if path is None:
                    raise ExecutionError(answer.get("error") or _why_it_ended(process, said))
                with self._in_use:
                    if self._is_closed:
                        return
                    job.use(_loaded(order, path, bool(answer["is_kept"])))
                self._change(order, runs_on="whole", since=_now(), background="done")
                _LOG.info("`%s`%s now runs what the background process compiled", *_named(order))
            finally:
                _end(process)
                self._process = None

    def _started(self, said: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            _command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            start_new_session=True,  # The new process gets no Ctrl-C of this terminal.
        )

    def _note(self, state: CompileState) -> None:
        with self._changed:
            self._states[tuple(state.shapes.values())] = state
            self._changed.notify_all()

    def _change(self, order: Order, **changes: Any) -> bool:
        """Change the state of the shapes in `order`. Return False if the session dropped them."""
        with self._changed:
            state = self._states.get(tuple(order.shapes.values()))
            if state is not None:
                self._note(state._replace(**changes))
            return state is not None


def job_of(order: Order) -> dict[str, Any]:
    """Return the job for the process that compiles `order`, as data that can be pickled."""
    from .._native.runtime import num_threads

    model = order.source.model
    if isinstance(model, (str, os.PathLike)):
        given: str | bytes = os.path.abspath(model) if Path(model).exists() else os.fspath(model)
    else:
        given = model.SerializeToString(deterministic=True)
    options = {name: value for name, value in order.options.items() if name != "progress"}
    for name in order.shapes:  # The job holds these shapes in its entry `shapes`.
        options["input_shapes"] = {**options["input_shapes"]}
        del options["input_shapes"][name]
    if not options.get("input_shapes", True):
        del options["input_shapes"]
    return {
        "model": given,
        "digest": order.source.digest,
        "options": options,
        "shapes": order.shapes,
        "threads": num_threads(),
        "parent": os.getpid(),
    }


def check_background(options: dict[str, Any], model: Any, digest: str | None) -> None:
    """Check that a model can be compiled in another process.

    Parameters
    ----------
    options: the options for `compile`.
    model, digest: as in `Source`.

    Raises
    ------
    InputError
        An option or the model cannot be passed to another process. Or the time budget is 0, so that
        a compilation in the background would improve nothing.
    """
    advice = "leave `compile_in_background` out"
    if not str(options.get("target", "llvm")).startswith("llvm"):
        raise InputError(f"`target`: only models for CPUs are compiled in the background; {advice}")
    if options.get("precision", "f32") == "bf16":
        raise InputError(
            "`precision` is bf16, whose error must be measured before the first answer, and "
            f"`compile_in_background` answers without measurements; {advice}"
        )
    if options.get("time_budget") == 0:
        raise InputError(f"`time_budget` is 0, so nothing is left for the background; {advice}")
    if not is_own_scheduler(options):
        raise InputError(
            f"scheduler `{options['scheduler']}` was registered in this process, so the process "
            f"that compiles in the background cannot find it; {advice}"
        )
    for name, value in options.items():
        if name != "progress" and not (is_plain(value) or isinstance(value, os.PathLike)):
            raise InputError(
                f"option `{name}` is a `{type(value).__name__}`, and only plain data can be passed "
                f"to the process that compiles in the background; {advice}"
            )
    if digest is None and not isinstance(model, (str, os.PathLike)):
        raise InputError(
            "the model is neither a file nor an ONNX model of at most 2 GiB, so it cannot be "
            "passed to the process that compiles in the background: write it to a file, or "
            f"{advice}"
        )


def _command() -> list[str]:
    return python_command("tvm_interop.session.background_process")


def _answer(process: subprocess.Popen[bytes], payload: bytes) -> dict[str, Any]:
    """Send the job to the compiling process, and return the answer of the process.

    The answer is empty if the process ended before it answered.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(BrokenPipeError, ValueError):  # The process has ended.
        process.stdin.write(len(payload).to_bytes(LENGTH_BYTES, "little") + payload)
        process.stdin.flush()
    text = process.stdout.read()
    try:
        answer = json.loads(text)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _loaded(order: Order, path: str, is_kept: bool) -> Artifact:
    """Load the artifact that the background process compiled.

    Raises
    ------
    ArtifactError
        The file is damaged.
    ExecutionError
        The file is no longer in the store.
    """
    if not is_kept:
        # No signature is needed, because this process started the process that made the file.
        artifact = load(path, trusted_keys=())
        artifact.from_elsewhere = False
        return artifact
    found = None if order.kept is None else order.kept.find(order.source.name, order.key)
    if found is None:
        raise ExecutionError(
            f"`{path}` was compiled, but no longer exists; make a new session, which compiles the "
            "model again"
        )
    return found


def _why_it_ended(process: subprocess.Popen[bytes], said: IO[bytes]) -> str:
    code = process.wait()
    how = f"with status {code}"
    if code < 0:
        with contextlib.suppress(ValueError):
            how = f"by {signal.Signals(-code).name}"
    said.seek(0)
    last = said.read().decode(errors="replace").strip()[-_MOST_SAID:]
    return f"its process ended {how}" + (f": {last}" if last else "")


def _tell_to_end(process: subprocess.Popen[bytes]) -> None:
    """Close the standard input of `process`. The process watches its input, and then ends."""
    assert process.stdin is not None
    with contextlib.suppress(OSError, ValueError):
        # Closing the pipe does not end the input of `process` if a forked child of this process
        # also holds the pipe open. So write a byte first, which also tells `process` to end.
        os.write(process.stdin.fileno(), b"\0")
    with contextlib.suppress(OSError, ValueError):
        process.stdin.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the process to end. If it does not, kill it and all processes that it started."""
    _tell_to_end(process)
    try:
        process.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _named(order: Order) -> tuple[str, str]:
    return order.source.name, order.told


_FORKED = (
    "this process was forked from the process that made the session, and only that process "
    "compiles; make the session after the fork, or call `wait_until_compiled` before it"
)


def _of_fork(state: CompileState) -> CompileState:
    """The state of a compilation as a forked child of the session's process reports it.

    A forked child cannot compile, so an unfinished compilation counts as failed.
    """
    if state.background not in ("waiting", "compiling"):
        return state
    return state._replace(background="failed", error=_FORKED)


def _now() -> datetime:
    return datetime.now(timezone.utc)
