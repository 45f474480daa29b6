"""Finds the stored artifact of a model, or else compiles the model and stores the artifact."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tarfile
import time
from collections.abc import Iterator, Mapping, Set
from typing import Any, NamedTuple

from ..artifact.artifact import Artifact
from ..errors import CannotFillUpError
from ..scheduling.registry import is_own
from .kept_artifacts import KeptArtifacts, kept_artifacts, key_of
from .known_kernels import KnownKernels, carried_options, may_carry
from .source import OF_TORCH, Source, check_unchanged, require_compiler

_LOG = logging.getLogger("tvm_interop")

_NOT_IN_KEY = ("fresh", "latency_db", "progress")
"""Options of `compile` that do not affect the artifact."""


class Order(NamedTuple):
    """A model, the options to compile it with, and where its artifact is stored.

    Attributes
    ----------
    source: the model.
    options: the options for `compile`.
    shapes: the shapes of the inputs that the model leaves open, by name; `options` contains them
        too. Empty if the user gave these shapes among the options.
    kept: the store of artifacts; None if the artifact is not stored.
    key: the artifact's key in the store; "" without a store.
    any_shapes: the key under which data for all shapes of the same model and options are stored; ""
        without a store.
    """

    source: Source
    options: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]
    kept: KeptArtifacts | None
    key: str
    any_shapes: str

    def found(self) -> Artifact | None:
        """Return the stored artifact; None if there is none, or if `fresh` forbids its use.

        Raises
        ------
        CannotFillUpError
            An earlier compilation for the same ranges raised this error.
        """
        if self.kept is None or self.options.get("fresh"):
            return None
        refusal = self.kept.find_refusal(self.source.name, self.key)
        if refusal is not None:
            raise refusal
        found = self.kept.find(self.source.name, self.key)
        if found is not None:
            _LOG.info("`%s` was compiled before: `%s`", self.source.name, found.path)
            _warn_again(self.source, found)
        return found

    @property
    def is_stored(self) -> bool:
        """Whether a file for the artifact is stored, and `fresh` does not forbid its use."""
        is_fresh = bool(self.options.get("fresh"))
        return self.kept is not None and not is_fresh and self.kept.has(self.source.name, self.key)

    def for_new_shapes(self) -> Artifact:
        """Return an artifact for shapes that were not compiled in full.

        If the best kernels are known for other shapes of about the same size, the artifact gets
        these kernels. It is then read from the store, or compiled without measurements. Otherwise
        the model is compiled in full, and the chosen kernels are stored for other shapes.

        Raises
        ------
        UnsupportedModelError, InputError, ScheduleError, DeviceError
            The same cases as for `compile`.
        """
        if self._known is None:
            return self.compiled()
        options = carried_options(self.options)
        key = _key(self.source, self.kept, {**options, "like": True})
        carried = self._replace(options=options, key=key)
        found = carried.found()
        if found is not None:
            return found
        known = self._known.nearest(self.shapes)
        if known is None:
            return self.compiled()
        how = f"with the kernels that were chosen for {known.shapes}"
        return carried.compiled(how, like=known.kernels)

    @property
    def _known(self) -> KnownKernels | None:
        """The kernels chosen for other shapes; None if `options` do not allow their use."""
        if self.kept is None or not self.shapes or not may_carry(self.options):
            return None
        return KnownKernels(self.kept, self.source.name, self.any_shapes)

    def compiled(self, how: str = "which takes a while", **more: Any) -> Artifact:
        """Compile the model and store the artifact. The logger reports both steps.

        Parameters
        ----------
        how: the end of the message that is logged when the compilation begins.
        more: further options for `compile`, beside `options`.

        Raises
        ------
        UnsupportedModelError, InputError, ScheduleError, DeviceError
            The same cases as for `compile`.
        """
        self._check_source()
        from ..compiler.api import compile

        name = self.source.name
        _LOG.warning("compiling `%s`%s, %s", name, self.told, how)
        began = time.monotonic()
        with self._refusal_kept():
            artifact = compile(self.source.model, **self.options, **more)
        if self._known is not None and not more:
            self._known.add(self.shapes, artifact)
        path = None if self.kept is None else self.kept.keep(name, self.key, artifact)
        where = f"kept as `{path}`" if path else "not kept"
        _LOG.warning("compiled `%s` in %.0f s, %s", name, time.monotonic() - began, where)
        # Load the stored file if there is one. Instances of an artifact that was loaded from a file
        # share their weights, and the memory for the tensors between operators.
        loaded = None if self.kept is None or path is None else self.kept.find(name, self.key)
        return loaded or artifact

    def compiled_quickly(self) -> Artifact:
        """Compile the model without measuring anything; the artifact is not stored.

        The artifact runs only on machines that have the same kernel libraries as this machine.

        Raises
        ------
        UnsupportedModelError, InputError, ScheduleError, DeviceError
            The same cases as for `compile`.
        """
        self._check_source()
        from ..compiler.api import compile

        name = self.source.name
        _LOG.warning(
            "compiling `%s`%s quickly; it is compiled in full in the background", name, self.told
        )
        began = time.monotonic()
        known = None if self._known is None else self._known.nearest(self.shapes)
        like = None if known is None else known.kernels
        quick = {**self.options, "time_budget": 0, "fallback": False, "like": like, "out": None}
        with self._refusal_kept():
            artifact = compile(self.source.model, **quick)
        _LOG.info("compiled `%s` quickly, in %.1f s", name, time.monotonic() - began)
        return artifact

    def _check_source(self) -> None:
        """Check that the model can be compiled here and has not changed since the session began.

        A session compiles a model with open dimensions when a run needs it, perhaps after days.
        """
        require_compiler(self.source)
        if self.shapes:
            check_unchanged(self.source)

    @contextlib.contextmanager
    def _refusal_kept(self) -> Iterator[None]:
        """If the `with` block raises a CannotFillUpError, store it: the next session then raises it
        at once.
        """
        try:
            yield
        except CannotFillUpError as error:
            if self.kept is not None:
                self.kept.keep_refusal(self.source.name, self.key, error)
            raise

    @property
    def told(self) -> str:
        """The shapes as the text that follows the model's name in a log message."""
        return f" for {self.shapes}" if self.shapes else ""


