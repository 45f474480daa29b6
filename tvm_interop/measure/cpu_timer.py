"""Times stages on this machine's CPU, with the same executor that runs models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tvm

from .._native import cpu as _runtime
from ..execution.cpu import as_tensor
from ..execution.kernels import cpu_kernels
from ..latency.measurement import Setting
from ..machine.cpu_name import cpu_model
from ..program.program import Program
from .repeats import Measure
from .stage_operators import SharedTensors, StageOperators, measured_by
from .stage_timer import Job, Result, Streams


class CpuStageTimer:
    """Runs and times stages on this CPU's streams.

    Attributes
    ----------
    setting: this CPU, and the numbers of streams and threads that stages run on.
    """

    stages_per_job = 32
    waits_of_stage = 2

    def __init__(
        self,
        program: Program,
        kernels: Any,
        *,
        streams: int,
        threads: int = 1,
        seed: int = 0,
        shared: SharedTensors | None = None,
    ) -> None:
        """Prepare to run stages of `program`.

        Parameters
        ----------
        kernels: TVM's kernels, loaded.
        streams, threads: the number of streams, and the number of threads that the kernels of one
            stream may use.
        seed: seed of the order in which stages run, and of the numbers in their tensors.
        shared: as in `StageOperators`.

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
        source = cpu_kernels(kernels, program.operators, program.is_constant)
        self._operators = StageOperators(program, source, as_tensor, seed, shared)
        self._program = program
        self._seed = seed

    def why_not(self, op: int) -> str:
        """Return "" (no reason), because a library gets only operators that it can run."""
        return ""

    def implementation(self, op: int) -> str:
        """The name of the implementation that the operator's library chose; "" for TVM's kernels.

        To find the name, the library prepares the kernel, as for a stage that holds only this
        operator.

        Raises
        ------
        ExecutionError
            The library has no kernel for the operator.
        """
        operator = self._program.operators[op]
        if operator.library is None:
            return ""
        kernel = self._operators.kernel(op, frozenset(operator.outputs))
        return _runtime.implementation(kernel)

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do the jobs, which measure stages, one after the other."""
        return (job(self._rounds) for job in jobs)

    def close(self) -> None:
        """Do nothing: this timer reserves no device, so none must be released."""

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        return measured_by(_runtime, [self._executor(streams) for streams in stages], self._seed)

    def _executor(self, streams: Streams) -> _runtime.Executor:
        setting = self.setting
        return _runtime.make_executor(
            setting.streams, setting.threads, *self._operators.bind(streams)
        )
