"""The verbs, and what happens when one fails."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from .._version import __version__
from ..errors import TVMInteropError
from . import compile as compile_verb
from . import models as models_verb
from . import run as run_verb
from . import schedule as schedule_verb
from .console import complain

app = typer.Typer(
    name="tvm-interop",
    help="Make a model run its independent operators side by side.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("compile")(compile_verb.compile_model)
app.command("run")(run_verb.run_model)
app.command("schedule")(schedule_verb.schedule_model)
app.command("models")(models_verb.list_models)


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

    compile a model to an artifact, run the artifact, look at the schedule alone, or list the
    models there are to try it on.
    """


def run_app(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code: 0, or 2 for a request that is wrong.

    An error is one message on standard error; `--verbose` adds the traceback.
    """
    verbose = "--verbose" in arguments or "-v" in arguments
    try:
        typer.main.get_command(app).main(args=list(arguments), prog_name="tvm-interop")
    except SystemExit as exit:  # How the command line library ends, well or not.
        return exit.code if isinstance(exit.code, int) else 0
    except (TVMInteropError, OSError) as error:
        if verbose:
            traceback.print_exc(file=sys.stderr)
        complain(str(error))
        return 2
    return 0
