"""Runs a model on weights that a run gives as inputs, as onnxruntime's adapters do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ExecutionError, InputError
from .initializers import with_weights_as_inputs
from .source import Source, check_unchanged

if TYPE_CHECKING:
    from .profile_file import ProfileFile

ADAPTERS = "active_adapters"
"""The attribute of run options that holds the active adapters, in a list."""


class ReplacedWeights:
    """The part of a session that replaces weights of the model for single runs.

    ONNX lets a run replace the weights that are also inputs of the model. A compiled model has its
    weights packed. So for each set of weights that runs replace, the model is compiled again with
    these weights as inputs.
    """

    _source: Source | None
    _is_closed: bool
    _compiling: threading.Lock
    _profile: ProfileFile | None
    _again: Callable[[Any], Any]
    """Makes a session of a changed model, with the arguments of this session."""
    _with_weights: dict[frozenset[str], Any]
    """The sessions in which weights are inputs, by the names of these weights."""

    def _with_weights_of(self, feed: Mapping[str, Any]) -> Any:
        """Return the session in which the weights that `feed` has are inputs.

        The result is None if `feed` has no weights.

        Raises
        ------
        ExecutionError
            The session was closed, or the model's file has changed since the session was made.
        """
        source = self._source
        if source is None or not source.replaceable or not isinstance(feed, Mapping):
            return None
        names = frozenset(info.name for info in source.replaceable if info.name in feed)
        if not names:
            return None
        with self._compiling:
            if self._is_closed:
                raise ExecutionError("the session was closed: make a new one")
            if names not in self._with_weights:
                check_unchanged(source)
                changed = with_weights_as_inputs(source.model, names)
                self._with_weights[names] = self._again(changed)
                self._with_weights[names]._profile = self._profile
            return self._with_weights[names]

    def _close_with_weights(self) -> None:
        for session in list(self._with_weights.values()):
            session.close()


def with_adapters(feed: Any, run_options: Any) -> Any:
    """Return the inputs with the weights of the active adapters, which come before the inputs'."""
    adapters: Iterable[Any] = getattr(run_options, ADAPTERS, ())
    for adapter in adapters if isinstance(feed, Mapping) else ():
        feed = {**feed, **adapter.parameters}
    return feed


def refuse_adapters(run_options: Any) -> None:
    """Refuse adapters for a run with a binding.

    Raises
    ------
    InputError
        The options of the run have active adapters.
    """
    if getattr(run_options, ADAPTERS, ()):
        raise InputError(
            "the run has active adapters and a binding, and a binding holds the memory of the "
            "model's own inputs only: call `run` with the inputs"
        )
