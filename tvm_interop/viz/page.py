"""Makes an HTML page that shows schedules. The page needs no other files and no network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.utils

from .._version import __version__
from .graph_svg import graph
from .kinds import KINDS, WAIT
from .record import OperatorRecord, Record
from .svg import printable, to_text
from .timeline import MARGIN, labels, scale_of, timeline

if TYPE_CHECKING:
    from ..explaining.api import Explanation


def to_page(records: list[Record], machine: str, explanations: Sequence[Explanation] = ()) -> str:
    """Make a page that shows records, one below the other, on one time scale.

    Parameters
    ----------
    machine: the machine on which the records were measured.
    explanations: for each record, a text on why its operators run side by side or not; empty for a
        page without explanations.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        finalize=_printable,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scale_us = scale_of(records)
    drawn = [
        {
            "record": record,
            "labels": to_text(labels(record)),
            "timeline": to_text(timeline(record, scale_us)),
            "graph": to_text(graph(record)),
            "figures": _figures(record),
        }
        for record in records
    ]
    return environment.get_template("page.html.j2").render(
        drawn=drawn,
        explained=list(zip([record.title for record in records], explanations, strict=False)),
        kinds=KINDS,
        wait=WAIT,
        margin=MARGIN,
        machine=machine,
        version=__version__,
        rows=jinja2.utils.htmlsafe_json_dumps(_rows(records)),
        titles=[record.title for record in records],
    )


def _printable(value: Any) -> Any:
    return printable(value) if type(value) is str else value


def _figures(record: Record) -> list[tuple[str, str]]:
    figures = [
        ("scheduler", record.scheduler),
        ("operators", str(len(record.operators))),
        ("streams", str(len(record.threads))),
        *_of_several(record),
        ("stages", str(record.num_stages) if record.num_stages else "none: streams"),
        ("waits", str(record.num_waits)),
        ("measured" if record.runs else "not run", record.time_said),
    ]
    if record.predicted_us is not None:
        figures.append(("predicted", f"{record.predicted_us / 1e3:.3f} ms"))
    if record.ratio is not None:
        figures.append(("to sequential, when compiled", f"{record.ratio:.3f}"))
    if record.merge_check is not None:
        far = record.merge_check.largest
        said = "not checked" if far is None else f"{far:.2g} of the largest output"
        figures.append(("merged operators differ by", said))
    if record.program_check is not None:
        far = record.program_check.largest
        said = "not compared" if far is None else f"{far:.2g} of the norm"
        figures.append(("outputs differ from PyTorch's by", said))
    if record.ranges is not None:
        figures += [
            ("ranges", " and ".join(map(str, record.ranges.dimensions))),
            ("compiled for", "; ".join(map(str, record.ranges.compiled))),
            ("mean computed over given", f"{record.ranges.mean_filling:.3g}"),
            ("drawn", str(record.request or record.ranges.compiled[0])),
        ]
    return [*figures, ("arena", f"{record.arena_bytes / 2**20:.2f} MiB")]


def _of_several(record: Record) -> list[tuple[str, str]]:
    if not record.on_several:
        return []
    return [("GPUs", ", ".join(record.lanes())), ("copies between them", str(record.num_copies))]


def _rows(records: list[Record]) -> list[dict[str, Any]]:
    """The rows of the table of operators. Each row says when an operator ran in each record."""
    rows: dict[str, dict[str, Any]] = {}
    for r, record in enumerate(records):
        for i, op in enumerate(record.operators):
            row = rows.setdefault(
                op.name,
                {
                    "name": op.name,
                    "kind": op.kind,
                    "kernel": op.kernel,
                    "provider": op.provider,
                    "kib": round(op.output_bytes / 1024, 1),
                    **_gpu(op),
                    "runs": [None] * len(records),
                },
            )
            row["runs"][r] = _run(i, op)
    return list(rows.values())


def _gpu(op: OperatorRecord) -> dict[str, Any]:
    """The columns of the table that have values only on GPUs. The page leaves out empty columns."""
    gpu = op.gpu
    return {
        "demand": round(gpu.demand, 3) if gpu else None,
        "resident": gpu.resident if gpu else None,
        "limit": gpu.limited_by if gpu else None,
        "launches": str(gpu) if gpu else None,
    }


def _run(index: int, op: OperatorRecord) -> dict[str, Any]:
    predicted = op.predicted_us
    return {
        "op": index,
        "stream": op.stream,
        "stage": op.stage,
        "start": round(op.start_us, 1),
        "took": round(op.took_us, 1),
        "predicted": round(predicted[1] - predicted[0], 1) if predicted else None,
    }
