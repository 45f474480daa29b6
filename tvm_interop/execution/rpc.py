"""Runs an artifact on another machine, through an RPC server of TVM."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from .._native.library import cpu_timings
from .._native.timing import OperatorTiming
from ..artifact.artifact import Artifact
from ..errors import ArtifactError, DeviceError
from ..plan.plan import Plan
from .instance import Clock, ports_of
from .rpc_server import (
    ServedOperator,
    ServedProgram,
    ServedTensor,
    ServerAddress,
    answers,
    free_sessions,
)

_LOG = logging.getLogger("tvm_interop")


class RemoteInstance:
    """One executable copy of an artifact's plan on an RPC server.

    Attributes
    ----------
    plan: the plan that runs. A server runs only TVM's kernels. So if the artifact's plan needs a
        kernel library, the artifact's fallback plan runs instead. It needs no kernel library.
    executor: the executor on the server.
    """

    clock: ClassVar[Clock | None] = None
    dlpack_device_type: ClassVar[int] = 1

    def __init__(self, artifact: Artifact, address: ServerAddress) -> None:
        """Take a free server, upload kernels and weights, allocate memory and bind the kernels.

        Raises
        ------
        DeviceError
            The model was compiled for a GPU, the tracker cannot be reached, no server is free, or
            the server lacks our runtime.
        ArtifactError
            The plan needs a kernel library and the artifact has no fallback plan, or the server's
            CPU lacks instructions that the kernels need.
        """
        self.plan = _plan_on_tvm_alone(artifact)
        self.inputs, self.outputs = ports_of(self.plan)
        (session,) = free_sessions(address, limit=1)
        self._program = ServedProgram(
            session, artifact.machine_code(), **_described(self.plan),
            cpu_features=artifact.manifest.cpu_features,
        )  # fmt: skip
        self._tensors: dict[int, Any] = {}
        self._warn_of_few_cores()
        for value, planned in enumerate(self.plan.values):
            if planned.storage == "weight":
                self.write(value, artifact.weights[value])
        self.executor = self._program.make_executor(
            [op.stream for op in self.plan.operators], [op.waits for op in self.plan.operators]
        )

    def run(self, wanted: Sequence[int] = ()) -> None:
        """Run every operator once.

        `wanted` has no effect, because `read` copies outputs from the server.
        """
        self._program.call("runtime.run", self.executor)

    def write(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into the plan's value with the number `value`.

        Raises
        ------
        ExecutionError: the server failed.
        """
        with answers():
            self._tensor(value).copyfrom(_words(np.ascontiguousarray(array)))

    def read(self, value: int) -> np.ndarray:
        """Return the value with the number `value`, copied from the server.

        Raises
        ------
        ExecutionError: the server failed.
        """
        with answers():
            array: np.ndarray = self._tensor(value).numpy()
        return array.view(self.plan.values[value].dtype)

    def replace(self, value: int, array: np.ndarray) -> None:
        """Copy `array` into a weight."""
        self.write(value, array)

    def rebind(self, value: int, array: np.ndarray) -> None:
        """Refuse to use other memory, because the server cannot access this machine's memory.

        Raises
        ------
        DeviceError
            Always.
        """
        raise DeviceError(
            "a module on a server reads the server's own memory; use set_input, which copies"
        )

    def time(self, number: int) -> float:
        """Run the model `number` times in a row, and return the total time in seconds.

        The server's clock measures the time.
        """
        return float(self._program.call("runtime.time", self.executor, number))

    def profile(self) -> list[OperatorTiming]:
        """Run every operator once, and return the times at which each operator ran."""
        return cpu_timings(json.loads(self._program.call("remote.profile", self.executor)))

    def _tensor(self, value: int) -> Any:
        if value not in self._tensors:
            self._tensors[value] = self._program.tensor(value)
        return self._tensors[value]

    def _warn_of_few_cores(self) -> None:
        wanted = sum(stream.threads for stream in self.plan.streams)
        if wanted > self._program.cores:
            warnings.warn(
                f"the model was compiled for {wanted} cores, and the server may use "
                f"{self._program.cores}: the streams take turns, which is right but slow",
                RuntimeWarning,
                stacklevel=4,
            )


def _words(array: np.ndarray) -> np.ndarray:
    """Return `array`. A bfloat16 array is returned as uint16, as TVM's kernels expect it."""
    return array.view(np.uint16) if array.dtype == "bfloat16" else array


def _plan_on_tvm_alone(artifact: Artifact) -> Plan:
    if any(stream.device.partition(":")[0] != "cpu" for stream in artifact.plan.streams):
        raise DeviceError("a server runs models compiled for a CPU; compile the model for `llvm`")
    libraries = sorted({op.library for op in artifact.plan.operators if op.library is not None})
    if not libraries:
        return artifact.plan
    if artifact.fallback is None:
        raise ArtifactError(
            f"the model was compiled for kernel library `{libraries[0]}`, which servers do not "
            "have; compile the model again with --providers tvm"
        )
    _LOG.warning(
        "the model was compiled for kernel library `%s`, which servers do not have: TVM's kernels "
        "run, one after the other; compile the model with --providers tvm for a schedule of TVM's "
        "kernels",
        libraries[0],
    )
    return artifact.fallback


def _described(plan: Plan) -> dict[str, Any]:
    """Return the arguments of `ServedProgram` for `plan`. Buffer 0 is the plan's arena."""
    buffers = [plan.arena_bytes]
    values: dict[int, ServedTensor] = {}
    roots_first = sorted(range(len(plan.values)), key=lambda v: plan.values[v].storage == "alias")
    for v in roots_first:
        value = plan.values[v]
        buffer, offset = 0, value.offset or 0
        if value.alias_of is not None:
            root = values[value.alias_of]
            buffer, offset = root.buffer, root.offset + offset
        elif value.storage != "arena":
            buffer = len(buffers)
            buffers.append(value.nbytes)
        values[v] = ServedTensor(value.dtype, value.stored_shape, buffer, offset)
    (threads,) = {stream.threads for stream in plan.streams}
    return {
        "streams": len(plan.streams),
        "threads": threads,
        "buffers": buffers,
        "values": [values[v] for v in range(len(plan.values))],
        "operators": [
            ServedOperator(op.kernel, (*op.inputs, *op.outputs), op.share or ())
            for op in plan.operators
        ],
    }
