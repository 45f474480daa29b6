"""Makes the instance that runs an artifact's plan, on the device that the plan is for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .._native.runtime import Port, num_threads
from ..artifact.artifact import Artifact, load
from ..errors import InputError
from .counted_outputs import CountedOutputs
from .instance import ChangeableInstance, PlanInstance, ports_of, tensors_nbytes
from .native import NativeInstance
from .row_range import RowRange
from .strings import Strings

if TYPE_CHECKING:
    from .cpu import Instance
    from .cuda import CudaInstance
    from .rpc_server import ServerAddress


class Shapes:
    """The sets of input shapes that a model was compiled for, and instances for each of them.

    Attributes
    ----------
    inputs, outputs: the model's inputs and outputs, for each set of input shapes.
    batch_sizes: the batch size of each set of input shapes; empty if the model was not compiled for
        batch sizes.
    counted: the outputs whose size depends on values that the model computes. In `outputs` they
        have their largest possible shapes.
    strings: the inputs and outputs that are strings. In `inputs` and `outputs`, they have integers:
        the positions of strings in tables.
    row_range: the ranges of sizes for which the model was compiled; None if it was compiled only
        for exact input shapes.
    """

    def __init__(self, artifact: Artifact, server: ServerAddress | None = None) -> None:
        """List the sets of input shapes. A model on a server has only the first set."""
        self._artifact, self._server = artifact, server
        self._kernels: dict[int, Any] = {}
        self.inputs: list[list[Port]]
        self.outputs: list[list[Port]]
        self.counted = CountedOutputs(artifact, is_remote=server is not None)
        self.strings = Strings(artifact, is_remote=server is not None)
        if artifact.native is not None and server is None:
            self.inputs, self.outputs = artifact.native.inputs, artifact.native.outputs
            self.batch_sizes = artifact.native.batch_sizes
            ranges, masks = artifact.native.ranges, artifact.native.row_masks
        else:
            models = [artifact, *(artifact.others if server is None else ())]
            ports = [ports_of(model.plan) for model in models]
            self.inputs = [each[0] for each in ports]
            self.outputs = [self.counted.of_model(each[1]) for each in ports]
            self.batch_sizes = artifact.manifest.batch_sizes
            known = artifact.manifest.row_sizes
            ranges = {} if known is None or server else known.ranges
            masks = known.where_one if known else {}
        self.row_range = RowRange(ranges, self.inputs, self.outputs, masks) if ranges else None

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def weights_nbytes(self) -> int:
        """The size of the weights, which all instances share, in bytes."""
        if self._artifact.native is not None:
            return self._artifact.native.weights_nbytes
        nbytes: dict[int, int] = {}
        for artifact in (self._artifact, *self._artifact.others):
            nbytes.update((w.ctypes.data, w.nbytes) for w in artifact.weights.values())
        return sum(nbytes.values())

    def instance_nbytes(self, shape: int) -> int:
        """Return the bytes of an instance's tensors for a set of input shapes, without weights."""
        if self._artifact.native is not None:
            return self._artifact.native.instance_nbytes(shape)
        return tensors_nbytes(self._artifact.of_shape(shape).usable_plan())

    def open(self, shape: int) -> PlanInstance:
        """Return a new instance for a set of input shapes.

        Raises
        ------
        ArtifactError, DeviceError
            The same cases as for `GraphModule`.
        """
        artifact = self._artifact
        if self._server is not None:
            from .rpc import RemoteInstance

            return RemoteInstance(artifact, self._server)
        if artifact.native is None:
            return self._open_changeable(shape)
        instance = NativeInstance(artifact, shape)
        _warn_of_few_cores(artifact.native.num_threads(shape))
        return instance

    def changeable(self, instance: PlanInstance, shape: int) -> ChangeableInstance:
        """Return an instance with the same inputs as `instance`, whose weights can be replaced.

        The result is `instance` itself, unless its weights are fixed.

        If memory of the caller was bound to `instance`, a new instance uses this memory too.
        """
        if isinstance(instance, ChangeableInstance):
            return instance
        assert isinstance(instance, NativeInstance), "only a native instance has fixed weights"
        changeable = self._open_changeable(shape)
        instance.take_over(changeable)
        return changeable

    def _open_changeable(self, shape: int) -> Instance | CudaInstance:
        return open_instance(self._artifact.of_shape(shape), lambda: self._kernels_of(shape))

    def _kernels_of(self, shape: int) -> Any:
        if shape not in self._kernels:
            self._kernels[shape] = self._artifact.of_shape(shape).load_kernels()
        return self._kernels[shape]

    def fitting(self, sizes: Mapping[int, tuple[int, ...]]) -> int:
        """Return the index of the first set of input shapes in which inputs have the given shapes.

        Parameters
        ----------
        sizes: the shapes, by the inputs' positions. Inputs without an entry may have any shape.

        Raises
        ------
        InputError
            The model was not compiled for inputs of these shapes.
        """
        for shape, ports in enumerate(self.inputs):
            if all(ports[i].shape == size for i, size in sizes.items()):
                return shape
        if self.row_range is not None:
            self.row_range.check_shapes(sizes)
        found = {self.inputs[0][i].name: size for i, size in sizes.items()}
        known = "; ".join(str(shapes) for shapes in self._artifact.input_shapes)
        raise InputError(
            f"the model was not compiled for the shapes {found}; it was compiled for {known}"
        )


