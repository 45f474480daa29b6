"""The process that compiles a model in the background, while a session answers."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from ..artifact.artifact import Artifact
from ..errors import ExecutionError, TVMInteropError
from ..scratch import remove_own_folders, scratch_folder
from .background import LENGTH_BYTES
from .compiled_once import order_of
from .source import artifact_or_source

_NICENESS = 10
"""The number by which the nice value of this process is above the nice value of the session's
process (see `os.nice`). A process with a higher nice value gets less CPU time.

If this process and the session want the same core, the session gets it for nine tenths of the time.
"""
_LOOK_EVERY_S = 0.5
_ENDS_WITHIN_S = 2.0
"""When the session has ended, this process has this many seconds to remove its temporary files."""
_INPUT = 0


class _SessionIsGone(BaseException):
    """Raised if the session was closed, or if the session's process has ended."""


def main() -> None:
    """Read a job from standard input, compile, and write the artifact's path to standard output.

    This process ends when its standard input ends, or when the process that started it ends.
    Everything that other code prints goes to standard error.
    """
    answers = os.dup(1)  # A copy of standard output that child processes do not inherit.
    os.dup2(2, 1)
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    try:
        job = pickle.loads(_read(int.from_bytes(_read(LENGTH_BYTES), "little")))
        threading.Thread(target=_watch, args=(job["parent"],), daemon=True).start()
        _work(job, answers)
    except _SessionIsGone:
        pass
    finally:
        os._exit(0)  # Exit at once: a normal exit would wait for threads that still compile.


def _read(length: int) -> bytes:
    """Read exactly `length` bytes of standard input.

    This function reads the job. Any later input is read by the thread that watches for the
    session's end.
    """
    parts = []
    while length:
        part = os.read(_INPUT, min(length, 1 << 20))
        if not part:
            raise _SessionIsGone
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _stop(number: int, frame: FrameType | None) -> None:
    raise _SessionIsGone


def _watch(parent: int) -> None:
    """End this process when the session has been closed or its process has ended.

    The main thread gets an exception, so that it removes its temporary files. If the main thread
    stays in native code for too long, this thread removes the files, and kills this process and all
    processes that it started.
    """
    while not select.select([_INPUT], [], [], _LOOK_EVERY_S)[0]:
        # When the parent process has ended, the input is still open if a forked child of the parent
        # holds the pipe open. So the id of the parent is checked too.
        if os.getppid() != parent:
            break
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
    time.sleep(_ENDS_WITHIN_S)
    remove_own_folders()
    os.killpg(0, signal.SIGKILL)


def _work(job: dict[str, Any], answers: int) -> None:
    """Compile, and keep the artifact's file until the session has loaded the artifact."""
    with contextlib.ExitStack() as until_loaded:
        try:
            path, is_kept = _compiled(job, until_loaded)
            answer = {"path": str(path), "is_kept": is_kept}
        except TVMInteropError as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        with open(answers, "w") as file:
            json.dump(answer, file)
        while True:
            time.sleep(60)  # An exception from `_watch` ends this loop.


def _compiled(job: dict[str, Any], until_loaded: contextlib.ExitStack) -> tuple[Path, bool]:
    """Return the path of the artifact, and whether it is in the store of artifacts.

    If the artifact is not in the store, it is in a temporary folder, which `until_loaded` removes.
    """
    from .._native.runtime import set_num_threads

    set_num_threads(job["threads"], False)
    source = artifact_or_source(job["model"])
    if isinstance(source, Artifact) or source.digest != job["digest"]:
        raise ExecutionError(
            f"`{job['model']}` has changed since the session was made; make a new session"
        )
    order = order_of(source, job["options"], job["shapes"])
    with contextlib.ExitStack() as alone:
        if order.kept is not None:
            alone.enter_context(order.kept.one_at_a_time())
        # While this process waited, another process may have compiled the same model.
        artifact = order.found() or order.compiled()
    if artifact.path is not None:
        is_kept = order.kept is not None and artifact.path.parent == order.kept.folder
        return artifact.path.absolute(), is_kept
    path = until_loaded.enter_context(scratch_folder()) / "model.tar"
    artifact.save(path)
    return path, False


if __name__ == "__main__":
    sys.exit("this module is for sessions with `compile_in_background`")
