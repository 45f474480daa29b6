"""Times stages on a GPU, by the GPU's own clock."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tvm

from .._native import cuda as _cuda
from ..errors import ExecutionError
from ..execution.cpu import as_tensor
from ..execution.kernels import cuda_kernels
from ..latency.measurement import Setting
from ..program.program import Program
from .repeats import Measure
from .stage_operators import StageOperators, measured_by
from .stage_timer import Job, Result, Streams


class CudaStageTimer:
    """Runs stages on GPU 0.

    A stage is one CUDA graph, as it will be in the model: its streams fork from the first stream
    and join it again. CUDA events before and after the graph tell the time. An untimed run before
    each timed run leaves the stage's data in the L2 cache. So operators that are limited by memory
    seem faster than they are after other operators.

    Attributes
    ----------
    setting: the GPU's name, its driver's version, and the number of streams that stages run on.
    """

    stages_per_job = 32

    def __init__(self, program: Program, kernels: Any, *, streams: int, seed: int = 0) -> None:
        """Prepare to run stages of `program`.

        Parameters
        ----------
        kernels: TVM's kernels, loaded.
        streams: the number of streams.
        seed: seed of the order in which stages run, and of the numbers in their tensors.

        Raises
        ------
        DeviceError
            There is no GPU.
        ArtifactError
            The library lacks a kernel of the program.
        """
        self.setting = Setting(
            device=_cuda.describe_device(0),
            driver="",  # The device's description includes it.
            cores=0,
            tvm_version=tvm.__version__,
            streams=streams,
            threads=1,
        )
        self._streams = _cuda.make_streams([0] * streams)
        # The kernels and the function refer to the streams, and not to this timer. Otherwise a
        # cycle of references would keep tensors on the GPU after the timer is gone.
        self._operators = StageOperators(
            program,
            cuda_kernels(kernels, program.operators, self._streams),
            functools.partial(_to_gpu, self._streams),
            seed,
        )
        self._seed = seed

    def why_not(self, op: int) -> str:
        """Why the library of operator `op` has no kernel for this GPU; "" if it has one.

        The library answers only when it is asked to prepare the kernel. The kernel must also be one
        that a CUDA graph can hold.
        """
        try:
            self._executor([[op]])
        except ExecutionError as error:
            return str(error)
        return ""

    def do(self, jobs: Sequence[Job[Result]]) -> Iterator[Result]:
        """Do the jobs one after the other.

        Raises
        ------
        ExecutionError
            No CUDA graph can be made of a stage. Its time without a graph would be compared with
            the times of other stages in graphs.
        """
        return (job(self._rounds) for job in jobs)

    def close(self) -> None:
        """Do nothing, because this timer holds no device that it could give back."""

    def _rounds(self, stages: Sequence[Streams]) -> Measure:
        return measured_by(_cuda, [self._executor(streams) for streams in stages], self._seed)

    def _executor(self, streams: Streams) -> _cuda.CudaExecutor:
        executor = _cuda.make_executor(self._streams, *self._operators.bind(streams))
        reason = _cuda.why_no_graph(executor)
        if reason:
            names = "`, `".join(self._operators.names(streams))
            raise ExecutionError(
                f"`{names}` cannot be timed in a CUDA graph: {reason}; give latencies with "
                "`latency`, or kernels of other providers with `providers`"
            )
        return executor


def _to_gpu(streams: _cuda.CudaStreams, array: np.ndarray) -> Any:
    return _cuda.tensor_on_gpu(streams, 0, as_tensor(array), str(array.dtype))
