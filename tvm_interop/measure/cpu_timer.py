"""Times stages on this machine's CPU, on the executor that will run them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tvm

from .._native import cpu as _runtime
from ..execution.cpu import as_tensor, kernel_functions
from ..latency.record import Setting
from ..machine.cpu_name import cpu_model
from ..program.program import Operator, Program
from .repeats import Measure
from .stage_operators import StageOperators
from .stage_timer import Job, Result, Streams


class CpuStageTimer:
    """Runs stages on this CPU's streams.

    Attributes
    ----------
    setting: this CPU; how many streams and threads stages run on.
    """

    stages_per_job = 32

    def __init__(
        self, program: Program, kernels: Any, *, streams: int, threads: int = 1, seed: int = 0
    ) -> None:
        """Get ready to run stages of `program`.

        Parameters
        ----------
        kernels: the loaded kernels of TVM.
        streams, threads: streams there will be, and threads the kernels of each may use.
        seed: of the order in which stages run.

        Raises
        ------
        ArtifactError
            The library lacks a kernel of the program.
        """
        self.setting = Setting(
            device=cpu_model(),
            driver="",
            cores=_runtime.num_threads(),
            tvm_version=tvm.__version__,
            streams=streams,
            threads=threads,
        )
        self._program = program
        self._seed = seed
        compiled = {op.kernel for op in program.operators if op.library is None}
        functions = kernel_functions(kernels, sorted(compiled))
        self._operators = StageOperators(program, functions, as_tensor, self._prepare, seed)

    def can_run(self, op: int) -> bool:
        """It can: a library is given only operators that it said it can run."""
        return True

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do the jobs one after the other."""
        return (job(self._rounds) for job in jobs)

    def close(self) -> None:
        """Nothing to give back."""

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        executors = [self._executor(streams) for streams in stages]
        seeds = itertools.count(self._seed)

        def measure(indices: Sequence[int], repeats: int) -> list[list[float]]:
            chosen = [executors[i] for i in indices]
            return _runtime.measure_interleaved(chosen, 0, repeats, next(seeds), primed=True)

        return measure

    def _executor(self, streams: Streams) -> _runtime.Executor:
        setting = self.setting
        return _runtime.make_executor(
            setting.streams, setting.threads, *self._operators.bind(streams)
        )

    def _prepare(self, operator: Operator, tensors: list[Any]) -> _runtime.LibraryKernel:
        assert operator.library is not None
        assert operator.description is not None
        values = (*operator.inputs, *operator.outputs)
        return _runtime.prepare_kernel(
            operator.library,
            operator.description.fields(),
            1,
            tensors,
            [self._program.is_constant(v) for v in values],
        )
