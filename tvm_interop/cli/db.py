"""The verbs `tvm-interop db ...`, which manage the database of measured latencies."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ..atomic_file import replacing
from ..errors import InputError
from ..machine.cpu_name import cpu_model
from . import options
from .console import json_text

if TYPE_CHECKING:
    from ..latency.measurement import Record
    from ..measure.store import LatencyStore

app = typer.Typer(
    help="Manage the database of measured latencies: stats, export, import, prune, clear-kept.",
    no_args_is_help=True,
)


@app.command("stats")
def show_stats(
    latency_db: options.LatencyDb = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Say how many latencies the database holds for each device and TVM version."""
    store = _open(latency_db)
    facts = _facts(store)
    typer.echo(json_text(facts) if as_json else _summary(facts))


@app.command("export")
def export_db(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write; by default the lines are printed."),
    ] = None,
    latency_db: options.LatencyDb = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Write all workloads and records as JSON lines, which `db import` reads elsewhere."""
    from ..measure.exchange import export_lines

    store = _open(latency_db)
    if output is None:
        for line in export_lines(store):
            typer.echo(line)
        return
    with replacing(output) as temporary, open(temporary, "w", encoding="utf-8") as file:
        count = -1  # The first line is a header, which is not counted.
        for line in export_lines(store):
            file.write(line + "\n")
            count += 1
    _tell(as_json, f"wrote {count} lines to {output}", {"file": str(output), "lines": count})


@app.command("import")
def import_db(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A file that `export` wrote; `-` reads standard input.",
            show_default=False,
        ),
    ],
    latency_db: options.LatencyDb = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Import records that `export` wrote. If a stage has two records, the newer record stays."""
    from ..measure.exchange import import_lines
    from ..measure.store import LatencyStore

    store = LatencyStore(latency_db)
    if str(source) == "-":
        taken, given = import_lines(store, sys.stdin, "standard input")
    else:
        with open(source, encoding="utf-8") as file:
            taken, given = import_lines(store, file, str(source))
    _tell(
        as_json,
        f"imported {taken} of {given} records",
        {"file": str(source), "taken": taken, "records": given},
    )


@app.command("prune")
def prune_db(
    older_than: Annotated[
        float | None,
        typer.Option(
            "--older-than",
            metavar="DAYS",
            min=0,
            help="Remove records that are older than this number of days.",
        ),
    ] = None,
    other_devices: Annotated[
        bool, typer.Option("--other-devices", help="Remove records of other devices than this one.")
    ] = False,
    other_tvm: Annotated[
        bool, typer.Option("--other-tvm", help="Remove records of other versions of TVM.")
    ] = False,
    undescribed: Annotated[
        bool,
        typer.Option(
            "--undescribed",
            help="Remove records that an older tvm_interop wrote without device, TVM version and "
            "streams.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count the records, and remove nothing.")
    ] = False,
    latency_db: options.LatencyDb = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Remove each record that at least one of the given options matches. One option is required."""
    import tvm

    from ..latency.measurement import utc

    if older_than is None and not (other_devices or other_tvm or undescribed):
        raise InputError(
            "say which records to remove: --older-than DAYS, --other-devices, --other-tvm or "
            "--undescribed"
        )
    store = _open(latency_db)
    before = "" if older_than is None else utc(older_than)

    def is_wanted(record: Record) -> bool:
        setting = record.setting
        if setting is None:
            return not undescribed
        return not (
            record.measured_at < before
            or (other_devices and setting.device != cpu_model())
            or (other_tvm and setting.tvm_version != tvm.__version__)
        )

    records = store.records()
    unwanted = [record.key for record in records if not is_wanted(record)]
    removed = len(unwanted) if dry_run else store.delete(unwanted)
    kept = len(records) - removed
    would = "would remove" if dry_run else "removed"
    _tell(
        as_json,
        f"{would} {removed} of {len(records)} records",
        {"removed": removed, "kept": kept, "dry_run": dry_run},
    )


@app.command("clear-kept")
def clear_kept(
    latency_db: options.LatencyDb = None,
    as_json: options.Json = False,
    verbose: options.Verbose = False,
) -> None:
    """Remove kernels and schedules kept from earlier compilations; latencies stay."""
    from ..measure.kept_files import kept_beside

    kept = kept_beside(latency_db)
    if kept is None:
        raise InputError(
            "nothing is kept, because TVM_INTEROP_KEPT is empty, or the database is in memory"
        )
    nbytes = kept.nbytes()
    facts = {"folder": str(kept.folder), "files": kept.clear(), "bytes": nbytes}
    text = f"removed {facts['files']} files of {nbytes / 2**20:.1f} MiB from {kept.folder}"
    _tell(as_json, text, facts)


def _open(path: Path | None) -> LatencyStore:
    """Open the database of latencies.

    Raises
    ------
    InputError
        There is no file `path`.
    """
    from ..measure.store import LatencyStore

    if path is not None and not path.exists():
        raise InputError(f"there is no latency database `{path}`; check the path")
    return LatencyStore(path)


def _facts(store: LatencyStore) -> dict[str, Any]:
    counts = store.counts()
    return {
        "file": store.path,
        "bytes": Path(store.path).stat().st_size,
        "records": sum(count for _, count, *_ in counts),
        "workloads": len(store.workloads()),
        "settings": [
            {
                **({} if setting is None else msgspec.structs.asdict(setting)),
                "described": setting is not None,
                "records": count,
                "first_measured_at": first,
                "last_measured_at": last,
                "spread": spread,
            }
            for setting, count, first, last, spread in counts
        ],
    }


def _summary(facts: dict[str, Any]) -> str:
    lines = [
        f"{facts['file']}: {facts['bytes'] / 2**20:.1f} MiB, {facts['records']} records of "
        f"{facts['workloads']} workloads"
    ]
    for setting in facts["settings"]:
        if not setting["described"]:
            lines.append(
                f"  {setting['records']} records of an older layout, without device, TVM version "
                "and streams"
            )
            continue
        spread = setting["spread"]
        noise = "" if spread is None else f"; runs of a stage differ by {spread:.1%}"
        lines.append(
            f"  {setting['records']} records: {setting['device'].split(' [')[0]}, TVM "
            f"{setting['tvm_version']}, {setting['streams']} streams of {setting['threads']} "
            f"threads, {setting['first_measured_at']} to {setting['last_measured_at']}{noise}"
        )
    return "\n".join(lines)


def _tell(as_json: bool, text: str, facts: dict[str, Any]) -> None:
    typer.echo(json_text(facts) if as_json else text)
