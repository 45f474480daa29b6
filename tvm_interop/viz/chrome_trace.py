"""Writes a profile as a Chrome trace, which Perfetto or `chrome://tracing` can open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..execution.operator_profile import OpProfile
from ..plan.plan import Plan


def chrome_trace(rows: Iterable[OpProfile], plan: Plan) -> str:
    """Write a Chrome trace with a row per stream, a slice per operator and an arrow per wait.

    All times in the trace are in microseconds.

    Parameters
    ----------
    rows: the profile, as `GraphModule.profile` returns it.
    plan: the plan that ran.
    """
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
            "args": {"kernel": row.kernel, "thread": row.thread, "no_core_us": row.lost_us},
        }
        for row in rows
    ]
    events = [*streams, *slices, *_arrows(rows, plan)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)


def _arrows(rows: list[OpProfile], plan: Plan) -> list[dict[str, Any]]:
    """An arrow per wait, from the middle of an operator to the start of the waiting operator."""
    seen = {row.name: row for row in rows}
    arrows: list[dict[str, Any]] = []
    for op in plan.operators:
        for w in op.waits:
            source, target = seen[plan.operators[w].name], seen[op.name]
            common = {"name": "wait", "cat": "wait", "id": len(arrows) // 2, "pid": 0}
            # The arrow starts in the middle of its operator's slice. If it started at the end of
            # the slice, the viewer would attach it to the next slice.
            inside_us = (source.start_us + source.end_us) / 2
            arrows.append({"ph": "s", **common, "tid": source.stream, "ts": inside_us})
            end = {"tid": target.stream, "ts": target.start_us}
            arrows.append({"ph": "f", "bp": "e", **common, **end})
    return arrows
