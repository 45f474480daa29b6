"""`InferenceSession`: a `Session` that does what onnxruntime's does, where the two differ."""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from .given import provider_names
from .initializers import with_options
from .ort_memory import array_of_ortvalue
from .ort_value import as_ortvalue
from .session import Session
from .tensor_info import MapInfo, NodeArg
from .their_errors import raised_as_theirs

_LOG = logging.getLogger("tvm_interop")
_CPU = "CPUExecutionProvider"
_F = TypeVar("_F", bound=Callable[..., Any])


def _as_theirs(method: _F) -> _F:
    """Return a function that calls `method` and raises its errors as onnxruntime's, too."""

    @functools.wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with raised_as_theirs():
            return method(*args, **options)

    return cast(_F, call)


class InferenceSession(Session):
    """A `Session` for programs that were written for onnxruntime and change one import.

    It differs from `Session` in these points, in which it does what onnxruntime does. Errors are
    also onnxruntime's, such as `InvalidArgument`, if onnxruntime is installed. A provider that is
    not available is left out with a warning. The results of a `ZipMap` are dictionaries. The
    outputs of a binding are of the class `OrtValue`. `SessionOptions` may replace weights and fix
    open dimensions.
    """

    def __init__(
        self,
        path_or_bytes: Any = None,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
        **options: Any,
    ) -> None:
        """Load or compile a model; see `Session`, which has the same parameters."""
        with raised_as_theirs(path_or_bytes):
            model = with_options(path_or_bytes, sess_options)
            usable = _usable(providers, options.get("target", "llvm"))
            super().__init__(model, sess_options, usable, provider_options, **options)
        unwritten = getattr(sess_options, "optimized_model_filepath", "")
        if unwritten:
            _LOG.warning(
                "`optimized_model_filepath` is `%s`, and no optimised model is written there: "
                "`tvm_interop.compile(model, out=...)` writes what is compiled",
                unwritten,
            )

    run_async = _as_theirs(Session.run_async)
    profile = _as_theirs(Session.profile)
    run_with_iobinding = _as_theirs(Session.run_with_iobinding)
    get_modelmeta = _as_theirs(Session.get_modelmeta)

    @_as_theirs
    def _answer(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> list[Any]:
        names = None if output_names is None else list(output_names)
        results: list[Any] = super()._answer(names, input_feed)
        maps = self._maps
        if not maps:
            return results
        named = names or [info.name for info in self.outputs]
        return [
            _as_dictionaries(result, maps[name]) if name in maps else result
            for name, result in zip(named, results, strict=True)
        ]

    @_as_theirs
    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run the model on values of the class `OrtValue`, and return such values.

        Raises
        ------
        InputError, ExecutionError
            The same cases as for `run`. Also if a value is not on the CPU.
        """
        feed = {
            name: array_of_ortvalue(name, value) for name, value in input_dict_ort_values.items()
        }
        return [as_ortvalue(result) for result in self.run(output_names, feed, run_options)]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, each with `name`, `shape` and `type`. A shape is a list."""
        maps = self._maps
        return [
            node._replace(type=maps[node.name].type, shape=[], dtype="object")
            if node.name in maps
            else node
            for node in super().get_outputs()
        ]

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        """Do nothing, because a session never changes its device; warn if it should change."""
        here = self.get_providers()
        if providers and not set(here) & set(provider_names(providers)):
            _warn_of(provider_names(providers), here[0], stacklevel=3)

    def io_binding(self) -> IOBinding:  # type: ignore[override]  # It has the same methods.
        """Return a new binding, which uses the caller's memory for inputs and outputs."""
        return IOBinding(self)

    @property
    def _maps(self) -> Mapping[str, MapInfo]:
        return {} if self._source is None else self._source.maps


class IOBinding:
    """A binding of a session; see `Session.io_binding`. Its outputs are of the class `OrtValue`."""

    def __init__(self, session: Session) -> None:
        """Bind the memory of inputs and outputs of `session`."""
        with raised_as_theirs():
            self._bound = Session.io_binding(session)

    def __getattr__(self, name: str) -> Any:
        if name == "_bound":  # The binding could not be made.
            raise AttributeError(name)
        found = getattr(self._bound, name)
        return _as_theirs(found) if callable(found) else found

    def __repr__(self) -> str:
        return repr(self._bound)

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run, in the model's order.

        A bound output is over the memory that was bound. The next run changes any other output.
        """
        return [as_ortvalue(each) for each in self._bound.get_outputs()]


def _usable(providers: Sequence[Any] | None, target: Any) -> Sequence[Any] | None:
    """Return the providers to make a session with: those given, or the CPU if it is not one."""
    names = provider_names(providers)
    if not names or _CPU in names or not str(target).startswith("llvm"):
        return providers
    _warn_of(names, _CPU, stacklevel=4)
    return [_CPU]


def _warn_of(names: Sequence[str], runs_on: str, stacklevel: int) -> None:
    """Warn that no provider is here. `stacklevel` reaches the line of the user's code."""
    hint = ', unless target="cuda" is given' if "CUDAExecutionProvider" in names else ""
    warnings.warn(
        f"`providers` is {list(names)}, and the session runs on {runs_on}{hint}",
        UserWarning,
        stacklevel=stacklevel,
    )


def _as_dictionaries(table: np.ndarray, info: MapInfo) -> list[dict[str | int, float]]:
    """Return a table of shape (rows, classes) as a list with a dictionary for each row."""
    return [dict(zip(info.keys, row, strict=True)) for row in table.tolist()]
