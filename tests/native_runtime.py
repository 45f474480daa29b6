"""The runtime library as a program in C sees it, and its reader of artifacts, for tests."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tvm_interop import load
from tvm_interop._native.runtime_files import runtime_file
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.errors import TVMInteropError
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.host_memory import aligned_empty

_ROOT = Path(__file__).parents[1]
OK, INVALID_ARGUMENT, BAD_ARTIFACT, UNSUPPORTED, EXECUTION = range(5)
TYPES = {
    1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16,
    8: np.uint32, 9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64,
    13: ml_dtypes.bfloat16,
}  # fmt: skip
"""NumPy's types, by the number of `tvi_type`."""


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


class RuntimeLibraryError(Exception):
    """An error of the library: its status and its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def library_path() -> Path:
    """The path of the runtime library.

    It is in the folder of the library that TVM_INTEROP_LIBRARY names, or else it is the installed
    one.
    """
    named = os.environ.get("TVM_INTEROP_LIBRARY")
    return Path(named).parent / "libtvm_interop_runtime.so.1" if named else runtime_file("library")


@functools.cache
def library() -> Any:
    """The library's functions, with the types that ctypes must know."""
    loaded = ctypes.CDLL(str(library_path()))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    loaded.tvi_last_error.restype = ctypes.c_char_p
    loaded.tvi_model_load.argtypes = [ctypes.c_char_p, pointer, pointer]
    loaded.tvi_model_load_memory.argtypes = [ctypes.c_char_p, size, pointer, pointer]
    loaded.tvi_model_warning.argtypes = [pointer]
    loaded.tvi_model_warning.restype = ctypes.c_char_p
    loaded.tvi_model_batch_size.restype = ctypes.c_int64
    loaded.tvi_model_batch_size.argtypes = [pointer, size]
    loaded.tvi_model_num_threads.argtypes = [pointer, size]
    loaded.tvi_model_find_shape.argtypes = [pointer, pointer, pointer]
    for kind in ("shapes", "inputs", "outputs"):
        count = getattr(loaded, f"tvi_model_num_{kind}")
        count.argtypes, count.restype = [pointer], size
    for kind in ("input", "output"):
        info = getattr(loaded, f"tvi_model_{kind}")
        info.argtypes, info.restype = [pointer, size, size], ctypes.POINTER(TensorInfo)
        buffer = getattr(loaded, f"tvi_instance_{kind}_buffer")
        buffer.argtypes, buffer.restype = [pointer, size], pointer
    loaded.tvi_instance_create.argtypes = [pointer, size, pointer]
    loaded.tvi_run.argtypes = [pointer, pointer, pointer]
    loaded.tvi_profile.argtypes = [pointer, pointer, pointer, pointer, size, pointer]
    loaded.tvi_model_free.argtypes = loaded.tvi_instance_free.argtypes = [pointer]
    return loaded


def check(status: int) -> None:
    """Raise the library's last error, unless `status` says that there is none."""
    if status != OK:
        raise RuntimeLibraryError(status, library().tvi_last_error().decode())


