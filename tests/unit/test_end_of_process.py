"""Tests that processes end without a fault if they end or fork while they hold models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import os, sys, threading, time
import tvm_interop
from tests import nets

net = nets.inception_like()
artifact = tvm_interop.compile(
    net, scheduler="greedy", keep_slower=True, streams=2, latency_db=":memory:", providers=["tvm"]
)
module = tvm_interop.GraphModule(artifact)
for name, value in nets.feeds(net).items():
    module.set_input(name, value)
"""
DAEMONS = """
begun = threading.Semaphore(0)

def run_for_ever():
    own = tvm_interop.GraphModule(artifact)
    for name, value in nets.feeds(net).items():
        own.set_input(name, value)
    own.run()
    begun.release()
    while True:
        own.run()

for _ in range(2):
    threading.Thread(target=run_for_ever, daemon=True).start()
for _ in range(2):
    begun.acquire()
"""
FORK = """
module.run()
os.environ["TVM_INTEROP_NUM_THREADS"] = "two"
child = os.fork()
if child == 0:
    del module
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


STARTED = str(Path(__file__).resolve().parents[1] / "started")


def ended(program: str, *folders: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*folders, str(Path.cwd())])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("turn", range(2))
def test_daemon_threads_may_run_models_when_the_process_ends(turn: int) -> None:
    """If `turn` is 0, TVM also imports PyTorch, as it does in the processes of users."""
    done = ended(DAEMONS, *([STARTED] if turn else []))
    assert done.returncode == 0, done.stderr


def test_a_child_may_let_go_of_a_model_whatever_the_environment() -> None:
    done = ended(FORK, STARTED)
    assert done.returncode == 7, done.stderr
