"""The options of `tvm-interop compile` that control TVM's passes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated

import typer

from .flags import Flags

_PASSES = "TVM's passes"

OptLevel = Annotated[
    int | None,
    typer.Option(
        "-O",
        "--opt-level",
        min=0,
        max=3,
        help="Optimization level, which decides which of TVM's passes run; by default TVM's own "
        "level, 2.",
        rich_help_panel=_PASSES,
    ),
]
PassConfig = Annotated[
    list[str] | None,
    typer.Option(
        "--pass-config",
        metavar="NAME=VALUE",
        help="An entry of TVM's pass configuration; may be given more than once.",
        rich_help_panel=_PASSES,
    ),
]
DisabledPass = Annotated[
    str | None,
    typer.Option(
        "--disabled-pass",
        metavar="NAME,...",
        help="Passes to leave out.",
        rich_help_panel=_PASSES,
    ),
]
PrintPassTimes = Annotated[
    bool,
    typer.Option(
        "--print-pass-times",
        help="Print how long each pass took.",
        rich_help_panel=_PASSES,
    ),
]
PrintIrBefore = Annotated[
    str | None,
    typer.Option(
        "--print-ir-before",
        metavar="NAME,...",
        help="Print the program before these passes.",
        rich_help_panel=_PASSES,
    ),
]
PrintIrAfter = Annotated[
    str | None,
    typer.Option(
        "--print-ir-after",
        metavar="NAME,...",
        help="Print the program after these passes.",
        rich_help_panel=_PASSES,
    ),
]


@dataclass(frozen=True)
class PassFlags(Flags):
    """The options that say which of TVM's passes run, and what is printed about them."""

    opt_level: OptLevel = None
    pass_config: PassConfig = None
    disabled_pass: DisabledPass = None
    print_pass_times: PrintPassTimes = False
    print_ir_before: PrintIrBefore = None
    print_ir_after: PrintIrAfter = None

    def context(self) -> AbstractContextManager[None]:
        """A context manager; compile inside it so that TVM's passes run as the options say."""
        from .pass_context import pass_context

        return pass_context(
            self.opt_level,
            self.pass_config or (),
            self.disabled_pass,
            self.print_pass_times,
            self.print_ir_before,
            self.print_ir_after,
        )
