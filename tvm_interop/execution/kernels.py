"""Finds the kernel that runs each operator: TVM's kernel, or a kernel of a kernel library.

TVM's kernels were compiled with the model. A kernel library makes its kernel when the model is
loaded, for given tensors. Executors can run kernels of both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from .._native import cpu as _cpu
from .._native import cuda as _cuda
from ..errors import ArtifactError, ExecutionError
from ..machine.kernel_libraries import library_version, why_missing
from ..program.library_op import LibraryOp


class AnyOperator(Protocol):
    """The attributes that operators of programs and operators of plans share."""

    @property
    def name(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def inputs(self) -> tuple[int, ...]: ...
    @property
    def outputs(self) -> tuple[int, ...]: ...
    @property
    def library(self) -> str | None: ...
    @property
    def description(self) -> LibraryOp | None: ...


PrepareKernel = Callable[[AnyOperator, str, dict[str, Any], Sequence[Any], int], Any]
"""A function that prepares a library's kernel. Its arguments are the operator, the library's name,
the fields of the operator's description, the operator's tensors, and the stream's index."""


class Kernels:
    """The kernels of one program or plan, on a CPU (`cpu_kernels`) or on GPUs (`cuda_kernels`)."""

    def __init__(
        self, compiled: Any, operators: Iterable[AnyOperator], prepare: PrepareKernel
    ) -> None:
        """Find TVM's kernels.

        Parameters
        ----------
        compiled: TVM's kernels, loaded.
        operators: the operators that will need a kernel.
        prepare: prepares the kernels of libraries.

        Raises
        ------
        ArtifactError
            `compiled` lacks the kernel of an operator that no library computes.
        """
        names = {op.kernel for op in operators if op.library is None}
        self._functions = kernel_functions(compiled, sorted(names))
        self._prepare = prepare

    def of(self, op: AnyOperator, tensors: Sequence[Any], stream: int = 0) -> Any:
        """Return the kernel that runs `op`, in the form that executors take.

        A library's kernel is bound to its tensors and can run on any stream. TVM's kernel is a
        packed function.

        Parameters
        ----------
        tensors: the inputs and outputs of `op`, in order.
        stream: the stream on whose device a library prepares its kernel.

        Raises
        ------
        ExecutionError
            The library has no kernel for `op`; the message says why.
        """
        if op.library is None or op.description is None:
            return self._functions[op.kernel]
        return self._prepare(op, op.library, op.description.fields(), tensors, stream)

    def shipped(self, op: AnyOperator, tensors: Sequence[Any], stream: int = 0) -> Any:
        """Return the kernel of an operator of an artifact, in the form that executors take.

        Raises
        ------
        ArtifactError
            The kernel library of `op` is missing, or it has no kernel for `op`.
        """
        if op.library is not None and library_version(op.library) is None:
            raise ArtifactError(
                f"operator `{op.name}` needs kernel library `{op.library}`, which is missing here: "
                f"{why_missing(op.library)}; install `tvm-interop[{op.library}]`, or compile the "
                "model again"
            )
        try:
            return self.of(op, tensors, stream)
        except ExecutionError as error:
            raise ArtifactError(
                f"operator `{op.name}`: {error}; compile the model again"
            ) from error


def cpu_kernels(
    compiled: Any, operators: Iterable[AnyOperator], is_constant: Callable[[int], bool]
) -> Kernels:
    """Return the kernels for this CPU.

    Each library kernel uses one thread. Large operators still use several threads, because the
    compiler has divided them into parts that run at once.

    Parameters
    ----------
    is_constant: whether a value, given its index, holds the same numbers in every run.
    """

    def prepare(
        op: AnyOperator, library: str, fields: dict[str, Any], tensors: Sequence[Any], stream: int
    ) -> _cpu.LibraryKernel:
        constants = [is_constant(v) for v in (*op.inputs, *op.outputs)]
        return _cpu.prepare_kernel(library, fields, 1, tensors, constants)

    return Kernels(compiled, operators, prepare)


def cuda_kernels(
    compiled: Any, operators: Iterable[AnyOperator], streams: _cuda.CudaStreams
) -> Kernels:
    """Return the kernels for the GPUs that `streams` are on."""
    return Kernels(
        compiled,
        operators,
        lambda op, library, fields, tensors, stream: _cuda.prepare_kernel(
            library, fields, streams, stream, tensors
        ),
    )


def kernel_functions(compiled: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the functions `names` of TVM's loaded kernels, by name.

    Raises
    ------
    ArtifactError
        The library lacks one of the functions.
    """
    found = {}
    for name in names:
        try:
            found[name] = compiled.get_function(name, True)
        except AttributeError as error:
            raise ArtifactError(
                f"the kernel library has no `{name}`; compile the model again"
            ) from error
    return found
