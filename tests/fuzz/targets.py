"""The functions that the fuzz test calls with inputs.

Each function returns whether its input was accepted. A refusal with an error of this package is
correct. Any other error is a defect, and so is a half-written file.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.native_runtime import read_plan_in_both
from tests.nets import chain
from tvm_interop import Schedule, load
from tvm_interop._native.kernels import load_kernels_from
from tvm_interop.artifact.artifact import Artifact
from tvm_interop.cli.app import run_app
from tvm_interop.errors import ArtifactError, PlanError, ScheduleError, TVMInteropError
from tvm_interop.execution.cpu import Instance
from tvm_interop.frontend import load_model
from tvm_interop.lowering.extract import extract
from tvm_interop.lowering.lower import LowerToUnits
from tvm_interop.machine.cpu_target import cpu_target
from tvm_interop.plan.check import read_plan
from tvm_interop.plan.make import make_plan
from tvm_interop.viz.drawing import to_svg
from tvm_interop.viz.record import planned

from . import corpus, remade

_MOST_THREADS = 8
"""A plan with more threads is not run. Such a plan may be valid, but running it would take long and
show nothing new."""
_MOST_BYTES = 2**28


def artifact(data: bytes) -> bool:
    """Load a file, draw its plan, and write it again. Run it if its machine code is ours."""
    with _only_files("model.tar", "again.tar", "model.svg"), open("model.tar", "wb") as file:
        file.write(data)
        file.flush()
        try:
            loaded = load("model.tar")
        except ArtifactError:
            with _refused(ArtifactError):
                load("model.tar", kernels=False)
            return False
        assert load("model.tar", kernels=False).plan == loaded.plan
        to_svg([planned(loaded, "model")])
        loaded.save("again.tar")
        again = load("again.tar")
        assert (again.plan, again.schedule) == (loaded.plan, loaded.schedule)
        for v, array in again.weights.items():
            np.testing.assert_array_equal(array, loaded.weights[v])
        with contextlib.suppress(TVMInteropError):
            _run(loaded)
        return True


def _run(loaded: Artifact) -> None:
    kernels = _kernels_of(loaded.kernels or b"")
    plan = loaded.usable_plan()
    threads = sum(stream.threads for stream in plan.streams)
    nbytes = sum(value.nbytes for value in plan.values)
    on_cpu = all(device.startswith("cpu") for device in plan.devices)
    if kernels is None or threads > _MOST_THREADS or nbytes > _MOST_BYTES or not on_cpu:
        return
    instance = Instance(plan, kernels, loaded.weights)
    instance.run()
    for v in plan.outputs:
        instance.read(v).sum()


@functools.cache
def _our_kernels() -> dict[bytes, Any]:
    if platform.machine() != "x86_64":
        return {}
    code = {members["kernels.so"] for members in corpus.artifacts().values()}
    return {each: load_kernels_from(each) for each in code}


def _kernels_of(code: bytes) -> Any:
    """The loaded kernels of an artifact's machine code.

    None if this fuzz test did not compile the code. Such code is never run.
    """
    return _our_kernels().get(code)


def remade_artifact(data: bytes) -> bool:
    """Check, load and run an artifact with correct digests: see `remade`."""
    with _only_files("model.tar"):
        return remade.check(data)


def plan(data: bytes) -> bool:
    """Read a plan, and write it again."""
    try:
        read = read_plan_in_both(data)
    except (ArtifactError, PlanError):
        return False
    assert read_plan(read.to_json()) == read
    return True


def schedule(data: bytes) -> bool:
    """Read a schedule, and use it as far as this is possible without a device."""
    try:
        read = Schedule.from_json(data.decode("utf-8", "replace"))
        assert Schedule.from_json(read.to_json()) == read
        read.validate(corpus.graph())
        assert read.simulate(corpus.graph(), corpus.latencies()) > 0
        made = make_plan(corpus.program(), read, device="cuda:0")
    except ScheduleError:
        return False
    assert read_plan(made.to_json()) == made
    return True


def model(data: bytes) -> bool:
    """Import an ONNX file and lower it to a graph of operators. Return False if it is refused."""
    with _only_files("model.onnx"):
        Path("model.onnx").write_bytes(data)
        try:
            lower: Any = LowerToUnits(cpu_target("llvm"), ())
            extract(lower(load_model("model.onnx"))).graph()
        except TVMInteropError:
            return False
        return True


def command(data: bytes) -> bool:
    """Run a command line. If it fails, it may leave no new file."""
    arguments = json.loads(data)
    with _in_a_folder():
        for name, content in _files().items():
            Path(name).write_bytes(content)
        before = _content()
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run_app(arguments)
        assert code in (0, 2), code
        assert "Traceback" not in said.getvalue() or {"-v", "--verbose"} & set(arguments)
        after = _content()
        assert not [name for name in after if name.startswith(".")], sorted(after)
        if code != 0 and "--latency-db" not in arguments:
            assert after == before, sorted(after.keys() ^ before.keys())
        return code == 0


@functools.cache
def _files() -> dict[str, bytes]:
    packed = io.BytesIO()
    np.savez(packed, x=np.zeros((1, 4, 4, 4), np.float32))
    tar = next(iter(corpus.artifacts().values()))
    from .inputs import tar_of

    return {
        "net.onnx": chain(1).SerializeToString(),
        "net.tar": tar_of(tar, None),
        "plan.json": corpus.plans()[0].encode(),
        "schedule.json": corpus.schedules()[0].encode(),
        "x.npz": packed.getvalue(),
    }


def _content() -> dict[str, bytes]:
    return {str(path): path.read_bytes() if path.is_file() else b"" for path in Path().rglob("*")}


@contextlib.contextmanager
def _only_files(*names: str) -> Iterator[None]:
    """Context that works in an empty folder.

    Afterwards the folder may contain only files with these names.
    """
    with _in_a_folder():
        yield
        assert set(os.listdir()) <= set(names), os.listdir()


@contextlib.contextmanager
def _in_a_folder() -> Iterator[None]:
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(home)


@contextlib.contextmanager
def _refused(kind: type[Exception]) -> Iterator[None]:
    try:
        yield
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "artifact": artifact,
    "remade": remade_artifact,
    "plan": plan,
    "schedule": schedule,
    "model": model,
    "command": command,
}
