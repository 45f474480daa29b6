"""Writes the times of a session's runs to a file, as `SessionOptions.enable_profiling` asks."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic_file import replacing
from ..execution.graph_module import GraphModule

_MOST_EVENTS = 1_000_000
"""The largest number of operators whose times are kept, as in onnxruntime. Later ones are not."""


class ProfileFile:
    """The times of runs and of their operators, as events of a Chrome trace.

    onnxruntime's file has the same form. An event of the category `Node` has the name of a compiled
    operator, which may be several nodes of the model in one.

    Attributes
    ----------
    start_ns: the time at which the profile began, by `time.perf_counter_ns`.
    """

    def __init__(self, prefix: str) -> None:
        """Begin a profile. The name of its file begins with `prefix`."""
        self.start_ns = time.perf_counter_ns()
        self._prefix = prefix
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._path: str | None = None

    @classmethod
    def wanted_by(cls, sess_options: Any) -> ProfileFile | None:
        """Return a new profile if the session options ask for one, otherwise None."""
        if not getattr(sess_options, "enable_profiling", False):
            return None
        return cls(str(sess_options.profile_file_prefix))

    def run(
        self, module: GraphModule, feed: Mapping[str, Any], wanted: Sequence[int]
    ) -> dict[int, np.ndarray]:
        """Do the same as `GraphModule.run_on`, and keep the times of the run."""
        if self._path is not None:
            return module.run_on(feed, wanted)
        module.set_input(**feed)
        began_us = self._now_us()
        rows = module.profile()
        whole = _event("Session", "model_run", began_us, self._now_us() - began_us, 0, {})
        device = "CUDA" if module.artifact.is_for_gpus else "CPU"
        nodes = [
            _event(
                "Node",
                f"{row.name}_kernel_time",
                began_us + row.start_us,
                row.end_us - row.start_us,
                row.stream,
                {
                    "op_name": row.kernel,
                    "provider": f"{device}ExecutionProvider",
                    "node_index": str(index),
                },
            )
            for index, row in enumerate(rows)
        ]
        with self._lock:
            if len(self._events) + len(nodes) < _MOST_EVENTS:
                self._events += [whole, *nodes]
        return {i: np.array(module.get_output(i)) for i in wanted}

    def write(self) -> str:
        """Write the file and return its path. Runs are not profiled from now on."""
        with self._lock:
            if self._path is None:
                now = time.strftime("%Y-%m-%d_%H-%M-%S")
                path = f"{self._prefix}_{now}.json"
                with replacing(path) as temporary:
                    Path(temporary).write_text(json.dumps(self._events))
                self._path = path
            return self._path

    def _now_us(self) -> float:
        return (time.perf_counter_ns() - self.start_ns) / 1e3


def _event(
    category: str, name: str, start_us: float, us: float, stream: int, args: dict[str, str]
) -> dict[str, Any]:
    return {
        "cat": category,
        "pid": os.getpid(),
        "tid": stream,
        "dur": round(us),
        "ts": round(start_us),
        "ph": "X",
        "name": name,
        "args": args,
    }
