"""Makes the instance that runs an artifact's plan, on the device that the plan is for."""

from __future__ import annotations

import os
import warnings
from typing import Any

from .._native import cpu as _runtime
from ..artifact.artifact import Artifact, load
from ..errors import InputError
from ..plan.plan import Plan
from .cpu import Instance
from .cuda import CudaInstance, require_gpu, runs_on_cuda


def open_instance(artifact: Artifact, kernels: Any = None) -> Instance | CudaInstance:
    """Return an instance of the artifact's plan, on the device that the plan is for.

    Warn if a plan for a CPU was made for more cores than this process may use.

    Parameters
    ----------
    kernels: the result of `artifact.load_kernels`, which instances may share. None loads the
        kernels.

    Raises
    ------
    ArtifactError, DeviceError
        The same cases as for `GraphModule`.
    """
    plan = artifact.usable_plan()
    if runs_on_cuda(plan):
        require_gpu(plan)
    kernels = artifact.load_kernels() if kernels is None else kernels
    if runs_on_cuda(plan):
        return CudaInstance(plan, kernels, artifact.weights)
    instance = Instance(plan, kernels, artifact.weights)
    wanted = cores_of(plan)
    if wanted > _runtime.num_threads():
        warnings.warn(
            f"the model was compiled for {wanted} cores, and this process may use "
            f"{_runtime.num_threads()}: parts that should run side by side take turns, which is "
            "right but slow; compile the model here, or with fewer streams, or allow more threads "
            "with tvm_interop.set_num_threads",
            RuntimeWarning,
            stacklevel=3,
        )
    return instance


def tell_of_idle_cores(plan: Plan) -> None:
    """Warn if a plan for a CPU was made for fewer cores than this process may use."""
    if not leaves_cores_idle(plan):
        return
    wanted, here = cores_of(plan), _runtime.num_threads()
    warnings.warn(
        f"the model was compiled for {wanted} core{'s' if wanted > 1 else ''}, and this process "
        f"may use {here}: the other cores stay idle. Compile the model here to use all cores, or "
        f"limit this process with tvm_interop.set_num_threads({wanted})",
        RuntimeWarning,
        stacklevel=3,
    )


def leaves_cores_idle(plan: Plan) -> bool:
    """Whether a plan for a CPU was made for fewer cores than this process may use."""
    return not runs_on_cuda(plan) and 0 < cores_of(plan) < _runtime.num_threads()


def cores_of(plan: Plan) -> int:
    """Return the number of cores that a plan for a CPU was made for."""
    return sum(stream.threads for stream in plan.streams)


def artifact_at(artifact: Any) -> Artifact:
    """Return an artifact that is given as such or by its path."""
    if isinstance(artifact, Artifact):
        return artifact
    if isinstance(artifact, (str, os.PathLike)):
        return load(artifact)
    raise InputError(
        f"a GraphModule is made of an artifact or its path, not of a `{type(artifact).__name__}`: "
        "give what `tvm_interop.compile` returned"
    )
