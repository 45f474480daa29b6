"""Options that verbs have in common, a class a set: a verb takes the set as one parameter.

A field is an option of the command line: its type says how it is written, its default what holds
without it. `with_flags` makes options of the fields of a verb's sets. What the sets hand on is
named as `CompileOptions` and `compile` name it; a test compares names and defaults.
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
    """What every verb takes that compiles: for which device, and on how much of it."""

    target: options.Target = "llvm"
    streams: options.Streams = None
    threads: options.Threads = None
    latency_db: options.LatencyDb = None
    providers: options.Providers = None

    def compile_options(self) -> dict[str, Any]:
        """The fields of `CompileOptions` that were asked for, or hold without."""
        return {
            "target": self.target,
            "streams": self.streams,
            "threads": self.threads,
            "latency_db": self.latency_db,
            "providers": options.parse_names(self.providers),
        }


@dataclass(frozen=True)
class SearchFlags(Flags):
    """How a scheduler searches: a scheduler that has no use for one of them says so itself."""

    max_group_ops: options.MaxGroupOps = None
    max_groups: options.MaxGroups = None
    endings: options.Endings = None
    max_measurements: options.MaxMeasurements = None
    time_budget: options.TimeBudget = None

    def scheduler_options(self) -> dict[str, Any]:
        """Those that were given, by the schedulers' names for them."""
        given = {
            "max_group_ops": self.max_group_ops,
            "max_groups": self.max_groups,
            "endings": self.endings,
            "max_measurements": self.max_measurements,
            "time_budget_s": self.time_budget,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class ScheduleFlags(SearchFlags):
    """How a scheduler searches, over how many GPUs, and by which latencies."""

    latency: options.Latency = "measured"
    gpus: options.Gpus = None
    window: options.Window = None
    intra: options.Intra = None
    link_gb_s: options.LinkGbS = None
    link_us: options.LinkUs = None

    def scheduler_options(self) -> dict[str, Any]:
        """Those that were given, by the schedulers' names for them."""
        given = {"gpus": self.gpus, "window": self.window, "intra": self.intra}
        of_gpus = {name: value for name, value in given.items() if value is not None}
        return {**of_gpus, **super().scheduler_options()}


@dataclass(frozen=True)
class KernelFlags(DeviceFlags):
    """For which device, and by which kernels."""

    arch: options.Archs = None
    tuning_records: options.TuningRecords = None

    def compile_options(self) -> dict[str, Any]:
        """The fields of `CompileOptions` that were asked for, or hold without."""
        return {
            **super().compile_options(),
            "archs": options.parse_names(self.arch),
            "tuning_records": self.tuning_records,
        }


@dataclass(frozen=True)
class CompileFlags(KernelFlags):
    """All that a model can be compiled for."""

    stream_priorities: options.StreamPriorities = False
    allow_tf32: options.AllowTf32 = False
    precision: options.Precision = "f32"
    keep_f32: options.KeepF32 = None
    fresh: options.Fresh = False
    cross_compiler: options.CrossCompiler = None

    def compile_options(self) -> dict[str, Any]:
        """The parameters of `compile` that were asked for, or hold without."""
        return {
            **super().compile_options(),
            "stream_priorities": self.stream_priorities,
            "allow_tf32": self.allow_tf32,
            "precision": self.precision,
            "keep_f32": options.parse_names(self.keep_f32) or (),
            "fresh": self.fresh,
            "cross_compiler": self.cross_compiler,
        }


def with_flags(verb: _F) -> _F:
    """Give a verb an option for each field of its parameters that are `Flags`.

    In the place of such a parameter stand its fields; called with these, the verb gets the set.
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
