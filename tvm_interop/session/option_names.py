"""Stand-ins for the options of onnxruntime, for programs that run where it is not installed."""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any, NoReturn

from ..errors import InputError
from ..plain_data import is_whole
from .initializers import FIXED, GIVEN
from .ort_value import OrtValue as OrtValue
from .replaced_weights import ADAPTERS
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
    "class_of",
    "disable_telemetry_events",
    "enable_telemetry_events",
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


class _OfModel:
    """The part of session options that replaces weights of the model, and fixes its dimensions."""

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

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Give the open dimension `name` of the inputs a size."""
        self._fix("dim_param", name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Give the open dimensions of the inputs that have this denotation a size."""
        self._fix("denotation", denotation, size)

    def _fix(self, field: str, name: str, size: int) -> None:
        if not is_whole(size) or size < 0:
            raise InputError(f"the size of the dimension `{name}` is {size!r}: give a whole number")
        setattr(self, FIXED, {**getattr(self, FIXED, {}), (field, name): int(size)})


class _OfRun:
    """The part of run options that gives weights to a run."""

    def add_active_adapter(self, adapter: Any) -> None:
        """Run with the weights of `adapter`, a `LoraAdapter` of `tvm_interop.onnxruntime`.

        Raises
        ------
        InputError
            `adapter` is of onnxruntime's own class, whose weights cannot be read.
        """
        if not isinstance(adapter, _Adapter):
            raise InputError(
                f"the adapter is a `{type(adapter).__name__}` of `{type(adapter).__module__}`: "
                "make it by `tvm_interop.onnxruntime.LoraAdapter()`"
            )
        setattr(self, ADAPTERS, [*getattr(self, ADAPTERS, []), adapter])


class _Adapter:
    """The part of an adapter that lets a session read its weights."""

    parameters: Mapping[str, Any] = MappingProxyType({})
    """The weights by name, as values of `OrtValue`."""
    _reader: Any
    """onnxruntime's class that reads the files of adapters."""

    def Load(self, path: str) -> None:
        """Read an adapter from a file of onnxruntime's form."""
        self._read = self._reader.read_adapter(path)  # Its values may use its memory.
        self.parameters = self._read.get_parameters()


@functools.cache
def class_of(name: str, theirs: ModuleType) -> type:
    """Return a class of onnxruntime that keeps what a session needs where it finds it.

    Parameters
    ----------
    name: `SessionOptions`, `RunOptions` or `LoraAdapter`.
    theirs: onnxruntime's module; this module if onnxruntime is not installed.

    Raises
    ------
    AttributeError
        The module has no such class.
    """
    base: type = getattr(theirs, name)
    ours = {"SessionOptions": _OfModel, "RunOptions": _OfRun, "LoraAdapter": _Adapter}[name]
    if issubclass(base, ours):
        return base
    fields = {"__doc__": base.__doc__}
    if ours is _Adapter:
        fields["_reader"] = theirs.AdapterFormat
    return type(name, (ours, base), fields)


class SessionOptions(_OfModel, _Entries):
    """The options of a session.

    Only `intra_op_num_threads`, `enable_profiling`, weights and sizes of dimensions have an effect.
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

    def register_custom_ops_library(self, path: str) -> NoReturn:
        """Refuse the library.

        Raises
        ------
        InputError
            Always: there are no custom operators here.
        """
        raise InputError(f"`{path}` holds custom operators, which cannot run here: leave them out")


class RunOptions(_OfRun, _Entries):
    """The options of a run, of which only adapters have an effect."""

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
