"""The methods by which a session describes itself, under the names that onnxruntime has for them.

Programs that were written for onnxruntime call these methods, so a session has them too. Some of
the methods do nothing here, because a session runs on one device, and its settings never change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DeviceError, InputError
from .given import provider_names
from .option_names import SessionOptions
from .pool import Pool
from .tensor_info import ModelMeta, NodeArg, TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

    from .profile_file import ProfileFile
    from .source import Source

Callback = Callable[[list[np.ndarray] | None, Any, str], object]
"""A function that is called when a run of `run_async` has ended, as in onnxruntime.

It gets the results or None, the user's data, and the error message, which is "" on success.
"""


class LikeOnnxruntime:
    """The part of a session that describes the model and the device as onnxruntime does."""

    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    _pool: Pool | None
    _source: Source | None
    _session_options: Any
    _profile: ProfileFile | None
    path: Path | None

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs, each with `name`, `shape` and `type`. A shape is a list."""
        return [info.as_node_arg() for info in self.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, each with `name`, `shape` and `type`. A shape is a list."""
        return [info.as_node_arg() for info in self.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the weights that a run may replace: those that are also inputs of the model.

        An artifact has none.
        """
        source = self._source
        return [] if source is None else [info.as_node_arg() for info in source.replaceable]

    def get_modelmeta(self) -> ModelMeta:
        """Return the metadata that the exporter wrote into the model.

        Raises
        ------
        InputError
            The session was made from an artifact, which does not contain these texts.
        """
        if self._source is None:
            raise InputError(
                "an artifact does not hold the metadata that the exporter wrote: make the "
                "session from the ONNX file"
            )
        meta = self._source.meta
        return meta._replace(custom_metadata_map=dict(meta.custom_metadata_map))

    def get_session_options(self) -> Any:
        """Return the `sess_options` that the session was made with.

        If there are none, the result is a new object with the default of each option.
        """
        return SessionOptions() if self._session_options is None else self._session_options

    def get_providers(self) -> list[str]:
        """Return onnxruntime's name for the device that the model runs on, in a list."""
        on_gpu = self._pool is not None and self._pool.artifact.is_for_gpus
        return ["CUDAExecutionProvider"] if on_gpu else ["CPUExecutionProvider"]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return an empty dictionary for each name in `get_providers`."""
        return {name: {} for name in self.get_providers()}

    def set_providers(
        self,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[Any, Any]] | None = None,
    ) -> None:
        """Check that the session's device is among `providers`. A session never changes its device.

        Raises
        ------
        DeviceError
            `providers` does not have the session's device.
        """
        names = provider_names(providers)
        if names and not set(self.get_providers()) & set(names):
            raise DeviceError(
                f"`providers` is {names}, and the session runs on {self.get_providers()[0]}: make "
                "a new session for another device"
            )

    def enable_fallback(self) -> None:
        """Do nothing. onnxruntime's sessions may change to another device when one fails."""

    def disable_fallback(self) -> None:
        """Do nothing. onnxruntime's sessions may change to another device when one fails."""

    def get_profiling_start_time_ns(self) -> int:
        """Return when the profile began, in nanoseconds; 0 if `enable_profiling` is not set."""
        return 0 if self._profile is None else self._profile.start_ns

    def end_profiling(self) -> str:
        """Write the times of all runs to a file, and return its path.

        If `enable_profiling` is not set in the session options, return an empty text.
        """
        return "" if self._profile is None else self._profile.write()

    @property
    def _model_path(self) -> str | None:
        """The path of the model's file, under the private name that some programs read."""
        model = self._source.model if self._source is not None else self.path
        return os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
