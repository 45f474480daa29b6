"""Tests that `CompileOptions`, `compile` and the command line agree on names and defaults."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import typer

import tvm_interop
from tvm_interop.cli import flags
from tvm_interop.cli.app import app
from tvm_interop.cli.options import parse_link
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.compiler.precision import MAX_ERROR
from tvm_interop.latency.described import COPY_US

FIELDS = {field.name: field for field in dataclasses.fields(CompileOptions)}
PARAMETERS = inspect.signature(tvm_interop.compile).parameters
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_compile_takes_every_option_with_its_default() -> None:
    # `compile` has no parameter for five options: the scheduler determines `parts`, and callers
    # give the other four among `**options`.
    among_options = {"time_budget", "fallback", "winograd", "like"}
    assert FIELDS.keys() - PARAMETERS.keys() == {"parts"} | among_options
    for name in FIELDS.keys() & PARAMETERS.keys():
        assert PARAMETERS[name].default == FIELDS[name].default, name


def test_the_command_line_has_the_same_defaults() -> None:
    assert CompileOptions(**flags.CompileFlags().compile_options()) == CompileOptions()
    handed_on = flags.CompileFlags().compile_options().keys()
    # Commands write files. A file may run where the kernel libraries are missing, so commands
    # always keep the fallback. The option to take kernels from another artifact exists only in
    # Python.
    only_in_python = {"parts", "progress", "latency", "link", "fallback", "like"}
    assert FIELDS.keys() - handed_on == only_in_python


def test_the_command_line_has_every_parameter_of_compile() -> None:
    renamed = {"archs": "arch", "out": "output", "link": "link_gb_s"}
    given = {parameter.name for parameter in COMMANDS["compile"].params}
    left_out = {name for name in PARAMETERS if renamed.get(name, name) not in given}
    assert left_out == {"progress", "options"}
    assert flags.ScheduleFlags().scheduler_options() == {}


def test_defaults_that_help_tells_hold() -> None:
    told = {
        parameter.name: parameter.help
        for parameter in COMMANDS["compile"].params
        if isinstance(parameter, typer.core.TyperOption)
    }
    assert told["max_error"].endswith(f"by default {MAX_ERROR:g}.")
    assert told["link_us"].endswith(f"by default {COPY_US:g} us.")
    assert parse_link(1.0, None).fixed_us == COPY_US


@pytest.mark.parametrize("verb", ["compile", "schedule", "tune", "explain", "bench"])
def test_verbs_share_the_options_of_the_device(verb: str) -> None:
    found = {parameter.name: parameter for parameter in COMMANDS[verb].params}
    first = {parameter.name: parameter for parameter in COMMANDS["compile"].params}
    for field in dataclasses.fields(flags.DeviceFlags):
        assert found[field.name].help == first[field.name].help
        assert found[field.name].opts == first[field.name].opts
        assert found[field.name].default == field.default
