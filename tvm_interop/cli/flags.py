"""Sets of command-line options that verbs have in common.

Each set of options is a dataclass, and a verb takes the set as one parameter. Each field of the
class is an option. The field's type says how the option is written, and the field's default is the
option's default. `with_flags` turns the fields of a verb's sets into options. The sets pass the
options on under the names that `CompileOptions` and `compile` use. A test checks that the sets,
`CompileOptions` and `compile` agree on names and defaults.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, get_type_hints

from . import options

_F = TypeVar("_F", bound=Callable[..., Any])


class Flags:
    """A set of options; a subclass is a dataclass whose fields are the options."""


@dataclass(frozen=True)
class DeviceFlags(Flags):
    """The device to compile for, and how many of its streams and threads to use.

    Every verb that compiles a model takes the options of this class.
    """

    target: options.Target = "llvm"
    streams: options.Streams = None
    threads: options.Threads = None
    latency_db: options.LatencyDb = None
    providers: options.Providers = None

    def compile_options(self) -> dict[str, Any]:
        """The options' values, in a dictionary by the fields of `CompileOptions` that they set."""
        return {
            "target": self.target,
            "streams": self.streams,
            "threads": self.threads,
            "latency_db": self.latency_db,
            "providers": options.parse_names(self.providers),
        }


@dataclass(frozen=True)
class SearchFlags(Flags):
    """The options for a scheduler's search. A scheduler refuses an option that it does not know."""

    max_group_ops: options.MaxGroupOps = None
    max_groups: options.MaxGroups = None
    endings: options.Endings = None
    max_measurements: options.MaxMeasurements = None

    def scheduler_options(self) -> dict[str, Any]:
        """The values of the options that were given, by the names that schedulers have for them."""
        given = {
            "max_group_ops": self.max_group_ops,
            "max_groups": self.max_groups,
            "endings": self.endings,
            "max_measurements": self.max_measurements,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class SearchTimeFlags(Flags):
    """The option that limits the time for measurements, for verbs that only search for a
    schedule.
    """

    time_budget: options.SearchTime = None

    def scheduler_options(self) -> dict[str, Any]:
        """The value of the option, by the schedulers' name for it; empty if the option was not
        given.
        """
        return {} if self.time_budget is None else {"time_budget_s": self.time_budget}


@dataclass(frozen=True)
class ScheduleFlags(SearchFlags):
    """The options for a scheduler's search, the number of GPUs, and the source of latencies."""

    latency: options.Latency = "measured"
    blocks: options.Blocks = None
    gpus: options.Gpus = None
    window: options.Window = None
    intra: options.Intra = None
    link_gb_s: options.LinkGbS = None
    link_us: options.LinkUs = None

    def scheduler_options(self) -> dict[str, Any]:
        """The values of the options that were given, by the names that schedulers have for them."""
        given: dict[str, Any] = {"gpus": self.gpus, "window": self.window, "intra": self.intra}
        found = {name: value for name, value in given.items() if value is not None}
        if self.blocks is not None:
            found["blocks"] = options.read_blocks(self.blocks)
        return {**found, **super().scheduler_options()}


@dataclass(frozen=True)
class KernelFlags(DeviceFlags):
    """The device to compile for, and the kernels to use."""

    arch: options.Archs = None
    tuning_records: options.TuningRecords = None

    def compile_options(self) -> dict[str, Any]:
        """The options' values, in a dictionary by the fields of `CompileOptions` that they set."""
        return {
            **super().compile_options(),
            "archs": options.parse_names(self.arch),
            "tuning_records": self.tuning_records,
        }


@dataclass(frozen=True)
class CompileFlags(KernelFlags):
    """The device, the kernels, the precision and the other options of `tvm-interop compile`."""

    stream_priorities: options.StreamPriorities = False
    allow_tf32: options.AllowTf32 = False
    winograd: options.Winograd = True
    precision: options.Precision = "f32"
    keep_f32: options.KeepF32 = None
    fresh: options.Fresh = False
    cross_compiler: options.CrossCompiler = None
    time_budget: options.TimeBudget = None

    def compile_options(self) -> dict[str, Any]:
        """The values of the options, by the parameter of `compile` that each option sets."""
        return {
            **super().compile_options(),
            "stream_priorities": self.stream_priorities,
            "allow_tf32": self.allow_tf32,
            "winograd": self.winograd,
            "precision": self.precision,
            "keep_f32": options.parse_names(self.keep_f32) or (),
            "fresh": self.fresh,
            "cross_compiler": self.cross_compiler,
            "time_budget": self.time_budget,
        }


def with_flags(verb: _F) -> _F:
    """Turn each field of a verb's `Flags` parameters into an option of its own.

    Return a function that has the fields of the `Flags` classes as parameters. When it is called,
    the function builds the `Flags` objects from the values of the fields and calls the verb with
    these objects.
    """
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[inspect.Parameter] = []
    sets: dict[str, type[Any]] = {}
    for parameter in inspect.signature(verb).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and issubclass(hint, Flags):
            sets[parameter.name] = hint
            parameters += _options_of(hint)
        else:
            parameters.append(parameter.replace(annotation=hint))

    @functools.wraps(verb)
    def with_sets(**given: Any) -> Any:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in sets.items()
        }
        return verb(**given, **made)

    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    with_sets.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    with_sets.__annotations__ = {p.name: p.annotation for p in named}
    return with_sets  # type: ignore[return-value]


def _options_of(kind: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
