"""The runtime library as a program in C sees it, and its reader of artifacts, for tests."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  It lets NumPy know `bfloat16` by name.
import numpy as np

from tvm_interop import load
from tvm_interop._native.c_interface import DTYPES, LoadOptions, OperatorTime, RunCounts, declare
from tvm_interop._native.runtime_files import runtime_file
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.errors import TVMInteropError
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.plan import Plan
from tvm_interop.program.host_memory import aligned_empty

_ROOT = Path(__file__).parents[1]
OK, INVALID_ARGUMENT, BAD_ARTIFACT, UNSUPPORTED, EXECUTION = range(5)


TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
SUBMIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class ThreadPool(ctypes.Structure):
    """The struct `tvi_thread_pool`."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("context", ctypes.c_void_p),
        ("num_threads", ctypes.c_int32),
        ("submit", SUBMIT),
    )

    @classmethod
    def of(cls, executor: Executor, threads: int) -> ThreadPool:
        """The pool that submits tasks to a Python executor."""

        def submit(_: object, task: int, argument: int) -> int:
            executor.submit(TASK(task), argument)
            return 0

        return cls(ctypes.sizeof(cls), None, threads, SUBMIT(submit))


class RuntimeLibraryError(Exception):
    """An error of the library: its status and its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def library_path() -> Path:
    """The path of the runtime library.

    The runtime library is in the folder of the library that TVM_INTEROP_LIBRARY names. Without this
    variable, the installed library is used.
    """
    named = os.environ.get("TVM_INTEROP_LIBRARY")
    return Path(named).parent / "libtvm_interop_runtime.so.1" if named else runtime_file("library")


@functools.cache
def library() -> Any:
    """The library's functions, with the types of arguments and results that ctypes must know."""
    loaded = ctypes.CDLL(str(library_path()))
    declare(loaded)
    return loaded


def check(status: int) -> None:
    """Raise the library's last error, unless `status` is success."""
    if status != OK:
        raise RuntimeLibraryError(status, library().tvi_last_error().decode())


