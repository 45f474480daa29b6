"""Finds the stored artifact of a model, or else compiles the model and stores the artifact."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Set
from typing import Any

from ..artifact.artifact import Artifact
from ..scheduling.registry import is_own
from .kept_artifacts import kept_artifacts, key_of
from .source import Source

_LOG = logging.getLogger("tvm_interop")

_NOT_IN_KEY = ("fresh", "latency_db", "progress")
"""Options of `compile` that do not affect the artifact."""


def compiled_once(
    source: Source,
    options: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Artifact:
    """Return the artifact of a model, from storage or compiled now.

    The logger reports when a compilation begins and ends, and where the artifact is stored.

    Parameters
    ----------
    options: the options for `compile`. With `fresh`, a stored artifact is not used. Nothing is
        stored if equal options can give different artifacts, for example if the options contain a
        schedule or tuning records.
    shapes: the shapes of more inputs, by name. They override `input_shapes` of `options`.

    Raises
    ------
    UnsupportedModelError, InputError, ScheduleError, DeviceError
        The same cases as for `compile`.
    """
    from ..compiler.api import compile

    options = dict(options)
    if shapes:
        options["input_shapes"] = {**(options.get("input_shapes") or {}), **shapes}
    can_be_kept = source.digest is not None and _tell_all(options)
    kept = kept_artifacts(options.get("latency_db")) if can_be_kept else None
    key = ""
    if kept is not None:
        counted = {name: value for name, value in options.items() if name not in _NOT_IN_KEY}
        key = key_of(str(source.digest), _in_order(counted))
        found = None if options.get("fresh") else kept.find(source.name, key)
        if found is not None:
            _LOG.info("`%s` was compiled before: `%s`", source.name, found.path)
            return found
    told = f" for {dict(shapes)}" if shapes else ""
    _LOG.warning("compiling `%s`%s, which takes a while", source.name, told)
    began = time.monotonic()
    artifact = compile(source.model, **options)
    path = None if kept is None else kept.keep(source.name, key, artifact)
    where = f"kept as `{path}`" if path else "not kept"
    _LOG.warning("compiled `%s` in %.0f s, %s", source.name, time.monotonic() - began, where)
    return artifact


def _in_order(value: Any) -> Any:
    """Plain data in which sets have an order, so that equal data have the same text."""
    if isinstance(value, Mapping):
        return {key: _in_order(each) for key, each in value.items()}
    return ("set", *sorted(value)) if isinstance(value, Set) else value


def _tell_all(options: Mapping[str, Any]) -> bool:
    """Whether equal options always give equal artifacts.

    Equal options may give different artifacts in three cases: an option is an object that is not
    plain data, tuning records are used, or the scheduler is not part of this package.
    """
    counted = {name: value for name, value in options.items() if name not in _NOT_IN_KEY}
    return (
        options.get("tuning_records") is None
        and is_own(options.get("scheduler", "auto"))
        and _is_plain(counted)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_plain([*value.keys(), *value.values()])
    if isinstance(value, list | tuple | Set):
        return all(_is_plain(each) for each in value)
    return value is None or isinstance(value, str | int | float)
