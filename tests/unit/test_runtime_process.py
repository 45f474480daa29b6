"""Tests the runtime library with oneDNN in processes that fork, get signals or close the library.

`tests/cpp/c_interface_test.cc` has the same tests without oneDNN.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tvm_interop
from tests import nets
from tests.unit.test_onednn import needs_onednn
from tests.unit.test_runtime_library import saved
from tvm_interop.machine.library_files import ONEDNN

pytestmark = needs_onednn

BEGIN = """
import _ctypes, os, signal, sys, threading
from tests.forks import in_forked_child
from tests.native_runtime import NativeModel, library
from tests.unit.test_runtime_library import inputs_of

path = sys.argv[1]
model = NativeModel(path)
arrays = inputs_of(model)
expected = [array.tobytes() for array in model.run(*arrays)]
wrong, begun, ends = [], threading.Semaphore(0), threading.Event()

def check(own):
    if [array.tobytes() for array in own.run(*arrays)] != expected:
        wrong.append(own)

def go_on():
    own = NativeModel(path)
    check(own)
    begun.release()
    while not ends.is_set():
        check(own)
        check(NativeModel(path))

threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in threads:
    begun.acquire()
"""
END = """
ends.set()
for thread in threads:
    thread.join()
check(model)
assert not wrong
"""
CLOSE = """
for _ in range(20):
    _ctypes.dlclose(_ctypes.dlopen(library()._name, os.RTLD_NOW))
_ctypes.dlclose(library()._handle)
for _ in range(20):
    check(model)
"""
SIGNALS = """
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(30):
    check(NativeModel(path))
signal.setitimer(signal.ITIMER_REAL, 0)
assert seen
"""
# A child may use an instance that no thread was running during the fork, and may make new
# instances. The parent's threads run nothing during the fork, because the child would inherit the
# locks that they hold inside oneDNN.
FORK = """
ends.set()
for thread in threads:
    thread.join()

def work():
    for _ in range(5):
        check(model)
        check(NativeModel(path))
    assert not wrong

for _ in range(5):
    check(model)
    said = in_forked_child(work)
    assert said == "", said
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = saved(nets.inception_like(), tmp_path_factory.mktemp("model") / "model.tar")
    assert any(op.library for op in tvm_interop.load(path).plan.operators)
    return path


@pytest.mark.parametrize("program", [CLOSE, SIGNALS, FORK], ids=["close", "signals", "fork"])
def test_a_process_goes_on(model: Path, program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program + END, model], capture_output=True, text=True,
        env=os.environ | {
            "PYTHONPATH": os.getcwd(),
            "TVM_INTEROP_ONEDNN_LIBRARY": ONEDNN.find(),
            "TVM_INTEROP_NUM_THREADS": "3",
        }, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
