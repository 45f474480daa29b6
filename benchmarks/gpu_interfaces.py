"""Checks the interfaces that programs use to run a model on a GPU (`gpu_visit.py` runs it).

    python -m benchmarks.gpu_interfaces FOLDER --bundle FOLDER --out FILE

`FOLDER` is one network of the bundle. The first run through `GraphModule` is compared with
onnxruntime's outputs. All other ways to run the model must give the bits of this first run. These
ways are: tensors of PyTorch on the GPU as inputs and outputs, a session, several threads, and a
program in C without Python. The findings also have the times of a run with inputs in the host's
memory and on the GPU.
"""

from __future__ import annotations

import argparse
import functools
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tvm_interop import GraphModule, Session

from . import torch_gpu
from .step_facts import Facts

RUNTIME = "runtime"
"""The bundle's folder with the runtime library, its header, and the program in C."""
LIBRARY = "libtvm_interop_runtime.so.1"
PROGRAM = "run_model.c"
THREADS = 4
ROUNDS = 50
LARGEST_ERROR = 1e-2
"""Allowed error of the outputs, as a share of the largest output: enough for float16."""


class Ways:
    """The ways to run one network on two sets of inputs, and their outputs."""

    def __init__(self, folder: Path, bundle: Path) -> None:
        self._model, self._bundle = folder / "model.tar", bundle
        kept = dict(np.load(folder / "reference.npz"))
        self.module = GraphModule(self._model)
        inputs, outputs = self.module.ports()
        self._names = [port.name for port in inputs]
        self.given = [[kept[f"input{s}_{i}"] for i in range(len(inputs))] for s in (0, 1)]
        self.reference = [[kept[f"output{s}_{i}"] for i in range(len(outputs))] for s in (0, 1)]

    def by_host_arrays(self, which: int) -> list[np.ndarray]:
        """Run on arrays of NumPy."""
        self.module.run(*self.given[which])
        return [self.module.get_output(i).numpy() for i in range(self.module.get_num_outputs())]

    def by_gpu_tensors(self, which: int) -> list[np.ndarray]:
        """Run on tensors of PyTorch. A stream of PyTorch writes the inputs just before the run."""
        import torch

        with torch.cuda.stream(torch.cuda.Stream()):
            tensors = [torch.from_numpy(np.array(array)) for array in self.given[which]]
            late = [tensor.pin_memory().to("cuda", non_blocking=True) for tensor in tensors]
            self.module.run(*late)
            views = map(self.module.get_output_zero_copy, range(self.module.get_num_outputs()))
            return [torch.from_dlpack(view).clone().cpu().numpy() for view in views]

    def by_session(self, which: int) -> list[np.ndarray]:
        """Run through a session."""
        with Session(self._model) as session:
            found = session.run(None, dict(zip(self._names, self.given[which], strict=True)))
        return [np.asarray(array) for array in found]

    def by_program(self, which: int) -> list[np.ndarray]:
        """Run the network through a program in C."""
        with TemporaryDirectory() as scratch:
            files = []
            for i, array in enumerate(self.given[which]):
                files.append(f"input{i}.bin")
                (Path(scratch) / files[-1]).write_bytes(np.ascontiguousarray(array).tobytes())
            done = subprocess.run(
                [self._program, self._model.resolve(), *files],
                cwd=scratch,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            if done.returncode:
                raise RuntimeError(f"run_model: {done.stdout}")
            return [
                np.frombuffer(
                    (Path(scratch) / f"output{i}.bin").read_bytes(), self._dtype(i)
                ).reshape(expected.shape)
                for i, expected in enumerate(self.reference[which])
            ]

    @functools.cached_property
    def _program(self) -> Path:
        """The path of the program in C, which the first access compiles."""
        place = self._bundle / RUNTIME
        self._compiled = TemporaryDirectory()
        program = Path(self._compiled.name) / "run_model"
        flags = [f"-I{place / 'include'}", f"{place / LIBRARY}", f"-Wl,-rpath,{place}"]
        subprocess.run(["cc", "-o", program, place / PROGRAM, *flags], check=True)
        return program

    def by_threads(self, which: int) -> list[np.ndarray]:
        """Run in several threads, each with its module; return the first outputs that differ."""
        expected = self.by_host_arrays(which)

        def work(_: int) -> list[np.ndarray] | None:
            own = GraphModule(self._model)
            for turn in range(ROUNDS):
                own.run(*self.given[(which + turn) % 2])
                if turn % 2:
                    continue
                got = [own.get_output(i).numpy() for i in range(len(expected))]
                if not _same(got, expected):
                    return got
            return None

        with ThreadPoolExecutor(THREADS) as pool:
            wrong = [got for got in pool.map(work, range(THREADS)) if got is not None]
        return wrong[0] if wrong else expected

    def times_us(self) -> dict[str, float]:
        """Median microseconds of a run and of reading its outputs, by where the inputs are."""
        ways: dict[str, Callable[[int], Sequence[object]]] = {"host": self.by_host_arrays}
        if not torch_gpu.why_not():
            import torch

            kept = [torch.from_numpy(np.array(array)).cuda() for array in self.given[0]]
            outputs = range(self.module.get_num_outputs())

            def on_gpu(_: int) -> Sequence[object]:
                self.module.run(*kept)
                return [self.module.get_output_zero_copy(i) for i in outputs]

            ways["GPU"] = on_gpu
        took: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, way in ways.items():
                began = time.perf_counter()
                way(0)
                took[name].append(time.perf_counter() - began)
        return {name: round(float(np.median(all_s)) * 1e6, 1) for name, all_s in took.items()}

    def _dtype(self, output: int) -> str:
        return self.module.ports()[1][output].dtype


def _same(some: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(some, others, strict=True))


def look(ways: Ways, facts: Facts) -> int:
    """Compare all ways to run the network, write the findings, and return the exit code."""
    wrong, missing = [], []
    expected = [ways.by_host_arrays(which) for which in (0, 1)]
    for got, reference in zip(expected, ways.reference, strict=True):
        for a, b in zip(got, reference, strict=True):
            error = float(np.abs(a.astype(np.float64) - b).max() / (np.abs(b).max() + 1e-9))
            facts.say(error=error)
            if not error < LARGEST_ERROR:
                wrong.append(f"the outputs are wrong by {error} of the largest output")
    named = {
        "tensors of PyTorch": ways.by_gpu_tensors,
        "session": ways.by_session,
        "program in C": ways.by_program,
        "threads": ways.by_threads,
    }
    if torch_gpu.why_not():
        missing.append(torch_gpu.why_not())
        del named["tensors of PyTorch"]
    for name, way in named.items():
        try:
            same = all(_same(way(which), expected[which]) for which in (0, 1))
        except Exception as failure:  # Record the error, and try the other ways.
            wrong.append(f"{name}: {type(failure).__name__}: {failure}")
            continue
        facts.say(**{name: "same bits" if same else "DIFFERENT bits"})
        if not same:
            wrong.append(f"{name}: different bits")
    facts.say(run_us=ways.times_us(), cores=os.cpu_count())
    return facts.exit_code(missing=missing, wrong=wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of one network, as in the bundle")
    parser.add_argument("--bundle", type=Path, required=True, help="folder of the unpacked bundle")
    parser.add_argument("--out", type=Path, required=True, help="JSON file for what is found")
    arguments = parser.parse_args()
    return look(Ways(arguments.folder, arguments.bundle), Facts(arguments.out))


if __name__ == "__main__":
    raise SystemExit(main())