class NativeModel:
    """A model and an instance of it."""

    def __init__(self, path: str | os.PathLike[str], shape: int = 0, **options: Any) -> None:
        self.model, self.instance = ctypes.c_void_p(), ctypes.c_void_p()
        given = LoadOptions(ctypes.sizeof(LoadOptions), **options)
        check(
            library().tvi_model_load(
                os.fspath(path).encode(), ctypes.byref(given), ctypes.byref(self.model)
            )
        )
        self.shape = shape
        self.open()

    def open(self) -> None:
        """Make the instance."""
        check(library().tvi_instance_create(self.model, self.shape, ctypes.byref(self.instance)))

    def __del__(self) -> None:
        library().tvi_instance_free(self.instance)
        library().tvi_model_free(self.model)

    def infos(self, kind: str) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Name, type and shape of each `input` or `output`."""
        count = getattr(library(), f"tvi_model_num_{kind}s")(self.model)
        found = []
        for i in range(count):
            info = getattr(library(), f"tvi_model_{kind}")(self.model, self.shape, i).contents
            shape = tuple(info.shape[: info.rank])
            found.append((info.name.decode(), np.dtype(TYPES[info.type]), shape))
        return found

    def run(self, *inputs: np.ndarray, outputs: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """Run on these arrays. If no memory for the outputs is given, they go into new memory."""
        for (name, dtype, shape), array in zip(self.infos("input"), inputs, strict=True):
            assert (array.dtype, array.shape) == (dtype, shape), name
        made = list(outputs) or [
            aligned_empty(shape, dtype) for _, dtype, shape in self.infos("output")
        ]
        check(library().tvi_run(self.instance, _addresses(inputs), _addresses(made)))
        return made

    def run_on_own_buffers(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Copy the inputs into the instance's own buffers, run, and copy the outputs."""
        for i, array in enumerate(inputs):
            buffer = library().tvi_instance_input_buffer(self.instance, i)
            ctypes.memmove(buffer, array.ctypes.data, array.nbytes)
        views = []
        for i, (_, dtype, shape) in enumerate(self.infos("output")):
            buffer = library().tvi_instance_output_buffer(self.instance, i)
            nbytes = int(np.prod(shape)) * dtype.itemsize
            memory = (ctypes.c_uint8 * nbytes).from_address(buffer)
            views.append(np.frombuffer(memory, np.uint8).view(dtype).reshape(shape))
        check(library().tvi_run(self.instance, None, None))
        return [view.copy() for view in views]

    def profile(self) -> list[OperatorTime]:
        """When each operator ran."""
        count = ctypes.c_size_t()
        check(library().tvi_profile(self.instance, None, None, None, 0, ctypes.byref(count)))
        times = (OperatorTime * count.value)()
        check(library().tvi_profile(self.instance, None, None, times, count, ctypes.byref(count)))
        return list(times)


def _addresses(arrays: Sequence[np.ndarray]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*[array.ctypes.data for array in arrays])


class Reader:
    """The program `read_check`, which reads artifacts and plans natively and runs nothing."""

    def __init__(self) -> None:
        fake_cuda = os.environ.get("TVM_INTEROP_FAKE_CUDA", _ROOT / "build/test/tests/fake_cuda")
        path = Path(fake_cuda).parent / "cpp" / "read_check"
        if not path.exists():
            raise FileNotFoundError(f"`{path}` is missing; `make cpp-build` makes it")
        self._process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, errors="replace"
        )

    def __call__(self, kind: str, path: str | os.PathLike[str]) -> str | None:
        """Read an `artifact` or `plan`.

        Return the status and the message of the error, or None if there is no error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{kind} {os.path.abspath(path)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().rstrip("\n")
        assert answer, f"read_check died: {self._process.wait()}"
        return None if answer == "ok" else answer


@functools.cache
def reader() -> Reader:
    """The native reader, which is started once in this process."""
    return Reader()


def _agree(kind: str, path: str | os.PathLike[str], error: TVMInteropError | None) -> None:
    answer = reader()(kind, path)
    if error is not None:
        assert answer is not None, f"only Python refuses it: {error}"
    else:
        refusal = f"only the native reader refuses it: {answer}"
        assert answer is None or answer.startswith(str(UNSUPPORTED)), refusal


def read_plan_in_both(text: str | bytes) -> Plan:
    """`read_plan`, and a check that the native reader takes or refuses the plan as Python does."""
    error = None
    try:
        return read_plan(text)
    except TVMInteropError as caught:
        error = caught
        raise
    finally:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
            file.flush()
            _agree("plan", file.name, error)


def load_in_both(path: str | os.PathLike[str], **options: Any) -> Artifact:
    """`load`, and a check that the native reader takes or refuses the file as Python does."""
    error = None
    try:
        return load(path, **options)
    except TVMInteropError as caught:
        error = caught
        raise
    finally:
        if not options.keys() - {"kernels"}:
            _agree("artifact", path, error)
