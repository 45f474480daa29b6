"""The verb `tvm-interop config`, which tells programs in C and C++ where the runtime library is."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from .._native.runtime_files import runtime_file
from ..errors import DeviceError, InputError
from ..machine.library_files import ONEDNN


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
    onednn: Annotated[
        bool, typer.Option("--onednn", help="The file of oneDNN, which most models need.")
    ] = False,
    pkgconfigdir: Annotated[
        bool, typer.Option("--pkgconfigdir", help="The folder to add to PKG_CONFIG_PATH.")
    ] = False,
) -> None:
    """Print where the runtime library for programs in C and C++ is installed."""
    wanted = [cmakedir, includedir, library, onednn, pkgconfigdir]
    if not any(wanted):
        raise InputError(
            "nothing to print: give --cmakedir, --includedir, --library, --onednn or --pkgconfigdir"
        )
    if cmakedir:
        typer.echo(runtime_file("cmake").parent)
    if includedir:
        typer.echo(runtime_file("header").parent.parent)
    if library:
        typer.echo(runtime_file("library"))
    if onednn:
        typer.echo(_onednn_file())
    if pkgconfigdir:
        typer.echo(runtime_file("pkgconfig").parent)


def _onednn_file() -> str:
    path = ONEDNN.find()
    if not os.path.isfile(path):
        raise DeviceError(
            f"oneDNN's file `{path}` is not found: install the package `{ONEDNN.package}`, or name "
            f"the file in {ONEDNN.override}"
        )
    return path
