"""Settings and fixtures of all tests."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .object_files import FOLDER, ObjectFiles
from .rooms import ROOMS, runs_with

if TYPE_CHECKING:
    from tvm_interop.kernels.linker import Linker

# NumPy multiplies matrices on one thread, also in the processes that tests start. Most of these
# matrices are small. If each of pytest's two workers had several threads, they would wait for each
# other on two cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Let the threads of PyTorch and xgboost sleep while they have no work.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Switch the garbage collector off while pytest collects tests, which saves a quarter of that
    time. Afterwards the collector ignores all objects that the test modules have made.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the test suite.

    `--random-prices SEED` finds tests that depend on measured latencies (see `tests/prices.py`).
    `--room NAME` runs the unit tests of one room, a part of the package (see `tests/rooms.py`).
    """
    parser.addoption(
        "--random-prices",
        type=int,
        metavar="SEED",
        help="draw latencies at random instead of measuring",
    )
    parser.addoption(
        "--room", metavar="NAME", help="run the unit tests of one room (see tests/rooms.py)"
    )


LONG = ("test_tutorials.py",)
"""Files that take long, and so run first.

If a long file ran last, one of pytest's workers would run it while the others are idle.
"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests of long files first, and leave out tests outside the room `--room`.

    Raises
    ------
    pytest.UsageError: there is no such room.
    """
    items.sort(key=lambda item: item.path.name not in LONG)
    room = config.getoption("--room")
    if room is None:
        return
    if room not in ROOMS:
        from tvm_interop.errors import did_you_mean

        raise pytest.UsageError(
            f"there is no room `{room}`{did_you_mean(room, list(ROOMS))}; there are "
            f"{', '.join(ROOMS)}"
        )
    unit = Path(__file__).parent / "unit"
    chosen = [
        item for item in items if item.path.parent == unit and runs_with(room, item.path.stem)
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.fixture(autouse=True, scope="session")
def _random_prices(request: pytest.FixtureRequest) -> Iterator[None]:
    seed = request.config.getoption("--random-prices")
    with pytest.MonkeyPatch.context() as patch:
        if seed is not None:
            from tvm_interop._native import cpu  # Importing `cpu` is slow and seldom needed.

            from .prices import random_clock

            patch.setattr(cpu, "measure_interleaved", random_clock(seed, cpu.run))
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_latency_db(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the latencies that tests measure out of the user's database."""
    patch = pytest.MonkeyPatch()
    path = tmp_path_factory.mktemp("latency") / "latency.db"
    patch.setenv("TVM_INTEROP_LATENCY_DB", str(path))
    # Switch off the store of compiled models, so that tests do not use kernels and schedules of
    # earlier compilations.
    patch.setenv("TVM_INTEROP_KEPT", "")


@pytest.fixture(autouse=True, scope="session")
def _quick_starts() -> Iterator[None]:
    """Make the processes that tests start import TVM without PyTorch.

    Without PyTorch, the import takes a third of the time. If a test sets `PYTHONPATH` itself, its
    processes import TVM with PyTorch, as users' processes do.
    """
    folder = str(Path(__file__).parent / "started")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", folder, prepend=os.pathsep)
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_exports() -> Iterator[None]:
    """Make exports of PyTorch's programs quick (see `torch_exports`).

    Files of tests that export programs import PyTorch, so it is imported by now.
    """
    if "torch" not in sys.modules:
        yield
        return
    from .torch_exports import quick_exports

    with quick_exports():
        yield


@pytest.fixture(autouse=True, scope="session")
def _object_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectFiles]:
    """Make all processes of one run share the kernels that several tests compile.

    The kernels lie in the folder above the folders of pytest's workers. An environment variable
    passes this folder to tests that run in another process, such as the tests under the fake CUDA.
    """
    base = tmp_path_factory.getbasetemp()
    own = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "objects"
    folder = Path(os.environ.get(FOLDER, own))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        yield ObjectFiles(folder)


def _linked_by(files: ObjectFiles) -> Callable[[Linker, list[str], Path], None]:
    return lambda linker, objects, library: files.link(linker, objects, library)


@pytest.fixture(autouse=True, scope="module")
def _compile_kernels_once(
    request: pytest.FixtureRequest, _object_files: ObjectFiles
) -> Iterator[None]:
    """Reuse kernels, except in files about compiling, which have the mark `compiles_anew`.

    The fixtures of a file reuse kernels too.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("compiles_anew") is None:
            patch.setattr("tvm_interop.kernels.build.write_object", _object_files.write)
            patch.setattr("tvm_interop.kernels.build_cuda.compile_fatbin", _object_files.fatbin)
            patch.setattr("tvm_interop.kernels.linker.Linker.link", _linked_by(_object_files))
        yield


@pytest.fixture(autouse=True)
def _onnxruntime_stays() -> Iterator[None]:
    """Fail a test that leaves our module in onnxruntime's place.

    Later tests would compare this package with itself.
    """
    yield
    module = sys.modules.get("onnxruntime")
    if module is not None and module.__name__ != "onnxruntime":
        del sys.modules["onnxruntime"]
        pytest.fail(f"the test left `{module.__name__}` in the place of onnxruntime")


_SCHEDULES = ("tvm_interop.kernels.cpu_schedule", "tvm_interop.kernels.cuda_schedule")


@pytest.fixture(autouse=True)
def _no_faults_in_schedules(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail a test if one of our schedule rules fails on a kernel.

    The kernel is then built without the rule. It is correct but slow, so no other check notices the
    failure.
    """
    yield
    faults = [
        record.getMessage()
        for record in caplog.get_records("call")
        if record.name in _SCHEDULES and record.levelno >= logging.WARNING
    ]
    assert not faults
