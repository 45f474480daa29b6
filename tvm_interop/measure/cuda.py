"""Stage latencies measured on a GPU, with the GPU's own clock."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
import tvm

from .._native import cuda as _cuda
from ..errors import ExecutionError
from ..execution.cpu import as_tensor
from ..latency.record import Setting
from .measured import MeasuredLatency

_LOG = logging.getLogger("tvm_interop")


class CudaMeasuredLatency(MeasuredLatency):
    """Latencies measured by running the stages on GPU 0, in microseconds.

    A stage is one CUDA graph, captured from streams that fork from the first and join it again, as
    a stage of the model will be. CUDA events before and after tell the time; that of an empty graph
    is taken off. Each timed run follows an untimed one of the same stage, so it finds in the L2
    cache what that left there, and memory-bound operators seem faster than after others.

    Kept under the GPU's name and its driver's version.
    """

    def can_run(self, op: int) -> bool:
        """Whether the library of operator `op` has a kernel for this GPU: that is known only here.

        Why it has none is logged.
        """
        try:
            self._kernel(op)
        except ExecutionError as error:
            operator = self._program.operators[op]
            _LOG.warning("no kernel of %s for `%s`: %s", operator.library, operator.name, error)
            return False
        return True

    def _describe_setting(self) -> Setting:
        return Setting(
            device=_cuda.describe_device(0),
            driver="",  # Part of the device's description.
            cores=0,
            tvm_version=tvm.__version__,
            streams=self._num_streams,
            threads=self._threads,
        )

    @functools.cached_property
    def _streams(self) -> _cuda.CudaStreams:
        return _cuda.make_streams([0] * self._num_streams)

    def _time_once(self, executor: Any) -> float:
        return _cuda.time(executor, 1)

    def _interleaved(
        self, executors: list[Any], warmup: int, repeats: int, seed: int
    ) -> list[list[float]]:
        return _cuda.measure_interleaved(executors, warmup, repeats, seed, primed=True)

    def _make_executor(self, *plan: Any) -> _cuda.CudaExecutor:
        *bound, shares = plan
        assert not any(shares), "a GPU shares its kernels out itself"
        return _cuda.make_executor(self._streams, *bound)

    def _library_kernel(self, op: int) -> _cuda.CudaLibraryKernel:
        """Prepared on the first stream, it runs on any."""
        operator = self._program.operators[op]
        assert operator.library is not None
        assert operator.description is not None
        return _cuda.prepare_kernel(
            operator.library,
            operator.description.fields(),
            self._streams,
            0,
            [self._tensor(v) for v in (*operator.inputs, *operator.outputs)],
        )

    def _on_device(self, array: np.ndarray) -> Any:
        memory = _cuda.make_memory(0, array.nbytes)
        tensor = _cuda.tensor_within(memory, 0, array.shape, str(array.dtype))
        _cuda.copy_to_device(self._streams, as_tensor(array), tensor)
        return tensor