def order_of(
    source: Source,
    options: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Order:
    """Describe a compilation, and find out where its artifact is stored.

    If equal options can give different artifacts, nothing is stored. An example is options that
    contain a schedule or tuning records.

    Parameters
    ----------
    options: the options for `compile`. With `fresh`, a stored artifact is not used.
    shapes: the shapes of further inputs, by name. They override `input_shapes` of `options`.
    """
    options, shapes = dict(options), dict(shapes or {})
    if shapes:
        options["input_shapes"] = {**(options.get("input_shapes") or {}), **shapes}
    can_be_kept = source.digest is not None and _tell_all(options)
    kept = kept_artifacts(options.get("latency_db")) if can_be_kept else None
    key = _key(source, kept, options)
    if not shapes:
        return Order(source, options, shapes, kept, key, "")
    others = {n: shape for n, shape in options["input_shapes"].items() if n not in shapes}
    any_shapes = _key(source, kept, {**options, "input_shapes": others})
    return Order(source, options, shapes, kept, key, any_shapes)


def _key(source: Source, kept: KeptArtifacts | None, options: Mapping[str, Any]) -> str:
    """The key under which an artifact of `source` is stored; "" if there is no store."""
    return "" if kept is None else key_of(str(source.digest), _in_order(_counted(options)))


def compiled_once(
    source: Source,
    options: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Artifact:
    """Return the stored artifact of a model, or compile the model now (see `order_of`).

    The logger reports when a compilation begins and ends, and where the artifact is stored.

    Raises
    ------
    UnsupportedModelError, InputError, ScheduleError, DeviceError
        The same cases as for `compile`.
    """
    order = order_of(source, options, shapes)
    return order.found() or order.compiled()


def _warn_again(source: Source, artifact: Artifact) -> None:
    """Repeat the warning that the outputs of a program of `torch.export` differ from PyTorch's.

    To do this, only the artifact's manifest is read, because reading the plan takes longer.
    """
    is_path = isinstance(source.model, (str, os.PathLike))
    if not is_path or not os.fspath(source.model).endswith(OF_TORCH) or artifact.path is None:
        return
    with tarfile.open(artifact.path) as file:
        member = file.extractfile("manifest.json")
        found = None if member is None else json.load(member).get("program_check")
    if found is None or found.get("unchecked") is not None:
        return
    import msgspec

    from ..artifact.program_check import ProgramCheck

    warning = msgspec.convert(found, ProgramCheck).warning
    if warning is not None:
        _LOG.warning("`%s` was compiled before: %s", source.name, warning)


def _counted(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in _NOT_IN_KEY}


def _in_order(value: Any) -> Any:
    """Convert sets in plain data to sorted lists, so that equal data have the same text."""
    if isinstance(value, Mapping):
        return {key: _in_order(each) for key, each in value.items()}
    return ("set", *sorted(value)) if isinstance(value, Set) else value


def _tell_all(options: Mapping[str, Any]) -> bool:
    """Whether equal options always give equal artifacts.

    Equal options may give different artifacts in three cases: an option is an object that is not
    plain data, tuning records are used, or the scheduler is not part of this package.
    """
    return (
        options.get("tuning_records") is None
        and is_own_scheduler(options)
        and is_plain(_counted(options))
    )


def is_own_scheduler(options: Mapping[str, Any]) -> bool:
    """Whether the scheduler of these options for `compile` is part of this package."""
    return is_own(options.get("scheduler", "auto"))


def is_plain(value: Any) -> bool:
    """Whether a value consists of numbers, texts, and collections of numbers and texts."""
    if isinstance(value, Mapping):
        return is_plain([*value.keys(), *value.values()])
    if isinstance(value, list | tuple | Set):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, str | int | float)
