"""Collects the verbs of the command line, runs one of them, and turns errors into exit codes."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import typer

from .._version import __version__
from ..errors import Terminated, TVMInteropError
from . import bench as bench_verb
from . import check as check_verb
from . import compare as compare_verb
from . import compile as compile_verb
from . import config as config_verb
from . import db as db_verbs
from . import devices as devices_verb
from . import explain as explain_verb
from . import models as models_verb
from . import perf as perf_verb
from . import run as run_verb
from . import schedule as schedule_verb
from . import serve as serve_verb
from . import show as show_verb
from . import sign as sign_verbs
from . import tune as tune_verb
from .console import INTERRUPTED, complain, help_of, note_warning

app = typer.Typer(
    name="tvm-interop",
    help="Make a model run its independent operators side by side.",
    epilog="To begin: `tvm-interop compile model.onnx`, then `tvm-interop run model.tar "
    "--print-time`. `tvm-interop COMMAND --help` explains a command and its options.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS: Mapping[str, Callable[..., object]] = {
    "compile": compile_verb.compile_model,
    "run": run_verb.run_model,
    "serve": serve_verb.serve_models,
    "sign": sign_verbs.sign_artifact,
    "verify": sign_verbs.verify_artifact,
    "schedule": schedule_verb.schedule_model,
    "tune": tune_verb.tune_model,
    "show": show_verb.show,
    "perf": perf_verb.measure,
    "bench": bench_verb.compare,
    "explain": explain_verb.explain_model,
    "compare": compare_verb.compare_artifacts,
    "check": check_verb.check_program,
    "models": models_verb.list_models,
    "devices": devices_verb.list_devices,
    "config": config_verb.show_config,
}
for _name, _verb in VERBS.items():
    app.command(_name, help=help_of(_verb))(_verb)
app.add_typer(db_verbs.app, name="db")


_SHELL = 128
"""A shell adds this number to the number of the signal that ended a command."""


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Make a model run its independent operators side by side.

    The verbs compile a model to an artifact, and run, serve, draw, compare and sign artifacts. They
    measure an artifact beside other engines. They schedule a model without compiling an artifact,
    search for a faster schedule with few measurements, compare schedulers, and explain why
    operators do not run side by side. They prove that a program of several streams is free of
    races. They list the models and devices to try, and manage the database of measured latencies.
    """


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line, and return the exit code.

    The code is 0 for success and 2 for an error; `check` returns 1 for an unsafe program. An error
    prints one message on standard error, and `--verbose` adds the traceback. Ctrl-C, SIGTERM and
    SIGHUP end the command like an error, so that no half-written file remains. Their exit codes are
    130, 143 and 129, as in shells.
    """
    verbose = "--verbose" in arguments or "-v" in arguments
    if verbose:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("tvm_interop").setLevel(logging.INFO)
    try:
        with _ended_by_signals(), warnings.catch_warnings():
            warnings.showwarning = note_warning  # type: ignore[assignment]
            code = typer.main.get_command(app).main(
                args=list(arguments) or ["--help"], prog_name="tvm-interop", standalone_mode=False
            )
    except SystemExit as exit:  # Shell completion raises it at its end.
        code = exit.code
    except typer.Abort:
        code = INTERRUPTED
    except Terminated as ended:
        with contextlib.suppress(OSError):  # The terminal may be closed.
            complain("terminated")
        return _SHELL + ended.number
    except (TVMInteropError, OSError, typer.TyperException) as error:
        if verbose:
            traceback.print_exc(file=sys.stderr)
        complain(_message(error))
        return 2
    if code == INTERRUPTED:
        complain("interrupted")
    return code if isinstance(code, int) else 0


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Terminated`, unless this process handles them in another way.

    A terminal that is closed sends SIGHUP, which `nohup` tells a process to ignore. Only the main
    thread may set signal handlers, so in other threads this function does nothing.
    """

    def end(number: int, _: object) -> None:
        raise Terminated(number)

    handled = []
    if threading.current_thread() is threading.main_thread():
        ending = (signal.SIGTERM, signal.SIGHUP)
        handled = [number for number in ending if signal.getsignal(number) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _message(error: Exception) -> str:
    """The error in one line. If the command line is wrong, the line also tells how to get help."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.strerror}: `{error.filename}`"
    if not isinstance(error, typer.TyperException):
        return " ".join(str(error).split("\n"))
    context = getattr(error, "ctx", None)
    said = error.format_message().rstrip(".")
    return f"{said}; see `{context.command_path} --help`" if context else said
