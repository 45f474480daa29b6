"""The pipeline of passes that lowers kernels to machine code.

The pipeline has TVM's own passes, and passes of this package that prevent warnings and wrong
results.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from .c_library import CLibraryFunctions
from .exact_floats import ExactFloats
from .safe_remainders import SafeRemainders
from .without_marks import WithoutMarks

PIPELINE = "tvm_interop.cpu.10"
"""The name under which TVM finds this pipeline.

Compiled kernels are cached under this name too. So the name must change with each change to the
pipeline that changes kernels.
"""


def _pipeline(**options: Any) -> tuple[Any, Any, Any]:
    lowering, for_host, for_device = tirx.get_tir_pipeline("default", **options)
    without: Any = WithoutMarks
    ours: list[Any] = [without("pragma_scope"), CLibraryFunctions(), ExactFloats()]
    passes = [*ours, lowering, SafeRemainders(), without("storage_alignment")]
    return tvm.transform.Sequential(passes), for_host, for_device


tirx.register_tir_pipeline(PIPELINE, _pipeline)
