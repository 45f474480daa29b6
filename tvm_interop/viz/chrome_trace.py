"""A profile as a Chrome trace: open it in Perfetto or `chrome://tracing`."""

from __future__ import annotations

import json
from collections.abc import Iterable

from ..executor import OpProfile


def chrome_trace(rows: Iterable[OpProfile]) -> str:
    """One row a stream, one slice an operator; times in microseconds, as the format has them."""
    rows = list(rows)
    streams = [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 0,
            "tid": stream,
            "args": {"name": f"stream {stream}"},
        }
        for stream in sorted({row.stream for row in rows})
    ]
    slices = [
        {
            "ph": "X",
            "name": row.name,
            "cat": "operator",
            "pid": 0,
            "tid": row.stream,
            "ts": row.start_us,
            "dur": row.end_us - row.start_us,
            "args": {"kernel": row.kernel},
        }
        for row in rows
    ]
    return json.dumps({"traceEvents": [*streams, *slices], "displayTimeUnit": "ms"}, indent=1)
