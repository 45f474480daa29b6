"""The verb `tvm-interop config`, which tells programs in C and C++ where the runtime library is."""

from __future__ import annotations

from typing import Annotated

import typer

from .._native.runtime_files import runtime_file
from ..errors import InputError


def show_config(
    cmakedir: Annotated[
        bool, typer.Option("--cmakedir", help="The folder to give CMake as tvm_interop_DIR.")
    ] = False,
    includedir: Annotated[
        bool, typer.Option("--includedir", help="The folder with the headers for C and C++.")
    ] = False,
    library: Annotated[
        bool, typer.Option("--library", help="The file of the runtime library.")
    ] = False,
    pkgconfigdir: Annotated[
        bool, typer.Option("--pkgconfigdir", help="The folder to add to PKG_CONFIG_PATH.")
    ] = False,
) -> None:
    """Print where the runtime library for programs in C and C++ is installed."""
    wanted = [cmakedir, includedir, library, pkgconfigdir]
    if not any(wanted):
        raise InputError(
            "nothing to print: give --cmakedir, --includedir, --library or --pkgconfigdir"
        )
    if cmakedir:
        typer.echo(runtime_file("cmake").parent)
    if includedir:
        typer.echo(runtime_file("header").parent.parent)
    if library:
        typer.echo(runtime_file("library"))
    if pkgconfigdir:
        typer.echo(runtime_file("pkgconfig").parent)
