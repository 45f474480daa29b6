"""Runs a mixed load in one process for hours, and checks outputs and resources.

Several threads load modules, run them on changing inputs, profile them and drop them. Meanwhile the
main thread changes the number of threads, and forks children. A child runs a module of the main
thread, and sometimes a module that it loads itself. Every output is compared, bit for bit, with the
output of a first run on one thread. At the end, the numbers of threads and file descriptors and the
memory must be as after the first third of the time.

    python -m tests.soak --seconds 3600
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import tvm_interop
from tests.chains import Chain, chain_kernels
from tests.forks import in_forked_child
from tests.networks import SMALL, feeds
from tvm_interop.compiler.compilation import Compilation
from tvm_interop.compiler.options import CompileOptions
from tvm_interop.models.catalog import build

WORKERS = 3
NETWORK = "squeezenet"
GROWN_MIB = 40
"""Memory may grow by so many MiB, because it varies by up to 24 MiB between two moments."""


class Load:
    """The state that the worker threads share, such as the modules, counts of work and failures."""

    def __init__(self, folder: Path) -> None:
        self.kernels = chain_kernels(folder)
        model = build(NETWORK, image_size=SMALL[NETWORK])
        compilation = Compilation(model, CompileOptions(streams=2, threads=1))
        self.artifact = folder / "model.tar"
        compilation.artifact(compilation.sequential()).save(self.artifact)
        self.feeds = [feeds(model, seed) for seed in range(2)]
        module = self.module()
        tvm_interop.set_num_threads(1)
        self.expected = [self.output(module, i) for i in range(2)]
        tvm_interop.set_num_threads(2)
        self.done: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self.ends = threading.Event()
        self.gates = [threading.Lock() for _ in range(WORKERS)]
        """A worker thread holds its lock of `gates` while it works."""
        self.modules: list[list[tvm_interop.GraphModule]] = [[] for _ in range(WORKERS)]
        """The modules of each worker."""

    def module(self) -> tvm_interop.GraphModule:
        """Load the network again."""
        return tvm_interop.GraphModule(tvm_interop.load(self.artifact))

    def output(self, module: tvm_interop.GraphModule, feed: int) -> np.ndarray:
        """The output of a run on the input `feeds[feed]`."""
        module.run(**self.feeds[feed])
        array: np.ndarray = module.get_output(0).numpy()
        return array

    def check(self, module: tvm_interop.GraphModule, runs: int) -> None:
        """Run on one input after the other, and check the outputs."""
        for run in range(runs):
            got = self.output(module, run % 2)
            assert np.array_equal(got, self.expected[run % 2]), "an output differs"

    def work(self, worker: int) -> None:
        """Do random work until the end."""
        drawn = random.Random(worker)
        try:
            while not self.ends.is_set():
                with self.gates[worker]:
                    self._do_something(drawn, self.modules[worker])
        except BaseException as error:
            self.failures.append(error)

    def _do_something(self, drawn: random.Random, modules: list[tvm_interop.GraphModule]) -> None:
        what = drawn.choice(["load", "run", "run", "profile", "drop", "chain", "loops"])
        if what == "load" and len(modules) < 3:
            modules.append(self.module())
        elif what == "run" and modules:
            self.check(drawn.choice(modules), 10)
        elif what == "profile" and modules:
            rows = modules[0].profile()
            assert len(rows) == len(modules[0].plan.operators)
        elif what == "drop" and modules:
            del modules[drawn.randrange(len(modules))]
        elif what in ("chain", "loops"):
            kernel = "serial" if what == "chain" else "parallel"
            chain = Chain(self.kernels, drawn.randint(1, 4), kernel, drawn.randint(1, 3))
            for start in range(20):
                chain.check(start)
        else:
            return
        self.done[what] += 1

    def fork(self, own: tvm_interop.GraphModule, at_rest: bool) -> None:
        """Fork a child that runs the main thread's module.

        If no other thread of the process works, the child also loads a module of its own.
        """

        def child() -> None:
            self.check(own, 4)
            Chain(self.kernels, 2, "parallel", 2).check(1.0)
            if at_rest:
                self.check(self.module(), 4)

        if at_rest:
            for gate in self.gates:
                gate.acquire()
        try:
            said = in_forked_child(child)
        finally:
            if at_rest:
                for gate in self.gates:
                    gate.release()
        assert said == "", said
        self.done["fork at rest" if at_rest else "fork"] += 1


def usage() -> dict[str, int]:
    """Memory in MiB, threads and open files of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory_mib": pages * resource.getpagesize() >> 20,
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
    }


def soak(seconds: float) -> None:
    """Run the load for `seconds` seconds. Raises an error if anything is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        load = Load(Path(folder))
        own = load.module()
        workers = [threading.Thread(target=load.work, args=(i,)) for i in range(WORKERS)]
        for worker in workers:
            worker.start()
        began = time.monotonic()
        before: dict[str, int] = {}
        drawn = random.Random(WORKERS)
        tick = 0
        while time.monotonic() - began < seconds and not load.failures:
            load.fork(own, at_rest=tick % 2 == 0)
            load.check(own, 5)
            tvm_interop.set_num_threads(drawn.randint(1, 3))
            time.sleep(0.1)
            tick += 1
            if not before and time.monotonic() - began > seconds / 3:
                before = _settled(load)
        after = _settled(load)
        load.ends.set()
        for worker in workers:
            worker.join()
    if load.failures:
        raise load.failures[0]
    print(f"{seconds:.0f} s: {dict(load.done)}; before {before}, after {after}")
    assert after["threads"] <= before["threads"], "threads were left behind"
    assert after["files"] <= before["files"], "files were left open"
    assert after["memory_mib"] <= before["memory_mib"] + GROWN_MIB, "memory was left behind"


def _settled(load: Load) -> dict[str, int]:
    """The resources in use when all workers have dropped their modules and runs use two threads."""
    tvm_interop.set_num_threads(2)
    for gate, modules in zip(load.gates, load.modules, strict=True):
        gate.acquire()
        modules.clear()
    gc.collect()
    Chain(load.kernels, 2).check(0.0)
    # The C library keeps some freed memory, and the amount varies by tens of MiB. This call gives
    # all of it back to the system, so that only leaked memory counts.
    ctypes.CDLL(None).malloc_trim(0)
    found = usage()
    for gate in load.gates:
        gate.release()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3600.0)
    soak(parser.parse_args().seconds)
    sys.exit(0)


if __name__ == "__main__":
    main()
