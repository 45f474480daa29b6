"""Declares the C interface, `tvm_interop/runtime.h`, for ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

DTYPES = {
    1: "bool", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "uint8", 7: "uint16",
    8: "uint32", 9: "uint64", 10: "float16", 11: "float32", 12: "float64", 13: "bfloat16",
}  # fmt: skip
"""NumPy's name for each `tvi_type`."""


class TensorInfo(ctypes.Structure):
    """The struct `tvi_tensor_info`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("nbytes", ctypes.c_size_t),
    )


class LoadOptions(ctypes.Structure):
    """The struct `tvi_load_options`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("sha256", ctypes.c_char_p),
        ("onednn_path", ctypes.c_char_p),
        ("needs_onednn", ctypes.c_int32),
    )


class RunCounts(ctypes.Structure):
    """The struct `tvi_run_counts`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("exact", ctypes.c_uint64),
        ("filled_up", ctypes.c_uint64),
        ("rows_given", ctypes.c_uint64),
        ("rows_computed", ctypes.c_uint64),
    )


class OperatorTime(ctypes.Structure):
    """The struct `tvi_operator_time`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("stream", ctypes.c_int32),
        ("thread", ctypes.c_int32),
        ("start_ns", ctypes.c_int64),
        ("end_ns", ctypes.c_int64),
        ("on_core_ns", ctypes.c_int64),
        ("op", ctypes.c_int32),
    )


def declare(library: Any) -> None:
    """Tell ctypes the types of the functions of a loaded library."""
    pointer, size, status = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    info = ctypes.POINTER(TensorInfo)
    types: dict[str, tuple[Any, list[Any]]] = {
        "last_error": (ctypes.c_char_p, []),
        "model_load": (status, [ctypes.c_char_p, pointer, pointer]),
        "model_load_memory": (status, [ctypes.c_char_p, size, pointer, pointer]),
        "model_free": (None, [pointer]),
        "model_uses_fallback": (ctypes.c_int32, [pointer]),
        "model_warning": (ctypes.c_char_p, [pointer]),
        "model_device": (ctypes.c_char_p, [pointer, size]),
        "model_num_shapes": (size, [pointer]),
        "model_num_inputs": (size, [pointer]),
        "model_num_outputs": (size, [pointer]),
        "model_input": (info, [pointer, size, size]),
        "model_output": (info, [pointer, size, size]),
        "model_output_counted_axis": (ctypes.c_int32, [pointer, size]),
        "model_input_num_strings": (size, [pointer, size]),
        "model_input_string": (ctypes.c_char_p, [pointer, size, ctypes.c_int64]),
        "model_output_num_strings": (size, [pointer, size]),
        "model_output_string": (ctypes.c_char_p, [pointer, size, ctypes.c_int64]),
        "model_weights_nbytes": (size, [pointer]),
        "model_instance_nbytes": (size, [pointer, size]),
        "model_num_threads": (ctypes.c_int32, [pointer, size]),
        "model_batch_size": (ctypes.c_int64, [pointer, size]),
        "model_input_alignment": (size, [pointer, size, size]),
        "model_row_size": (ctypes.c_int64, [pointer, size]),
        "model_row_dimension": (ctypes.c_char_p, [pointer]),
        "model_num_ranges": (size, [pointer]),
        "model_range_dimension": (ctypes.c_char_p, [pointer, size]),
        "model_range_size": (ctypes.c_int64, [pointer, size, size]),
        "model_find_sizes": (status, [pointer, pointer, size, pointer]),
        "model_row_mask": (ctypes.c_char_p, [pointer, size]),
        "model_find_rows": (status, [pointer, ctypes.c_int64, pointer]),
        "model_find_shape": (status, [pointer, pointer, pointer]),
        "model_run_counts": (status, [pointer, size, pointer]),
        "instance_create": (status, [pointer, size, pointer]),
        "instance_create_on_pool": (status, [pointer, size, pointer, pointer]),
        "instance_warning": (ctypes.c_char_p, [pointer]),
        "instance_free": (None, [pointer]),
        "instance_input_buffer": (pointer, [pointer, size]),
        "instance_output_buffer": (pointer, [pointer, size]),
        "run_sizes": (status, [pointer, pointer, size, pointer, pointer]),
        "run_rows": (status, [pointer, ctypes.c_int64, pointer, pointer]),
        "run": (status, [pointer, pointer, pointer]),
        "run_counted": (status, [pointer, pointer, pointer, pointer]),
        "profile": (status, [pointer, pointer, pointer, pointer, size, pointer]),
        "num_threads": (ctypes.c_int32, []),
        "set_num_threads": (status, [ctypes.c_int32, ctypes.c_int32]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, f"tvi_{name}")
        function.restype, function.argtypes = result, arguments