def open_instance(
    artifact: Artifact, kernels: Callable[[], Any] | None = None
) -> Instance | CudaInstance:
    """Return an instance of the artifact's plan, on the device that the plan is for.

    Warn if a plan for a CPU was made for more cores than this process may use.

    Parameters
    ----------
    kernels: a function that returns the loaded kernels, which instances may share;
        `artifact.load_kernels` by default. It is called only if the plan's device exists.

    Raises
    ------
    ArtifactError, DeviceError
        The same cases as for `GraphModule`.
    """
    from .cpu import Instance
    from .cuda import CudaInstance, require_gpu, runs_on_cuda

    plan = artifact.usable_plan()
    if runs_on_cuda(plan):
        require_gpu(plan)
    loaded = (kernels or artifact.load_kernels)()
    if runs_on_cuda(plan):
        return CudaInstance(plan, loaded, artifact.weights)
    instance = Instance(plan, loaded, artifact.weights)
    _warn_of_few_cores(sum(stream.threads for stream in plan.streams))
    return instance


def _warn_of_few_cores(wanted: int) -> None:
    here = num_threads()
    if wanted > here:
        warnings.warn(
            f"the model was compiled for {wanted} cores, and this process may use {here}: "
            "operators that should run side by side take turns, which is right but slow; compile "
            "the model here, or with fewer streams, or allow more threads with "
            "tvm_interop.set_num_threads",
            RuntimeWarning,
            stacklevel=4,
        )


def tell_of_idle_cores(artifact: Artifact) -> None:
    """Warn if a model for a CPU was compiled for fewer cores than this process may use."""
    if not leaves_cores_idle(artifact):
        return
    wanted, here = artifact.cores, num_threads()
    warnings.warn(
        f"the model was compiled for {wanted} core{'s' if wanted > 1 else ''}, and this process "
        f"may use {here}: the other cores stay idle. Compile the model here to use all cores, or "
        f"limit this process with tvm_interop.set_num_threads({wanted})",
        RuntimeWarning,
        stacklevel=3,
    )


def leaves_cores_idle(artifact: Artifact) -> bool:
    """Whether a model for a CPU was compiled for fewer cores than this process may use."""
    return not artifact.is_for_gpus and 0 < artifact.cores < num_threads()


def artifact_at(artifact: Any) -> Artifact:
    """Return `artifact` if it is an artifact, or load the artifact if it is a path."""
    if isinstance(artifact, Artifact):
        return artifact
    if isinstance(artifact, (str, os.PathLike)):
        return load(artifact)
    raise InputError(
        f"a GraphModule is made of an artifact or its path, not of a `{type(artifact).__name__}`: "
        "give what `tvm_interop.compile` returned"
    )