class NativeModel:
    """A model and an instance of it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        shape: int = 0,
        pool: ThreadPool | None = None,
        **options: Any,
    ) -> None:
        self.model, self.instance = ctypes.c_void_p(), ctypes.c_void_p()
        given = LoadOptions(ctypes.sizeof(LoadOptions), **options)
        check(
            library().tvi_model_load(
                os.fspath(path).encode(), ctypes.byref(given), ctypes.byref(self.model)
            )
        )
        self.shape = shape
        if pool is None:
            self.open()
        else:
            self.open_on_pool(pool)

    def open(self) -> None:
        """Make the instance."""
        check(library().tvi_instance_create(self.model, self.shape, ctypes.byref(self.instance)))

    def open_on_pool(self, pool: ThreadPool | None) -> None:
        """Make the instance anew, on the threads of a pool."""
        library().tvi_instance_free(self.instance)
        self.instance, self.pool = ctypes.c_void_p(), pool
        given = None if pool is None else ctypes.byref(pool)
        made = ctypes.byref(self.instance)
        check(library().tvi_instance_create_on_pool(self.model, self.shape, given, made))

    def __del__(self) -> None:
        library().tvi_instance_free(self.instance)
        library().tvi_model_free(self.model)

    def infos(self, kind: str) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Name, type and shape of each input of the model (`kind` "input") or output ("output")."""
        count = getattr(library(), f"tvi_model_num_{kind}s")(self.model)
        found = []
        for i in range(count):
            info = getattr(library(), f"tvi_model_{kind}")(self.model, self.shape, i).contents
            shape = tuple(info.shape[: info.rank])
            found.append((info.name.decode(), np.dtype(DTYPES[info.type]), shape))
        return found

    def run(self, *inputs: np.ndarray, outputs: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
        """Run on the arrays `inputs`. If no memory for the outputs is given, new memory is used."""
        for (name, dtype, shape), array in zip(self.infos("input"), inputs, strict=True):
            assert (array.dtype, array.shape) == (dtype, shape), name
        made = list(outputs) or [
            aligned_empty(shape, dtype) for _, dtype, shape in self.infos("output")
        ]
        check(library().tvi_run(self.instance, _addresses(inputs), _addresses(made)))
        return made

    def run_rows(
        self, rows: int, *inputs: np.ndarray | None, outputs: Sequence[np.ndarray | None]
    ) -> None:
        """Run on arrays that have `rows` rows.

        If an entry is None instead of an array, the instance's own buffer is used.
        """
        given = _addresses(inputs), _addresses(outputs)
        check(library().tvi_run_rows(self.instance, rows, *given))

    def run_sizes(
        self, sizes: Sequence[int], *inputs: np.ndarray | None, outputs: Sequence[np.ndarray | None]
    ) -> None:
        """Run as `run_rows` does, with a number of rows for each open dimension (range)."""
        given = _addresses(inputs), _addresses(outputs)
        check(library().tvi_run_sizes(self.instance, _numbers(sizes), len(sizes), *given))

    def find_sizes(self, *sizes: int) -> int:
        """Return the index of the compiled shape for given numbers of rows, one for each range."""
        shape = ctypes.c_size_t()
        check(
            library().tvi_model_find_sizes(
                self.model, _numbers(sizes), len(sizes), ctypes.byref(shape)
            )
        )
        return shape.value

    def find_rows(self, rows: int) -> int:
        """Return the index of the compiled shape on which `rows` rows run."""
        shape = ctypes.c_size_t()
        check(library().tvi_model_find_rows(self.model, rows, ctypes.byref(shape)))
        return shape.value

    def run_counts(self, shape: int, struct_size: int = ctypes.sizeof(RunCounts)) -> RunCounts:
        """The number of runs at one compiled shape, and of their rows, over all instances."""
        counts = RunCounts(struct_size)
        check(library().tvi_model_run_counts(self.model, shape, ctypes.byref(counts)))
        return counts

    def write_own_buffer(self, position: int, array: np.ndarray) -> None:
        """Copy an input into the instance's own buffer."""
        buffer = library().tvi_instance_input_buffer(self.instance, position)
        ctypes.memmove(buffer, array.ctypes.data, array.nbytes)

    def run_on_own_buffers(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Copy the inputs into the instance's own buffers, run, and copy the outputs."""
        for i, array in enumerate(inputs):
            self.write_own_buffer(i, array)
        views = []
        for i, (_, dtype, shape) in enumerate(self.infos("output")):
            buffer = library().tvi_instance_output_buffer(self.instance, i)
            nbytes = int(np.prod(shape)) * dtype.itemsize
            memory = (ctypes.c_uint8 * nbytes).from_address(buffer)
            views.append(np.frombuffer(memory, np.uint8).view(dtype).reshape(shape))
        check(library().tvi_run(self.instance, None, None))
        return [view.copy() for view in views]

    def profile(self) -> list[OperatorTime]:
        """The start and the end of each operator in a profiled run."""
        count = ctypes.c_size_t()
        check(library().tvi_profile(self.instance, None, None, None, 0, ctypes.byref(count)))
        times = (OperatorTime * count.value)()
        check(library().tvi_profile(self.instance, None, None, times, count, ctypes.byref(count)))
        return list(times)


def _addresses(arrays: Sequence[np.ndarray | None]) -> Any:
    places = [None if array is None else array.ctypes.data for array in arrays]
    return (ctypes.c_void_p * max(len(arrays), 1))(*places)


def _numbers(sizes: Sequence[int]) -> Any:
    return (ctypes.c_int64 * max(len(sizes), 1))(*sizes)


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
    """Read a plan in Python, and check that the native reader gives the same verdict."""
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
    """Load an artifact in Python, and check that the native reader gives the same verdict."""
    error = None
    try:
        return load(path, **options)
    except TVMInteropError as caught:
        error = caught
        raise
    finally:
        if not options.keys() - {"kernels"}:
            _agree("artifact", path, error)
