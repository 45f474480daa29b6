"""Tests the errors if CUDA or the GPU is missing."""

from __future__ import annotations

import os
import subprocess
import sys

ASK = """
import os
from tvm_interop import DeviceError
from tvm_interop._native import cuda as _cuda

def why():
    try:
        _cuda.device_count()
    except DeviceError as error:
        print(error)

why()
del os.environ["TVM_INTEROP_CUDART_LIBRARY"]
why()
"""


def test_what_is_missing_is_said() -> None:
    environment = {
        **os.environ,
        "FAKE_CUDA_DEVICES": "0",
        "TVM_INTEROP_CUDART_LIBRARY": "/nowhere/libcudart.so.13",
    }
    command = [sys.executable, "-c", ASK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    no_runtime, no_gpu = done.stdout.splitlines()
    assert no_runtime.startswith("no CUDA here: /nowhere/libcudart.so.13: cannot open")
    assert "put it on LD_LIBRARY_PATH" in no_runtime
    assert no_gpu.startswith("no GPU here: the driver shows none; compile for `llvm`")
