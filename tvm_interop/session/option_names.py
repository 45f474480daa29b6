"""Stand-ins for the options of onnxruntime, for programs that run where it is not installed."""

from __future__ import annotations

import enum
import functools
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import InputError
from .initializers import GIVEN
from .ort_value import OrtValue as OrtValue
from .tensor_info import ModelMeta as ModelMetadata
from .tensor_info import NodeArg as NodeArg

__all__ = [
    "ExecutionMode",
    "ExecutionOrder",
    "GraphOptimizationLevel",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "options_class",
]

__version__ = "1.20.0"
"""The oldest version of onnxruntime whose names this module has."""


class GraphOptimizationLevel(enum.IntEnum):
    """The levels of `SessionOptions.graph_optimization_level`, which has no effect here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """The values of `SessionOptions.execution_mode`, which has no effect here."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """The values of `SessionOptions.execution_order`, which has no effect here."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


def enable_telemetry_events() -> None:
    """Do nothing: this package sends no data to anybody."""


def disable_telemetry_events() -> None:
    """Do nothing: this package sends no data to anybody."""


class _Entries:
    """Keeps texts by name, as the options of onnxruntime do."""

    def __init__(self) -> None:
        self._entries: dict[str, str] = {}

    def _get(self, key: str) -> str:
        if key not in self._entries:
            raise InputError(f"there is no entry `{key}`: add it first")
        return self._entries[key]


class _Weights:
    """The part of session options that replaces weights of the model."""

    def add_initializer(self, name: str, ortvalue: Any) -> None:
        """Use `ortvalue`, an `OrtValue` on the CPU, as the weight `name` of the model."""
        self.add_external_initializers([name], [ortvalue])

    def add_external_initializers(self, names: Sequence[str], ortvalues: Sequence[Any]) -> None:
        """Use the values `ortvalues` on the CPU as the weights `names` of the model."""
        given = {**getattr(self, GIVEN, {}), **dict(zip(names, ortvalues, strict=True))}
        setattr(self, GIVEN, given)

    def add_external_initializers_from_files_in_memory(self, *given: Any) -> NoReturn:
        """Refuse the files.

        Raises
        ------
        InputError
            Always.
        """
        raise InputError(
            "files of weights in memory are not read: write them beside the model, or give each "
            "weight by `add_initializer`"
        )


@functools.cache
def options_class(theirs: type | None) -> type:
    """Return a class of session options that keeps weights where a session finds them.

    Parameters
    ----------
    theirs: onnxruntime's class `SessionOptions`; None if onnxruntime is not installed.
    """
    if theirs is None or issubclass(theirs, _Weights):
        return SessionOptions
    return type("SessionOptions", (_Weights, theirs), {"__doc__": theirs.__doc__})


class SessionOptions(_Weights, _Entries):
    """The options of a session.

    Only `intra_op_num_threads`, `enable_profiling` and weights have an effect.
    """

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = 0
        self.inter_op_num_threads = 0
        self.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_ALL
        self.execution_mode = ExecutionMode.ORT_SEQUENTIAL
        self.execution_order = ExecutionOrder.DEFAULT
        self.enable_profiling = False
        self.profile_file_prefix = "onnxruntime_profile_"
        self.optimized_model_filepath = ""
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.enable_cpu_mem_arena = True
        self.enable_mem_pattern = True
        self.enable_mem_reuse = True
        self.use_deterministic_compute = False

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry, which has no effect."""
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        """Return the entry `key`.

        Raises
        ------
        InputError
            There is no such entry.
        """
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Do nothing: a session compiles each shape that `run` gets."""

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Do nothing: a session compiles each shape that `run` gets."""

    def register_custom_ops_library(self, path: str) -> NoReturn:
        """Refuse the library.

        Raises
        ------
        InputError
            Always: there are no custom operators here.
        """
        raise InputError(f"`{path}` holds custom operators, which cannot run here: leave them out")


class RunOptions(_Entries):
    """The options of a run, which have no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.log_severity_level = -1
        self.log_verbosity_level = 0
        self.logid = ""
        self.only_execute_path_to_fetches = False
        self.terminate = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry, which has no effect."""
        self._entries[key] = value

    def get_run_config_entry(self, key: str) -> str:
        """Return the entry `key`.

        Raises
        ------
        InputError
            There is no such entry.
        """
        return self._get(key)
